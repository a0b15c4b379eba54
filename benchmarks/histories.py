"""Figures of the random histories: how many, how many pods they bound, and whether anything went wrong."""

from collections.abc import Iterator

from benchmarks.figures import Figure
from tests.core.histories import run

COUNT = 10_000


def figures(only: str) -> Iterator[Figure]:
    report = run(COUNT)
    yield Figure("core.histories", report.histories, "", COUNT, at_least=True)
    yield Figure("core.violations", len(report.violations), "", 0)
    yield Figure("core.bound_percent", round(report.bound_percent, 1), "%", 40, at_least=True)
    for kind, count in sorted(report.operations.items()):
        yield Figure(f"core.operations.{kind.replace(' ', '_')}", count, "")
    yield Figure("core.full_cards", report.full_steps, "steps", 1, at_least=True)
