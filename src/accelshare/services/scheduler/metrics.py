"""Counters, gauges and histograms in the Prometheus text format, as few as are needed.

The official library costs more memory and start-up time than everything else in this process does.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Verbs answer within a millisecond, calls to the API server within seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metric(Protocol):
    name: str
    about: str
    kind: str

    def lines(self) -> list[str]: ...


class Counter:
    """A sum for each value of one label, or of no label at all."""

    kind = "counter"

    def __init__(self, name: str, about: str, label: str = "") -> None:
        self.name, self.about, self._label = name, about, label
        self._sums: dict[str, float] = {} if label else {"": 0}

    def add(self, value: str = "", amount: float = 1) -> None:
        self._sums[value] = self._sums.get(value, 0) + amount

    def get(self, value: str = "") -> float:
        return self._sums.get(value, 0)

    def lines(self) -> list[str]:
        return [
            f"{self.name}{_labels({self._label: value} if self._label else {})} {amount:g}"
            for value, amount in sorted(self._sums.items())
        ]


class Gauge:
    """Asked when it is read, so that it cannot be forgotten. What only grows is called a counter."""

    def __init__(self, name: str, about: str, read: Callable[[], float]) -> None:
        self.name, self.about, self._read = name, about, read
        self.kind = "counter" if name.endswith("_total") else "gauge"

    def lines(self) -> list[str]:
        return [f"{self.name} {self._read():g}"]


class Histogram:
    kind = "histogram"

    def __init__(self, name: str, about: str, label: str) -> None:
        self.name, self.about, self._label = name, about, label
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, value: str, seconds: float) -> None:
        counts = self._counts.get(value)
        if counts is None:
            counts = self._counts[value] = [0] * (len(BUCKETS) + 1)
            self._sums[value] = 0.0
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._sums[value] += seconds

    def lines(self) -> list[str]:
        return [line for value in sorted(self._counts) for line in self._of(value)]

    def _of(self, value: str) -> list[str]:
        out, running = [], 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._counts[value], strict=True):
            running += count
            out.append(f"{self.name}_bucket{_labels({self._label: value, 'le': bound})} {running}")
        labels = _labels({self._label: value})
        return [
            *out,
            f"{self.name}_sum{labels} {self._sums[value]:.9g}",
            f"{self.name}_count{labels} {running}",
        ]


def render(metrics: list[Metric]) -> bytes:
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}"]
        lines += metric.lines()
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """What this service counts. Gauges are added by whoever can read them."""

    def __init__(self) -> None:
        self.verbs = Histogram("accelshare_verb_seconds", "Time to answer a verb of the extender.", "verb")
        self.refusals = Counter("accelshare_refused_nodes_total", "Nodes that filter refused.", "reason")
        self.binds = Counter("accelshare_binds_total", "Calls of bind, by what came of them.", "outcome")
        self.posts = Counter("accelshare_binding_posts_total", "Bindings sent to the API server.", "answer")
        self.reads = Counter("accelshare_held_pods_read_total", "Pods read back, by what they were.", "found")
        self.nudges = Counter(
            "accelshare_nudges_total", "Waiting pods that were offered freed room.", "answer"
        )
        self.events = Counter("accelshare_events_total", "Events for users, by reason.", "reason")
        self.webhooks = Counter("accelshare_admissions_total", "Pods seen at admission.", "answer")
        self.errors = Counter(
            "accelshare_errors_total", "Requests that were answered with an error.", "status"
        )
        self.all: list[Metric] = [
            self.verbs,
            self.refusals,
            self.binds,
            self.posts,
            self.reads,
            self.nudges,
            self.events,
            self.webhooks,
            self.errors,
        ]

    def gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        self.all.append(Gauge(name, about, read))

    def render(self) -> bytes:
        return render(self.all)
