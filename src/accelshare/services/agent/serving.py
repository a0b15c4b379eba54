"""Kubelet's calls about one resource: which ids to take, what stands for them, whose they turned out to be.

    Allocate           kubelet does not say for which pod it asks. We answer with a name that was never used.
    PreStartContainer  kubelet has recorded whose ids these are. We look there, find the pod's grant, check
                       it, and put it under the name. No grant: an error, the container waits, kubelet asks
                       again. So nobody ever starts with another's grant, and nothing stays broken.

Allocate and GetPreferredAllocation run inside kubelet's admission: no call over the network, and no waiting
but for our own disk (with direct injection also for our own watch, which an answer cannot do without).
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from accelshare.core.container import Edits, merge
from accelshare.core.errors import BadInput, GrantRefused, NotReady
from accelshare.core.grant import GRANT, ContainerGrant, Grant
from accelshare.core.objects import Pod
from accelshare.core.ownership import NONCE_ANNOTATION, Allocation, Owner, Unknown, owners
from accelshare.dialects import DIALECTS, SLOT
from accelshare.dialects.amounts import amount
from accelshare.dialects.interface import Dialect
from accelshare.drivers.interface import Driver
from accelshare.kube.kubelet.plugin import AllocateAnswer
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.aside import aside
from accelshare.services.agent.book import GrantBook, card_named
from accelshare.services.agent.injection import Injector
from accelshare.services.agent.offers import prefer
from accelshare.services.agent.record import KubeletRecord
from accelshare.services.agent.view import NodeView, quietly_refresh

CANDIDATE_SECONDS = 2.0  # direct injection: how long Allocate waits for our watch to catch up with kubelet's
DRIVER_SECONDS = 10.0  # of the 30 that kubelet gives to PreStartContainer


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
        record: KubeletRecord,
        now: Callable[[], float],
        counted: frozenset[str] = frozenset(),
        patience: float = CANDIDATE_SECONDS,
    ) -> None:
        """counted: the dialects whose grants this resource carries, where it is the slot."""
        self._resource = resource
        self._view = view
        self._driver = driver
        self._book = book
        self._allocations = allocations
        self._injector = injector
        self._reports = reports
        self._record = record
        self._now = now
        self._counted = counted
        self._patience = patience

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        return prefer(available, must, size)

    async def allocate(self, ids: Sequence[str]) -> AllocateAnswer:
        if self._injector.way == "direct":
            return await self._allocate_directly(ids)
        nonce = await self._allocations.give(self._resource, ids, self._now())
        return AllocateAnswer(cdi=self._injector.names(nonce))

    async def pre_start(self, ids: frozenset[str]) -> None:
        for owner in await self._owners(ids):
            pod = self._known(owner)
            try:
                await self._serve(pod, owner, ids)
            except _Mismatch as error:
                self._reports.mismatched(pod, str(error))
                raise
            except GrantRefused as error:
                self._reports.refused(pod, str(error))
                raise
            if self.complete(pod.metadata.uid):
                self._reports.served(pod)

    def complete(self, uid: str) -> bool:
        """Whether every container of the pod that was granted something has it."""
        grant = self._book.get(uid)
        if grant is None:
            return False
        served = {
            allocation.container
            for allocation in self._record.latest()
            if allocation.pod_uid == uid and self._has_been_served(allocation)
        }
        return served.issuperset(part.name for part in grant.containers)

    def _has_been_served(self, allocation: Allocation) -> bool:
        if allocation.resource != self._resource or allocation.nonce is None:
            return False
        return self._injector.has(allocation.nonce)

    # Whose

    async def _owners(self, ids: frozenset[str]) -> tuple[Owner, ...]:
        answer = self._look_up(ids)
        if isinstance(answer, Unknown) and await quietly_refresh(self._view):
            answer = self._look_up(ids)
        if isinstance(answer, Unknown):
            raise NotReady(f"it is not certain yet whose device ids these are: {answer.reason}")
        return answer

    def _look_up(self, ids: frozenset[str]) -> tuple[Owner, ...] | Unknown:
        # Pod-resources is not asked in the checkpoint's place: it tells neither nonce nor UID and leaves out
        # plain init containers, so that another pod's grant could be put under the name of one of these.
        return owners(
            ids,
            self._resource,
            checkpoint=self._record.read(),
            podresources=None,
            pods=self._view.known(),
        )

    def _known(self, owner: Owner) -> Pod:
        pod = self._view.pods.get(owner.pod_uid)
        if pod is None:
            raise NotReady(f"pod {owner.namespace}/{owner.name} is gone")
        return pod

    # What

    async def _serve(self, pod: Pod, owner: Owner, ids: frozenset[str]) -> None:
        if owner.nonce is None:
            if pod.annotation(GRANT) is None:
                return  # another plugin answered before we took over: kubelet kept what it said
            raise NotReady(f"kubelet's record of {pod.key} holds no answer of this agent")
        grant = await self._admit(pod)
        part = self._part(grant, owner, ids)
        if self._injector.way == "direct":
            self._compare(pod, owner, part)
        await self._injector.put(owner.nonce, await self._edits(pod, grant, part))

    async def _admit(self, pod: Pod) -> Grant:
        self.forget_ended()
        try:
            return await self._book.admit(pod, self._view.cards, self._view.tenants())
        except GrantRefused:
            # Our watch may not have heard yet that a neighbour has ended, or of the grant itself.
            if not await quietly_refresh(self._view):
                raise
        self.forget_ended()
        fresh = self._view.pods.get(pod.metadata.uid)
        if fresh is None:
            raise NotReady(f"pod {pod.key} is gone")
        return await self._book.admit(fresh, self._view.cards, self._view.tenants())

    def forget_ended(self) -> None:
        for uid in self._book.pods():
            if not self._view.living(uid):
                self._book.forget(uid)

    def _part(self, grant: Grant, owner: Owner, ids: frozenset[str]) -> ContainerGrant:
        """The container's part of the grant, which must be what kubelet handed out."""
        part = next((part for part in grant.containers if part.name == owner.container), None)
        if part is None:
            raise GrantRefused(
                f"the grant of {owner.namespace}/{owner.name} has no part for {owner.container}"
            )
        enumerated = self._resource == _dialect(grant).primary
        if enumerated and part.units != len(ids):
            raise GrantRefused(
                f"the grant of {owner.namespace}/{owner.name} gives {owner.container} {part.units} units of "
                f"{self._resource}, and kubelet {len(ids)}"
            )
        return part

    async def _edits(self, pod: Pod, grant: Grant, part: ContainerGrant, *, whose: bool = True) -> Edits:
        """whose: say the pod's UID too, which only one who knows it may do."""
        dialect = _dialect(grant)
        cards = [card_named(share.card, grant.uid, self._view.cards) for share in part.shares]
        try:
            async with asyncio.timeout(DRIVER_SECONDS):
                needed = await aside(partial(self._driver.edits, cards))
        except TimeoutError:
            raise NotReady(
                f"the {self._driver.name} driver has not said within {DRIVER_SECONDS:g} s what a container "
                "needs to open its cards"
            ) from None
        ours = (
            *((("ACCELSHARE_POD_UID", grant.uid),) if whose else ()),
            ("ACCELSHARE_CARDS", ",".join(card.id for card in cards)),
            ("ACCELSHARE_MEMORY_BYTES", ",".join(str(share.memory) for share in part.shares)),
            ("ACCELSHARE_COMPUTE_PERCENT", ",".join(str(share.compute) for share in part.shares)),
        )
        return merge([needed, Edits(env=ours), dialect.edits(pod, part, grant, cards)])

    # Directly

    async def _allocate_directly(self, ids: Sequence[str]) -> AllocateAnswer:
        pod, grant, part = await self._candidate(len(ids))
        nonce = await self._allocations.give(
            self._resource,
            ids,
            self._now(),
            pod_uid=pod.metadata.uid,
            container=part.name,
            shares=part.shares,
        )
        edits = await self._edits(pod, grant, part, whose=False)
        return AllocateAnswer(
            env=dict(edits.env),
            devices=edits.devices,
            mounts=edits.mounts,
            annotations={NONCE_ANNOTATION: nonce},
        )

    async def _candidate(self, size: int) -> tuple[Pod, Grant, ContainerGrant]:
        """The oldest grant which nobody was answered yet and which these ids may stand for."""
        try:
            async with asyncio.timeout(self._patience), self._view.changed:
                while not (waiting := self._unserved(size)):
                    await self._view.changed.wait()
        except TimeoutError:
            raise NotReady(
                f"no pod of this node has an unserved grant of {size} {self._resource}: "
                "was it bound by another scheduler?"
            ) from None
        return waiting[0]

    def _unserved(self, size: int) -> list[tuple[Pod, Grant, ContainerGrant]]:
        recorded = [
            allocation
            for allocation in self._record.latest()
            if allocation.resource == self._resource and allocation.nonce is not None
        ]
        # Kubelet's record says who has an answer, also one that was meant for another or came by CDI. Whose
        # an answer is that does not stand there yet, nobody knows; we take it for the one we meant.
        answered = {(allocation.pod_uid, allocation.container) for allocation in recorded}
        nonces = {allocation.nonce for allocation in recorded}
        answered |= {
            (given.pod_uid, given.container)
            for given in self._allocations.given.values()
            if given.nonce not in nonces
        }
        found = []
        for uid, pod in self._view.pods.items():
            if pod.finished:
                continue
            try:
                grant = self._book.check(pod)
                dialect = _dialect(grant)
            except GrantRefused:
                continue
            if self._resource == SLOT:
                fitting = _with_slots(pod, size) if dialect.name in self._counted else frozenset()
            else:
                same = self._resource == dialect.primary
                fitting = frozenset(part.name for part in grant.containers if same and part.units == size)
            for part in grant.containers:
                if part.name in fitting and (uid, part.name) not in answered:
                    found.append((pod, grant, part))
        return sorted(found, key=lambda item: item[1].time)

    def _compare(self, pod: Pod, owner: Owner, part: ContainerGrant) -> None:
        """What was answered in Allocate must be as good as what this container was granted."""
        given = self._allocations.find(owner.nonce or "")
        if given is not None and given.shares == part.shares:
            return
        raise _Mismatch(
            f"kubelet gave container {owner.container} of {pod.key} what was answered for another pod, which "
            "holds another share: the container is not started, and the pod is deleted so that it comes again"
        )


class _Mismatch(GrantRefused):
    """The container would open another pod's card; only a new pod can be given its own."""


def _with_slots(pod: Pod, count: int) -> frozenset[str]:
    """The containers that ask for so many slots. One without is served by its own resource, from before."""
    found = set()
    for _, container in pod.containers():
        with contextlib.suppress(BadInput):
            if amount(container, SLOT) == count:
                found.add(container.name)
    return frozenset(found)


def _dialect(grant: Grant) -> Dialect:
    dialect = DIALECTS.get(grant.dialect)
    if dialect is None:
        raise GrantRefused(
            f"the grant of pod {grant.uid} is in dialect {grant.dialect!r}, which this agent does not speak"
        )
    return dialect
