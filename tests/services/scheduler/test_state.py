"""What lists and events leave known of pods, whichever of the two is behind."""

from accelshare.services.scheduler.state import SchedulerState
from tests.builders import a_pod
from tests.services.scheduler.world import World, one_card


def test_a_list_keeps_a_pod_that_began_to_wait_after_it() -> None:
    """The watch brought it while the list was still read."""
    state = SchedulerState()
    state.pod_changed(a_pod("old", 4, version=8))
    state.pod_changed(a_pod("new", 4, version=12))

    state.pods_listed([], 10)

    assert list(state.waiting) == ["uid-new"]


def test_a_list_that_is_behind_makes_no_bound_pod_wait() -> None:
    """A page may show a pod as it was before the watch showed it bound."""
    world = World(one_card())
    before = world.create("p", 4)
    world.run("q", 4)
    world.bind(before)
    world.deliver()

    world.state.pod_listed(before)

    assert (list(world.state.waiting), world.free()) == ([], [8])


def test_a_list_that_is_behind_makes_no_deleted_pod_wait() -> None:
    """Its end has been seen already."""
    world = World(one_card())
    before = world.create("p", 4)
    world.api.remove("p")
    world.deliver()

    world.state.pod_listed(before)

    assert list(world.state.waiting) == []
