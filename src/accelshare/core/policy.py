"""Which of the cards that fit are taken. A policy is a row here; the loop that uses it is written once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct


class CardView(Struct, kw_only=True):
    """One card as a policy sees it: what is free of it now, and where it sits."""

    id: str
    index: int
    memory: int
    free: int
    compute_free: int = 100  # percent; negative where it is oversold
    tenants: int = 0
    model: str = ""
    numa: int | None = None
    pcie: tuple[str, ...] = ()  # bridges from the card up to the CPU
    links: Mapping[str, int] = {}  # id of a linked card -> how good the link is; more is better


# Of the cards that fit, the positions of those that are taken, in the order in which the container sees them.
# As many as are asked for; fewer where no such set is there.
Choose = Callable[[Sequence[CardView], int], Sequence[int]]


class Policy(Struct, frozen=True):
    choose: Choose
    may_refuse: bool = True  # it may answer with fewer although enough cards fit


def by_key(key: Callable[[CardView], Any]) -> Policy:
    """Takes the smallest, whatever else is taken."""

    def choose(cards: Sequence[CardView], count: int) -> Sequence[int]:
        return sorted(range(len(cards)), key=lambda at: key(cards[at]))[:count]

    return Policy(choose, may_refuse=False)


POLICIES: dict[str, Policy] = {
    # The fullest card that fits; ties go to the lowest index.
    "fullest": by_key(lambda card: (card.free, card.index)),
    # The emptiest card; ties go to the lowest index.
    "emptiest": by_key(lambda card: (-card.free, card.index)),
}
