"""What a dialect must be able to say, and what some can say beside.

A dialect is one existing system's language: its names, its annotations, its words. It holds no state and
decides nothing: it translates. Everything here is pure. No dialect knows another.

Required is Dialect. Every further ability is a protocol of its own, found by isinstance; one that no dialect
of ours needs yet is not here.

Required is enough for systems that count units of memory, cards, or percent of a card:
tests/dialects/others.py holds four that are not spoken yet and keep every rule. What a pod asks of its cards
is said in its request (memory in units, bytes or percent, compute, alone or not, how many cards, by which
policy); what it asks of kubelet is how many ids of the primary resource.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from accelshare.core.container import Edits
from accelshare.core.grant import Charge, ContainerGrant, Grant
from accelshare.core.inventory import Card, Inventory
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Pod
from accelshare.core.placement import Reason
from accelshare.core.request import PodRequest
from accelshare.core.units import Unit


class Advertised(Struct, frozen=True):
    """One resource of a node: kubelet counts device ids, or a plain amount stands in the node's status."""

    resource: str
    amount: int


class Dialect(Protocol):
    name: str
    vendors: frozenset[str]  # whose cards it speaks of
    primary: str  # the resource whose device ids carry the grant; the others have none
    managed: tuple[str, ...]  # all resources that kube-scheduler must ask us about
    units: Mapping[str, Unit]  # by the name that an operator configures; the first is the default; or none

    def request(self, pod: Pod) -> PodRequest | None:
        """What the pod asks for, None where it asks for nothing of this dialect. Raises BadInput."""
        ...

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        """The annotations by which this system's own tools read the pod's grant. cards are the node's."""
        ...

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        """The grant that this system's own scheduler left on a bound pod. Raises BadInput."""
        ...

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        """What the container is given of its grant in this system's words, on top of what the driver needs.

        cards are the granted ones, in the order of the container's shares. Under direct injection the pod may
        be another one with an equal grant: what follows from it is a wish and no secret.
        """
        ...

    def capacity(self, card: Card, unit: Unit) -> int:
        """How many ids of the primary resource a card of this memory is worth."""
        ...

    def taken(self, charge: Charge, unit: Unit) -> int:
        """How many of them a tenant's charge stands for: what the pod asks of the primary for this card."""
        ...

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        """The device ids of one card, as many as its capacity, as this system's own plugin forms them."""
        ...

    def refusal(self, reason: Reason, node: str) -> str:
        """Why this node is refused, in this system's words.

        One of few texts, since kube-scheduler counts equal ones: with the node's name only where the system
        itself says it.
        """
        ...


@runtime_checkable
class SelectsNodes(Protocol):
    """Takes only nodes that carry a label."""

    node_label: tuple[str, str]


@runtime_checkable
class MarksStart(Protocol):
    """Keeps a "container has it" annotation, which the agent writes after the fact."""

    def started(self, pod: Pod) -> dict[str, str]: ...


@runtime_checkable
class CountsNodes(Protocol):
    """Has resources beside the primary that stand in the node's status, with no device ids behind them."""

    def counted(self, cards: Sequence[Card]) -> tuple[Advertised, ...]: ...


@runtime_checkable
class Inspects(Protocol):
    """Has routes of its own by which people look at the cluster."""

    route: str  # prefix of its verbs and of its inspection

    def inspect(self, ledger: Ledger, names: Sequence[str]) -> object:
        """The answer for these nodes, ready for JSON."""
        ...
