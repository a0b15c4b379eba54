"""What the scheduler service knows: the ledger, cached verdicts, and the pods that wait for a card.

Everything here follows from watch events and from what the service itself decided. A pod that speaks no
dialect and carries no grant is dropped at the door: a cluster has many of those.
"""

from collections.abc import Iterable

from msgspec import Struct

from accelshare.core.errors import BadInput
from accelshare.core.grant import GRANT
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Node, Pod, version_number
from accelshare.core.request import PodRequest, Shape
from accelshare.core.verdicts import Verdicts
from accelshare.dialects import DIALECTS, Dialects, request_of, speaks
from accelshare.services.scheduler.holds import Hold, Holds
from accelshare.services.scheduler.refusals import RefusedPods
from accelshare.services.scheduler.wire import HostPriority


class Waiting(Struct):
    """A pending pod that speaks a dialect. What it asks for is worked out once for each version of it."""

    pod: Pod
    request: PodRequest | None = None  # None where it asks for nothing, or for nonsense
    shape: Shape | None = None
    problem: str = ""  # the nonsense, in a sentence


_SCORES = tuple(6 + 5 * (rank - 1) // 1001 if rank else 0 for rank in range(1002))


def score(rank: int) -> int:
    """0 for an unused node; 6 to 10 for one in use. A rank beyond the last is an overfull node's."""
    return _SCORES[min(rank, len(_SCORES) - 1)]


class Scores(dict[str, HostPriority]):
    """A node's part of the answer to prioritize. One that the ledger does not know has no score."""

    def __missing__(self, name: str) -> HostPriority:
        return HostPriority(name, 0)


def waiting(pod: Pod) -> Waiting:
    try:
        request = request_of(pod)
    except BadInput as error:
        return Waiting(pod, problem=str(error))
    return Waiting(pod, request, request.shape() if request is not None else None)


def _turn(wish: Waiting) -> tuple[int, str]:
    return -(wish.pod.spec.priority or 0), wish.pod.metadata.creationTimestamp or ""


class SchedulerState:
    def __init__(self) -> None:
        self.ledger = Ledger(Dialects())
        self.verdicts = Verdicts(self.ledger)
        self.waiting: dict[str, Waiting] = {}  # by UID
        self.refused = RefusedPods()
        self.holds = Holds()
        # Asked for as often as a name is: kept, and not worked out each time.
        self.ranks: dict[str, int] = {}
        self.scores = Scores()
        self.ledger.on_change.append(self._rank)

    # What the watches say

    def node_changed(self, node: Node) -> None:
        self.ledger.set_node(node)

    def node_gone(self, node: Node) -> None:
        self.ledger.remove_node(node.name, node.metadata.uid)

    def node_listed(self, node: Node) -> str:
        self.ledger.set_node(node)
        return node.name

    def nodes_listed(self, names: Iterable[str]) -> None:
        """The whole list has come, object by object; these were their names."""
        self.ledger.keep_nodes(set(names))

    def pod_changed(self, pod: Pod) -> None:
        if not self._concerns(pod):
            return
        uid = pod.metadata.uid
        if pod.node or pod.finished:
            self.ledger.set_pod(pod)
            self._settled(uid)
        else:
            tenant = self.ledger.tenants.get(uid)
            if self.ledger.is_over(uid) or (tenant is not None and not tenant.held):
                return  # a list or an event that is older than what has been seen of this pod
            known = self.waiting.get(uid)
            if known is None or known.pod.metadata.resourceVersion != pod.metadata.resourceVersion:
                self.waiting[uid] = waiting(pod)

    def pod_gone(self, pod: Pod) -> None:
        """Its object is gone, or it has finished and so left what we watch."""
        if self._concerns(pod):
            self.ledger.remove_pod(pod.metadata.uid)
            self._settled(pod.metadata.uid)

    def pod_listed(self, pod: Pod) -> str | None:
        """None for a pod that is none of our business."""
        if not self._concerns(pod):
            return None
        self.pod_changed(pod)
        return pod.metadata.uid

    def pods_listed(self, uids: Iterable[str | None], version: int = 0) -> None:
        """The whole list has come, object by object; these were their UIDs, and this is its version."""
        listed = {uid for uid in uids if uid is not None}
        self.ledger.keep_pods(listed, version)
        for uid, wish in list(self.waiting.items()):
            seen = version_number(wish.pod.metadata.resourceVersion)
            if uid not in listed and not seen > version > 0:
                self._settled(uid, but_holds=True)

    # What is asked of it

    def wish(self, pod: Pod) -> Waiting:
        """What this pod asks for. The watch has usually brought it before kube-scheduler shows it."""
        known = self.waiting.get(pod.metadata.uid)
        if known is not None and known.pod.metadata.resourceVersion == pod.metadata.resourceVersion:
            return known
        return waiting(pod)

    def waiting_for(self, dialect: str) -> list[Waiting]:
        """The pods that ask for something of this dialect, and whose binding is not decided yet."""
        return [
            wish
            for uid, wish in self.waiting.items()
            if wish.request is not None and wish.request.dialect == dialect and uid not in self.ledger.tenants
        ]

    def guess_refused(self) -> None:
        """Pods that wait and were not asked about here were refused elsewhere: on any node, for all we know.

        The table's bounds hold: the pods whose turn would come first are guessed first.
        """
        for dialect in DIALECTS:
            nodes = frozenset(name for name, node in self.ledger.nodes.items() if dialect in node.offers)
            for wish in sorted(self.waiting_for(dialect), key=_turn):
                if wish.request is None or wish.shape is None or wish.pod.metadata.uid in self.refused:
                    continue
                if not nodes or not self.refused.has_room_for(len(nodes)):
                    break
                self.refused.note(wish.pod, wish.request, wish.shape, nodes, guessed=True)

    # Holds: room that is taken for a binding which has been decided and not yet been seen

    def hold(self, hold: Hold) -> None:
        self.ledger.hold(hold.pod, hold.grant)
        self.holds.put(hold)
        self.refused.forget(hold.uid)

    def put_beside(self, hold: Hold) -> None:
        """kube-scheduler chose another node while the outcome of the first binding is in doubt."""
        self.holds.pop(hold.uid)
        hold.key = self.ledger.put_beside(hold.uid)
        self.holds.put(hold)

    def release(self, hold: Hold) -> None:
        self.holds.pop(hold.key)
        self.ledger.release(hold.key)

    def release_all(self, uid: str) -> None:
        for hold in self.holds.of(uid):
            self.release(hold)

    # Inside

    def _concerns(self, pod: Pod) -> bool:
        return speaks(pod) or pod.annotation(GRANT) is not None or pod.metadata.uid in self.ledger.tenants

    def _settled(self, uid: str, *, but_holds: bool = False) -> None:
        """It waits no more; what was held for it besides what its object says is free."""
        self.waiting.pop(uid, None)
        self.refused.forget(uid)
        if not but_holds:
            self.release_all(uid)

    def _rank(self, name: str) -> None:
        state = self.ledger.nodes.get(name)
        if state is None:
            self.ranks.pop(name, None)
            self.scores.pop(name, None)
        else:
            self.ranks[name] = state.rank
            self.scores[name] = HostPriority(name, score(state.rank))
