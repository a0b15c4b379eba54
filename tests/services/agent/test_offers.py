"""What a node offers: ids or amounts, what a sick card takes away, and how a change of unit stays safe."""

from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from accelshare.core.grant import Charge
from accelshare.core.inventory import Card, FrontEnd
from accelshare.core.ledger import Tenant
from accelshare.core.units import GIB
from accelshare.dialects import DIALECTS, SLOT
from accelshare.kube.kubelet.protos import deviceplugin_pb2 as pb
from accelshare.services.agent.offers import MOST_IDS, Device, Offered, closed, offer, spoken
from accelshare.services.agent.service import chunks
from accelshare.services.agent.settings import front_ends
from tests.builders import MEMORY, a_card, cards
from tests.services.agent.world import ids

COUNT = "enflame.com/gcu-count"
UNITS = DIALECTS["gcushare"].units


def gcushare(unit: str = "1GB", *, counted: bool = False) -> dict[str, FrontEnd]:
    return {"gcushare": FrontEnd(unit, "counted" if counted else "enumerated")}


def a_tenant(uid: str, units: int, *, card: int = 0, unit: str = "1GB") -> Tenant:
    charge = Charge(f"GCU-{card}", card, UNITS[unit].bytes(units))
    return Tenant(
        uid=uid, namespace="default", name=uid, node="n1", charges=(charge,), dialect="gcushare", unit=unit
    )


def listed(offered: Offered, resource: str = MEMORY) -> list[str]:
    return [device.id for device in offered.devices[resource]]


def healthy(offered: Offered, resource: str = MEMORY) -> list[str]:
    return [device.id for device in offered.devices[resource] if device.healthy]


def test_each_unit_of_each_card_is_an_id_that_names_its_card() -> None:
    """The ids are those of the document's own plugin, card by card."""
    offered = offer(cards(2), gcushare())

    assert listed(offered) == [*ids(0, 16, 0), *ids(0, 16, 1)]
    assert healthy(offered) == listed(offered)
    assert not offered.problem


@pytest.mark.parametrize(
    ("unit", "gib", "count"), [("1GB", 16, 16), ("0.1GB", 16, 160), ("0.01GB", 16, 1600)]
)
def test_a_smaller_unit_makes_more_ids(unit: str, gib: int, count: int) -> None:
    """A card of 16 GB has 16, 160 or 1,600 ids."""
    assert len(listed(offer(cards(1, gib), gcushare(unit)))) == count


@pytest.mark.parametrize(("unit", "number"), [("0.001GB", 1), ("0.01GB", 2), ("0.1GB", 13)])
def test_more_ids_than_kubelet_bears_are_a_problem_that_names_the_setting(unit: str, number: int) -> None:
    """Nothing is advertised, and the sentence says how many ids, how many may be, and what to set."""
    offered = offer(cards(number), gcushare(unit))

    assert offered.devices == {MEMORY: ()}
    assert unit in offered.problem
    assert str(MOST_IDS) in offered.problem
    assert "--counted=gcushare" in offered.problem


def test_exactly_as_many_ids_as_kubelet_bears_are_offered() -> None:
    """The limit itself is allowed."""
    offered = offer([a_card(gib=1024), a_card(1, gib=1024)], gcushare())

    assert len(listed(offered)) == MOST_IDS
    assert not offered.problem


def test_too_many_ids_leave_running_containers_theirs() -> None:
    """A problem that comes while pods run must not make kubelet forget what they hold."""
    held = {MEMORY: frozenset(ids(3, 2))}
    offered = offer(cards(2), gcushare("0.001GB"), [a_tenant("a", 2)], held)

    assert offered.problem
    assert offered.devices[MEMORY] == tuple(Device(number, True) for number in ids(3, 2))


@pytest.mark.parametrize(("unit", "amount"), [("1GB", 128), ("0.1GB", 1280), ("0.001GB", 128000)])
def test_a_counted_dialect_is_an_amount_and_64_slots_a_card(unit: str, amount: int) -> None:
    """Any unit works on any card: nothing is enumerated but slots."""
    offered = offer(cards(8), gcushare(unit, counted=True))

    assert offered.status == {MEMORY: amount, COUNT: 8}
    assert len(listed(offered, SLOT)) == 8 * 64
    assert MEMORY not in offered.devices
    assert not offered.problem


def test_an_enumerated_dialect_says_how_many_cards_there_are() -> None:
    """gcu-count has no device ids: it stands in the node's status alone."""
    assert offer(cards(3), gcushare()).status == {COUNT: 3}


def test_a_sick_card_lowers_only_its_own() -> None:
    """Its ids stay listed as unhealthy; the other card's are as before."""
    offered = offer([a_card(), a_card(1, healthy=False)], gcushare())

    assert healthy(offered) == ids(0, 16, 0)
    assert listed(offered) == [*ids(0, 16, 0), *ids(0, 16, 1)]


def test_a_sick_card_lowers_the_amount_and_its_slots() -> None:
    """A counted dialect loses what the sick card holds, and its free slots."""
    offered = offer([a_card(), a_card(1, healthy=False)], gcushare(counted=True))

    assert offered.status[MEMORY] == 16
    assert healthy(offered, SLOT) == [f"GCU-0-slot-{n}" for n in range(64)]
    assert len(listed(offered, SLOT)) == 128


def test_slots_in_use_stay_on_a_sick_card() -> None:
    """kubelet keeps the slot of a container that runs."""
    held = {SLOT: frozenset({"GCU-1-slot-7"})}
    offered = offer([a_card(), a_card(1, healthy=False)], gcushare(counted=True), (), held)

    assert [number for number in healthy(offered, SLOT) if "GCU-1" in number] == ["GCU-1-slot-7"]


def test_what_is_granted_does_not_lower_the_offer() -> None:
    """kube-scheduler subtracts what pods ask for; doing it here too would count them twice."""
    tenants = [a_tenant("a", 10), a_tenant("b", 16, card=1)]

    assert offer(cards(2), gcushare(), tenants) == offer(cards(2), gcushare())


def test_pods_on_a_sick_card_still_count_for_what_they_hold() -> None:
    """Else kube-scheduler would take their number off the healthy cards' room."""
    both = [a_card(), a_card(1, healthy=False)]
    tenants = [a_tenant("a", 10, card=1)]

    assert len(healthy(offer(both, gcushare(), tenants))) == 16 + 10
    assert offer(both, gcushare(counted=True), tenants).status[MEMORY] == 16 + 10


def test_ids_of_a_sick_card_that_containers_hold_stay_healthy() -> None:
    """kubelet fails a pod whose id is unhealthy when it restarts."""
    both = [a_card(), a_card(1, healthy=False)]
    held = {MEMORY: frozenset(ids(4, 3, 1))}
    offered = offer(both, gcushare(), [a_tenant("a", 3, card=1)], held)

    assert set(healthy(offered)) == {*ids(0, 16, 0), *ids(4, 3, 1)}


def test_ids_of_another_card_that_stand_for_the_sick_one_keep_the_sum() -> None:
    """Ids need not name the granted card: what counts is how many there are."""
    both = [a_card(), a_card(1, healthy=False)]
    held = {MEMORY: frozenset(ids(0, 3, 1))}  # held by a pod whose grant is on the healthy card
    offered = offer(both, gcushare(), [a_tenant("a", 3, card=0)], held)

    assert len(healthy(offered)) == 16
    assert set(ids(0, 3, 1)) <= set(healthy(offered))


def test_ids_of_a_card_that_was_taken_out_stay_while_they_are_held() -> None:
    """The pod holds them until it ends, whatever became of the card that they name."""
    held = {MEMORY: frozenset(ids(0, 4, 1))}
    offered = offer(cards(1), gcushare(), [a_tenant("a", 4, card=0)], held)

    assert len(healthy(offered)) == 16
    assert set(ids(0, 4, 1)) <= set(healthy(offered))


def test_a_new_unit_counts_old_pods_by_their_own_number() -> None:
    """10 old units of 1 GB count 10, and the 6 GB beside them are 60 new ones of 0.1 GB."""
    offered = offer(cards(1), gcushare("0.1GB"), [a_tenant("old", 10)], {MEMORY: frozenset(ids(0, 10))})

    assert len(healthy(offered)) == 10 + 60


def test_a_new_unit_keeps_ids_that_it_would_not_form() -> None:
    """Id 150 exists in units of 0.1 GB only, and stays for as long as a container holds it."""
    held = {MEMORY: frozenset(ids(150, 10))}
    offered = offer(cards(1), gcushare("1GB"), [a_tenant("old", 10, unit="0.1GB")], held)

    assert set(ids(150, 10)) <= set(healthy(offered))
    assert len(healthy(offered)) == 10 + 15


def test_a_counted_node_counts_old_pods_by_their_own_number_too() -> None:
    """The amount in the node's status follows the same rule."""
    offered = offer(cards(1), gcushare("0.1GB", counted=True), [a_tenant("old", 10)])

    assert offered.status[MEMORY] == 10 + 60


def test_when_the_old_pods_are_gone_the_list_is_the_plain_one() -> None:
    """Nothing of the change of unit is left over, also while new pods hold ids."""
    held = {MEMORY: frozenset(ids(37, 20))}
    new = [a_tenant("new", 20, unit="0.1GB")]

    assert offer(cards(2), gcushare("0.1GB"), new, held) == offer(cards(2), gcushare("0.1GB"))


def test_a_card_that_shrank_below_its_pods_offers_nothing_more() -> None:
    """What is left of a card is never negative, or it would be taken off the others."""
    offered = offer([a_card(gib=4), a_card(1)], gcushare("0.1GB"), [a_tenant("old", 10)])

    assert len(healthy(offered)) == 10 + 160


def test_a_closed_offer_keeps_what_is_held_and_counts_it() -> None:
    """Nothing new is offered, and kube-scheduler's sum comes to zero."""
    tenants = [a_tenant("a", 3), a_tenant("b", 4, card=1)]
    held = {MEMORY: frozenset(ids(0, 7))}

    assert healthy(closed(gcushare(), tenants, held, "because")) == sorted(ids(0, 7))
    assert closed(gcushare(counted=True), tenants, held, "because").status == {MEMORY: 7}


def test_kubelet_is_told_health_and_numa_node_of_each_device() -> None:
    """Those that are alike together; without a NUMA node no topology is said."""
    devices = (Device("a", True, 0), Device("b", False), Device("c", True, 0), Device("d", True, 1))

    told = pb.ListAndWatchResponse.FromString(b"".join(chunks(devices))).devices
    assert [(each.ID, each.health, [node.ID for node in each.topology.nodes]) for each in told] == [
        ("b", "Unhealthy", []),
        ("a", "Healthy", [0]),
        ("c", "Healthy", [0]),
        ("d", "Healthy", [1]),
    ]
    assert not told[0].HasField("topology")


def test_only_dialects_of_the_cards_vendors_are_spoken() -> None:
    """A node of another vendor's cards offers nothing of gcushare."""
    ends = front_ends({}, frozenset())

    assert "gcushare" in spoken(cards(1), ends)
    assert "gcushare" not in spoken([Card(id="x", index=0, memory=GIB, minor=0, vendor="other")], ends)


# Never more than is safe, whatever runs.


class World(Struct):
    cards: tuple[Card, ...]
    tenants: list[Tenant]
    held: frozenset[str]
    unit: str


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Cards, some of them sick; pods of two units that fit onto them; ids that kubelet gave to some pods."""
    unit, other = draw(st.permutations(["1GB", "0.1GB"]))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    whole = [a_card(at, gib=gib) for at, gib in enumerate(sizes)]
    left = {card.id: card.memory for card in whole}
    tenants = []
    for n, (at, units, own) in enumerate(
        draw(
            st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.integers(1, 30), st.booleans()), max_size=8)
        )
    ):
        name = unit if own else other
        size = UNITS[name].bytes(units)
        if size <= left[f"GCU-{at}"]:
            left[f"GCU-{at}"] -= size
            tenants.append(a_tenant(f"t{n}", units, card=at, unit=name))
    seen = [
        a_card(at, gib=gib, healthy=well)
        for (at, gib), well in zip(
            enumerate(sizes), draw(st.tuples(*[st.booleans() for _ in sizes])), strict=True
        )
    ]
    if draw(st.booleans()) and len(seen) > 1:
        del seen[draw(st.integers(0, len(seen) - 1))]  # taken out
    pool = draw(st.permutations(sorted({*all_ids(whole, unit), *all_ids(whole, other)})))
    rest = iter(pool)
    held: list[str] = []
    for tenant in tenants:
        if draw(st.booleans()):
            held += islice(rest, asked([tenant]))
    return World(tuple(seen), tenants, frozenset(held), unit)


def all_ids(of: Sequence[Card], unit: str) -> list[str]:
    return [number for card in of for number in DIALECTS["gcushare"].ids(card, UNITS[unit])]


def asked(tenants: Sequence[Tenant]) -> int:
    """What kube-scheduler counts for these pods."""
    return sum(UNITS[tenant.unit].nearest(charge.memory) for tenant in tenants for charge in tenant.charges)


def really_free(world: World) -> int:
    """The units that new pods could have, worked out from bytes alone."""
    total = 0
    for card in world.cards:
        if card.healthy:
            used = sum(c.memory for tenant in world.tenants for c in tenant.charges if c.card == card.id)
            total += UNITS[world.unit].count(card.memory - used)
    return total


def offered_by(world: World, *, counted: bool = False) -> Offered:
    return offer(world.cards, gcushare(world.unit, counted=counted), world.tenants, {MEMORY: world.held})


@given(worlds())
def test_never_more_is_offered_than_is_safe(world: World) -> None:
    """What kube-scheduler has left after subtracting all pods is no more than what is free."""
    amount = len(healthy(offered_by(world)))

    assert amount - asked(world.tenants) <= really_free(world)
    assert offered_by(world, counted=True).status[MEMORY] - asked(world.tenants) <= really_free(world)


@given(worlds())
def test_pods_that_run_always_fit_into_the_offer(world: World) -> None:
    """kubelet admits the pods that run anew when it restarts, against this very amount."""
    assert offered_by(world, counted=True).status[MEMORY] >= asked(world.tenants)


@given(worlds())
def test_what_containers_hold_stays_and_nothing_stands_twice(world: World) -> None:
    """Every id of kubelet's checkpoint is in the list, healthy, and no id is there two times."""
    offered = offered_by(world)

    assert world.held <= set(healthy(offered))
    assert len(set(listed(offered))) == len(listed(offered))


@given(worlds())
def test_when_nothing_runs_the_list_is_the_plain_one(world: World) -> None:
    """The list depends on what runs now, and on nothing that ran before."""
    after = World(world.cards, [], frozenset(), world.unit)
    plain = [Device(number, card.healthy) for card in world.cards for number in all_ids([card], world.unit)]

    assert list(offered_by(after).devices[MEMORY]) == plain
