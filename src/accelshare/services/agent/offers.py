"""What a node offers to kubelet, worked out from its cards: pure, and the same for every dialect.

A dialect is enumerated (one device id a unit, as its document does it) or counted (the amount stands in the
node's status, and slots are what kubelet hands out). Which of the two is the operator's choice for the whole
cluster; too many ids to enumerate is a problem that is said, never a silent change of the way.

How much is offered: kube-scheduler subtracts from it what the node's pods ask for, by their numbers. So

    each healthy card counts whole, in the present unit, less the bytes of pods of an old unit;
    pods of an old unit count by their own number, whatever it meant;
    a sick or missing card counts for what its pods hold of it, and its free part for nothing.

Then what kube-scheduler has left over is what is free of healthy cards. Which ids stand for it is another
matter, for an id need not name the granted card: those that live containers hold always stay, since kubelet
fails a pod whose id has gone when it restarts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from accelshare.core.errors import BadInput
from accelshare.core.inventory import Card, FrontEnd
from accelshare.core.ledger import Tenant
from accelshare.core.units import Unit
from accelshare.dialects import DIALECTS, SLOT, unit_named
from accelshare.dialects.interface import CountsNodes, Dialect

MOST_IDS = 2048
SLOTS_PER_CARD = 64


class Device(NamedTuple):
    """One id, as kubelet is told of it."""

    id: str
    healthy: bool
    numa: int | None = None  # told only where the id is the card that the container gets


Held = Mapping[str, frozenset[str]]  # by resource, the ids that kubelet's checkpoint gives to live containers


class Offered(Struct, frozen=True):
    devices: dict[str, tuple[Device, ...]] = {}  # by resource: what kubelet is told by ListAndWatch
    status: dict[str, int] = {}  # by resource: what is patched into the node's status
    problem: str = ""


class _Room(Struct, frozen=True):
    """What of one dialect's cards may be counted on, in numbers that kube-scheduler subtracts from."""

    free: Mapping[str, int]  # by card, in the present unit, pods of that unit not subtracted
    healthy: int
    total: int  # with the free part of sick cards


def spoken(cards: Sequence[Card], wanted: Mapping[str, FrontEnd]) -> dict[str, FrontEnd]:
    """Of the dialects that the operator wants, those that speak of cards of these vendors."""
    vendors = {card.vendor for card in cards}
    return {name: end for name, end in wanted.items() if vendors & DIALECTS[name].vendors}


def offer(
    cards: Sequence[Card],
    ends: Mapping[str, FrontEnd],
    tenants: Iterable[Tenant] = (),
    held: Held | None = None,
) -> Offered:
    held = held or {}
    tenants = list(tenants)
    devices: dict[str, tuple[Device, ...]] = {}
    status: dict[str, int] = {}
    slotted: list[Card] = []
    for name, end in ends.items():
        dialect = DIALECTS[name]
        unit = unit_named(dialect, end.unit)
        own = [card for card in cards if card.vendor in dialect.vendors]
        if isinstance(dialect, CountsNodes):
            status.update((counted.resource, counted.amount) for counted in dialect.counted(own))
        room = _room(own, dialect, unit, [tenant for tenant in tenants if tenant.dialect == name])
        if end.mode == "counted":
            status[dialect.primary] = room.healthy
            slotted += [card for card in own if card not in slotted]
            devices[SLOT] = _slots(slotted, held.get(SLOT, frozenset()))
            continue
        if room.total > MOST_IDS:
            why = (
                f"{dialect.primary} in units of {unit.name} needs {room.total} device ids, and kubelet bears "
                f"{MOST_IDS} well: start all agents and the scheduler service with "
                f"--counted={name}, or choose a larger unit"
            )
            return closed(ends, tenants, held, why)
        devices[dialect.primary] = _ids(own, dialect, unit, room, held.get(dialect.primary, frozenset()))
    return Offered(devices, status)


def closed(
    ends: Mapping[str, FrontEnd], tenants: Iterable[Tenant], held: Held | None, problem: str
) -> Offered:
    """Nothing new, because of the problem; pods that run keep what they hold."""
    tenants = list(tenants)
    devices: dict[str, tuple[Device, ...]] = {}
    status: dict[str, int] = {}
    for name, end in ends.items():
        dialect = DIALECTS[name]
        resource = SLOT if end.mode == "counted" else dialect.primary
        devices[resource] = tuple(Device(number, True) for number in sorted((held or {}).get(resource, ())))
        if end.mode == "counted":
            own = [tenant for tenant in tenants if tenant.dialect == name]
            status[dialect.primary] = sum(_units_of(tenant, dialect) for tenant in own)
    return Offered(devices, status, problem)


def _room(cards: Sequence[Card], dialect: Dialect, unit: Unit, tenants: Sequence[Tenant]) -> _Room:
    old = [tenant for tenant in tenants if tenant.unit != unit.name]
    present = [tenant for tenant in tenants if tenant.unit == unit.name]
    free = {card.id: dialect.capacity(_less(card, _held_bytes(card, old)), unit) for card in cards}
    healthy = {card.id for card in cards if card.healthy}
    old_units = sum(_units_of(tenant, dialect) for tenant in old)
    by_card: dict[str, int] = {}
    for tenant in present:
        for charge in tenant.charges:
            by_card[charge.card] = by_card.get(charge.card, 0) + dialect.taken(charge, unit)
    missing = sum(units for card, units in by_card.items() if card not in free)
    sick = sum(min(units, free[card]) for card, units in by_card.items() if card in free.keys() - healthy)
    return _Room(
        free,
        healthy=old_units + missing + sick + sum(free[card] for card in healthy),
        total=old_units + missing + sum(free.values()),
    )


def _ids(
    cards: Sequence[Card], dialect: Dialect, unit: Unit, room: _Room, held: frozenset[str]
) -> tuple[Device, ...]:
    """As many healthy ids as the room has, all that are held among them, and the rest of it as unhealthy."""
    first: list[str] = []  # of each healthy card as many as are free of it
    spare: list[str] = []
    sick: list[str] = []
    order: dict[str, None] = {}
    for card in cards:
        ids = dialect.ids(card, unit)
        order.update(dict.fromkeys(ids))
        free = [number for number in ids if number not in held]
        if card.healthy:
            first += free[: room.free[card.id]]
            spare += free[room.free[card.id] :]
        else:
            sick += free
    order.update(dict.fromkeys(sorted(held)))
    enough = max(0, room.healthy - len(held))
    # Of a sick card only where pods of it are bound and have no ids yet: without they would fail for good.
    good = held | set([*first, *spare, *sick][:enough])
    bad = [number for number in (*sick, *first, *spare) if number not in good]
    bad = bad[: max(0, room.total - len(good))]
    shown = good.union(bad)
    return tuple(Device(number, number in good) for number in order if number in shown)


def _slots(cards: Sequence[Card], held: frozenset[str]) -> tuple[Device, ...]:
    own = {
        f"{card.id}-slot-{n}": card.healthy or f"{card.id}-slot-{n}" in held
        for card in cards
        for n in range(SLOTS_PER_CARD)
    }
    own |= dict.fromkeys(sorted(held - own.keys()), True)
    return tuple(Device(number, healthy) for number, healthy in own.items())


def _less(card: Card, memory: int) -> Card:
    """The card as if it had so much less memory."""
    return structs.replace(card, memory=max(0, card.memory - memory)) if memory else card


def _held_bytes(card: Card, tenants: Iterable[Tenant]) -> int:
    return sum(charge.memory for tenant in tenants for charge in tenant.charges if charge.card == card.id)


def _units_of(tenant: Tenant, dialect: Dialect) -> int:
    """What kube-scheduler counts for a pod: its number, in whatever unit it was meant."""
    try:
        unit = unit_named(dialect, tenant.unit)
    except BadInput:
        return 0
    return sum(dialect.taken(charge, unit) for charge in tenant.charges)


def prefer(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Ids of as few cards as can be: beside those that must be taken, and else of the card that has fewest
    left and still enough."""
    chosen = list(must)
    by_card: dict[str, list[str]] = {}
    for number in sorted(set(available) - set(must), key=_natural):
        by_card.setdefault(_card_of(number), []).append(number)
    begun = [card for card in dict.fromkeys(map(_card_of, must)) if card in by_card]
    while len(chosen) < size and by_card:
        need = size - len(chosen)
        card = begun.pop(0) if begun else _next_card(by_card, need)
        chosen.extend(by_card.pop(card)[:need])
    return chosen


def _next_card(by_card: Mapping[str, list[str]], need: int) -> str:
    enough = [card for card, ids in by_card.items() if len(ids) >= need]
    if enough:
        return min(enough, key=lambda card: len(by_card[card]))
    return max(by_card, key=lambda card: len(by_card[card]))


def _card_of(number: str) -> str:
    return number.rstrip("0123456789")


def _natural(number: str) -> tuple[str, int]:
    card = _card_of(number)
    return card, int(number[len(card) :] or 0)
