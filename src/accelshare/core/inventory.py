"""The cards of a node, and the one Node annotation that carries them from the agent to everybody else."""

from functools import lru_cache
from sys import intern
from typing import Literal

import msgspec
from msgspec import Struct, structs

from accelshare.core.errors import BadInput
from accelshare.core.once import once

INVENTORY = "accelshare.io/inventory"

Mode = Literal["enumerated", "counted"]
Injection = Literal["cdi", "direct"]

WORST_LINK = 0  # no link known between two cards: the way through the CPU


class Card(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One physical accelerator. A new id in the same slot is another card."""

    id: str  # stable over restarts and reboots, unique in the cluster: the vendor's serial or UUID
    index: int  # as the vendor's tools count them
    memory: int  # bytes
    minor: int  # number of its device node
    model: str = ""
    vendor: str = ""
    numa: int | None = None
    pcie: tuple[str, ...] = ()  # bridges from the card up to the CPU
    links: dict[str, int] = {}  # id of a linked card -> how good the link is; more is better
    healthy: bool = True
    reason: str = ""  # why it is not healthy


class FrontEnd(Struct, frozen=True, omit_defaults=True):
    """How one dialect is offered on a node."""

    unit: str = ""  # "" where the dialect has none
    mode: Mode = "enumerated"


class Inventory(Struct, frozen=True, omit_defaults=True, kw_only=True):
    driver: str
    cards: tuple[Card, ...] = ()
    dialects: dict[str, FrontEnd] = {}
    injection: Injection | None = None
    problem: str = ""  # why the node offers nothing, in a sentence
    agent: str = ""  # which agent wrote this: its version, when it started, and a number drawn
    leaving: bool = False  # this agent is about to go: it serves what is bound and takes nothing new
    version: int = 1  # of this format


_NO_LINKS: dict[str, int] = {}

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Inventory)


def write_inventory(inventory: Inventory) -> str:
    return _encoder.encode(inventory).decode()


def read_inventory(text: str) -> Inventory:
    """Raises BadInput on anything that write_inventory cannot have written."""
    try:
        inventory = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"annotation {INVENTORY}", text, f"what the node agent writes ({error})") from error
    ids = [card.id for card in inventory.cards]
    if len(set(ids)) != len(ids):
        raise BadInput(f"annotation {INVENTORY}", ids, "a list in which no card's id stands twice")
    for card in inventory.cards:
        if card.memory < 0 or card.index < 0:
            raise BadInput(
                f"annotation {INVENTORY}", card.id, "cards whose memory and index are not negative"
            )
    return structs.replace(
        inventory,
        driver=once(inventory.driver),
        cards=tuple(map(_lean, inventory.cards)),
        dialects=_front_ends(tuple(inventory.dialects.items())),
    )


@lru_cache(maxsize=256)
def _front_ends(items: tuple[tuple[str, FrontEnd], ...]) -> dict[str, FrontEnd]:
    return dict(items)


def _lean(card: Card) -> Card:
    """The same card, sharing what it has in common with thousands of others."""
    return Card(
        id=intern(card.id),
        index=card.index,
        memory=once(card.memory),
        minor=card.minor,
        model=once(card.model),
        vendor=once(card.vendor),
        numa=card.numa,
        pcie=once(card.pcie),
        links=card.links or _NO_LINKS,
        healthy=card.healthy,
        reason=card.reason,
    )
