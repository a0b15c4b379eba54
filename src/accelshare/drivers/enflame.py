"""Enflame's cards (GCU), asked through libefml and sysfs.

What a card is, the library says; where it sits, sysfs says. Rules:

- A card that has answered once is never dropped while the library lists it. When it stops answering, or
  leaves the PCI bus, it keeps what is known of it and is unhealthy, with the reason. One that has not once
  said who it is, or how much memory it has, cannot be offered: it is left out, and the log says so.
- What the library does not have or does not support is no sickness. What it has, but times out or fails, is.
- A library or kernel driver that was replaced, and a card that has come back to the bus, make the library be
  shut down, unloaded and opened again. So does any failure to count the cards.
- Every path is the host's. `root` is where the host's root stands for this process (/host in a container).
"""

import logging
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from accelshare.core.container import DeviceNode, Edits, Mount
from accelshare.core.errors import BadInput, DriverError
from accelshare.core.inventory import Card
from accelshare.drivers._efml import (
    NOT_OFFERED,
    SILENT,
    DeviceInfo,
    Efml,
    EfmlError,
    Host,
    Library,
    LinkEnd,
    read,
)

log = logging.getLogger(__name__)

TOOLS = ("/usr/bin/efsmi", "/usr/local/bin/efsmi")
CONTROL = "/dev/gcuctl"
SYSFS = "/sys"

BUS_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Seen(NamedTuple):
    """What a card last said of itself, and its folder in sysfs."""

    card: Card
    folder: str


class EnflameDriver:
    name = "enflame"

    def __init__(self, *, library: str = "", root: str = "/", sysfs: str = SYSFS) -> None:
        """Nothing is opened before the first discover(). With a library given no other is tried."""
        self._sysfs = sysfs.rstrip("/")
        self._host = Host(root)
        self._library = Library(self._host, self._sysfs, library)
        self._lock = threading.Lock()
        self._seen: dict[int, Seen] = {}
        self._gone: set[str] = set()  # folders in sysfs of cards that have left the bus
        self._left_out: dict[int, str] = {}  # why: said once, not at every call

    def discover(self) -> tuple[Card, ...]:
        with self._lock:
            if not os.path.isdir(f"{self._sysfs}/bus/pci/devices"):
                raise DriverError(f"{self._sysfs}/bus/pci/devices is not there; mount the host's /sys")
            if any(map(os.path.isdir, self._gone)):
                self._library.close()  # a card is back, and the library holds on to the one that went
                self._gone.clear()
            efml, count = self._library.opened()
            return self._cards(efml, count)

    def edits(self, cards: Sequence[Card]) -> Edits:
        with self._lock:
            devices = [self._device(f"/dev/gcu{card.minor}") for card in cards]
            if os.path.exists(self._host.here(CONTROL)):
                devices.append(self._device(CONTROL))
            names = [*self._library.names(), *TOOLS]
            mounts = {mount.container: mount for name in names for mount in self._mounts(name)}
            return Edits(devices=tuple(devices), mounts=tuple(mounts.values()))

    def close(self) -> None:
        with self._lock:
            self._library.close()

    def _cards(self, efml: Efml, count: int) -> tuple[Card, ...]:
        if any(index >= count for index in self._seen):
            self._seen.clear()  # the numbers have moved: what was seen under one is another card's now
        answered = {index for index in range(count) if self._look(efml, index)}
        if not self._seen:
            raise DriverError(f"none of {count} cards says who it is: {self._left_out[0]}")
        times = Counter(self._seen[index].card.id for index in answered)
        for card_id in times:
            if times[card_id] > 1:
                raise DriverError(
                    f"{self._library.path} gives several cards the id {card_id}; ask the vendor"
                )
        for index in self._seen.keys() - answered:
            if self._seen[index].card.id in times:
                del self._seen[index]  # it was renumbered, and answers under its new number
        self._look_at_links(efml)
        return tuple(self._seen[index].card for index in sorted(self._seen))

    def _look(self, efml: Efml, index: int) -> bool:
        """Puts down what the card says now, or, where it does not say who it is, that it is not well."""
        seen = self._seen.get(index)
        try:
            self._seen[index] = self._asked(efml, index, seen)
        except EfmlError as error:
            if seen is not None:
                reason = self._absence(seen.folder) or str(error)
                self._seen[index] = Seen(_ill(seen.card, reason), seen.folder)
            elif self._left_out.get(index) != str(error):
                log.warning("card %d is left out: %s", index, error)
                self._left_out[index] = str(error)
            return False
        self._left_out.pop(index, None)
        return True

    def _asked(self, efml: Efml, index: int, seen: Seen | None) -> Seen:
        """Raises EfmlError where the card does not say what one has to know."""
        info = efml.info(index)
        card_id = _id(efml, index)
        memory = efml.memory(index)
        folder = self._folder(info)
        reason = self._absence(folder) or _sickness(efml, index)
        if reason and seen is not None and seen.card.id == card_id:
            # A sick card's answers may be wrong, and those of sysfs are gone: what it said in health holds.
            return Seen(_ill(seen.card, reason), folder)
        card = Card(
            id=card_id,
            index=index,
            memory=memory,
            minor=self._minor(efml, info),
            model=_first_text(efml, ("EfmlGetDevSKU", "EfmlGetDevName"), index),
            vendor="enflame",
            numa=_numa(efml, index, folder),
            pcie=bridges(folder),
            healthy=not reason,
            reason=reason,
        )
        return Seen(card, folder)

    def _folder(self, place: DeviceInfo | LinkEnd) -> str:
        return f"{self._sysfs}/bus/pci/devices/{_address(place)}"

    def _absence(self, folder: str) -> str:
        """Why the card is not on the bus, "" if it is. It is watched from then on: see discover."""
        if os.path.isdir(folder):
            return ""
        self._gone.add(folder)
        return f"the card has left the PCI bus: {folder} is not there"

    def _minor(self, efml: Efml, info: DeviceInfo) -> int:
        """From sysfs, which says "major:minor"; where it is silent, the library's own number has to do."""
        folders = [self._folder(info)]
        try:
            point = efml.access_point()
        except EfmlError:
            pass
        else:
            inside = point.startswith(f"{SYSFS}/")
            folders.append((self._sysfs + point.removeprefix(SYSFS) if inside else point) + _address(info))
        for folder in folders:
            for module in ("enflame", "zixiao"):
                _, _, minor = read(f"{folder}/{module}/gcu{info.logic_id}/dev").partition(":")
                if minor.isdecimal():
                    return int(minor)
        return int(info.logic_id)

    def _look_at_links(self, efml: Efml) -> None:
        """A sick card keeps the links that it had."""
        ids = {seen.folder: seen.card.id for seen in self._seen.values()}
        for index, seen in self._seen.items():
            if seen.card.healthy:
                card = replace(seen.card, links=self._links(efml, seen.card, ids))
                self._seen[index] = Seen(card, seen.folder)

    def _links(self, efml: Efml, card: Card, ids: dict[str, str]) -> dict[str, int]:
        """How many links lead to each other card."""
        links: Counter[str] = Counter()
        try:
            if not efml.flag("EfmlGetGcuLareIsSupported", card.index):
                return {}
            for port in range(efml.link_count(card.index)):
                link = efml.link(card.index, port)
                other = ids.get(self._folder(link.there)) if link.connected else None
                if other is not None and other != card.id:
                    links[other] += 1
        except EfmlError as error:
            # Links only make a placement better; a card without them can be used all the same.
            log.debug("links of card %d: %s", card.index, error)
        return dict(sorted(links.items()))

    def _device(self, path: str) -> DeviceNode:
        try:
            found = os.stat(self._host.here(path))
        except OSError:
            return DeviceNode(path)
        if not stat.S_ISCHR(found.st_mode):
            return DeviceNode(path)
        return DeviceNode(path, os.major(found.st_rdev), os.minor(found.st_rdev))

    def _mounts(self, name: str) -> tuple[Mount, ...]:
        """The real file under this name and under its own, so that a link to it leads somewhere."""
        real = self._host.follow(name)
        if not os.path.isfile(self._host.here(name)):
            return ()
        return (Mount(real, name), Mount(real, real))


def open_here(config: Path | None) -> EnflameDriver:
    """The driver of this machine, with what the environment says of an odd one."""
    if config is not None:
        raise BadInput("configuration of the enflame driver", str(config), "none: it asks the machine")
    library = os.environ.get("ACCELSHARE_EFML_LIBRARY", "")
    root = os.environ.get("ACCELSHARE_HOST_ROOT", "/")
    sysfs = os.environ.get("ACCELSHARE_SYSFS", SYSFS)
    paths = {"ACCELSHARE_EFML_LIBRARY": library, "ACCELSHARE_HOST_ROOT": root, "ACCELSHARE_SYSFS": sysfs}
    for name, path in paths.items():
        if path and not path.startswith("/"):
            raise BadInput(name, path, "an absolute path")
    return EnflameDriver(library=library, root=root, sysfs=sysfs)


def bridges(folder: str) -> tuple[str, ...]:
    """Those above a PCI device, from the device up: in sysfs, the folders in which the device's own lies."""
    above = os.path.realpath(folder).split("/")[:-1]
    return tuple(step for step in reversed(above) if BUS_ADDRESS.fullmatch(step))


def _sickness(efml: Efml, index: int) -> str:
    """Why the library holds the card for sick, "" if it does not.

    Asked are its own verdicts: is the card healthy, and should it go back to the vendor. Not asked is ECC:
    its counters and pending page retirements say what happened, not whether the card still works.
    """
    for question in (_says_unhealthy, _says_return):
        try:
            reason = question(efml, index)
        except EfmlError as error:
            if error.code not in NOT_OFFERED:
                return str(error)
        else:
            if reason:
                return reason
    return ""


def _says_unhealthy(efml: Efml, index: int) -> str:
    function = "EfmlGetDevIsHealth"
    try:
        healthy = efml.flag(function, index)
    except EfmlError as error:
        if error.code not in NOT_OFFERED:
            raise
        function = "EfmlGetDevHealth"
        healthy = efml.flag(function, index)
    return "" if healthy else f"{function} says that the card is not healthy"


def _says_return(efml: Efml, index: int) -> str:
    status = efml.rma(index)
    if status.supported and status.flags:
        return "EfmlGetDevRmaStatus says that the card should be returned to the vendor"
    return ""


def _id(efml: Efml, index: int) -> str:
    uuid = efml.text("EfmlGetDevUuid", index)
    if not uuid:
        raise EfmlError("EfmlGetDevUuid", SILENT)
    return uuid if uuid.startswith("GCU-") else f"GCU-{uuid}"


def _ill(card: Card, reason: str) -> Card:
    return replace(card, healthy=False, reason=reason)


def _first_text(efml: Efml, functions: Sequence[str], index: int) -> str:
    for function in functions:
        try:
            text = efml.text(function, index)
        except EfmlError:
            continue
        if text:
            return text
    return ""


def _numa(efml: Efml, index: int, folder: str) -> int | None:
    """Both say -1 where the machine has one node only, or does not say."""
    try:
        node = efml.numa(index)
    except EfmlError:
        text = read(f"{folder}/numa_node")
        node = int(text) if text.isdecimal() else -1
    return node if node >= 0 else None


def _address(place: DeviceInfo | LinkEnd) -> str:
    return f"{place.domain:04x}:{place.bus:02x}:{place.dev:02x}.{place.func:x}"
