"""The simulated driver: what a node file says, what is wrong with one, and what changes while it runs."""

import errno
import os
from pathlib import Path

import pytest

from accelshare.core.container import DeviceNode, Mount
from accelshare.core.errors import BadInput
from accelshare.core.inventory import Card
from accelshare.drivers import open_driver
from accelshare.drivers.interface import Driver
from accelshare.drivers.simulated import SimulatedDriver

GIB = 1 << 30
NODES = Path(__file__).parents[2] / "examples" / "nodes"
ONE_CARD = "cards: [{serial: A, memory: 16GiB}]\n"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node.yaml"


def opened(node: Path, text: str) -> SimulatedDriver:
    node.write_text(text)
    return SimulatedDriver(node)


# What a file says.


def test_the_guide_s_machine() -> None:
    """The eight cards of the guide: cards 0 and 1 meet at 0f:00.0, and 4 and 5 at 9a:00.0."""
    cards = SimulatedDriver(NODES / "gcu-8x16.yaml").discover()
    assert [(card.model, card.memory, card.numa) for card in cards] == [
        ("T10", 16 * GIB, index // 4) for index in range(8)
    ]
    assert cards[1].pcie == ("0000:10:10.0", "0000:0f:00.0", "0000:0e:00.0", "0000:0d:00.0", "0000:0c:02.0")
    assert [cards[4].pcie[1], cards[5].pcie[1], cards[6].pcie[1]] == ["0000:9a:00.0"] * 2 + ["0000:9e:00.0"]


@pytest.mark.parametrize("file", sorted(NODES.glob("*.yaml")), ids=lambda file: file.stem)
def test_examples_can_be_read(file: Path) -> None:
    """Every node file that is shipped describes eight cards."""
    assert len(SimulatedDriver(file).discover()) == 8


def test_a_card_by_its_serial(node: Path) -> None:
    """The id is the serial with the vendor's prefix; index and minor are the place in the file."""
    cards = opened(node, "cards: [{serial: A, memory: 1GiB}, {serial: B, memory: 2GiB}]").discover()
    assert cards[1] == Card(id="GCU-B", index=1, minor=1, memory=2 * GIB, vendor="enflame")


def test_a_card_with_everything(node: Path) -> None:
    """Whatever the inventory knows of a card can be written down."""
    text = """
cards:
  - {id: GPU-1, index: 4, minor: 7, vendor: nvidia, model: H200, memory: 1GiB, numa: 1,
     pcie: ["0000:01:00.0"], links: {GPU-2: 3}, healthy: false, reason: taken out}
  - {id: GPU-2, memory: 1GiB}
"""
    assert opened(node, text).discover()[1] == Card(
        id="GPU-1",
        index=4,
        minor=7,
        vendor="nvidia",
        model="H200",
        memory=GIB,
        numa=1,
        pcie=("0000:01:00.0",),
        links={"GPU-2": 3},
        healthy=False,
        reason="taken out",
    )


@pytest.mark.parametrize(
    ("written", "size"),
    [("16GiB", 16 * GIB), ("16 GiB", 16 * GIB), ("40960MiB", 40 * GIB), ("1024", 1024), ('"1024"', 1024)],
)
def test_memory(node: Path, written: str, size: int) -> None:
    """Memory is written with a binary unit or in plain bytes."""
    assert opened(node, f"cards: [{{serial: A, memory: {written}}}]").discover()[0].memory == size


def test_many_cards_alike(node: Path) -> None:
    """A count makes cards whose serials follow their index."""
    text = 'cards: [{serial: A, memory: 1GiB}, {count: 2, serial: "SIM{index:04d}", memory: 1GiB}]'
    assert [card.id for card in opened(node, text).discover()] == ["GCU-A", "GCU-SIM0001", "GCU-SIM0002"]


def test_a_count_from_another_index(node: Path) -> None:
    """Index and minor of a count are those of its first card."""
    text = 'cards: [{count: 2, index: 8, minor: 20, id: "X-{index}", memory: 1GiB}]'
    cards = opened(node, text).discover()
    assert [(card.id, card.index, card.minor) for card in cards] == [("X-8", 8, 20), ("X-9", 9, 21)]


def test_cards_come_in_the_order_of_their_index(node: Path) -> None:
    """The order in the file does not matter."""
    text = "cards: [{serial: B, index: 1, memory: 1GiB}, {serial: A, index: 0, memory: 1GiB}]"
    assert [card.id for card in opened(node, text).discover()] == ["GCU-A", "GCU-B"]


def test_a_sick_card_has_a_reason(node: Path) -> None:
    """Where the file gives none there is one all the same; a healthy card has none."""
    text = "cards: [{serial: A, memory: 1GiB, healthy: false}, {serial: B, memory: 1GiB, reason: later}]"
    cards = opened(node, text).discover()
    assert [card.reason for card in cards] == ["the node file says so", ""]


# What a container gets.


def test_device_nodes_have_numbers(node: Path) -> None:
    """The host needs no such node: the numbers are told, those of control nodes above all cards'."""
    driver = opened(node, ONE_CARD + "control: [/dev/gcuctl]\n")
    assert driver.edits(driver.discover()).devices == (
        DeviceNode("/dev/gcu0", 1023, 0),
        DeviceNode("/dev/gcuctl", 1023, 1000),
    )


def test_another_device_path_and_major(node: Path) -> None:
    """Another vendor's names can be played."""
    driver = opened(node, ONE_CARD + "device: /dev/nvidia{minor}\nmajor: 195\n")
    assert driver.edits(driver.discover()).devices == (DeviceNode("/dev/nvidia0", 195, 0),)


def test_only_files_that_exist_are_mounted(node: Path, tmp_path: Path) -> None:
    """What the host lacks is left out, and so is a folder."""
    driver = opened(node, ONE_CARD + f"mounts: [{node}, {tmp_path}, {tmp_path}/missing]\n")
    assert driver.edits(()).mounts == (Mount(str(node), str(node)),)


def test_nothing_answers_at_the_default_major(node: Path, tmp_path: Path) -> None:
    """Opening such a node says ENXIO where the device cgroup allows it: no driver has that number."""
    driver = opened(node, ONE_CARD)
    device = driver.edits(driver.discover()).devices[0]
    assert device.major is not None
    assert device.minor is not None
    path = tmp_path / "gcu0"
    try:
        os.mknod(path, 0o20600, os.makedev(device.major, device.minor))
    except PermissionError:
        pytest.skip("this user may not make device nodes (needs CAP_MKNOD)")
    with pytest.raises(OSError, match="No such device or address") as caught:
        os.open(path, os.O_RDWR)
    assert caught.value.errno == errno.ENXIO


# What changes while it runs.


def test_health_is_flipped_by_an_edit(node: Path) -> None:
    """The file is read again when it has changed."""
    driver = opened(node, ONE_CARD)
    before = driver.discover()[0].healthy
    node.write_text("cards: [{serial: A, memory: 16GiB, healthy: false, reason: ECC}]\n")
    assert (before, driver.discover()[0].healthy) == (True, False)


def test_a_file_that_is_replaced(node: Path) -> None:
    """Another file of the same size and time under the same name is another file."""
    driver = opened(node, ONE_CARD)
    other = node.with_name("other.yaml")
    other.write_text(ONE_CARD.replace("A", "B"))
    then = node.stat().st_mtime_ns
    os.utime(other, ns=(then, then))
    other.replace(node)
    assert driver.discover()[0].id == "GCU-B"


def test_a_file_that_becomes_wrong_and_is_mended(node: Path) -> None:
    """Every call says so until it is mended."""
    driver = opened(node, ONE_CARD)
    node.write_text("cards: [")
    for _ in range(2):
        with pytest.raises(BadInput, match="YAML"):
            driver.discover()
    node.write_text(ONE_CARD)
    assert len(driver.discover()) == 1


def test_a_wrong_file_changes_nothing_else(node: Path) -> None:
    """Containers of the cards that were there are still served."""
    driver = opened(node, ONE_CARD)
    cards = driver.discover()
    before = driver.edits(cards)
    node.unlink()
    with pytest.raises(BadInput, match="can be read"):
        driver.discover()
    assert driver.edits(cards) == before


# What is wrong with a file.

MISTAKES = {
    "no cards": ("{}", "cards in node file", "at least one card"),
    "empty": ("", "the whole in node file", "a mapping"),
    "a list": ("[]", "the whole in node file", "a mapping"),
    "cards no list": ("cards: 3", "cards in node file .* is 3", "a list"),
    "unknown key": ("card: []", "a field of the whole .* is 'card'", "one of cards, device"),
    "unknown key of a card": (
        "cards: [{seriel: A}]",
        r"a field of cards\.0 .* is 'seriel'",
        "one of count, id",
    ),
    "text for a number": ("cards: [{index: a}]", r"cards\.0\.index .* is 'a'", "a whole number"),
    "number for text": ("cards: [{serial: 12}]", r"cards\.0\.serial .* is 12", "text"),
    "negative": ("cards: [{numa: -1}]", r"cards\.0\.numa .* is -1", "a whole number >= 0"),
    "text for a truth": ("cards: [{healthy: ill}]", r"cards\.0\.healthy .* is 'ill'", "true or false"),
    "key that is no text": ("cards: [{1: 2}]", "in node file", "text"),
    "no memory": ("cards: [{serial: A}]", r"cards\.0\.memory .* is ''", "16GiB"),
    "memory in GB": ("cards: [{serial: A, memory: 16GB}]", r"cards\.0\.memory .* is '16GB'", "16GiB"),
    "fraction": ("cards: [{serial: A, memory: 1.5}]", r"cards\.0\.memory .* is 1.5", "a whole number"),
    "nothing": ("cards: [{serial: A, memory: 0}]", r"cards\.0\.memory .* is 0", "16GiB"),
    "too much": ("cards: [{serial: A, memory: 2048TiB}]", r"cards\.0\.memory .* is '2048TiB'", "1024TiB"),
    "far too much": (f"cards: [{{serial: A, memory: {10**30}}}]", r"cards\.0\.memory", "1024TiB"),
    "no id": ("cards: [{memory: 1GiB}]", r"cards\.0\.serial", "or else an id"),
    "two ids": ("cards: [{id: A, serial: B, memory: 1GiB}]", r"cards\.0\.serial .* is 'B'", "not both"),
    "odd id": ("cards: [{id: a b, memory: 1GiB}]", r"cards\.0\.id .* is 'a b'", "letters, digits"),
    "odd pattern": (
        'cards: [{serial: "{index.real}", memory: 1GiB}]',
        r"cards\.0\.serial .* is '{index.real}'",
        "{index:04d}",
    ),
    "a count of one id": ("cards: [{count: 2, id: A, memory: 1GiB}]", r"cards\.0\.id .* is 'A'", "a pattern"),
    "too many": (
        'cards: [{count: 2000, id: "{index}", memory: 1GiB}]',
        r"cards\.0\.count .* is 2000",
        "<= 1024",
    ),
    "same id": (
        "cards: [{id: A, memory: 1GiB}, {id: A, memory: 1GiB}]",
        "id of card number 1 .* is 'A'",
        "no other",
    ),
    "same index": (
        "cards: [{id: A, memory: 1GiB}, {id: B, index: 0, minor: 1, memory: 1GiB}]",
        "index of card number 1 .* is 0",
        "no other",
    ),
    "same minor": (
        "cards: [{id: A, memory: 1GiB}, {id: B, minor: 0, memory: 1GiB}]",
        "minor of card number 1 .* is 0",
        "no other",
    ),
    "minor too high": (
        "cards: [{id: A, index: 1000, memory: 1GiB}]",
        r"cards\.0\.minor .* is 1000",
        "less than 1000",
    ),
    "link to nobody": (
        "cards: [{id: A, memory: 1GiB, links: {B: 1}}]",
        "links of A .* is 'B'",
        "another card",
    ),
    "link to itself": (
        "cards: [{id: A, memory: 1GiB, links: {A: 1}}]",
        "links of A .* is 'A'",
        "another card",
    ),
    "link of nothing": (
        "cards: [{id: A, memory: 1GiB, links: {B: 0}}]",
        r"cards\.0\.links",
        "a whole number >= 1",
    ),
    "one device for all": (ONE_CARD + "device: /dev/gcu", "device .* is '/dev/gcu'", "{minor}"),
    "relative device": (ONE_CARD + 'device: "gcu{minor}"', "device .* is 'gcu{minor}'", "absolute"),
    "relative mount": (ONE_CARD + "mounts: [efsmi]", "mounts .* is 'efsmi'", "absolute"),
    "relative control": (ONE_CARD + "control: [gcuctl]", "control .* is 'gcuctl'", "absolute"),
    "major": (ONE_CARD + "major: 5000", "major .* is 5000", "<= 4095"),
    "no YAML": ("cards: [", "node file", r"YAML \(line 1: "),
    "two documents": ("cards: []\n---\ncards: []\n", "node file", "YAML"),
    "a key twice": (
        "major: 1\nmajor: 2\n",
        "node file",
        r"line 2: the key 'major' stands here a second time",
    ),
    "a date that is none": ("cards: 2020-13-45", "node file", "YAML"),
    "a number of 5000 digits": (f"major: {'9' * 5000}", "node file", "YAML"),
    "no characters": ("\x00", "node file", "YAML"),
    "an object of Python's": ("!!python/object/apply:os.getpid []", "node file", "YAML"),
    "deep": ("[" * 100_000, "node file", "YAML"),
    "an alias": ("a: &a [1]\nb: [*a, *a]\n", "node file", r"line 2: an alias \(\*\) is not allowed"),
    "an alias of itself": ("&a [*a]", "node file", "an alias"),
    "merged aliases": ("a: &a {x: 1}\nb: {<<: [*a, *a]}\n", "node file", "an alias"),
    "too large": ("#" * (1 << 20) + "\n", "node file", "at most 1048576 bytes"),
}


@pytest.mark.parametrize(("text", "says", "allows"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named(node: Path, text: str, says: str, allows: str) -> None:
    """A wrong file is refused with the field, what stands there and what is allowed, in a line."""
    with pytest.raises(BadInput, match=says) as caught:
        opened(node, text)
    said, _, allowed = str(caught.value).partition("; allowed is ")
    assert str(node) in said
    assert "\n" not in allowed
    with pytest.raises(BadInput, match=allows):
        raise caught.value


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """What cannot be a node file is not opened."""
    with pytest.raises(BadInput, match="a regular file"):
        SimulatedDriver(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe without a writer would hold the agent for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="a regular file"):
        SimulatedDriver(pipe)


# The list of drivers.


def test_a_driver_is_opened_by_its_name() -> None:
    """The simulated driver is there for whoever asks for it."""
    driver: Driver = open_driver("simulated", NODES / "gcu-8x80.yaml")
    assert driver.discover()[7].memory == 80 * GIB


def test_an_unknown_name_is_refused() -> None:
    """The refusal lists the names that there are."""
    with pytest.raises(BadInput, match="driver is 'nvidea'; allowed is one of enflame, simulated"):
        open_driver("nvidea", None)


def test_the_simulated_driver_needs_a_file() -> None:
    """There are no cards by default."""
    with pytest.raises(BadInput, match="the path of a file that describes cards"):
        open_driver("simulated", None)
