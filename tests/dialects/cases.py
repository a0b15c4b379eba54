"""Golden cases: what a document says about a pod, a grant or a node, one file each, found by glob.

    tests/dialects/<dialect>/cases/<name>.yaml

`origin` says where it is written; the texts are copied from there by hand. What is `given` stands beside it
(node, pod, grant, bound), what must come of it under `expect`; a key that is not known here is an error.
"""

from pathlib import Path

import msgspec
import yaml
from msgspec import UNSET, Struct, UnsetType

from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, write_inventory
from accelshare.core.objects import Container, Meta, Node, Pod, PodSpec, Role
from accelshare.core.units import GIB, Unit
from accelshare.dialects import DIALECTS, unit_named
from accelshare.dialects.interface import Dialect, SelectsNodes

HERE = Path(__file__).parent
NODE = "sse-lab-inspur-048"


class GivenNode(Struct, forbid_unknown_fields=True, frozen=True):
    serials: tuple[str, ...] = tuple(f"GCU-{at}" for at in range(8))
    gib: int = 16
    unit: str = "1GB"


class Part(Struct, forbid_unknown_fields=True, frozen=True):
    """One container's part, of a request or of a grant."""

    name: str
    units: int
    role: Role = "app"


class GivenGrant(Struct, forbid_unknown_fields=True, frozen=True):
    card: int
    time: int
    containers: tuple[Part, ...]


class ExpectedGrant(Struct, forbid_unknown_fields=True, frozen=True):
    card: int
    units: int
    bytes: int
    unit: str


class ExpectedIds(Struct, forbid_unknown_fields=True, frozen=True):
    count: int
    among: tuple[str, ...]


class Expect(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    request: tuple[Part, ...] | UnsetType | None = UNSET
    takes: int | UnsetType = UNSET  # bytes of its card
    error: str | UnsetType = UNSET  # why the request cannot be read
    verdict: str | UnsetType = UNSET  # why an empty node does not take the pod
    annotations: dict[str, str] | UnsetType = UNSET  # written for the given grant
    env: dict[str, dict[str, str]] | UnsetType = UNSET  # of each container of the given grant
    read: ExpectedGrant | UnsetType | None = UNSET  # from the pod's annotations
    read_error: str | UnsetType = UNSET
    started: dict[str, str] | UnsetType = UNSET  # written once the containers have it
    ids: ExpectedIds | UnsetType = UNSET
    capacity: dict[str, int] | UnsetType = UNSET  # what the node shows
    inspect: object = UNSET  # with the bound pods on the node


class Case(Struct, forbid_unknown_fields=True, frozen=True):
    origin: str
    expect: Expect
    node: GivenNode = GivenNode()
    pod: Pod | None = None
    grant: GivenGrant | None = None
    bound: tuple[Pod, ...] = ()

    @property
    def cards(self) -> tuple[Card, ...]:
        return tuple(
            Card(id=serial, index=at, memory=self.node.gib * GIB, minor=at)
            for at, serial in enumerate(self.node.serials)
        )

    def unit(self, dialect: Dialect) -> Unit:
        return unit_named(dialect, self.node.unit)

    def inventory(self, dialect: Dialect) -> Inventory:
        front_ends = {dialect.name: FrontEnd(self.node.unit)}
        return Inventory(driver="simulated", cards=self.cards, dialects=front_ends)

    def node_object(self, dialect: Dialect) -> Node:
        labels = dict([dialect.node_label]) if isinstance(dialect, SelectsNodes) else {}
        annotations = {INVENTORY: write_inventory(self.inventory(dialect))}
        return Node(Meta(name=NODE, labels=labels, annotations=annotations))

    def given_pod(self) -> Pod:
        """The pod of the given grant; one with its containers where the case shows none."""
        if self.pod is not None or self.grant is None:
            return self.pod or Pod(Meta(), PodSpec())
        containers = [Container(part.name) for part in self.grant.containers]
        return Pod(Meta(name="p", uid="uid"), PodSpec(containers, nodeName=NODE))

    def given_grant(self, dialect: Dialect) -> Grant:
        assert self.grant is not None
        card, unit = self.cards[self.grant.card], self.unit(dialect)
        containers = tuple(
            ContainerGrant(
                part.name, part.role, (Share(card.id, card.index, unit.bytes(part.units)),), part.units
            )
            for part in self.grant.containers
        )
        return Grant(
            dialect=dialect.name,
            uid="uid",
            node=NODE,
            containers=containers,
            unit=unit.name,
            time=self.grant.time,
        )


def parse(text: str) -> Case:
    """Raises msgspec.ValidationError on a key that no case has."""
    return msgspec.convert(yaml.safe_load(text), Case)


def load() -> list[tuple[str, Dialect, Case]]:
    """Every case that there is: its name, its dialect, and what it says."""
    return [
        (f"{path.parts[-3]}/{path.stem}", DIALECTS[path.parts[-3]], parse(path.read_text()))
        for path in sorted(HERE.glob("*/cases/*.yaml"))
    ]
