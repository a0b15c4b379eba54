"""Users are told what they have to do something about: once, and never while filter runs."""

import asyncio

from accelshare.core.objects import Node
from tests.builders import a_node, an_inventory, cards
from tests.services.scheduler.memory_api import Told
from tests.services.scheduler.world import World, one_card


def counted() -> Node:
    return a_node("n1", an_inventory(cards(1), counted=True))


def say_all(world: World) -> list[Told]:
    async def drain() -> None:
        while not world.extender.notices.empty:
            await world.extender.notices.say_one()

    asyncio.run(drain())
    return world.api.told


def test_a_pod_without_its_slot_is_told_to_be_made_again() -> None:
    """Filter only queues it."""
    world = World(counted())

    answer = world.filter(world.create("p", 4))

    assert world.api.told == []
    text = "pod lacks the accelshare.io/slot that counted nodes need: create it again"
    assert answer["FailedNodes"] == {"n1": text}
    assert say_all(world) == [Told("p", "Warning", "NoSlot", text)]


def test_a_pod_is_told_once() -> None:
    """kube-scheduler asks about it again and again."""
    world = World(counted())
    pod = world.create("p", 4)
    for _ in range(3):
        world.filter(pod)

    assert len(say_all(world)) == 1


def test_a_pod_that_waits_because_of_its_unit_is_told_so() -> None:
    """The same number means another amount on those nodes."""
    world = World(
        one_card("n1"), one_card("n2"), a_node("n3", an_inventory(cards(1, prefix="f-"), unit="0.1GB"))
    )

    world.filter(world.create("p", 4), "n3")

    (told,) = say_all(world)
    assert told.reason == "OtherUnit"
    assert told.message.startswith("node counts enflame.com/gcu-memory in 0.1GB, most nodes in 1GB: ")


def test_a_pod_that_fits_somewhere_is_told_nothing() -> None:
    """It is about to run."""
    world = World(one_card("n0"), one_card("n2"), a_node("n1", an_inventory(cards(1), unit="0.1GB")))

    world.filter(world.create("p", 4), "n0", "n1")

    assert say_all(world) == []


def test_plain_lack_of_room_is_no_event_of_ours() -> None:
    """kube-scheduler says it in its own."""
    world = World(one_card())

    world.filter(world.create("p", 17))

    assert say_all(world) == []


TENTHS = (
    "nodes count enflame.com/gcu-memory in 0.1GB now, not in 1GB any more: "
    "the number that this pod asks for means another amount than when it was made"
)


def in_tenths(name: str = "n1") -> Node:
    return a_node(name, an_inventory(cards(1, prefix=f"{name}-"), unit="0.1GB"), uid=f"uid-{name}")


def test_pods_that_wait_are_told_that_their_number_has_changed_its_meaning() -> None:
    """Once for each pod and change, with both units."""
    world = World(one_card())
    world.create("p", 4)

    world.state.node_changed(in_tenths())
    world.state.node_changed(in_tenths())

    assert say_all(world) == [Told("p", "Warning", "UnitChanged", TENTHS)]


def test_agents_that_leave_and_come_back_in_another_unit_have_changed_it() -> None:
    """No node offers anything in between."""
    world = World(one_card())
    world.create("p", 4)

    world.state.node_changed(a_node("n1", an_inventory(cards(1, prefix="n1-"), leaving=True), uid="uid-n1"))
    world.state.node_changed(in_tenths())

    assert say_all(world) == [Told("p", "Warning", "UnitChanged", TENTHS)]


def test_the_first_unit_is_no_change() -> None:
    """Nor is the same one again."""
    world = World()
    world.create("p", 4)

    world.state.node_changed(in_tenths())
    world.state.node_gone(in_tenths())
    world.state.node_changed(in_tenths())

    assert say_all(world) == []


def test_only_the_leader_tells_of_a_unit() -> None:
    """Every replica sees the change, and a start sees the nodes one by one."""
    world = World(one_card())
    world.create("p", 4)
    world.leading = False

    world.state.node_changed(in_tenths())

    assert say_all(world) == []


def test_a_pod_that_has_its_card_is_not_told_of_a_unit() -> None:
    """What it has stays what it was."""
    world = World(one_card())
    world.run("p", 4)

    world.state.node_changed(in_tenths())

    assert say_all(world) == []
