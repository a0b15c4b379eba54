"""Kubelet's calls about one resource: which ids to take, what stands for them, whose they turned out to be.

    Allocate           kubelet does not say for which pod it asks. We answer with a name that was never used.
    PreStartContainer  kubelet has recorded whose ids these are. We look there, find the pod's grant, check
                       it, and put it under the name. No grant: an error, the container waits, kubelet asks
                       again. So nobody ever starts with another's grant, and nothing stays broken.

Allocate and GetPreferredAllocation run inside kubelet's admission: no call over the network, no waiting.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from accelshare.core.container import Edits, merge
from accelshare.core.errors import AccelshareError, BadInput, GrantRefused, NotReady
from accelshare.core.grant import GRANT, ContainerGrant, Grant
from accelshare.core.objects import Pod
from accelshare.core.ownership import NONCE_ANNOTATION, Allocation, Owner, Unknown, owners
from accelshare.dialects import DIALECTS
from accelshare.drivers.interface import Driver
from accelshare.kube.kubelet.checkpoint import FILE_NAME, read_checkpoint
from accelshare.kube.kubelet.plugin import AllocateAnswer
from accelshare.services.agent.allocations import Allocations, Given
from accelshare.services.agent.book import GrantBook
from accelshare.services.agent.injection import Injector
from accelshare.services.agent.offers import prefer
from accelshare.services.agent.view import NodeView, quietly_refresh

_log = logging.getLogger(__name__)

CANDIDATE_SECONDS = 2.0  # direct injection: how long Allocate waits for our watch to catch up with kubelet's


class Reports(Protocol):
    """Who is told what became of a pod. Nothing here waits for it."""

    def refused(self, pod: Pod, why: str) -> None: ...

    def mismatched(self, pod: Pod, why: str) -> None: ...

    def served(self, pod: Pod) -> None:
        """All containers of the pod that were granted something have it."""
        ...


class Serving:
    """The handlers of one primary resource."""

    def __init__(
        self,
        resource: str,
        *,
        view: NodeView,
        driver: Driver,
        book: GrantBook,
        allocations: Allocations,
        injector: Injector,
        reports: Reports,
        plugin_folder: Path,
        now: Callable[[], float],
    ) -> None:
        self._resource = resource
        self._view = view
        self._driver = driver
        self._book = book
        self._allocations = allocations
        self._injector = injector
        self._reports = reports
        self._checkpoint = plugin_folder / FILE_NAME
        self._now = now
        self._has: dict[str, set[str]] = {}  # pod UID -> containers that were served since we started

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        return prefer(available, must, size)

    async def allocate(self, ids: Sequence[str]) -> AllocateAnswer:
        if self._injector.way == "direct":
            return await self._allocate_directly(ids)
        nonce = self._allocations.give(self._resource, ids, self._now())
        return AllocateAnswer(cdi=self._injector.names(nonce))

    async def pre_start(self, ids: frozenset[str]) -> None:
        for owner in await self._owners(ids):
            try:
                await self._serve(owner, ids)
            except GrantRefused as error:
                pod = self._view.pods.get(owner.pod_uid)
                if pod is not None:
                    self._reports.refused(pod, str(error))
                raise

    # Whose

    async def _owners(self, ids: frozenset[str]) -> tuple[Owner, ...]:
        answer = self._look_up(ids)
        if isinstance(answer, Unknown) and await quietly_refresh(self._view):
            answer = self._look_up(ids)
        if isinstance(answer, Unknown):
            raise NotReady(f"it is not certain yet whose device ids these are: {answer.reason}")
        return answer

    def _look_up(self, ids: frozenset[str]) -> tuple[Owner, ...] | Unknown:
        return owners(
            ids,
            self._resource,
            checkpoint=self.recorded(),
            podresources=None,
            pods=self._view.known(),
        )

    def recorded(self) -> tuple[Allocation, ...] | None:
        """Kubelet's checkpoint, None where it cannot be read."""
        try:
            return read_checkpoint(self._checkpoint.read_bytes()).allocations
        except (OSError, BadInput) as error:
            _log.warning("kubelet's checkpoint cannot be read: %s", error)
            return None

    # What

    async def _serve(self, owner: Owner, ids: frozenset[str]) -> None:
        pod = self._view.pods[owner.pod_uid]
        if owner.nonce is None:
            if pod.annotation(GRANT) is None:
                return  # another plugin answered before we took over: kubelet kept what it said
            raise NotReady(f"kubelet's record of {pod.key} holds no answer of this agent")
        grant = await self._admit(pod)
        container = self._part(grant, owner, ids)
        if self._injector.way == "direct":
            self._compare(pod, owner, container)
        else:
            self._injector.put(owner.nonce, self.edits(grant, container))
        served = self._has.setdefault(pod.metadata.uid, set())
        served.add(owner.container)
        if served.issuperset(part.name for part in grant.containers):
            self._reports.served(pod)

    async def _admit(self, pod: Pod) -> Grant:
        self._forget_ended()
        try:
            return self._book.admit(pod, self._view.cards)
        except GrantRefused:
            # Our watch may not have heard yet that a neighbour has ended, or of the grant itself.
            if not await quietly_refresh(self._view):
                raise
        self._forget_ended()
        fresh = self._view.pods.get(pod.metadata.uid)
        if fresh is None:
            raise NotReady(f"pod {pod.key} is gone")
        return self._book.admit(fresh, self._view.cards)

    def _forget_ended(self) -> None:
        for uid in self._book.pods():
            if not self._view.living(uid):
                self._book.forget(uid)
                self._has.pop(uid, None)

    def _part(self, grant: Grant, owner: Owner, ids: frozenset[str]) -> ContainerGrant:
        """The container's part of the grant, which must be what kubelet handed out."""
        part = next((part for part in grant.containers if part.name == owner.container), None)
        if part is None:
            raise GrantRefused(
                f"the grant of {owner.namespace}/{owner.name} has no part for {owner.container}"
            )
        enumerated = self._resource == DIALECTS[grant.dialect].primary
        if enumerated and part.units != len(ids):
            raise GrantRefused(
                f"the grant of {owner.namespace}/{owner.name} gives {owner.container} {part.units} units of "
                f"{self._resource}, and kubelet {len(ids)}"
            )
        return part

    def edits(self, grant: Grant, part: ContainerGrant, *, whose: bool = True) -> Edits:
        """whose: say the pod's UID too, which only one who knows it may do."""
        cards = [self._view.cards[share.card] for share in part.shares]
        dialect = DIALECTS[grant.dialect]
        ours = (
            *((("ACCELSHARE_POD_UID", grant.uid),) if whose else ()),
            ("ACCELSHARE_CARDS", ",".join(card.id for card in cards)),
            ("ACCELSHARE_MEMORY_BYTES", ",".join(str(share.memory) for share in part.shares)),
            ("ACCELSHARE_COMPUTE_PERCENT", ",".join(str(share.compute) for share in part.shares)),
        )
        theirs = tuple(dialect.env(part, grant, cards).items())
        return merge([self._driver.edits(cards), Edits(env=ours), Edits(env=theirs)])

    # Directly

    async def _allocate_directly(self, ids: Sequence[str]) -> AllocateAnswer:
        pod, grant, part = await self._candidate(len(ids))
        nonce = self._allocations.give(self._resource, ids, self._now(), pod.metadata.uid, part.name)
        edits = self.edits(grant, part, whose=False)
        return AllocateAnswer(
            env=dict(edits.env),
            devices=edits.devices,
            mounts=edits.mounts,
            annotations={NONCE_ANNOTATION: nonce},
        )

    async def _candidate(self, size: int) -> tuple[Pod, Grant, ContainerGrant]:
        """The oldest grant of that size which nobody was answered yet."""
        try:
            async with asyncio.timeout(CANDIDATE_SECONDS):
                while True:
                    waiting = self._unserved(size)
                    if waiting:
                        return waiting[0]
                    async with self._view.changed:
                        await self._view.changed.wait()
        except TimeoutError:
            raise NotReady(
                f"no pod of this node has an unserved grant of {size} {self._resource}: "
                "was it bound by another scheduler?"
            ) from None

    def _unserved(self, size: int) -> list[tuple[Pod, Grant, ContainerGrant]]:
        given = {(given.pod_uid, given.container) for given in self._allocations.given.values()}
        found = []
        for uid, pod in self._view.pods.items():
            if pod.finished:
                continue
            try:
                grant = self._book.check(pod)
            except GrantRefused:
                continue
            if self._resource != DIALECTS[grant.dialect].primary:
                continue
            for part in grant.containers:
                if part.units == size and (uid, part.name) not in given:
                    found.append((pod, grant, part))
        return sorted(found, key=lambda item: item[1].time)

    def _compare(self, pod: Pod, owner: Owner, part: ContainerGrant) -> None:
        """What was answered in Allocate must be what this container was granted."""
        given = self._allocations.given.get(owner.nonce or "")
        if given is not None and self._answered_alike(given, part):
            return
        why = (
            f"kubelet gave container {owner.container} of {pod.key} what was answered for another pod, which "
            "holds another card: the container is not started, and the pod is evicted so that it comes again"
        )
        self._reports.mismatched(pod, why)
        raise GrantRefused(why)

    def _answered_alike(self, given: Given, part: ContainerGrant) -> bool:
        """Equal shares are as good: the same cards and amounts, whoever they were meant for."""
        answered = self._book.get(given.pod_uid)
        pod = self._view.pods.get(given.pod_uid)
        if answered is None and pod is not None:
            try:
                answered = self._book.check(pod)
            except AccelshareError:
                return False
        if answered is None:
            return False
        return any(
            other.name == given.container and other.shares == part.shares for other in answered.containers
        )
