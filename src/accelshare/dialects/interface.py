"""What a dialect must be able to say, and what some can say beside.

A dialect is one existing system's language: its names, its annotations, its words. It holds no state and
decides nothing: it translates. Everything here is pure. No dialect knows another.

Required is Dialect. Every further ability is a protocol of its own, found by isinstance; one that no dialect
of ours needs yet is not here.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from accelshare.core.grant import ContainerGrant, Grant
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
    primary: str  # the resource whose device ids carry the grant
    managed: tuple[str, ...]  # all resources that kube-scheduler must ask us about
    units: Mapping[str, Unit]  # by the name that an operator configures; the first is the default

    def request(self, pod: Pod) -> PodRequest | None:
        """What the pod asks for, None where it asks for nothing of this dialect. Raises BadInput."""
        ...

    def write(self, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        """The annotations by which this system's own tools read the grant. cards are the node's."""
        ...

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        """The grant that this system's own scheduler left on a bound pod. Raises BadInput."""
        ...

    def env(self, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        """What the container reads of its grant in this system's words. cards are the granted ones."""
        ...

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        """The device ids of one card, as this system's own plugin forms them."""
        ...

    def refusal(self, reason: Reason) -> str:
        """The reason in this system's words: one of few texts, since kube-scheduler counts equal ones."""
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
    """Has resources that are patched into the node's status and no device ids behind them."""

    def counted(self, cards: Sequence[Card]) -> tuple[Advertised, ...]: ...


@runtime_checkable
class Inspects(Protocol):
    """Has routes of its own by which people look at the cluster."""

    route: str  # prefix of its verbs and of its inspection

    def inspect(self, ledger: Ledger, names: Sequence[str]) -> object:
        """The answer for these nodes, ready for JSON."""
        ...
