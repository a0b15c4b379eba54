"""Where a pod goes: a Placement, or a Rejection that counts its reasons. "No room" is a value, no error."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import Card
from accelshare.core.ledger import NodeState
from accelshare.core.objects import Role
from accelshare.core.policy import POLICIES, CardView
from accelshare.core.request import Ask, Group, PodRequest, Selector, Shape, peak
from accelshare.core.units import Unit


class Reason(StrEnum):
    """Why a node is refused. A dialect says each in its own words."""

    UNKNOWN_NODE = "unknown node"
    NO_AGENT = "no node agent"
    NOT_OFFERED = "not offered"
    OTHER_UNIT = "other unit"
    NO_SLOT = "no slot"
    NO_ROOM = "no room"


class CardReason(StrEnum):
    """Why a card is passed over."""

    UNHEALTHY = "unhealthy"
    NOT_WANTED = "not wanted"
    IN_USE = "in use"
    EXCLUSIVE = "held whole"
    COMPUTE = "compute"
    MEMORY = "memory"


class Rejection(Struct, frozen=True):
    reason: Reason
    cards: dict[str, int] = {}  # CardReason -> how many cards


class Placement(Struct, frozen=True):
    """For each group of the shape, the positions of its cards."""

    cards: tuple[tuple[int, ...], ...]


class Taken:
    """What the pod being placed has taken so far of each card, on top of what others have."""

    def __init__(self) -> None:
        self._memory: dict[int, list[tuple[Role, int]]] = {}
        self._compute: dict[int, list[tuple[Role, int]]] = {}

    def memory_with(self, at: int, asks: Sequence[tuple[Role, int]]) -> int:
        return peak([*self._memory.get(at, ()), *asks])

    def compute_with(self, at: int, asks: Sequence[tuple[Role, int]]) -> int:
        return peak([*self._compute.get(at, ()), *asks])

    def add(self, at: int, memory: Sequence[tuple[Role, int]], compute: Sequence[tuple[Role, int]]) -> None:
        self._memory.setdefault(at, []).extend(memory)
        self._compute.setdefault(at, []).extend(compute)


def refusal(shape: Shape, state: NodeState | None, majority: str) -> Reason | None:
    """Why this node takes no pod like this, however small. majority is the unit that most nodes have."""
    if state is None or not state.known:
        return Reason.UNKNOWN_NODE
    if state.inventory is None:
        return Reason.NO_AGENT
    offer = state.offers.get(shape.dialect)
    if offer is None:
        return Reason.NOT_OFFERED
    if offer.unit.name != majority:
        return Reason.OTHER_UNIT
    if offer.counted and not shape.slots:
        return Reason.NO_SLOT
    return None


def place(shape: Shape, state: NodeState) -> Placement | Rejection:
    """The cards of this node that the shape's policy takes, if there are enough that fit."""
    unit = state.offers[shape.dialect].unit
    policy = POLICIES[shape.policy]
    taken = Taken()
    chosen: list[tuple[int, ...]] = []
    for group in shape.groups:
        passed_over: Counter[str] = Counter()
        fitting: list[int] = []
        for at, card in enumerate(state.cards):
            why = _why_not(group, at, card, state, unit, shape.selector, taken)
            if why is None:
                fitting.append(at)
            else:
                passed_over[why] += 1
        if len(fitting) < group.cards:
            return Rejection(Reason.NO_ROOM, dict(passed_over))
        fitting.sort(key=lambda at: policy.card(_view(state, at, taken)))
        cards = tuple(fitting[: group.cards])
        for at in cards:
            taken.add(at, *_amounts(group.asks, state.cards[at], unit))
        chosen.append(cards)
    return Placement(tuple(chosen))


def _why_not(
    group: Group, at: int, card: Card, state: NodeState, unit: Unit, selector: Selector, taken: Taken
) -> CardReason | None:
    if not card.healthy:
        return CardReason.UNHEALTHY
    if not _wanted(card, selector):
        return CardReason.NOT_WANTED
    if state.exclusive[at]:
        return CardReason.EXCLUSIVE
    if state.tenants_of[at] and any(ask.exclusive for ask in group.asks):
        return CardReason.IN_USE
    memory, compute = _amounts(group.asks, card, unit)
    if taken.memory_with(at, memory) > state.free[at]:
        return CardReason.MEMORY
    if 0 < taken.compute_with(at, compute) > state.compute[at]:
        return CardReason.COMPUTE  # who asks for none is not kept out by a card whose compute is oversold
    return None


def _amounts(
    asks: Sequence[Ask], card: Card, unit: Unit
) -> tuple[list[tuple[Role, int]], list[tuple[Role, int]]]:
    return (
        [
            (ask.role, card.memory if ask.exclusive else ask.memory.bytes_on(card.memory, unit))
            for ask in asks
        ],
        [(ask.role, 100 if ask.exclusive else ask.compute) for ask in asks],
    )


def _wanted(card: Card, selector: Selector) -> bool:
    if selector.ids and card.id not in selector.ids:
        return False
    if selector.models and not any(part in card.model for part in selector.models):
        return False
    return card.id not in selector.not_ids and not any(part in card.model for part in selector.not_models)


def _view(state: NodeState, at: int, taken: Taken) -> CardView:
    card = state.cards[at]
    free = state.free[at] - taken.memory_with(at, ())
    return CardView(card.index, card.memory, free, state.tenants_of[at])


def grant(request: PodRequest, placement: Placement, state: NodeState, uid: str, time: int) -> Grant:
    """The placement as a grant, container by container."""
    unit = state.offers[request.dialect].unit
    containers = []
    for at, container in enumerate(request.containers):
        cards = placement.cards[0 if request.together else at]
        containers.append(
            ContainerGrant(
                container.name,
                container.ask.role,
                tuple(_share(container.ask, state.cards[card], unit) for card in cards[: container.cards]),
                container.ask.memory.count if container.ask.memory.per == "unit" else 0,
            )
        )
    return Grant(
        dialect=request.dialect,
        uid=uid,
        node=state.name,
        containers=tuple(containers),
        unit=unit.name,
        time=time,
    )


def _share(ask: Ask, card: Card, unit: Unit) -> Share:
    if ask.exclusive:
        return Share(card.id, card.index, card.memory, 100, exclusive=True)
    return Share(card.id, card.index, ask.memory.bytes_on(card.memory, unit), ask.compute)
