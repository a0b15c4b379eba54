"""`make figures`: every figure that README, docs or a closing note states, measured then and there.

A part is a function that measures a few figures together. Parts that need the real cluster, or over two
minutes, run only when they are asked for: ONLY=name, or ALL=1. ONLY=a.b runs a.b and all below it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import NamedTuple


class Figure(NamedTuple):
    name: str
    value: float
    unit: str
    bar: float | None = None
    at_least: bool = False  # what the bar is: the most that is allowed, or the least

    @property
    def ok(self) -> bool:
        if self.bar is None:
            return True
        return self.value >= self.bar if self.at_least else self.value <= self.bar


class Part(NamedTuple):
    prefixes: tuple[str, ...]  # of the figures that it prints
    measure: str  # module:function
    unasked: bool = True  # whether it runs without being asked for


PARTS = (
    Part(("core",), "benchmarks.histories:figures"),
    Part(("scheduler.filter", "scheduler.filter_best", "scheduler.prioritize", "scheduler.bind"),
         "benchmarks.scheduler:figures"),
    Part(("scheduler.rss",), "benchmarks.memory:scheduler_figures"),
    Part(("agent.rss",), "benchmarks.memory:agent_figures"),
    Part(("agent.units", "e2e"), "benchmarks.cluster:figures", unasked=False),
)  # fmt: skip


def wanted(part: Part, only: str, everything: bool) -> bool:
    if only:
        return any(below(prefix, only) or below(only, prefix) for prefix in part.prefixes)
    return part.unasked or everything


def below(name: str, above: str) -> bool:
    """By whole parts: a.bc is not below a.b."""
    return name == above or name.startswith(above + ".")


def chosen(figures: Iterable[Figure], only: str) -> list[Figure]:
    return [figure for figure in figures if not only or below(figure.name, only)]


def main() -> int:
    only, everything, as_json = (
        os.environ.get("ONLY", ""),
        bool(os.environ.get("ALL")),
        os.environ.get("JSON"),
    )
    failed = 0
    if not as_json:
        print(f"{'figure':34} {'value':>12} {'unit':8} {'bar':>10}")
    for part in PARTS:
        if not wanted(part, only, everything):
            continue
        module, _, function = part.measure.partition(":")
        measure: Callable[[str], Iterable[Figure]] = getattr(import_module(module), function)
        for figure in chosen(measure(only), only):
            failed += not figure.ok
            print(_json(figure) if as_json else _row(figure), flush=True)
    return 1 if failed else 0


def _json(figure: Figure) -> str:
    return json.dumps(
        {
            "figure": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "bar": figure.bar,
            "ok": figure.ok,
        }
    )


def _row(figure: Figure) -> str:
    bar = "" if figure.bar is None else f"{'≥' if figure.at_least else '≤'} {figure.bar:g}"
    mark = "" if figure.ok else "  MISSED"
    return f"{figure.name:34} {figure.value:>12g} {figure.unit:8} {bar:>10}{mark}"


if __name__ == "__main__":
    sys.exit(main())
