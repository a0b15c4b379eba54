"""What every driver must do, whoever its vendor is.

A vendor offers the driver in three forms (Offered) and gets every check in CHECKS for it. Each check is a
function that raises AssertionError with a sentence; it needs no test framework, so it runs on a machine with
real cards as well.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from accelshare.core.container import DeviceNode, Edits
from accelshare.core.errors import BadInput, DriverError
from accelshare.core.inventory import Card, Inventory, read_inventory, write_inventory
from accelshare.core.units import MIB
from accelshare.drivers.interface import Driver


class Offered(Struct, frozen=True):
    name: str  # in the list of drivers
    open: Callable[[], Driver]  # a driver that finds two cards or more
    broken: Callable[[], Driver]  # one that cannot be opened, or whose discover() fails
    files: Path  # the folder in which a check looks whether anything was written; / stands for none
    root: Path = Path("/")  # where the host's files lie for this process


def check_name(offered: Offered) -> None:
    driver = offered.open()
    assert driver.name == offered.name, f"it calls itself {driver.name}, and the list {offered.name}"
    driver.close()


def check_finds_cards(offered: Offered) -> None:
    cards = _discover(offered)
    assert len(cards) >= 2, f"the suite needs two cards, and there are {len(cards)}"


def check_repeats_itself(offered: Offered) -> None:
    """Asking changes nothing, in one driver and in the next one that is opened."""
    driver = offered.open()
    first, second = driver.discover(), driver.discover()
    driver.close()
    assert first == second, "the same driver says two things of the same cards"
    assert first == _discover(offered), "a second driver says something else of the same cards"


def check_cards_differ(offered: Offered) -> None:
    cards = _discover(offered)
    for field in ("id", "minor"):
        values = [getattr(card, field) for card in cards]
        assert len(set(values)) == len(values), f"two cards have the same {field}: {values}"
    assert all(card.id for card in cards), "a card has no id"


def check_order(offered: Offered) -> None:
    indices = [card.index for card in _discover(offered)]
    assert indices == sorted(set(indices)), f"indices do not ascend: {indices}"
    assert indices[0] >= 0, f"an index is negative: {indices}"


def check_memory(offered: Offered) -> None:
    for card in _discover(offered):
        assert card.memory >= MIB, f"{card.id} has {card.memory} bytes: is that another unit?"


def check_health_has_a_reason(offered: Offered) -> None:
    for card in _discover(offered):
        assert card.healthy != bool(card.reason), f"{card.id}: healthy {card.healthy}, reason {card.reason!r}"


def check_links(offered: Offered) -> None:
    cards = _discover(offered)
    ids = {card.id for card in cards}
    for card in cards:
        assert card.links.keys() <= ids - {card.id}, f"{card.id} is linked with {sorted(card.links)}"


def check_fits_the_annotation(offered: Offered) -> None:
    """Cards come back from the node's annotation as they went in."""
    inventory = Inventory(driver=offered.name, cards=_discover(offered))
    assert read_inventory(write_inventory(inventory)) == inventory


def check_one_device_a_card(offered: Offered) -> None:
    """Each card adds one device node of its own to what every container gets; many cards add theirs."""
    driver = offered.open()
    cards = driver.discover()
    common = set(driver.edits(()).devices)
    own = [_own(driver.edits([card]), common, card) for card in cards]
    assert len(set(own)) == len(cards), f"two cards have one device node: {own}"
    assert set(driver.edits(cards).devices) == {*own, *common}, "cards together get other nodes than alone"
    driver.close()


def check_device_paths(offered: Offered) -> None:
    driver = offered.open()
    for node in driver.edits(driver.discover()).devices:
        assert node.path.startswith("/dev/"), f"{node.path} is not under /dev"
        assert (node.major is None) == (node.minor is None), f"{node.path} has half a device number"
    driver.close()


def check_mounts_exist(offered: Offered) -> None:
    """What is mounted is a file that the host has, under a path without links, and read-only."""
    driver = offered.open()
    for mount in driver.edits(driver.discover()).mounts:
        here = Path(f"{str(offered.root).rstrip('/')}{mount.host}")
        assert here.is_file(), f"{mount.host} is no file of the host"
        assert mount.container.startswith("/"), f"{mount.container} is no absolute path"
        assert mount.read_only, f"{mount.host} could be written by a container"
    driver.close()


def check_writes_nothing(offered: Offered) -> None:
    before = _tree(offered.files)
    driver = offered.open()
    driver.edits(driver.discover())
    driver.close()
    assert _tree(offered.files) == before, "the driver has changed a file"


def check_closes_twice(offered: Offered) -> None:
    driver = offered.open()
    driver.discover()
    driver.close()
    driver.close()


def check_failure_is_a_sentence(offered: Offered) -> None:
    """What cannot be asked raises the errors that the agent knows, with words to act on."""
    try:
        driver = offered.broken()
        driver.discover()
    except (DriverError, BadInput) as error:
        text = str(error)
        assert len(text.split()) >= 4, f"no sentence: {text}"
        assert "\n" not in text, f"more than one line: {text}"
    else:
        raise AssertionError("a driver that cannot be asked has answered")


CHECKS: tuple[Callable[[Offered], None], ...] = (
    check_name,
    check_finds_cards,
    check_repeats_itself,
    check_cards_differ,
    check_order,
    check_memory,
    check_health_has_a_reason,
    check_links,
    check_fits_the_annotation,
    check_one_device_a_card,
    check_device_paths,
    check_mounts_exist,
    check_writes_nothing,
    check_closes_twice,
    check_failure_is_a_sentence,
)


def _discover(offered: Offered) -> tuple[Card, ...]:
    driver = offered.open()
    cards = driver.discover()
    driver.close()
    return cards


def _own(edits: Edits, common: set[DeviceNode], card: Card) -> DeviceNode:
    own = [node for node in edits.devices if node not in common]
    assert len(own) == 1, f"{card.id} has {len(own)} device nodes of its own"
    return own[0]


def _tree(folder: Path) -> list[tuple[str, int, int, int, str]]:
    return sorted(_entries(folder)) if folder != Path("/") else []


def _entries(folder: Path) -> Iterator[tuple[str, int, int, int, str]]:
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            found = os.lstat(path)
            target = os.readlink(path) if stat.S_ISLNK(found.st_mode) else ""
            yield (path, found.st_mode, found.st_size, found.st_mtime_ns, target)
