"""Bindings: one write, never twice, and room that is never given back on a guess."""

import asyncio

import pytest

from accelshare.core.grant import GRANT, parse_grant
from accelshare.core.objects import Pod
from accelshare.services.scheduler.binder import Binder
from accelshare.services.scheduler.holds import GRACE_SECONDS, SETTLE_SECONDS
from accelshare.services.scheduler.wire import BindArgs
from tests.builders import a_pod
from tests.services.scheduler.memory_api import Outcome, renamed
from tests.services.scheduler.world import World, eight_cards, one_card


def test_one_write_carries_node_grant_and_the_dialects_annotations() -> None:
    """Nothing else is written."""
    world = World(eight_cards())
    pod = world.create("p", 4)

    assert world.bind(pod) == ""

    (post,) = world.api.posted
    assert (post.node, post.uid) == ("n1", "uid-p")
    assert {key for key in post.annotations if key != GRANT} == {
        "enflame.com/gcu-device-id",
        "enflame.com/gcu-device-memory",
        "enflame.com/gcu-device-memory-request",
        "enflame.com/gcu-device-assigned",
        "enflame.com/gcu-device-assign-time",
    }
    grant = parse_grant(post.annotations[GRANT]).grant
    assert (grant.uid, grant.node, grant.containers[0].units) == ("uid-p", "n1", 4)


def test_a_pod_that_asks_for_none_of_it_is_bound_without_a_card() -> None:
    """kube-scheduler leaves the binding of every pod to us that names the resource, a zero too."""
    world = World(eight_cards())
    pod = world.create("p", 0)

    assert world.bind(pod) == ""
    assert world.bind(pod) == ""

    assert world.api.posted[0].annotations == {}
    assert world.api.pod("p").spec.nodeName == "n1"
    assert world.free() == [16] * 8


def test_asking_again_for_a_bound_pod_is_a_yes() -> None:
    """Before the watch has shown it and after."""
    world = World(eight_cards())
    pod = world.create("p", 4)
    assert world.bind(pod) == ""

    assert world.bind(pod) == ""
    world.deliver()
    assert world.bind(pod) == ""
    assert len(world.api.posted) == 1


def test_a_new_leader_finds_what_the_old_one_bound() -> None:
    """Its POST is answered 409, and the pod read back is bound as the old one decided."""
    world = World(eight_cards())
    pod = world.create("p", 4)
    world.api.binds = [Outcome.LANDED]
    world.bind(pod)
    heir = World(eight_cards(), api=world.api)
    heir.clock.now += 5
    heir.state.pod_changed(pod)

    assert heir.bind(pod) == ""
    assert heir.free() == [12, *[16] * 7]


def test_a_pod_bound_elsewhere_is_an_error_that_names_the_node() -> None:
    """Somebody chose another node."""
    world = World(one_card("n1"), one_card("n2"))
    pod = world.run("p", 4, node="n2")

    assert world.bind(pod, "n1") == "the pod is bound to node n2 already"
    assert world.free("n1") == [16]


def test_a_pod_bound_without_a_grant_is_an_error() -> None:
    """Another scheduler bound it: it has no card, and a second binding is impossible."""
    world = World(one_card())
    pod = world.create("p", 4)
    world.api.pod("p").spec.nodeName = "n1"

    error = world.bind(pod)

    assert "already assigned" in error
    assert world.free() == [16]


def test_two_pods_race_for_the_last_piece_of_a_card() -> None:
    """Room is taken before the write, so the second is refused while the first is under way."""
    world = World(one_card())
    first, second = world.create("first", 10), world.create("second", 10)
    world.api.binds = [Outcome.HANGS]

    async def race() -> list[str]:
        one = asyncio.create_task(world.binding(first))
        await world.api.hanging.wait()
        error = await world.binding(second)
        world.api.gate.set()
        return [await one, error]

    assert asyncio.run(race()) == ["", "insufficient GCU Memory in one gcu device"]
    assert [post.name for post in world.api.posted] == ["first"]


def test_two_calls_for_one_pod_make_one_binding() -> None:
    """kube-scheduler asks again while the first call is still under way."""
    world = World(eight_cards())
    pod = world.create("p", 4)
    world.api.binds = [Outcome.HANGS]

    async def twice() -> list[str]:
        calls = [asyncio.create_task(world.binding(pod)) for _ in range(3)]
        await world.api.hanging.wait()
        assert world.extender.binder.running == 3
        world.api.gate.set()
        return list(await asyncio.gather(*calls))

    assert asyncio.run(twice()) == ["", "", ""]
    assert len(world.api.posted) == 1
    assert world.extender.binder.running == 0


def test_a_definite_no_gives_the_room_back() -> None:
    """403 proves that nothing was written."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.FORBIDDEN]

    assert "403" in world.bind(pod)
    assert world.free() == [16]
    assert world.bind(pod) == ""


IN_DOUBT = [Outcome.LOST, Outcome.LANDED, Outcome.BROKEN, Outcome.BROKEN_LANDED, Outcome.LATE]


@pytest.mark.parametrize("outcome", IN_DOUBT)
def test_an_answer_that_is_none_keeps_the_room(outcome: Outcome) -> None:
    """Whatever became of it, nobody else gets this piece meanwhile."""
    world = World(one_card())
    pod, other = world.create("p", 16), world.create("other", 16)
    world.api.binds = [outcome]

    assert "stays held" in world.bind(pod)

    assert world.free() == [0]
    assert world.filter(other)["NodeNames"] == []
    assert world.filter(pod)["NodeNames"] == ["n1"]


@pytest.mark.parametrize("outcome", [Outcome.LANDED, Outcome.BROKEN_LANDED])
def test_a_binding_that_took_effect_is_found_by_reading_back(outcome: Outcome) -> None:
    """The next sweep reads the pod; and asking again is a yes."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [outcome]
    world.bind(pod)

    world.sweep()

    assert world.bind(pod) == ""
    assert len(world.api.posted) == 1
    world.clock.now += 10 * GRACE_SECONDS
    world.sweep()
    assert world.free() == [0]


def test_asking_again_in_doubt_posts_the_very_same_grant() -> None:
    """So it does not matter which of the two calls takes effect."""
    world = World(eight_cards())
    pod = world.create("p", 4)
    world.api.binds = [Outcome.LATE]
    world.bind(pod)
    world.clock.now += 5

    assert world.bind(pod) == ""

    first, second = world.api.posted
    assert first.annotations == second.annotations
    world.api.land()
    world.deliver()
    assert world.free() == [12, *[16] * 7]


def test_asking_again_finds_that_the_first_call_took_effect() -> None:
    """The second is answered 409, the pod read back is bound as decided: a yes."""
    world = World(eight_cards())
    pod = world.create("p", 4)
    world.api.binds = [Outcome.LANDED]
    world.bind(pod)

    assert world.bind(pod) == ""
    assert len(world.api.posted) == 2


def test_an_unbound_pod_keeps_its_room_for_a_grace() -> None:
    """A late call may still land; after the grace it is given up, and kube-scheduler is told to ask."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LOST]
    world.bind(pod)

    world.clock.now += GRACE_SECONDS - 1
    world.sweep()
    assert world.free() == [0]
    world.clock.now += 1
    world.sweep()
    assert world.free() == [16]

    world.tick()
    assert "accelshare.io/nudge" in (world.api.pod("p").metadata.annotations or {})


def test_a_late_no_does_not_settle_what_an_earlier_call_may_do() -> None:
    """The second call is answered 403; the first may still land, and does."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LATE, Outcome.FORBIDDEN]
    world.bind(pod)

    assert "403" in world.bind(pod)
    assert world.free() == [0]
    world.api.land()
    world.deliver()
    assert (world.free(), len(world.state.holds)) == ([0], 0)


def two_holds() -> tuple[World, Pod]:
    """In doubt on n1, and then kube-scheduler chose n2, where the call is in doubt too."""
    world = World(one_card("n1"), one_card("n2"))
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LATE, Outcome.LATE]
    world.bind(pod, "n1")
    world.bind(pod, "n2")
    return world, pod


def test_another_node_leaves_the_first_hold_beside_the_second() -> None:
    """Either call may land, so both rooms are taken."""
    world, _ = two_holds()

    assert (world.free("n1"), world.free("n2")) == ([0], [0])


def test_whichever_lands_frees_the_other() -> None:
    """Here the first one lands, and the second is then refused by the API server."""
    world, _ = two_holds()

    world.api.land()
    world.deliver()

    assert (world.free("n1"), world.free("n2")) == ([0], [16])
    assert len(world.state.holds) == 0


def test_the_one_that_landed_is_found_by_reading_back_too() -> None:
    """Without the watch."""
    world, _ = two_holds()
    world.api.land()

    world.sweep()

    assert (world.free("n1"), world.free("n2")) == ([0], [16])


def test_a_yes_on_the_second_node_frees_the_first() -> None:
    """The pod is bound, so the call that is late is refused when it comes."""
    world = World(one_card("n1"), one_card("n2"))
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LATE]
    world.bind(pod, "n1")

    assert world.bind(pod, "n2") == ""
    assert (world.free("n1"), world.free("n2")) == ([16], [0])
    world.api.land()
    world.deliver()
    assert (world.free("n1"), world.free("n2")) == ([16], [0])


def test_both_are_given_up_after_the_grace() -> None:
    """Neither landed."""
    world, _ = two_holds()

    world.clock.now += GRACE_SECONDS
    world.sweep()

    assert (world.free("n1"), world.free("n2")) == ([16], [16])


@pytest.mark.parametrize("end", ["gone", "replaced"])
def test_a_pod_that_is_gone_gives_its_room_back(end: str) -> None:
    """Deleted, or another of its name: no call for this UID can land any more."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LOST]
    world.bind(pod)
    world.api.remove("p")
    if end == "replaced":
        world.api.create(renamed(pod, "uid-other"))

    world.sweep()

    assert world.free() == [16]


def test_a_pod_that_cannot_be_read_back_keeps_its_room() -> None:
    """And is read again at the next sweep."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds, world.api.reads = [Outcome.LANDED], [Outcome.LOST]
    world.bind(pod)

    world.sweep()
    assert world.free() == [0]
    world.sweep()
    assert world.state.holds.in_doubt() == 0


def test_a_hold_that_the_watch_never_shows_is_looked_at() -> None:
    """The pod was bound and deleted while the watch was away."""
    world = World(one_card())
    pod = world.create("p", 16)
    assert world.bind(pod) == ""
    world.api.remove("p")

    world.sweep()
    assert world.free() == [0]
    world.clock.now += SETTLE_SECONDS
    world.sweep()
    assert world.free() == [16]


def test_the_watch_settles_what_is_in_doubt() -> None:
    """It shows the pod bound before anybody reads it back."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LANDED]
    world.bind(pod)

    world.deliver()

    assert (len(world.state.holds), world.bind(pod)) == (0, "")


def test_a_pod_of_another_uid_is_not_bound() -> None:
    """kube-scheduler speaks of a pod whose name another has taken."""
    world = World(one_card())
    old = a_pod("p", 4, uid="uid-old")
    world.create("p", 4)

    assert world.bind(old) == "pod default/p has UID uid-p, and uid-old was to be bound"
    assert world.api.posted == []


def test_a_pod_that_does_not_exist_is_not_bound() -> None:
    """It was deleted between filter and bind."""
    assert World(one_card()).bind(a_pod("p", 4)) == "pod default/p does not exist"


def test_an_old_server_is_checked_before() -> None:
    """1.22 ignores the UID in a binding: what has the name now is read first."""
    world = World(one_card(), checks_uid=False)
    pod = world.create("p", 4)
    world.api.remove("p")
    world.api.create(renamed(pod, "uid-other"))

    assert "uid-other" in world.bind(pod)
    assert world.api.posted == []


def test_an_old_server_is_checked_after() -> None:
    """Replaced between the check and the binding: the wrong pod has node and grant, and is deleted."""
    world = World(one_card(), checks_uid=False)
    pod = world.create("p", 4)
    world.api.binds = [Outcome.HANGS]

    async def replaced() -> str:
        call = asyncio.create_task(world.binding(pod))
        await world.api.hanging.wait()
        world.api.remove("p")
        world.api.create(renamed(pod, "uid-other"))
        world.api.gate.set()
        return await call

    assert asyncio.run(replaced()).endswith(
        "was replaced while it was bound, and what took its name is deleted"
    )
    assert world.api.pods == {}
    assert world.free() == [16]


def test_annotations_too_large_for_a_pod_are_not_posted() -> None:
    """The API server would store them, and refuse every later patch of that pod."""
    world = World(one_card())
    pod = world.create("p", 4, annotations={"notes": "x" * 262_000})

    assert "at most 262144 bytes" in world.bind(pod)
    assert (world.api.posted, world.free()) == ([], [16])


def test_a_node_that_takes_no_such_pods_is_refused() -> None:
    """It was in the answer of filter a moment ago."""
    world = World(one_card())
    pod = world.create("p", 4)
    world.state.node_gone(one_card())

    assert world.bind(pod) == "node is not in accelshare's ledger yet"


def test_a_call_that_is_cancelled_leaves_the_outcome_in_doubt() -> None:
    """The connection broke: the binding may have been sent."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.HANGS]

    async def cancelled() -> None:
        call = asyncio.create_task(world.binding(pod))
        await world.api.hanging.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(cancelled())
    assert (world.free(), world.state.holds.in_doubt()) == ([0], 1)


def test_everything_is_counted() -> None:
    """By outcome, as /metrics shows it."""
    world = World(one_card())
    world.run("p", 16)
    world.bind(world.create("q", 16))

    text = world.get("/metrics").body.decode()

    assert 'accelshare_binds_total{outcome="bound"} 1' in text
    assert 'accelshare_binds_total{outcome="refused"} 1' in text
    assert 'accelshare_binding_posts_total{answer="yes"} 1' in text
    assert "accelshare_tenants 1" in text


LEADS_NO_MORE = "this replica leads no more; ask the one that does"


def test_who_lost_the_lease_while_it_read_decides_nothing() -> None:
    """It led when the call came in; the pod had to be read, and that took its time."""
    world = World(one_card(), checks_uid=False)
    pod = world.create("p", 16)
    world.api.reads = [Outcome.HANGS]

    async def lost() -> str:
        call = asyncio.create_task(world.binding(pod))
        await world.api.hanging.wait()
        world.leading = False
        world.api.gate.set()
        return await call

    assert asyncio.run(lost()) == LEADS_NO_MORE
    assert (world.api.posted, world.free()) == ([], [16])


def test_who_lost_the_lease_posts_nothing_again() -> None:
    """An earlier call for the same pod was under way; what is in doubt of it stays held."""
    world = World(one_card())
    pod = world.create("p", 16)
    world.api.binds = [Outcome.LATE]
    world.bind(pod)
    world.leading = False

    answer = asyncio.run(world.extender.binder.bind(BindArgs("p", "default", "uid-p", "n1")))

    assert answer == LEADS_NO_MORE
    assert (len(world.api.posted), world.free()) == (1, [0])


def a_binder(world: World, leads: list[bool], read_seconds: float = 2.0) -> Binder:
    """One that leads for as many questions as are said."""
    return Binder(
        world.state,
        world.api,
        world.extender.metrics,
        leads=lambda: leads.pop(0),
        clock=world.clock,
        wall_ns=lambda: 1,
        sign=None,
        read_seconds=read_seconds,
    )


def test_who_lost_the_lease_after_it_decided_gives_the_room_back() -> None:
    """It is asked right before the write too, and nothing was written."""
    world = World(one_card())
    world.create("p", 16)

    answer = asyncio.run(a_binder(world, [True, False]).bind(BindArgs("p", "default", "uid-p", "n1")))

    assert answer == LEADS_NO_MORE
    assert (world.api.posted, world.free(), len(world.state.holds)) == ([], [16], 0)


def test_what_must_be_read_before_is_waited_for_in_bounds() -> None:
    """kube-scheduler and the Lease do not wait for a server that hangs."""
    world = World(one_card(), checks_uid=False)
    world.create("p", 16)
    world.api.reads = [Outcome.HANGS]

    binder = a_binder(world, [True, True], read_seconds=0.01)
    answer = asyncio.run(binder.bind(BindArgs("p", "default", "uid-p", "n1")))

    assert answer == "the pod could not be read within 0.01 s"
    assert (world.api.posted, world.free()) == ([], [16])
