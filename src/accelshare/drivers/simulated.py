"""Cards that are described in a file: for demos, tests and sandboxes, and only when asked for by name.

    cards:
      - serial: U53000080101        # the id becomes GCU-U53000080101; or write the whole id: `id: ...`
        model: T10
        memory: 16GiB               # or 40960MiB, or plain bytes
        numa: 0
        pcie: ["0000:10:00.0", "0000:0f:00.0"]   # bridges from the card up to the CPU
        links: {GCU-U53000080102: 2}
        healthy: false              # and why:
        reason: taken out by hand
      - count: 7                    # seven cards alike
        serial: "SIM{index:04d}"    # the index makes each serial another
        memory: 16GiB
    device: /dev/gcu{minor}         # the device node of a card
    major: 1023
    control: [/dev/gcuctl]          # device nodes that every container gets
    mounts: [/usr/bin/efsmi]        # files that every container gets if the host has them

The file is read when the driver is opened, and again by discover() whenever it has changed: so a card falls
sick, is replaced or comes back by an edit. A file that is wrong raises BadInput when the driver is opened;
one that becomes wrong later makes every discover() raise it until the file is mended, and whoever asked keeps
the cards that it had.

A serial must be unique in the cluster, as a card's is: two nodes that share a file need two patterns.
"""

import os
import re
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct

from accelshare.core.container import DeviceNode, Edits, Mount
from accelshare.core.errors import BadInput
from accelshare.core.inventory import Card

LARGEST_FILE = 1 << 20
LARGEST_MEMORY = 1 << 50
MOST_CARDS = 1024

# Linux hands out character majors from 234 to 254 and from 384 to 511 as drivers load, and those below are
# known by name. Nothing is ever registered at 1023. So what a container may touch can be tested on a host
# without a card: opening the node says ENXIO where the device cgroup allows it, and EPERM where it does not.
UNASSIGNED_MAJOR = 1023
CONTROL_MINORS = 1000  # control nodes are numbered from here, so that no new card moves them

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE = re.compile(r"([0-9]{1,18}) ?(KiB|MiB|GiB|TiB|)")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,62}")
INDEX = re.compile(r"\{index(?::0([1-9])d)?\}")

WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "bool": "true or false",
}

Count = Annotated[int, Meta(ge=1, le=MOST_CARDS)]
Minor = Annotated[int, Meta(ge=0, lt=CONTROL_MINORS)]
Index = Annotated[int, Meta(ge=0, lt=1 << 31)]


class CardEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    count: Count | None = None
    id: str = ""
    serial: str = ""
    index: Index | None = None
    minor: Minor | None = None
    vendor: str = "enflame"
    model: str = ""
    memory: int | str = ""
    numa: Index | None = None
    pcie: list[str] = []
    links: dict[str, Annotated[int, Meta(ge=1, lt=1 << 31)]] = {}
    healthy: bool = True
    reason: str = ""


class NodeFile(Struct, forbid_unknown_fields=True, kw_only=True):
    cards: list[CardEntry] = []
    device: str = "/dev/gcu{minor}"
    major: Annotated[int, Meta(ge=1, le=4095)] = UNASSIGNED_MAJOR
    control: list[str] = []
    mounts: list[str] = []


class SimulatedDriver:
    name = "simulated"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._node = NodeFile()
        self._cards: tuple[Card, ...] = ()
        self._read_if_changed()

    def discover(self) -> tuple[Card, ...]:
        with self._lock:
            self._read_if_changed()
            return self._cards

    def edits(self, cards: Sequence[Card]) -> Edits:
        with self._lock:
            node = self._node
        own = [DeviceNode(_device(node, card.minor), node.major, card.minor) for card in cards]
        control = [
            DeviceNode(path, node.major, CONTROL_MINORS + place) for place, path in enumerate(node.control)
        ]
        mounts = [Mount(path, path) for path in node.mounts if os.path.isfile(path)]
        return Edits(devices=tuple(own + control), mounts=tuple(mounts))

    def close(self) -> None:
        pass

    def _read_if_changed(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        node, cards = read_node(self._path)
        self._node, self._cards = node, cards
        # Taken before the file was read: a write in between is seen by the next call. Not taken when the
        # file is wrong, so that every call says so and not only the first.
        self._stamp = stamp


def open_file(config: Path | None) -> SimulatedDriver:
    if config is None:
        raise BadInput(
            "configuration of the simulated driver", None, "the path of a file that describes cards"
        )
    return SimulatedDriver(config)


def read_node(path: Path) -> tuple[NodeFile, tuple[Card, ...]]:
    """Raises BadInput on the first mistake."""
    document = _parse(path)
    try:
        node = msgspec.convert(document, NodeFile)
    except msgspec.ValidationError as error:
        raise _mistake(path, document, str(error)) from error
    _check_node(path, node)
    return node, _cards(path, node)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        raise BadInput("node file", str(path), f"a file that can be read ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        raise BadInput("node file", str(path), "a regular file")
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


class _Loader(yaml.SafeLoader):
    """YAML without its two traps: aliases, of which a few lines unfold to gigabytes, and keys given twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _problem("an alias (*) is not allowed here, write it out", self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _problem(f"the key {key.value!r} stands here a second time", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _problem(text: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)


def _parse(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise BadInput("node file", str(path), f"a file that can be read ({error.strerror})") from error
    if len(text) > LARGEST_FILE:
        raise BadInput("node file", str(path), f"a file of at most {LARGEST_FILE} bytes")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise BadInput("node file", str(path), f"YAML ({line}{error.problem})") from error
    # Text that is no YAML ends in several ways: bytes that are no characters, dates and numbers that Python
    # refuses, brackets nested deeper than its stack.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput("node file", str(path), f"YAML ({reason})") from error


def _mistake(path: Path, document: Any, message: str) -> BadInput:
    """msgspec says what it expected and at which place; what stands there is looked up."""
    problem, _, place = message.partition(" - at ")
    steps = re.findall(r"[^.\[\]]+", place.rpartition("`$")[2].removesuffix("`"))
    value = document
    for step in steps:
        value = value[int(step)] if isinstance(value, list) else value.get(step, value)
    where = ".".join(steps) or "the whole"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
    if unknown:
        known = CardEntry if steps else NodeFile
        return _wrong(path, f"a field of {where}", unknown[1], f"one of {', '.join(known.__struct_fields__)}")
    wanted = problem.removeprefix("Expected ").partition(", got ")[0].replace(" | null", "")
    return _wrong(path, where, value, re.sub(r"`?(\w+)`?", lambda word: WORDS.get(word[1], word[1]), wanted))


def _wrong(path: Path, field: str, value: object, allowed: str) -> BadInput:
    return BadInput(f"{field} in node file {path}", value, allowed)


def _check_node(path: Path, node: NodeFile) -> None:
    if not node.cards:
        raise _wrong(path, "cards", node.cards, "a list of at least one card")
    if not re.fullmatch(r"/[^{}]*\{minor\}[^{}]*", node.device):
        raise _wrong(
            path, "device", node.device, "an absolute path with {minor} in it, such as /dev/gcu{minor}"
        )
    for field, paths in (("control", node.control), ("mounts", node.mounts)):
        for file in paths:
            if not file.startswith("/"):
                raise _wrong(path, field, file, "absolute paths")


def _cards(path: Path, node: NodeFile) -> tuple[Card, ...]:
    cards: list[Card] = []
    for place, entry in enumerate(node.cards):
        where = f"cards.{place}"
        first = len(cards) if entry.index is None else entry.index
        if len(cards) + (entry.count or 1) > MOST_CARDS:
            raise _wrong(path, f"{where}.count", entry.count or 1, f"at most {MOST_CARDS} cards in one file")
        for step in range(entry.count or 1):
            cards.append(_card(path, where, entry, first + step, step))
    for field in ("id", "index", "minor"):
        _check_unique(path, field, [getattr(card, field) for card in cards])
    _check_links(path, cards)
    return tuple(sorted(cards, key=lambda card: card.index))


def _card(path: Path, where: str, entry: CardEntry, index: int, step: int) -> Card:
    minor = index if entry.minor is None else entry.minor + step
    if minor >= CONTROL_MINORS:
        raise _wrong(path, f"{where}.minor", minor, f"less than {CONTROL_MINORS}")
    return Card(
        id=_id(path, where, entry, index),
        index=index,
        memory=_bytes(path, where, entry.memory),
        minor=minor,
        model=entry.model,
        vendor=entry.vendor,
        numa=entry.numa,
        pcie=tuple(entry.pcie),
        links=entry.links,
        healthy=entry.healthy,
        reason="" if entry.healthy else entry.reason or "the node file says so",
    )


def _id(path: Path, where: str, entry: CardEntry, index: int) -> str:
    if bool(entry.id) == bool(entry.serial):
        raise _wrong(path, f"{where}.serial", entry.serial, "a serial number, or else an id, and not both")
    field, given = ("id", entry.id) if entry.id else ("serial", entry.serial)
    # Filled in by hand: str.format would follow attributes, and pad to as many gigabytes as it is told.
    filled = INDEX.sub(lambda match: f"{index:0{match[1] or 1}d}", given)
    if not ID.fullmatch(filled):
        raise _wrong(
            path, f"{where}.{field}", given, "letters, digits and ._:- (with {index} or {index:04d})"
        )
    if entry.count is not None and filled == given:
        raise _wrong(path, f"{where}.{field}", given, "a pattern with {index} in it, where there is a count")
    return filled if entry.id else f"GCU-{filled}"


def _bytes(path: Path, where: str, size: int | str) -> int:
    match = SIZE.fullmatch(str(size)) if isinstance(size, str) or 0 < size <= LARGEST_MEMORY else None
    total = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < total <= LARGEST_MEMORY:
        raise _wrong(
            path, f"{where}.memory", size, "a size such as 16GiB, 40960MiB or 17179869184, up to 1024TiB"
        )
    return total


def _check_unique(path: Path, field: str, values: list[object]) -> None:
    for place, value in enumerate(values):
        if value in values[:place]:
            raise _wrong(path, f"{field} of card number {place}", value, "one that no other card has")


def _check_links(path: Path, cards: list[Card]) -> None:
    ids = {card.id for card in cards}
    for card in cards:
        for other in card.links:
            if other not in ids or other == card.id:
                raise _wrong(path, f"links of {card.id}", other, "the id of another card of this file")


def _device(node: NodeFile, minor: int) -> str:
    return node.device.replace("{minor}", str(minor))
