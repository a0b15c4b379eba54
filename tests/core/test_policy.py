"""Policies: which of the cards that fit is taken."""

import pytest

from accelshare.core.policy import POLICIES, CardView

CARDS = [
    CardView(id="d", index=3, memory=16, free=16, tenants=0),
    CardView(id="c", index=2, memory=16, free=4, tenants=1),
    CardView(id="e", index=4, memory=16, free=9, tenants=1),
    CardView(id="a", index=0, memory=16, free=16, tenants=0),
    CardView(id="b", index=1, memory=16, free=4, tenants=2),
]


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fullest", [1, 2, 4, 0, 3]), ("emptiest", [0, 3, 4, 1, 2])],
)
def test_the_order_of_cards(policy: str, order: list[int]) -> None:
    """By what is free; ties go to the lowest index, wherever the card stands in the list."""
    chosen = POLICIES[policy].choose(CARDS, len(CARDS))

    assert [CARDS[at].index for at in chosen] == order


@pytest.mark.parametrize("policy", POLICIES)
def test_as_many_as_are_asked_for(policy: str) -> None:
    """The first of its order; fewer only by a policy that says so of itself."""
    choose = POLICIES[policy].choose

    assert list(choose(CARDS, 2)) == list(choose(CARDS, 5))[:2]
    assert not POLICIES[policy].may_refuse
