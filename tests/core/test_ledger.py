"""The ledger: a fold of Nodes and Pods, the same by whatever way it came about."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import Card
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Node, Pod, version_number
from accelshare.core.units import GIB
from accelshare.dialects import Dialects
from tests.builders import a_card, a_container, a_node, a_pod, an_inventory, bound, cards
from tests.core.snapshots import snapshot


def a_grant(name: str = "p", gib: int = 4, card: int = 0, node: str = "n1", prefix: str = "GCU-") -> Grant:
    share = Share(f"{prefix}{card}", card, gib * GIB)
    container = ContainerGrant("c0", "app", (share,), gib)
    return Grant(dialect="gcushare", uid=f"uid-{name}", node=node, containers=(container,), unit="1GB")


def a_tenant(name: str = "p", gib: int = 4, card: int = 0, node: str = "n1", **of_pod: object) -> Pod:
    version, phase = of_pod.pop("version", 0), of_pod.pop("phase", "Running")
    pod = a_pod(name, gib, **of_pod)  # type: ignore[arg-type]
    return bound(pod, a_grant(name, gib, card, node), version=version, phase=phase)  # type: ignore[arg-type]


FOREIGN = {
    "enflame.com/gcu-device-id": "1",
    "enflame.com/gcu-device-memory": "16",
    "enflame.com/gcu-device-memory-request": "12",
    "enflame.com/gcu-device-assigned": "true",
}


def a_foreign(name: str = "old", notes: Mapping[str, str] | None = None, version: int = 0) -> Pod:
    annotations = {**FOREIGN, **(notes or {})}
    return a_pod(name, 12, node="n1", phase="Running", version=version, annotations=annotations)


def fold(*objects: Node | Pod) -> Ledger:
    return Ledger.fold(
        Dialects(),
        [each for each in objects if isinstance(each, Node)],
        [each for each in objects if isinstance(each, Pod)],
    )


def free(ledger: Ledger, node: str = "n1") -> list[int]:
    """What is free of each card, in GiB."""
    return [size // GIB for size in ledger.nodes[node].free]


# What takes room

ROOM: list[tuple[str, list[Pod], list[int]]] = [
    ("nobody", [], [16, 16]),
    ("a pod with a grant", [a_tenant()], [12, 16]),
    ("two on a card", [a_tenant(), a_tenant("q", 8)], [4, 16]),
    ("on two cards", [a_tenant(), a_tenant("q", 8, 1)], [12, 8]),
    ("a pod that waits", [a_pod("p", 4)], [16, 16]),
    ("a pod that asks for nothing", [a_pod("p", node="n1")], [16, 16]),
    ("a pod that asks for zero", [a_pod("p", 0, node="n1")], [16, 16]),
    ("Succeeded", [a_tenant(phase="Succeeded")], [16, 16]),
    ("Failed", [a_tenant(phase="Failed")], [16, 16]),
    ("being deleted", [a_tenant(deleting=True)], [12, 16]),
    ("being deleted and Failed", [a_tenant(deleting=True, phase="Failed")], [16, 16]),
    ("of another node", [a_tenant(node="n2")], [16, 16]),
    ("granted by another system", [a_foreign()], [16, 4]),
    ("bound by another scheduler", [a_pod("p", 4, node="n1")], [16, 16]),
]


@pytest.mark.parametrize(("pods", "left"), [row[1:] for row in ROOM], ids=[row[0] for row in ROOM])
def test_what_takes_room(pods: list[Pod], left: list[int]) -> None:
    """From the binding until the pod has finished, and no longer."""
    assert free(fold(a_node(), *pods)) == left


def test_a_finished_pod_gives_its_room_back() -> None:
    """Its containers are gone for good."""
    ledger = fold(a_node(), a_tenant())
    ledger.set_pod(a_tenant(phase="Succeeded"))

    assert free(ledger) == [16, 16]


def test_a_deletion_that_has_only_begun_gives_nothing_back() -> None:
    """Its containers may run for minutes; the room is free when the object is gone."""
    ledger = fold(a_node(), a_tenant(version=1))
    ledger.set_pod(a_tenant(version=2, deleting=True))
    assert free(ledger) == [12, 16]

    ledger.remove_pod("uid-p")
    assert free(ledger) == [16, 16]


def test_init_containers_and_sidecars_take_the_most_that_runs_at_once() -> None:
    """The grant holds each container's part; the pod's room is not their sum."""
    parts = (("setup", "init", 10), ("log", "sidecar", 2), ("load", "init", 9), ("main", "app", 8))
    containers = tuple(
        ContainerGrant(name, role, (Share("GCU-0", 0, gib * GIB),))  # type: ignore[arg-type]
        for name, role, gib in parts
    )
    grant = Grant(dialect="gcushare", uid="uid-p", node="n1", containers=containers)

    assert free(fold(a_node(), bound(a_pod("p", 8), grant))) == [5, 16]


def test_rank_is_higher_the_fuller_a_node_is() -> None:
    """0 is for an unused node."""
    ranks = [fold(a_node(), *pods).nodes["n1"].rank for pods in ([], [a_tenant()], [a_tenant(gib=16)])]

    assert ranks == sorted(ranks)
    assert (ranks[0], ranks[2]) == (0, 501)


# Holds


def test_a_hold_takes_room_before_the_pod_is_seen_bound() -> None:
    """The next pod is filtered while this one's binding is under way."""
    ledger = fold(a_node(), a_pod("p", 4))
    ledger.hold(a_pod("p", 4), a_grant())

    assert free(ledger) == [12, 16]


def test_hold_and_release_is_nothing() -> None:
    """As if it had never been."""
    ledger = fold(a_node(), a_tenant("q"))
    before = snapshot(ledger)
    ledger.hold(a_pod("p", 4), a_grant())
    ledger.release("uid-p")

    assert snapshot(ledger) == before


def test_a_hold_outlives_events_of_the_waiting_pod() -> None:
    """They were on their way before the binding."""
    ledger = fold(a_node())
    ledger.hold(a_pod("p", 4), a_grant())
    ledger.set_pod(a_pod("p", 4))

    assert free(ledger) == [12, 16]


def test_a_hold_outlives_a_list_without_its_pod() -> None:
    """The list may be older than the hold."""
    ledger = fold(a_node())
    ledger.hold(a_pod("p", 4), a_grant())
    ledger.replace_pods([])

    assert free(ledger) == [12, 16]


def test_a_hold_that_is_seen_bound_can_no_longer_be_released() -> None:
    """The lost answer was a yes."""
    ledger = fold(a_node())
    ledger.hold(a_pod("p", 4), a_grant())
    ledger.set_pod(a_tenant())
    ledger.release("uid-p")

    assert snapshot(ledger) == snapshot(fold(a_node(), a_tenant()))


def test_a_pod_seen_bound_is_not_held_again() -> None:
    """A scheduler that asks twice must not lose the room that the first binding took."""
    ledger = fold(a_node(), a_tenant())
    ledger.hold(a_pod("p", 4), a_grant(card=1))
    ledger.release("uid-p")

    assert free(ledger) == [12, 16]


def test_a_pod_that_is_gone_is_not_held() -> None:
    """Its binding cannot come about."""
    ledger = fold(a_node())
    ledger.remove_pod("uid-p")
    ledger.hold(a_pod("p", 4), a_grant())

    assert free(ledger) == [16, 16]


def test_who_was_bound_elsewhere_leaves_the_held_room() -> None:
    """Another scheduler was faster."""
    ledger = fold(a_node())
    ledger.hold(a_pod("p", 4), a_grant())
    ledger.set_pod(a_pod("p", 4, node="n2"))

    assert free(ledger) == [16, 16]


def test_a_hold_in_doubt_stays_beside_the_next_one() -> None:
    """Either call may land; also where the first node is chosen once more."""
    ledger = fold(a_node(), a_node("n2"))
    keys = []
    for name in ("n1", "n2", "n1"):
        ledger.hold(a_pod("p", 4), a_grant(node=name))
        keys.append(ledger.put_beside("uid-p"))
    assert (free(ledger), free(ledger, "n2")) == ([8, 16], [12, 16])

    for key in keys:
        ledger.release(key)
    assert snapshot(ledger) == snapshot(fold(a_node(), a_node("n2")))


def test_holds_beside_outlive_the_binding_until_they_are_released() -> None:
    """What the pod's object says takes room of its own."""
    ledger = fold(a_node(), a_node("n2"))
    ledger.hold(a_pod("p", 4), a_grant())
    key = ledger.put_beside("uid-p")
    ledger.set_pod(a_tenant(node="n2"))
    assert (free(ledger), free(ledger, "n2")) == ([12, 16], [12, 16])

    ledger.release(key)
    assert snapshot(ledger) == snapshot(fold(a_node(), a_node("n2"), a_tenant(node="n2")))


# Late, double and mixed-up events


def test_an_event_of_a_pod_that_is_gone_changes_nothing() -> None:
    """However late it comes."""
    ledger = fold(a_node())
    ledger.remove_pod("uid-p")
    ledger.set_pod(a_tenant())

    assert free(ledger) == [16, 16]


def test_an_older_state_of_a_pod_changes_nothing() -> None:
    """What another system wrote last counts."""
    ledger = fold(a_node(), a_foreign(notes={"enflame.com/gcu-device-id": "0"}, version=7))
    ledger.set_pod(a_foreign(version=6))

    assert free(ledger) == [4, 16]


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    """Its UID says so."""
    ledger = fold(a_node(), a_tenant())
    ledger.remove_pod("uid-p")
    again = a_pod("p", 8, uid="uid-again")
    grant = Grant(dialect="gcushare", uid="uid-again", node="n1", containers=a_grant(gib=8).containers)
    ledger.set_pod(bound(again, grant))

    assert free(ledger) == [8, 16]


def test_an_older_state_of_a_node_changes_nothing() -> None:
    """Its resourceVersion says so."""
    ledger = fold(a_node(inventory=an_inventory(cards(3)), version=7, uid="a"))
    ledger.set_node(a_node(version=6, uid="a"))

    assert free(ledger) == [16, 16, 16]


def test_an_event_of_a_node_that_is_gone_changes_nothing() -> None:
    """A node of the same name that comes later has another UID."""
    ledger = fold(a_node(version=1, uid="a"))
    ledger.remove_node("n1", "a")
    ledger.set_node(a_node(version=1, uid="a"))
    assert "n1" not in ledger.nodes

    ledger.set_node(a_node(version=2, uid="b"))
    ledger.remove_node("n1", "a")
    assert free(ledger) == [16, 16]


def test_a_node_that_is_gone_leaves_nothing() -> None:
    """Not even an empty entry."""
    ledger = fold(a_node(), a_node("n2"))
    ledger.remove_node("n2")

    assert snapshot(ledger) == snapshot(fold(a_node()))


def test_tenants_of_a_node_that_is_gone_are_found_again() -> None:
    """The Node object comes back while its pods run on."""
    ledger = fold(a_node(), a_tenant(), a_foreign())
    ledger.remove_node("n1")
    assert snapshot(ledger) == snapshot(fold(a_tenant(), a_foreign()))

    ledger.set_node(a_node())
    assert free(ledger) == [12, 4]


def test_a_list_ends_no_pod_that_was_read_when_it_was_older() -> None:
    """It was made and read bound after the list's moment: its later events still count."""
    ledger = fold(a_node())
    ledger.set_pod(a_tenant(version=12))
    ledger.set_pod(a_tenant("q", version=8))
    ledger.replace_pods([], version=10)
    assert free(ledger) == [12, 16]

    ledger.set_pod(a_tenant(version=13))
    assert free(ledger) == [12, 16]


def test_a_list_of_no_version_says_all_there_is() -> None:
    """After a restore from a backup, versions are not to be compared."""
    ledger = fold(a_node())
    ledger.set_pod(a_tenant(version=12))
    ledger.replace_pods([])

    assert free(ledger) == [16, 16]


@pytest.mark.parametrize("version", ["", "x", "1e3", "-4", "\u0663", "9" * 5000])
def test_a_version_that_is_no_number_says_nothing(version: str) -> None:
    """And ends nothing: objects are taken as they come."""
    node, pod = a_node(), a_tenant()
    node.metadata.resourceVersion = pod.metadata.resourceVersion = version

    assert version_number(version) == 0
    assert free(fold(node, pod)) == [12, 16]


def told_majorities(ledger: Ledger) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    ledger.on_majority.append(lambda dialect: told.append((dialect, ledger.majority_unit(dialect))))
    return told


def test_a_new_majority_is_told_once_it_stands() -> None:
    """By whichever node brought it about: one that comes, one that changes, one that goes."""
    ledger = fold(a_node("n1"), a_node("n2"), a_node("n3", an_inventory(unit="0.01GB")))
    told = told_majorities(ledger)

    ledger.set_node(a_node("n1", an_inventory(unit="0.01GB")))
    ledger.set_node(a_node("n4"))
    ledger.set_node(a_node("n5"))
    for name in ("n2", "n4"):
        ledger.remove_node(name)

    assert told == [("gcushare", "0.01GB"), ("gcushare", "1GB"), ("gcushare", "0.01GB")]


def test_a_list_replaces_what_was_known() -> None:
    """What it does not name is gone, what it names is as it says."""
    ledger = fold(a_node(), a_node("n2"), a_tenant(), a_tenant("q", 8, 1))
    ledger.replace_nodes([a_node()])
    ledger.replace_pods([a_tenant("q", 8, 1)])

    assert snapshot(ledger) == snapshot(fold(a_node(), a_tenant("q", 8, 1)))


OBJECTS: list[Node | Pod] = [
    a_node(),
    a_node("n2", an_inventory(unit="0.1GB")),
    a_node("n3", label=False),
    a_node("n4", "{"),
    a_tenant(),
    a_tenant("q", 8, 1),
    a_tenant("r", 4, 0, "n2"),
    a_tenant("s", 4, 0, "n3"),
    a_tenant("t", 4, 0, "n9"),
    a_tenant("done", phase="Succeeded"),
    a_tenant("leaving", deleting=True),
    a_foreign(),
    a_foreign("odd", {"enflame.com/gcu-device-id": "9"}),
    a_pod("stray", 4, node="n1"),
    a_pod("waiting", 4),
]


def put(ledger: Ledger, thing: Node | Pod) -> None:
    if isinstance(thing, Node):
        ledger.set_node(thing)
    else:
        ledger.set_pod(thing)


@given(st.permutations(OBJECTS), st.lists(st.sampled_from(OBJECTS), max_size=5))
def test_the_order_of_events_does_not_matter(order: list[Node | Pod], again: list[Node | Pod]) -> None:
    """Nor that some come twice."""
    ledger = Ledger(Dialects())
    for thing in [*order, *again]:
        put(ledger, thing)

    assert snapshot(ledger) == snapshot(fold(*OBJECTS))


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: thing.metadata.name)
def test_an_event_applied_twice_tells_nobody(thing: Node | Pod) -> None:
    """Nothing has changed, so nothing is asked anew."""
    ledger = fold(*OBJECTS)
    told: list[str] = []
    ledger.on_change.append(told.append)
    put(ledger, thing)

    assert told == []


def states_of_a_pod(name: str, gib: int, card: int) -> list[Pod]:
    waiting = a_pod(name, gib, version=1)
    running = a_tenant(name, gib, card, version=2)
    leaving = a_tenant(name, gib, card, version=3, deleting=True)
    return [waiting, running, leaving]


@given(st.randoms(use_true_random=False), st.integers(1, 3))
@settings(max_examples=50)
def test_the_newest_state_wins_whenever_it_comes(random: Random, upto: int) -> None:
    """Each pod's own events too may come in any order, and again."""
    lives = [states_of_a_pod(f"p{n}", 2, n % 2)[:upto] for n in range(4)]
    events = [state for life in lives for state in life] * 2
    random.shuffle(events)
    ledger = fold(a_node())
    for event in events:
        ledger.set_pod(event)

    assert snapshot(ledger) == snapshot(fold(a_node(), *(life[-1] for life in lives)))


@given(st.lists(st.tuples(st.integers(1, 16), st.booleans()), max_size=12), st.randoms(use_true_random=False))
def test_grants_and_their_ends_leave_nothing(pods: list[tuple[int, bool]], random: Random) -> None:
    """Whoever came, and in whatever order they went."""
    ledger = fold(a_node())
    before = snapshot(ledger)
    names = [f"p{at}" for at in range(len(pods))]
    for name, (gib, held) in zip(names, pods, strict=True):
        if held:
            ledger.hold(a_pod(name, gib), a_grant(name, gib))
        else:
            ledger.set_pod(a_tenant(name, gib))
    random.shuffle(names)
    for name in names:
        ledger.release(f"uid-{name}")
        ledger.remove_pod(f"uid-{name}")

    assert snapshot(ledger) == before


# Nodes that change under their tenants


def test_a_label_that_is_taken_off_stops_new_pods_only() -> None:
    """Tenants keep their room."""
    ledger = fold(a_node(), a_tenant())
    ledger.set_node(a_node(label=False))

    assert ledger.nodes["n1"].offers == {}
    assert free(ledger) == [12, 16]


def test_an_agent_that_is_leaving_takes_nothing_new() -> None:
    """It serves what is bound."""
    ledger = fold(a_node(inventory=an_inventory(leaving=True)), a_tenant())

    assert ledger.nodes["n1"].offers == {}
    assert free(ledger) == [12, 16]


def test_a_new_card_in_a_slot_is_empty() -> None:
    """The old card's tenant takes no room of the new one, nor of any other."""
    ledger = fold(a_node(), a_tenant())
    ledger.set_node(a_node(inventory=an_inventory([a_card(0, id="NEW"), a_card(1)])))

    assert free(ledger) == [16, 16]


def test_a_card_that_comes_back_has_its_tenant() -> None:
    """It was only out for a while."""
    ledger = fold(a_node(), a_tenant())
    ledger.set_node(a_node(inventory=an_inventory([a_card(1)])))
    ledger.set_node(a_node())

    assert free(ledger) == [12, 16]


def test_a_sick_card_keeps_its_tenants() -> None:
    """It is only not offered: the best that is free is elsewhere."""
    sick = an_inventory([a_card(0, healthy=False), a_card(1, gib=8)])
    ledger = fold(a_node(inventory=sick), a_tenant())

    assert free(ledger) == [12, 8]
    assert ledger.nodes["n1"].best_free == 8 * GIB


def test_a_unit_that_changes_leaves_grants_as_they_are() -> None:
    """A grant is bytes."""
    ledger = fold(a_node(), a_tenant())
    ledger.set_node(a_node(inventory=an_inventory(unit="0.1GB")))

    assert free(ledger) == [12, 16]


# Units


@pytest.mark.parametrize(
    ("units", "majority"),
    [
        ([], ""),
        (["1GB"], "1GB"),
        (["1GB", "0.1GB", "0.1GB"], "0.1GB"),
        (["1GB", "0.1GB"], "0.1GB"),
        (["0.01GB", "1GB", "0.1GB", "1GB"], "1GB"),
    ],
)
def test_the_unit_that_most_nodes_have(units: list[str], majority: str) -> None:
    """Between equals the first by name, so that every replica says the same."""
    nodes = [a_node(f"n{at}", an_inventory(unit=unit)) for at, unit in enumerate(units)]

    assert fold(*nodes).majority_unit("gcushare") == majority


def test_nodes_that_go_or_change_leave_the_count_of_units() -> None:
    """Also by losing their label."""
    ledger = fold(*(a_node(f"n{at}", an_inventory(unit="0.1GB")) for at in range(3)), a_node("m"))
    ledger.remove_node("n0")
    ledger.set_node(a_node("n1", an_inventory(unit="0.1GB"), label=False))
    ledger.set_node(a_node("n2"))

    assert ledger.majority_unit("gcushare") == "1GB"


# What others wrote


def test_another_systems_grant_is_read_by_index() -> None:
    """Whatever the card of that index is called."""
    of: Sequence[Card] = [a_card(1, id="LAST"), a_card(0, id="FIRST")]

    assert free(fold(a_node(inventory=an_inventory(of)), a_foreign())) == [4, 16]


def test_another_systems_grant_waits_for_the_inventory() -> None:
    """The pod was listed before its node."""
    ledger = fold(a_foreign())
    ledger.set_node(a_node())

    assert snapshot(ledger) == snapshot(fold(a_node(), a_foreign()))
    assert free(ledger) == [16, 4]


@pytest.mark.parametrize(
    ("pod", "problem"),
    [
        (a_pod("p", 4, node="n1"), "bound without a grant"),
        (a_pod("p", 4, node="n1", annotations={"accelshare.io/grant": "{"}), "accelshare.io/grant"),
        (a_pod("p", 4, node="n1", annotations={"accelshare.io/grant": '{"x":' + "[" * 99_999}), "grant"),
        (bound(a_pod("p", 4, uid="uid-copy"), a_grant()), "the pod's own, 'uid-copy'"),
        (a_foreign(notes={"enflame.com/gcu-device-id": "9"}), "the index of a card of this node"),
        (a_foreign(notes={"enflame.com/gcu-device-memory": "17"}), "what card 1 has in some unit"),
        (a_foreign(notes={"enflame.com/gcu-device-memory-request": "-1"}), "a whole number"),
    ],
)
def test_a_grant_that_cannot_be_read_harms_its_pod_only(pod: Pod, problem: str) -> None:
    """It takes no room, the reason is kept, and the others are as they were."""
    ledger = fold(a_node(), a_tenant("q"), pod)

    assert problem in ledger.tenants[pod.metadata.uid].problem
    assert free(ledger) == [12, 16]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"driver":1}', '{"x":' + "[" * 99_999])
def test_an_inventory_that_cannot_be_read_harms_its_node_only(text: str) -> None:
    """The reason is kept; the node takes nothing and the others are as they were."""
    ledger = fold(a_node("n2", text), a_node())

    assert "accelshare.io/inventory" in ledger.nodes["n2"].problem
    assert (ledger.nodes["n2"].offers, free(ledger)) == ({}, [16, 16])


def test_an_unknown_unit_is_a_problem_of_its_node() -> None:
    """An agent of another age."""
    ledger = fold(a_node(inventory=an_inventory(unit="3GB")))

    assert "unit of gcushare is '3GB'" in ledger.nodes["n1"].problem
    assert ledger.nodes["n1"].offers == {}


@pytest.mark.parametrize("heal", [a_node, lambda: a_node(inventory=an_inventory(unit="3GB"), label=False)])
def test_a_problem_that_is_over_is_forgotten(heal: Callable[[], Node]) -> None:
    """By another unit, or by another label that makes the unit nobody's business."""
    ledger = fold(a_node(inventory=an_inventory(unit="3GB")))
    ledger.set_node(heal())

    assert ledger.nodes["n1"].problem == ""


def test_waiting_pods_with_rubbish_are_no_tenants() -> None:
    """Nobody's room depends on what a user wrote."""
    pod = a_pod("p", 4, annotations={"accelshare.io/grant": "{", **FOREIGN}, init=[a_container("i", "-1")])

    assert fold(a_node(), pod).tenants == {}
