"""Units: what fits by count fits by bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.units import GIB, MIB, Unit

UNITS = [
    Unit("1GB", GIB),
    Unit("0.1GB", GIB, 10),
    Unit("0.01GB", GIB, 100),
    Unit("0.001GB", GIB, 1000),
    Unit("256MiB", 256 * MIB),
]
ANY_UNIT = st.sampled_from(UNITS)


@pytest.mark.parametrize(
    ("unit", "count", "size"),
    [
        (UNITS[0], 4, 4294967296),
        (UNITS[1], 1, 107374182),
        (UNITS[1], 40, 4294967296),
        (UNITS[1], 160, 17179869184),
        (UNITS[3], 1, 1073741),
        (UNITS[3], 16000, 17179869184),
        (UNITS[4], 1, 268435456),
    ],
)
def test_units_are_whole_bytes_rounded_down(unit: Unit, count: int, size: int) -> None:
    """The amount is rounded once, not unit by unit."""
    assert unit.bytes(count) == size


@given(ANY_UNIT, st.integers(0, 10**6))
def test_nearest_undoes_bytes(unit: Unit, count: int) -> None:
    """What a grant holds is shown as the number that was asked for."""
    assert unit.nearest(unit.bytes(count)) == count


@given(ANY_UNIT, st.lists(st.integers(0, 1000), max_size=20))
def test_what_fits_by_count_fits_by_bytes(unit: Unit, counts: list[int]) -> None:
    """Many grants never take more than one grant of their sum."""
    assert sum(unit.bytes(count) for count in counts) <= unit.bytes(sum(counts))


@given(ANY_UNIT, st.integers(0, 1 << 40))
def test_a_card_has_only_whole_units(unit: Unit, size: int) -> None:
    """count is the most units that still fit."""
    count = unit.count(size)

    assert unit.bytes(count) <= size < unit.bytes(count + 1) + 1
