"""Which of the cards that fit is taken. A policy is a row here; the loop that uses it is written once."""

from collections.abc import Callable

from msgspec import Struct


class CardView(Struct):
    """One card as a policy sees it: what is free of it now."""

    index: int
    memory: int
    free: int
    tenants: int


class Policy(Struct, frozen=True):
    card: Callable[[CardView], tuple[int, ...]]  # the smallest is taken


POLICIES: dict[str, Policy] = {
    # The fullest card that fits; ties go to the lowest index.
    "fullest": Policy(card=lambda card: (card.free, card.index)),
    # The emptiest card; ties go to the lowest index.
    "emptiest": Policy(card=lambda card: (-card.free, card.index)),
}
