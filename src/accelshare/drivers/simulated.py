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
sick, is replaced or comes back by an edit. A file that is wrong when the driver is opened is an error there.
One that has become wrong later makes every discover() raise BadInput until it is mended; the cards of the last
good file stay with whoever asked for them.

A serial must be unique in the cluster, as a card's is: two nodes that share a file need two patterns.
"""

import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
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
# known by name. Nothing is ever registered at 1023. So a container can be tested for what it may touch, on a
# host without a card: opening the node says ENXIO where the device cgroup lets it through, and EPERM where not.
UNASSIGNED_MAJOR = 1023
CONTROL_MINORS = 1000  # those of control nodes begin here, so that no card's number moves when cards are added

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE = re.compile(r"([0-9]{1,18}) ?(KiB|MiB|GiB|TiB|)")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,62}")
INDEX = re.compile(r"\{index(?::0([1-9])d)?\}")

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
        raise BadInput("configuration of the simulated driver", None, "the path of a file that describes cards")
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
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                problem="an alias (*) is not allowed here, write it out", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.value in seen if isinstance(key, yaml.ScalarNode) else False:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands here a second time", problem_mark=key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise BadInput("node file", str(path), f"a file that can be read ({error.strerror})") from error
    if len(text) > LARGEST_FILE:
        raise BadInput("size of the node file", str(path), f"at most {LARGEST_FILE} bytes")
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
    """msgspec says what it expected and at which place; the value that stands there is looked up."""
    problem, _, place = message.removesuffix("`").partition(" - at `$")
    steps = re.findall(r"[^.\[\]]+", place)
    value = document
    for step in steps:
        value = value[int(step)] if isinstance(value, list) else value.get(step) if isinstance(value, dict) else value
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
    if unknown:
        known = CardEntry if steps else NodeFile
        value = unknown[1]
        allowed = f"one of {', '.join(known.__struct_fields__)}"
        return BadInput(f"{path}: a field of {'$' + place if steps else 'the file'}".replace("$.", ""), value, allowed)
    allowed = problem.removeprefix("Expected ").partition(", got ")[0].replace("`", "")
    return BadInput(f"{path}: {place.removeprefix('.') or 'the file'}", value, allowed)
