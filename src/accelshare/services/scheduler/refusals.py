"""The pods that were refused on every node they could run on, and on which nodes: they may be nudged.

kube-scheduler does not ask again about such a pod before some event of the cluster, so whoever frees room
must know who waits for it. The table is small on purpose: where thousands wait, the cluster never falls
silent.
"""

from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct

from accelshare.core.objects import Pod
from accelshare.core.request import PodRequest, Shape

MOST_PODS = 2048
MOST_NAMES = 200_000  # names in all entries together: about 13 MB


class Refused(Struct, kw_only=True):
    uid: str
    namespace: str
    name: str
    request: PodRequest
    shape: Shape
    nodes: frozenset[str]  # where room would help
    priority: int = 0
    created: str = ""
    nudges: int = 0  # since kube-scheduler asked last
    nudged_at: float = float("-inf")
    nudged_for: str = ""  # the node whose room the last nudge offered
    guessed: bool = False  # nobody has asked about it here: whoever led before was asked, it seems

    @property
    def order(self) -> tuple[int, str, str]:
        """Whose turn it is first: the more important pod, then the older one."""
        return (-self.priority, self.created, self.uid)


class RefusedPods:
    def __init__(self) -> None:
        self._pods: OrderedDict[str, Refused] = OrderedDict()
        self._by_shape: dict[Shape, dict[str, Refused]] = {}
        self._names = 0

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def get(self, uid: str) -> Refused | None:
        return self._pods.get(uid)

    def shapes(self) -> Iterable[Shape]:
        return self._by_shape

    def of(self, shapes: Iterable[Shape]) -> list[Refused]:
        return [refused for shape in shapes for refused in self._by_shape.get(shape, {}).values()]

    def has_room_for(self, names: int) -> bool:
        """Whether an entry with so many names would put out none that stands."""
        return len(self._pods) < MOST_PODS and self._names + names <= MOST_NAMES

    def note(
        self, pod: Pod, request: PodRequest, shape: Shape, nodes: Iterable[str], *, guessed: bool = False
    ) -> None:
        """kube-scheduler has just asked and was refused everywhere: earlier nudges have done their work."""
        uid = pod.metadata.uid
        self.forget(uid)
        refused = Refused(
            uid=uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            request=request,
            shape=shape,
            nodes=frozenset(nodes),
            priority=pod.spec.priority or 0,
            created=pod.metadata.creationTimestamp or "",
            guessed=guessed,
        )
        self._pods[uid] = refused
        self._by_shape.setdefault(shape, {})[uid] = refused
        self._names += len(refused.nodes)
        while len(self._pods) > MOST_PODS or self._names > MOST_NAMES:
            self.forget(next(iter(self._pods)))

    def forget(self, uid: str) -> None:
        """It got a node, is bound, or is gone."""
        gone = self._pods.pop(uid, None)
        if gone is None:
            return
        self._names -= len(gone.nodes)
        alike = self._by_shape[gone.shape]
        del alike[uid]
        if not alike:
            del self._by_shape[gone.shape]
