"""The bindings that have been decided and not yet been seen, with what is known of their outcome.

Room is held from the decision on. It is given back only when it is certain that the binding did not happen
and will not: a definite refusal, or the pod read back gone, of another UID, or bound elsewhere. A call that
ended without an answer may still land, so a pod that is read back unbound keeps its room for a grace.
"""

from collections.abc import Mapping

from msgspec import Struct

from accelshare.core.grant import GRANT, Grant
from accelshare.core.objects import Pod

GRACE_SECONDS = 60.0  # after the call: longer than any API server or load balancer keeps a request
SETTLE_SECONDS = 10.0  # the watch shows a binding well before


class Hold(Struct, kw_only=True, eq=False):
    pod: Pod
    grant: Grant
    annotations: Mapping[str, str]
    key: str  # the ledger's
    posted_at: float
    read_at: float
    in_doubt: bool = False  # a call ended without a definite answer
    confirmed: bool = False  # the server said yes; only the watch has yet to say so

    @property
    def uid(self) -> str:
        return self.grant.uid

    @property
    def node(self) -> str:
        return self.grant.node

    def is_this(self, pod: Pod) -> bool:
        """Whether the pod is bound by exactly this decision."""
        return pod.node == self.node and pod.annotation(GRANT) == self.annotations[GRANT]


class Holds:
    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}  # by the ledger's key

    def __len__(self) -> int:
        return len(self._holds)

    def put(self, hold: Hold) -> None:
        self._holds[hold.key] = hold

    def pop(self, key: str) -> None:
        self._holds.pop(key, None)

    def main(self, uid: str) -> Hold | None:
        return self._holds.get(uid)

    def of(self, uid: str) -> list[Hold]:
        """All of one pod: one, but for bindings in doubt beside it."""
        return [hold for hold in self._holds.values() if hold.uid == uid]

    def in_doubt(self) -> int:
        return sum(hold.in_doubt and not hold.confirmed for hold in self._holds.values())

    def to_read(self, now: float) -> list[Hold]:
        """Those whose pod should be looked at: in doubt at once, others when the watch should have come."""
        return [
            hold
            for hold in self._holds.values()
            if (hold.in_doubt and not hold.confirmed) or now - hold.read_at >= SETTLE_SECONDS
        ]
