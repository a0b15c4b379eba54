"""All dialects together: which one a pod speaks, and what a node offers."""

from collections.abc import Mapping, Sequence

import pytest

from accelshare.core.container import Edits
from accelshare.core.errors import BadInput
from accelshare.core.grant import Charge, ContainerGrant, Grant
from accelshare.core.inventory import Card, FrontEnd, Inventory
from accelshare.core.ledger import Offer
from accelshare.core.objects import Container, Meta, Pod, PodSpec, Resources
from accelshare.core.placement import Reason
from accelshare.core.request import Amount, Ask, ContainerRequest, PodRequest
from accelshare.core.units import BYTE, GIB, MIB, Unit
from accelshare.dialects import DIALECTS, SLOT, Dialects, request_of, speaks, unit_named
from accelshare.dialects.amounts import amount
from accelshare.dialects.interface import Dialect
from tests.builders import MEMORY, a_container, a_node, a_pod, an_inventory


class Tiny:
    """The least that a dialect can be."""

    name = "tiny"
    vendors = frozenset({"enflame"})
    primary = "tiny.io/mem"
    managed: tuple[str, ...] = ("tiny.io/mem",)
    units: Mapping[str, Unit] = {"MiB": Unit("MiB", MIB)}

    def request(self, pod: Pod) -> PodRequest | None:
        asks = tuple(
            ContainerRequest(container.name, Ask(role, Amount(count)), count)
            for role, container in pod.containers()
            if (count := amount(container, self.primary))
        )
        return PodRequest(self.name, asks, "emptiest") if asks else None

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        return {}

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        return None

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        return Edits()

    def capacity(self, card: Card, unit: Unit) -> int:
        return unit.count(card.memory)

    def taken(self, charge: Charge, unit: Unit) -> int:
        return unit.nearest(charge.memory)

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        return ()

    def refusal(self, reason: Reason, node: str) -> str:
        return str(reason)


BOTH: tuple[Dialect, ...] = (*DIALECTS.values(), Tiny())


def asking(*resources: str, init: tuple[str, ...] = ()) -> Pod:
    return Pod(
        Meta(name="p"),
        PodSpec(
            containers=[a_container(f"c{at}", 2, name) for at, name in enumerate(resources)],
            initContainers=[a_container(f"i{at}", 2, name) for at, name in enumerate(init)],
        ),
    )


@pytest.mark.parametrize(
    ("pod", "dialect"),
    [
        (asking(), None),
        (asking("cpu"), None),
        (asking(MEMORY), "gcushare"),
        (asking("tiny.io/mem"), "tiny"),
        (asking("cpu", init=(MEMORY,)), "gcushare"),
    ],
)
def test_the_dialect_that_a_pod_speaks(pod: Pod, dialect: str | None) -> None:
    """By the resources that it names."""
    request = request_of(pod, BOTH)

    assert (request and request.dialect) == dialect


@pytest.mark.parametrize("pod", [asking(MEMORY, "tiny.io/mem"), asking(MEMORY, init=("tiny.io/mem",))])
def test_two_dialects_in_one_pod_are_refused(pod: Pod) -> None:
    """Each would place it by its own rules; the sentence names both."""
    with pytest.raises(BadInput, match=r"enflame\.com/gcu-memory and tiny\.io/mem"):
        request_of(pod, BOTH)


def with_slots(*slots: int | None) -> Pod:
    containers = []
    for at, slot in enumerate(slots):
        limits: dict[str, str | int | float] = {MEMORY: 2}
        if slot is not None:
            limits[SLOT] = slot
        containers.append(Container(f"c{at}", Resources(limits=limits)))
    return Pod(Meta(name="p"), PodSpec(containers=[*containers, Container("idle")]))


@pytest.mark.parametrize(
    ("pod", "slots"),
    [
        (with_slots(1), True),
        (with_slots(1, 1), True),
        (with_slots(None), False),
        (with_slots(0), False),
        (with_slots(1, None), False),
    ],
)
def test_every_asking_container_needs_its_slot(pod: Pod, slots: bool) -> None:
    """A container that asks for nothing needs none."""
    request = request_of(pod)

    assert request is not None
    assert request.slots is slots


@pytest.mark.parametrize(
    ("pod", "spoken"),
    [
        (asking(), False),
        (asking("cpu"), False),
        (asking("cpu", MEMORY), True),
        (asking(init=(MEMORY,)), True),
        (Pod(Meta(), PodSpec([Container("c", Resources(requests={MEMORY: 1}))])), True),
        (Pod(Meta(), PodSpec()), False),
    ],
)
def test_whether_a_pod_speaks_at_all(pod: Pod, spoken: bool) -> None:
    """Limits or requests, of any container."""
    assert speaks(pod) is spoken


@pytest.mark.parametrize(
    ("pod", "concerns"),
    [(a_pod("p", 4), True), (a_pod("p", 0), False), (a_pod("p", -1), True), (a_pod("p"), False)],
)
def test_whom_the_ledger_looks_at(pod: Pod, concerns: bool) -> None:
    """Whoever asks for something, also in a way that cannot be read; zero is nothing."""
    assert Dialects().concerns(pod) is concerns


GB = Unit("1GB", GIB)


@pytest.mark.parametrize(
    ("inventory", "label", "offers"),
    [
        (an_inventory(), True, {"gcushare": Offer(GB)}),
        (an_inventory(), False, {}),
        (an_inventory(counted=True), True, {"gcushare": Offer(GB, counted=True)}),
        (an_inventory(leaving=True), True, {}),
        (Inventory(driver="d", dialects={"gcushare": FrontEnd("1GB")}, problem="no library"), True, {}),
        (Inventory(driver="d", dialects={"of-tomorrow": FrontEnd("x")}), True, {}),
    ],
)
def test_what_a_node_offers(inventory: Inventory, label: bool, offers: dict[str, Offer]) -> None:
    """Nothing where its agent goes, has a problem, or the label is missing."""
    assert Dialects().offers(a_node(label=label), inventory) == offers


def test_an_unknown_unit_is_bad_input() -> None:
    """The sentence names those that there are."""
    with pytest.raises(BadInput, match=r"'3GB'; allowed is 1GB, 0\.1GB, 0\.01GB, 0\.001GB"):
        unit_named(DIALECTS["gcushare"], "3GB")


class Unitless(Tiny):
    units: Mapping[str, Unit] = {}


def test_a_dialect_without_units_counts_in_bytes() -> None:
    """Its unit has no name; naming one is bad input."""
    assert unit_named(Unitless(), "") == BYTE
    with pytest.raises(BadInput, match="'1GB'; allowed is none"):
        unit_named(Unitless(), "1GB")
    with pytest.raises(BadInput, match="''; allowed is 1GB"):
        unit_named(DIALECTS["gcushare"], "")
