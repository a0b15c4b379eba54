"""What a node offers to kubelet, worked out from its cards: pure, and the same for every dialect.

A dialect is enumerated (one device id a unit, as its document does it) or counted (the amount stands in the
node's status, and slots are what kubelet hands out). Which of the two is the operator's choice for the whole
cluster; too many ids to enumerate is a problem that is said, never a silent change of the way.

Only a sick card lowers what is offered. What is granted already does not: kube-scheduler subtracts it itself.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from accelshare.core.inventory import Card, FrontEnd
from accelshare.core.ledger import Tenant
from accelshare.core.units import Unit
from accelshare.dialects import DIALECTS, SLOT, unit_named
from accelshare.dialects.interface import CountsNodes, Dialect

MOST_IDS = 2048
SLOTS_PER_CARD = 64

Device = tuple[str, bool]  # id, healthy


class Offer(Struct, frozen=True):
    devices: dict[str, tuple[Device, ...]] = {}  # by resource: what kubelet is told by ListAndWatch
    status: dict[str, int] = {}  # by resource: what is patched into the node's status
    problem: str = ""


def spoken(cards: Sequence[Card], wanted: Mapping[str, FrontEnd]) -> dict[str, FrontEnd]:
    """Of the dialects that the operator wants, those that speak of cards of these vendors."""
    vendors = {card.vendor for card in cards}
    return {name: end for name, end in wanted.items() if vendors & DIALECTS[name].vendors}


def offer(
    cards: Sequence[Card],
    ends: Mapping[str, FrontEnd],
    tenants: Iterable[Tenant] = (),
    held: Mapping[str, frozenset[str]] | None = None,
) -> Offer:
    """held: by resource, the ids that kubelet's checkpoint gives to live containers."""
    devices: dict[str, tuple[Device, ...]] = {}
    status: dict[str, int] = {}
    tenants = list(tenants)
    for name, end in ends.items():
        dialect = DIALECTS[name]
        unit = unit_named(dialect, end.unit)
        own = [card for card in cards if card.vendor in dialect.vendors]
        if isinstance(dialect, CountsNodes):
            status.update((counted.resource, counted.amount) for counted in dialect.counted(own))
        old = [tenant for tenant in tenants if tenant.dialect == name and tenant.unit != unit.name]
        free = {card.id: unit.count(card.memory - _held_bytes(card, old)) for card in own}
        old_units = sum(_units_of(tenant, dialect) for tenant in old)
        if end.mode == "counted":
            status[dialect.primary] = old_units + sum(free[card.id] for card in own if card.healthy)
            devices[SLOT] = _slots(own)
            continue
        total = old_units + sum(free.values())
        if total > MOST_IDS:
            return Offer(
                problem=f"{dialect.primary} in units of {unit.name} needs {total} device ids, and kubelet bears "
                f"{MOST_IDS} well: start all agents and the scheduler service with "
                f"--counted={name}, or choose a larger unit"
            )
        keep = (held or {}).get(dialect.primary, frozenset()) if old else frozenset[str]()
        devices[dialect.primary] = _ids(own, dialect, unit, free, keep, total)
    return Offer(devices, status)


def _ids(
    cards: Sequence[Card],
    dialect: Dialect,
    unit: Unit,
    free: Mapping[str, int],
    keep: frozenset[str],
    total: int,
) -> tuple[Device, ...]:
    """As many ids as kube-scheduler may count, those that live containers hold among them.

    keep is not empty only while pods of an old unit run: kubelet would end a container whose id went away.
    """
    out: list[Device] = []
    for card in cards:
        ids = [number for number in dialect.ids(card, unit) if number not in keep][: free[card.id]]
        out.extend((number, card.healthy) for number in ids)
    return (*out[: max(0, total - len(keep))], *((number, True) for number in sorted(keep)))


def _slots(cards: Sequence[Card]) -> tuple[Device, ...]:
    return tuple((f"{card.id}-slot-{n}", card.healthy) for card in cards for n in range(SLOTS_PER_CARD))


def _held_bytes(card: Card, tenants: Iterable[Tenant]) -> int:
    return sum(charge.memory for tenant in tenants for charge in tenant.charges if charge.card == card.id)


def _units_of(tenant: Tenant, dialect: Dialect) -> int:
    """What kube-scheduler counts for a pod of an old unit: its number, whatever it meant."""
    unit = dialect.units.get(tenant.unit)
    return sum(unit.nearest(charge.memory) for charge in tenant.charges) if unit else 0


def prefer(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Ids of as few cards as can be: first those of the card that has fewest left and still enough."""
    chosen = list(must)
    by_card: dict[str, list[str]] = {}
    for number in sorted(set(available) - set(must), key=_natural):
        by_card.setdefault(_card_of(number), []).append(number)
    while len(chosen) < size and by_card:
        need = size - len(chosen)
        enough = [card for card, ids in by_card.items() if len(ids) >= need]
        card = (
            min(enough, key=lambda card: len(by_card[card]))
            if enough
            else max(by_card, key=lambda card: len(by_card[card]))
        )
        chosen.extend(by_card.pop(card)[:need])
    return chosen


def _card_of(number: str) -> str:
    return number.rstrip("0123456789")


def _natural(number: str) -> tuple[str, int]:
    card = _card_of(number)
    return card, int(number[len(card) :] or 0)
