"""Freed room is offered at once: one patch on a waiting pod makes kube-scheduler ask about it again.

kube-scheduler does not ask again about a pod that an extender refused before some event of the cluster; and
when it hears of a deletion before we do, it asks, is told "full", and falls silent. So every change of the
ledger that turns a refusal into a fit nudges.

    choose    pure: on a scratch copy of the node's room, whose turn it is; nobody else for the same piece
    Nudger    does it, and looks again when the first did not take the piece within two seconds

A nudge that finds no room lengthens the pod's back-off, so one pod per freed piece comes first.
"""

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from accelshare.core.errors import AccelshareError
from accelshare.core.grant import charges
from accelshare.core.ledger import Ledger, NodeState, Tenant
from accelshare.core.objects import Pod
from accelshare.core.placement import Placement, grant, place, refusal
from accelshare.core.request import Shape
from accelshare.kube.api.errors import ApiError
from accelshare.services.scheduler.api import Api
from accelshare.services.scheduler.metrics import Metrics
from accelshare.services.scheduler.refusals import Refused, RefusedPods
from accelshare.services.scheduler.state import SchedulerState

_log = logging.getLogger(__name__)

NUDGE = "accelshare.io/nudge"

ANSWER_SECONDS = 2.0  # within which a nudged pod is asked about, where kube-scheduler is well
LONGEST_PAUSE = 60.0
TICK_SECONDS = 0.5
GUESSED_NUDGES = 5  # of a pod nobody has asked about here: a minute, in which kube-scheduler starts anew
NODES_AT_ONCE = 32  # looked at before others on the loop have their turn


class Choice(Struct):
    """Who is offered the room of one node now, and whether to look at the node again when time has passed."""

    pods: list[Refused]
    again: bool


def choose(ledger: Ledger, table: RefusedPods, name: str, now: float) -> Choice:
    node = ledger.nodes.get(name)
    shapes = _fitting(ledger, table, node) if node is not None else set()
    if node is None or not shapes:
        return Choice([], again=False)
    candidates = [pod for pod in table.of(shapes) if name in pod.nodes]
    scratch = _Scratch(node)
    for pod in candidates:
        if _has_the_turn(pod, now) and pod.nudged_for == name:
            scratch.take(pod)
    chosen = []
    for pod in sorted(candidates, key=lambda pod: (pod.nudges, pod.order)):
        if now >= _next_turn(pod) and scratch.take(pod):
            chosen.append(pod)
    return Choice(chosen, again=bool(candidates))


def _fitting(ledger: Ledger, table: RefusedPods, node: NodeState) -> set[Shape]:
    return {
        shape
        for shape in table.shapes()
        if refusal(shape, node, ledger.majority_unit(shape.dialect)) is None
        and isinstance(place(shape, node), Placement)
    }


def _has_the_turn(pod: Refused, now: float) -> bool:
    return now - pod.nudged_at < ANSWER_SECONDS


def _next_turn(pod: Refused) -> float:
    """Where nobody asks, the pauses grow: kube-scheduler may be away for long."""
    pause: float = ANSWER_SECONDS * 2 ** min(pod.nudges, 10)
    return pod.nudged_at + min(pause, LONGEST_PAUSE)


class _Scratch:
    """A node's room, of which pieces are taken to see what is left for the next one."""

    def __init__(self, node: NodeState) -> None:
        self._node = copy.copy(node)
        self._node.tenants = dict(node.tenants)
        self._full: set[Shape] = set()

    def take(self, pod: Refused) -> bool:
        if pod.shape in self._full:
            return False
        placement = place(pod.shape, self._node)
        if not isinstance(placement, Placement):
            self._full.add(pod.shape)  # room only shrinks here
            return False
        piece = charges(grant(pod.request, placement, self._node, pod.uid, 0))
        tenant = Tenant(
            uid=pod.uid, namespace=pod.namespace, name=pod.name, node=self._node.name, charges=piece
        )
        self._node.tenants[pod.uid] = tenant
        self._node.count()
        return True


class Nudger:
    def __init__(
        self,
        state: SchedulerState,
        api: Api,
        metrics: Metrics,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        wall_ns: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._state = state
        self._api = api
        self._metrics = metrics
        self._leads = leads
        self._clock = clock
        self._wall_ns = wall_ns
        self._sleep = sleep
        self._looking: set[str] = set()  # nodes whose room may be of use to a refused pod
        self._again: dict[str, Pod] = {}
        self._woken = asyncio.Event()
        state.ledger.on_change.append(self._changed)
        state.ledger.on_majority.append(self.look_at_all)

    def ask_again(self, pod: Pod) -> None:
        """Its binding has been given up: kube-scheduler knows nothing of that."""
        self._again[pod.metadata.uid] = pod
        self._woken.set()

    def look_at_all(self, dialect: str = "") -> None:
        """Nodes that take pods of this dialect, or of any, may be of use now without having changed."""
        if not len(self._state.refused):
            return
        for name, node in self._state.ledger.nodes.items():
            if dialect in node.offers or (node.offers and not dialect):
                self._looking.add(name)
        self._woken.set()

    async def run(self) -> None:
        while True:
            if self._looking:
                await self._sleep(TICK_SECONDS)
            else:
                await self._woken.wait()
            await self.tick()

    async def tick(self) -> None:
        """One look at everything that may have changed."""
        self._woken.clear()
        if not self._leads():
            self._looking.clear()
            self._again.clear()
            return
        while self._again:
            _, pod = self._again.popitem()
            await self._patch(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        looking, self._looking = self._looking, set()
        for count, name in enumerate(sorted(looking), start=1):
            await self._offer(name)
            if count % NODES_AT_ONCE == 0:
                await self._sleep(0)

    async def _offer(self, name: str) -> None:
        choice = choose(self._state.ledger, self._state.refused, name, self._clock())
        if choice.again:
            self._looking.add(name)
        for pod in choice.pods:
            if self._state.refused.get(pod.uid) is not pod:
                continue  # it was asked about, or got a node, while the others were patched
            pod.nudges += 1
            pod.nudged_at, pod.nudged_for = self._clock(), name
            await self._patch(pod.namespace, pod.name, pod.uid)
            if pod.guessed and pod.nudges >= GUESSED_NUDGES:
                self._state.refused.forget(pod.uid)  # kube-scheduler refuses it for reasons of its own

    async def _patch(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self._api.annotate(namespace, name, uid, {NUDGE: str(self._wall_ns())})
            self._metrics.nudges.add("yes")
        except ApiError as failure:
            self._metrics.nudges.add("no")
            _log.info("pod %s/%s could not be nudged: %s", namespace, name, failure)
            if failure.definite:
                self._state.refused.forget(uid)  # it is gone, or may not be touched
        except AccelshareError as failure:
            self._metrics.nudges.add("no")
            _log.warning("pod %s/%s could not be nudged: %s", namespace, name, failure)

    def _changed(self, name: str) -> None:
        if len(self._state.refused):
            self._looking.add(name)
            self._woken.set()
