"""Requests: what a pod needs of its card at any one time, and which pods ask alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.objects import Role
from accelshare.core.request import Amount, Ask, ContainerRequest, Group, PodRequest, peak
from accelshare.core.units import GIB, Unit

GB = Unit("1GB", GIB)

PEAKS: list[tuple[str, list[tuple[Role, int]], int]] = [
    ("nothing", [], 0),
    ("apps run together", [("app", 3), ("app", 4)], 7),
    ("the larger of init and apps", [("init", 9), ("app", 3), ("app", 4)], 9),
    ("inits run one after the other", [("init", 5), ("init", 6), ("app", 4)], 6),
    ("a sidecar runs beside the apps", [("sidecar", 2), ("app", 4)], 6),
    ("a sidecar runs beside the inits after it", [("sidecar", 2), ("init", 5), ("app", 4)], 7),
    ("not beside those before it", [("init", 5), ("sidecar", 2), ("app", 2)], 5),
    ("between two inits", [("init", 5), ("sidecar", 4), ("init", 3), ("app", 1)], 7),
    ("two sidecars", [("sidecar", 2), ("init", 1), ("sidecar", 2), ("init", 4), ("app", 3)], 8),
]


@pytest.mark.parametrize(("amounts", "most"), [row[1:] for row in PEAKS], ids=[row[0] for row in PEAKS])
def test_peak(amounts: list[tuple[Role, int]], most: int) -> None:
    """The most that runs at the same time, in the order in which kubelet starts containers."""
    assert peak(amounts) == most


ROLES: st.SearchStrategy[list[tuple[Role, int]]] = st.lists(
    st.tuples(st.sampled_from(["init", "sidecar", "app"]), st.integers(0, 50)), max_size=8
)


@given(ROLES)
def test_a_peak_lies_between_the_largest_and_the_sum(amounts: list[tuple[Role, int]]) -> None:
    """No container gets less than it asked for, and nothing is counted twice."""
    sizes = [amount for _, amount in amounts]

    assert max(sizes, default=0) <= peak(amounts) <= sum(sizes)


@pytest.mark.parametrize(
    ("amount", "size"),
    [
        (Amount(3), 3 * GIB),
        (Amount(3, "byte"), 3),
        (Amount(50, "percent"), 8 * GIB),
        (Amount(33, "percent"), 16 * GIB * 33 // 100),
    ],
)
def test_an_amount_becomes_bytes_on_a_card(amount: Amount, size: int) -> None:
    """A unit is the node's, a percentage the card's."""
    assert amount.bytes_on(16 * GIB, GB) == size


def a_request(*names: str, together: bool = False, cards: int = 1) -> PodRequest:
    asks = tuple(ContainerRequest(name, Ask("app", Amount(2)), 2, cards) for name in names)
    return PodRequest("d", asks, "fullest", together=together)


def test_pods_that_ask_alike_have_equal_shapes() -> None:
    """Containers' names are no part of a shape: replicas share one answer."""
    assert a_request("a", "b").shape() == a_request("c", "d").shape()


def test_together_is_one_group() -> None:
    """All containers of the pod on the same cards, as many as the greediest wants."""
    ask = Ask("app", Amount(2))

    assert a_request("a", "b", together=True, cards=2).groups() == (Group((ask, ask), 2),)


def test_apart_is_a_group_each() -> None:
    """Each container chooses its own cards."""
    ask = Ask("app", Amount(2))

    assert a_request("a", "b").groups() == (Group((ask,)), Group((ask,)))
