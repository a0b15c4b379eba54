"""Random histories of a cluster: what must always hold holds after every step."""

from collections.abc import Callable

import pytest

from tests.core.histories import OPERATIONS, Report, run

COUNT = 1000  # a tenth of what the figures are made of
SECONDS = 45.0


@pytest.fixture(scope="module")
def report() -> Report:
    return run(COUNT, SECONDS)


def test_no_history_breaks_a_rule(report: Report, record_property: Callable[[str, object], None]) -> None:
    """Each violation is the one line that repeats it."""
    record_property("histories", "\n".join(report.lines()))

    assert report.violations == []


def test_the_histories_are_worth_something(report: Report) -> None:
    """Creates end bound, cards get full, and each operation happens: else nothing was tested."""
    assert report.bound_percent >= 40
    assert report.histories_with_full_cards > report.histories / 2
    assert set(OPERATIONS) <= set(report.operations)


def test_a_seed_repeats_its_history() -> None:
    """The same number gives the same operations."""
    assert run(1, seed=7).operations == run(1, seed=7).operations
