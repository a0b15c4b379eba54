"""Freed room is offered to one pod per piece: to the right one first, to the next when that one is silent."""

from accelshare.core.objects import Node
from accelshare.services.scheduler.nudge import ANSWER_SECONDS, GUESSED_NUDGES, NUDGE, choose
from accelshare.services.scheduler.refusals import MOST_NAMES, MOST_PODS, RefusedPods
from accelshare.services.scheduler.state import waiting
from tests.builders import a_node, a_pod, an_inventory, cards
from tests.services.scheduler.world import World, eight_cards, one_card


def nudged(world: World) -> list[str]:
    return sorted(
        name for (_, name), pod in world.api.pods.items() if NUDGE in (pod.metadata.annotations or {})
    )


def refused(world: World, name: str, *asks: int, node: str = "n1", **more: object) -> None:
    pod = world.create(name, *asks)
    if "created" in more:
        pod.metadata.creationTimestamp = str(more["created"])
    if "priority" in more:
        pod.spec.priority = int(str(more["priority"]))
    assert world.filter(pod, node)["NodeNames"] == []


def full() -> World:
    """One card, of which two pods have half each."""
    world = World(one_card())
    world.run("a", 8)
    world.run("b", 8)
    return world


def end(world: World, name: str) -> None:
    world.api.finish(name)
    world.deliver()
    world.tick()


def test_a_change_that_turns_a_refusal_into_a_fit_nudges() -> None:
    """kube-scheduler would ask again only after some other event."""
    world = full()
    refused(world, "p", 8)

    world.tick()
    assert nudged(world) == []
    end(world, "a")
    assert nudged(world) == ["p"]


def test_one_pod_per_freed_piece() -> None:
    """Half a card is free: one of three is nudged, not all."""
    world = full()
    for name in ("p", "q", "r"):
        refused(world, name, 8)

    end(world, "a")
    assert len(nudged(world)) == 1


def test_as_many_as_fit_together() -> None:
    """The freed 8 hold two pods of 4."""
    world = full()
    for name in ("p", "q", "r"):
        refused(world, name, 4)

    end(world, "a")
    assert nudged(world) == ["p", "q"]


def test_the_more_important_and_then_the_older_pod_is_first() -> None:
    """As kube-scheduler's own queue would have it."""
    world = full()
    refused(world, "young", 8, created="2026-03-01T00:00:00Z")
    refused(world, "old", 8, created="2026-02-01T00:00:00Z")
    refused(world, "important", 8, created="2026-04-01T00:00:00Z", priority=100)

    end(world, "a")
    assert nudged(world) == ["important"]
    end(world, "b")
    assert nudged(world) == ["important", "old"]


def test_a_smaller_pod_takes_what_is_too_small_for_the_first() -> None:
    """What does not fit is not in the way."""
    world = full()
    refused(world, "large", 16)
    refused(world, "small", 8)

    end(world, "a")
    assert nudged(world) == ["small"]


def test_the_next_has_its_turn_when_the_first_is_silent() -> None:
    """kube-scheduler may have reasons of its own not to ask about the first."""
    world = full()
    refused(world, "p", 8)
    refused(world, "q", 8)
    end(world, "a")
    assert nudged(world) == ["p"]

    world.clock.now += ANSWER_SECONDS - 0.1
    world.tick()
    assert nudged(world) == ["p"]
    world.clock.now += 0.2
    world.tick()
    assert nudged(world) == ["p", "q"]


def test_a_silent_pod_is_nudged_again_after_growing_pauses() -> None:
    """2 s, 4 s, 8 s, and at most a minute: kube-scheduler may be away."""
    world = full()
    refused(world, "p", 8)
    end(world, "a")

    times = []
    before = (world.api.pod("p").metadata.annotations or {})[NUDGE]
    for _ in range(60):
        world.clock.now += 1
        world.tick()
        now = (world.api.pod("p").metadata.annotations or {})[NUDGE]
        if now != before:
            times.append(int(world.clock.now - 1000))
            before = now
    assert times == [4, 12, 28, 60]


def test_a_pod_that_got_a_node_leaves_the_table() -> None:
    """And what is left of the freed room goes to the next."""
    world = full()
    refused(world, "p", 4)
    refused(world, "q", 8)
    end(world, "a")
    assert nudged(world) == ["p"]

    pod = world.api.pod("p")
    assert world.filter(pod)["NodeNames"] == ["n1"]
    assert world.bind(pod) == ""
    world.deliver()
    assert "uid-p" not in world.state.refused
    world.tick()
    assert nudged(world) == ["p"]


def test_a_pod_that_is_gone_leaves_the_table() -> None:
    """Its piece is offered to the next one at once."""
    world = full()
    refused(world, "p", 8)
    world.api.remove("p")
    world.deliver()

    assert len(world.state.refused) == 0
    end(world, "a")
    assert nudged(world) == []


def test_a_pod_is_offered_only_nodes_that_it_was_refused_on() -> None:
    """kube-scheduler left the others out for reasons that we do not know."""
    world = World(one_card("n1"), one_card("n2"))
    world.run("a", 16, node="n1")
    world.run("b", 16, node="n2")
    refused(world, "p", 8, node="n1")

    end(world, "b")
    assert nudged(world) == []
    end(world, "a")
    assert nudged(world) == ["p"]


def test_a_pod_with_the_turn_elsewhere_is_not_offered_twice() -> None:
    """Two nodes become free at once: two pods are nudged, one for each."""
    world = World(one_card("n1"), one_card("n2"))
    world.run("a", 16, node="n1")
    world.run("b", 16, node="n2")
    for name in ("p", "q"):
        assert world.filter(world.create(name, 16), "n1", "n2")["NodeNames"] == []

    for name in ("a", "b"):
        world.api.finish(name)
    world.deliver()
    world.tick()

    assert nudged(world) == ["p", "q"]


def test_only_the_leader_nudges() -> None:
    """Two would nudge twice."""
    world = full()
    refused(world, "p", 8)
    world.leading = False

    end(world, "a")
    assert nudged(world) == []


def test_a_nudged_pod_that_is_gone_is_forgotten() -> None:
    """The watch has not said so yet."""
    world = full()
    refused(world, "p", 8)
    world.api.pods.pop(("default", "p"))

    end(world, "a")
    assert len(world.state.refused) == 0


def test_choosing_changes_nothing() -> None:
    """It works on a copy of the node's room."""
    world = World(one_card())
    world.run("a", 16)
    for name in ("p", "q"):
        refused(world, name, 8)
    world.api.finish("a")
    world.deliver()

    first = choose(world.ledger, world.state.refused, "n1", 0.0)
    second = choose(world.ledger, world.state.refused, "n1", 0.0)

    assert [pod.name for pod in first.pods] == [pod.name for pod in second.pods] == ["p", "q"]
    assert world.free() == [16]


def test_a_new_node_is_freed_room_too() -> None:
    """Pods that were refused on it while it had no agent."""
    world = World(eight_cards("n1"), a_node("n2", None))
    refused(world, "p", 4, node="n2")

    world.state.node_changed(a_node("n2", an_inventory(cards(1, prefix="n2-"))))
    world.tick()
    assert nudged(world) == ["p"]


def test_the_table_is_bounded_in_pods_and_in_names() -> None:
    """The oldest go first."""
    table = RefusedPods()
    wish = waiting(a_pod("p", 4))
    assert wish.request is not None
    assert wish.shape is not None
    for at in range(MOST_PODS + 10):
        table.note(a_pod(f"p{at}", 4), wish.request, wish.shape, ["n1"])
    assert len(table) == MOST_PODS
    assert "uid-p9" not in table

    names = [f"n{at}" for at in range(MOST_NAMES // 2)]
    for at in range(3):
        table.note(a_pod(f"q{at}", 4), wish.request, wish.shape, names)
    assert len(table) == 2
    for at in range(3):
        table.forget(f"uid-q{at}")
    assert (len(table), list(table.shapes())) == (0, [])


def in_tenths(name: str) -> Node:
    return a_node(name, an_inventory(cards(1, prefix=f"{name}-"), unit="0.1GB"), uid=f"uid-{name}")


def test_a_new_majority_offers_nodes_that_did_not_change() -> None:
    """The pod waits for n1, whose unit few had; now most have it."""
    world = World(in_tenths("n1"), one_card("n2"), one_card("n3"))
    refused(world, "p", 4, node="n1")
    world.tick()
    assert nudged(world) == []

    world.state.node_changed(in_tenths("n2"))
    world.tick()
    assert nudged(world) == ["p"]


def heir(world: World, *nodes: Node) -> World:
    """Another replica that has seen the same and was never asked."""
    other = World(*nodes, api=world.api)
    for pod in world.api.pods.values():
        other.state.pod_changed(pod)
    return other


def test_a_new_leader_offers_room_to_pods_that_the_one_before_it_refused() -> None:
    """Nobody has asked about them here, and nobody will: kube-scheduler has been refused."""
    world = full()
    refused(world, "p", 8)
    new = heir(world, one_card())
    world.api.finish("a")
    world.deliver()
    new.state.pod_changed(world.api.pod("a"))

    new.extender.take_over()
    new.tick()
    assert nudged(new) == ["p"]


def test_a_new_leader_has_room_taken_by_nobody_for_pods_that_are_bound() -> None:
    """Only who waits is guessed to have been refused."""
    new = heir(full(), one_card())

    new.extender.take_over()
    assert len(new.state.refused) == 0


def test_what_was_asked_about_is_not_guessed() -> None:
    """The nodes that a pod was refused on are known then."""
    world = World(one_card("n1"), one_card("n2"))
    world.run("a", 16, node="n1")
    refused(world, "p", 8, node="n1")

    world.extender.take_over()
    world.tick()
    assert nudged(world) == []


def test_a_guessed_pod_that_nobody_asks_about_is_forgotten() -> None:
    """kube-scheduler keeps it off all our nodes for reasons of its own."""
    world = World(one_card())
    world.create("p", 8)
    world.extender.take_over()

    for _ in range(GUESSED_NUDGES):
        assert "uid-p" in world.state.refused
        world.clock.now += 100
        world.tick()
    assert "uid-p" not in world.state.refused


def test_guesses_put_nobody_out_who_was_asked_about() -> None:
    """The table is full of names: the most important pods are guessed, as many as there is room for."""
    world = World(one_card())
    wish = waiting(a_pod("p", 4))
    assert wish.request is not None
    assert wish.shape is not None
    for at in range(MOST_PODS - 1):
        world.state.refused.note(a_pod(f"p{at}", 4), wish.request, wish.shape, ["n1"])
    world.create("low", 4)
    high = a_pod("high", 4)
    high.spec.priority = 7
    world.api.create(high)
    world.deliver()

    world.extender.take_over()
    assert "uid-p0" in world.state.refused
    assert "uid-high" in world.state.refused
    assert "uid-low" not in world.state.refused
