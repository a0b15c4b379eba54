"""Policies: which of the cards that fit is taken."""

import pytest

from accelshare.core.policy import POLICIES, CardView

CARDS = [
    CardView(index=3, memory=16, free=16, tenants=0),
    CardView(index=2, memory=16, free=4, tenants=1),
    CardView(index=4, memory=16, free=9, tenants=1),
    CardView(index=0, memory=16, free=16, tenants=0),
    CardView(index=1, memory=16, free=4, tenants=2),
]


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fullest", [1, 2, 4, 0, 3]), ("emptiest", [0, 3, 4, 1, 2])],
)
def test_the_order_of_cards(policy: str, order: list[int]) -> None:
    """By what is free; ties go to the lowest index, wherever the card stands in the list."""
    ranked = sorted(CARDS, key=POLICIES[policy].card)

    assert [card.index for card in ranked] == order
