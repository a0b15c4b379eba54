"""filter, prioritize and bind as kube-scheduler sees them, where nothing goes wrong."""

import msgspec
import pytest
from msgspec import structs

from accelshare.core.inventory import INVENTORY
from accelshare.core.objects import Affinity, Pod, SpreadConstraint
from accelshare.core.placement import Reason
from accelshare.dialects import DIALECTS
from accelshare.services.scheduler.settings import Settings
from accelshare.services.scheduler.state import score
from accelshare.services.scheduler.verbs import filter_nodes, fullest
from tests.builders import a_container, a_node, a_pod, an_inventory, cards
from tests.services.scheduler.world import World, eight_cards, one_card

NO_ROOM = "insufficient GCU Memory in one gcu device"


def test_the_story_of_the_guide() -> None:
    """4 goes to card 0, 8 beside it, 12 to card 1, and 20 fits no card."""
    world = World(eight_cards())

    world.run("four", 4)
    world.run("eight", 8)
    world.run("twelve", 12)
    twenty = world.create("twenty", 20)

    assert [world.card_of(name) for name in ("four", "eight", "twelve")] == ["0", "0", "1"]
    assert world.free() == [4, 4, 16, 16, 16, 16, 16, 16]
    assert world.filter(twenty)["FailedNodes"] == {"n1": NO_ROOM}


def test_six_whole_cards_and_the_fullest_that_fits() -> None:
    """16 six times takes the six empty cards; then 4 and 4 fill the two that are in use."""
    world = World(eight_cards())
    world.run("a", 12)
    world.run("b", 12)

    assert world.card_of("b") == "1"
    for number in range(6):
        world.run(f"whole-{number}", 16)
    assert [world.card_of(f"whole-{number}") for number in range(6)] == ["2", "3", "4", "5", "6", "7"]
    world.run("c", 4)
    world.run("d", 4)
    assert (world.card_of("c"), world.card_of("d")) == ("0", "1")
    assert world.filter(world.create("more", 1))["FailedNodes"] == {"n1": NO_ROOM}


def test_room_is_free_when_a_pod_has_finished() -> None:
    """Not before, and not at its deletion, which comes later."""
    world = World(one_card())
    world.run("old", 16)
    new = world.create("new", 16)

    assert world.filter(new)["NodeNames"] == []
    world.api.finish("old")
    world.deliver()
    assert world.filter(new)["NodeNames"] == ["n1"]


def test_a_pod_that_asks_for_nothing_passes_everywhere() -> None:
    """Also on nodes that the ledger does not know."""
    world = World(eight_cards())

    assert world.filter(world.create("zero", 0), "n1", "n9")["NodeNames"] == ["n1", "n9"]
    assert world.filter(a_pod("none"), "n1", "n9")["NodeNames"] == ["n1", "n9"]
    assert world.scores(a_pod("none"), "n1", "n9") == {"n1": 0, "n9": 0}


def test_names_are_answered_with_names_and_nodes_with_nodes() -> None:
    """A node comes back as it went in, with fields that nobody here reads; and its name beside."""
    world = World(one_card("n1"), one_card("n2", gib=4))
    pod = world.create("p", 8)
    nodes = [{"metadata": {"name": name}, "spec": {"podCIDR": "10.0.0.0/24"}} for name in ("n1", "n2")]

    by_name = world.filter(pod, "n1", "n2")
    by_node = world.post("/filter", {"Pod": pod, "Nodes": {"items": nodes}}).json

    assert (by_name["Nodes"], by_name["NodeNames"]) == (None, ["n1"])
    assert by_node["Nodes"]["items"] == nodes[:1]
    assert by_node["NodeNames"] == ["n1"]
    assert by_name["FailedNodes"] == by_node["FailedNodes"] == {"n2": NO_ROOM}


def test_the_old_lower_case_spelling_is_understood() -> None:
    """Kubernetes up to 1.16 writes it; the answer is CamelCase all the same."""
    world = World(eight_cards())
    pod = world.create("p", 4)
    bind = {"podName": "p", "podNamespace": "default", "podUID": "uid-p", "node": "n1"}

    assert world.post("/filter", {"pod": pod, "nodenames": ["n1"]}).json["NodeNames"] == ["n1"]
    assert world.post("/filter", {"Pod": pod, "nodenames": ["n1"]}).json["NodeNames"] == ["n1"]
    assert world.post("/prioritize", {"pod": pod, "nodenames": ["n1"]}).json == [{"Host": "n1", "Score": 0}]
    assert world.post("/bind", bind).json == {"Error": ""}


def test_refusals_say_why_in_few_texts() -> None:
    """One node of each kind; the text about units names both."""
    world = World(
        one_card("n1"),
        one_card("n2"),
        a_node("bare", None),
        a_node("corrupt", "rubbish"),
        a_node("leaving", an_inventory(cards(1, prefix="l-"), leaving=True)),
        a_node("unlabelled", an_inventory(cards(1, prefix="u-")), label=False),
        a_node("finer", an_inventory(cards(1, prefix="f-"), unit="0.1GB")),
    )
    world.run("full", 16, node="n2")

    given = ("bare", "corrupt", "leaving", "unlabelled", "finer", "nobody")
    answer = world.filter(world.create("p", 4), "n1", "n2", *given)

    assert answer["NodeNames"] == ["n1"]
    assert answer["FailedNodes"] == {
        "n2": NO_ROOM,
        "bare": "node has no accelshare agent that reports its cards",
        "corrupt": "node's accelshare.io/inventory annotation cannot be read",
        "leaving": "node's accelshare agent takes no new pods now: see accelshare inspect",
        "unlabelled": DIALECTS["gcushare"].refusal(Reason.NOT_OFFERED, "unlabelled"),
        "finer": "node counts enflame.com/gcu-memory in 0.1GB, most nodes in 1GB",
        "nobody": "node is not in accelshare's ledger yet",
    }
    assert answer["FailedAndUnresolvableNodes"] == {}


def test_nonsense_is_refused_everywhere_for_good() -> None:
    """No preemption can help it, so the nodes are unresolvable, and the text says what to change."""
    world = World(eight_cards())

    answer = world.filter(world.create("p", -1), "n1", "n2")

    text = (
        "resources.limits[enflame.com/gcu-memory] of container c0 is -1; "
        "allowed is a whole number that is not negative"
    )
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == {"n1": text, "n2": text}


def test_a_pod_that_is_bound_or_held_passes_on_its_node_only() -> None:
    """kube-scheduler asks again when it has not heard how a binding ended."""
    world = World(one_card("n1"), one_card("n2"))
    pod = world.create("p", 4)
    assert world.bind(pod, "n2") == ""

    held = world.filter(pod, "n1", "n2")
    world.deliver()
    bound = world.filter(pod, "n1", "n2")

    assert held["NodeNames"] == bound["NodeNames"] == ["n2"]
    assert held["FailedNodes"] == {"n1": "the pod's binding to node n2 is already decided"}


def many(best: int | None) -> World:
    """100 nodes, of which n000 is unused, n001 holds 1, and so on to 15."""
    world = World(*(one_card(f"n{at:03}") for at in range(100)), settings=Settings(best=best, elect=False))
    for at in range(100):
        if at % 16:
            world.run(f"filler-{at}", at % 16, node=f"n{at:03}")
    return world


def test_filter_hands_on_the_fullest_that_fit() -> None:
    """The others are left out without a reason, and real refusals keep theirs."""
    world = many(16)
    names = [f"n{at:03}" for at in range(100)]

    answer = world.filter(world.create("p", 8), *names)

    assert len(answer["NodeNames"]) == 16
    assert {int(name[1:]) % 16 for name in answer["NodeNames"]} == {8, 7, 6}
    assert set(answer["FailedNodes"]) == {name for name in names if int(name[1:]) % 16 > 8}


def test_between_equals_the_first_ones_are_taken() -> None:
    """Those above them come before."""
    assert fullest(["a", "b", "c", "d", "e"], [5, 9, 5, 1, 5], 3) == ["b", "a", "c"]
    assert fullest(["a", "b"], [0, 0], 1) == ["a"]


@pytest.mark.parametrize("best", [None, 0])
def test_without_a_limit_all_that_fit_are_handed_on(best: int | None) -> None:
    """None and 0 mean the same."""
    world = many(best)
    names = [f"n{at:03}" for at in range(100)]

    assert len(world.filter(world.create("p", 1), *names)["NodeNames"]) == 100


def test_a_pod_with_preferences_sees_all_that_fit() -> None:
    """Only kube-scheduler can honour what the pod would like."""
    world = many(16)
    names = [f"n{at:03}" for at in range(100)]
    spread, preferring = a_pod("spread", 1), a_pod("preferring", 1)
    spread.spec.topologySpreadConstraints = [SpreadConstraint("ScheduleAnyway")]
    preferring.spec.affinity = msgspec.convert(
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}, Affinity
    )

    assert [len(world.filter(pod, *names)["NodeNames"]) for pod in (spread, preferring)] == [100, 100]


def test_nodes_in_use_win_and_fuller_ones_more() -> None:
    """6 to 10 against 0: the gap outweighs what kube-scheduler's own scores can add up to."""
    world = World(*(one_card(f"n{at}") for at in range(4)))
    for at, amount in ((1, 1), (2, 8), (3, 15)):
        world.run(f"filler-{at}", amount, node=f"n{at}")

    assert world.scores(world.create("p", 1), "n0", "n1", "n2", "n3", "n9") == {
        "n0": 0,
        "n1": 6,
        "n2": 8,
        "n3": 10,
        "n9": 0,
    }


def test_a_pod_that_wants_to_be_spread_sees_it_the_other_way_round() -> None:
    """Unused nodes first, then the emptier; also among the few that are handed on."""
    world = World(*(one_card(f"n{at}") for at in range(4)))
    for at, amount in ((0, 1), (1, 8), (2, 12)):
        world.run(f"filler-{at}", amount, node=f"n{at}")
    pod = world.create("p", 1)
    wish = world.state.waiting[pod.metadata.uid]
    assert wish.request is not None
    names = ["n2", "n1", "n0", "n3"]

    assert filter_nodes(world.state, pod, names, 2).fits == ["n2", "n1"]
    wish.request = structs.replace(wish.request, node_policy="emptiest")
    assert filter_nodes(world.state, pod, names, 2).fits == ["n3", "n0"]
    assert world.scores(pod, *names, "n9") == {"n0": 4, "n1": 2, "n2": 1, "n3": 10, "n9": 0}


def test_scores_cover_all_ranks() -> None:
    """0, then 6 to 10, never falling; an overfull node's rank is beyond the last."""
    scores = [score(rank) for rank in range(1005)]

    assert scores == sorted(scores)
    assert (scores[0], scores[1], scores[1001], scores[1004]) == (0, 6, 10, 10)


def test_a_container_keeps_its_part_and_the_pod_its_peak() -> None:
    """Init containers run before the others, so only the larger of both is needed."""
    world = World(one_card())
    pod = world.api.create(a_pod("p", 3, 5, init=[a_container("setup", 12)]))
    world.deliver()

    assert world.bind(pod) == ""
    assert world.free() == [4]


def test_a_pod_unseen_by_the_watch_is_read_from_what_is_at_hand() -> None:
    """Filter has the pod in the request, bind reads it."""
    world = World(eight_cards())
    pod = world.api.create(a_pod("p", 4))

    assert world.filter(pod)["NodeNames"] == ["n1"]
    assert world.bind(pod) == ""
    assert world.card_of("p") == "0"


def test_what_a_waiting_pod_asks_is_read_anew_when_it_changes() -> None:
    """A newer version of the pod in the request wins over what the watch had."""
    world = World(one_card())
    pod = world.create("p", 4)
    changed: Pod = msgspec.convert(msgspec.to_builtins(pod), Pod)
    changed.metadata.resourceVersion = "9999"
    changed.spec.containers = [a_container("c0", 17)]

    assert world.filter(pod)["NodeNames"] == ["n1"]
    assert world.filter(changed)["NodeNames"] == []


def test_an_inventory_that_changes_changes_the_answer() -> None:
    """A card falls sick, and comes back."""
    world = World(one_card())
    pod = world.create("p", 4)
    node = one_card()
    sick = msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations={INVENTORY: "{}"})
    )

    world.state.node_changed(sick)
    assert world.filter(pod)["NodeNames"] == []
    world.state.node_changed(node)
    assert world.filter(pod)["NodeNames"] == ["n1"]


def test_names_and_nodes_that_disagree_are_answered_with_what_is_there() -> None:
    """Of the nodes, those that were given."""
    world = World(one_card("n1"), one_card("n2"))
    pod = world.create("p", 4)
    nodes = {"items": [{"metadata": {"name": "n2"}, "kind": "Node"}]}

    reply = world.post("/filter", {"Pod": pod, "NodeNames": ["n1", "n2"], "Nodes": nodes})

    assert reply.status == 200
    assert reply.json["NodeNames"] == ["n1", "n2"]
    assert reply.json["Nodes"]["items"] == nodes["items"]
