"""Which ids kubelet had better take: of as few cards as can be."""

from accelshare.services.agent.offers import prefer
from tests.services.agent.world import ids


def test_ids_of_one_card_are_kept_together() -> None:
    """Of two cards that both have enough, all ids come from one."""
    assert prefer([*ids(0, 8, 0), *ids(0, 8, 1)], [], 4) == ids(0, 4, 0)


def test_the_card_with_fewest_left_comes_first() -> None:
    """A card that is begun is filled before another is begun."""
    assert prefer([*ids(0, 16, 0), *ids(10, 6, 1)], [], 4) == ids(10, 4, 1)


def test_a_card_that_has_too_few_is_left_for_others() -> None:
    """Three ids are taken from the card that has them, not from two."""
    assert prefer([*ids(0, 2, 0), *ids(0, 8, 1)], [], 3) == ids(0, 3, 1)


def test_where_no_card_has_enough_the_largest_rests_are_joined() -> None:
    """As few cards as can be, also where one will not do."""
    assert prefer([*ids(0, 2, 0), *ids(0, 5, 1), *ids(0, 3, 2)], [], 7) == [*ids(0, 5, 1), *ids(0, 2, 0)]


def test_what_must_be_taken_is_taken_and_its_card_goes_on() -> None:
    """An app container that takes over an init container's ids stays on their card."""
    assert prefer([*ids(0, 8, 0), *ids(0, 3, 1)], ["GCU-0-_-5"], 3) == ["GCU-0-_-5", *ids(0, 2, 0)]


def test_numbers_are_ordered_as_numbers() -> None:
    """Id 10 comes after id 9."""
    assert prefer(["GCU-0-_-10", "GCU-0-_-9"], [], 1) == ["GCU-0-_-9"]


def test_slots_of_one_card_are_kept_together_too() -> None:
    """The slots of counted dialects have cards as well."""
    available = ["GCU-0-slot-0", "GCU-1-slot-0", "GCU-1-slot-1"]

    assert prefer(available, [], 2) == ["GCU-1-slot-0", "GCU-1-slot-1"]


def test_too_few_ids_are_all_taken() -> None:
    """What kubelet asks beyond what there is does not hang the answer."""
    assert prefer(ids(0, 2), [], 5) == ids(0, 2)
