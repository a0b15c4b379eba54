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
    UNREADABLE = "unreadable inventory"
    CLOSED = "no new pods now"
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
    CROWDED = "crowded"  # as many pods as the request bears are there
    COMPUTE = "compute"
    MEMORY = "memory"
    NO_SET = "no such set"  # it fits, and not together with others in the way that the policy wants


class Rejection(Struct, frozen=True):
    reason: Reason
    cards: dict[str, int] = {}  # CardReason -> how many cards


class Placement(Struct, frozen=True):
    """For each group of the shape, the positions of its cards."""

    cards: tuple[tuple[int, ...], ...]


class Taken:
    """What the pod being placed has taken so far of each card, on top of what others have."""

    def __init__(self) -> None:
        self._groups: dict[int, list[Group]] = {}
        self._memory: dict[int, list[tuple[Role, int]]] = {}
        self._compute: dict[int, list[tuple[Role, int]]] = {}

    def memory_with(self, at: int, asks: Sequence[tuple[Role, int]]) -> int:
        return peak([*self._memory.get(at, ()), *asks])

    def compute_with(self, at: int, asks: Sequence[tuple[Role, int]]) -> int:
        return peak([*self._compute.get(at, ()), *asks])

    def bears(self, at: int, group: Group) -> bool:
        """Whether nobody who is to be alone on the card would run beside another group's containers."""
        before = self._groups.get(at)
        return not before or not _meet([*before, group])

    def add(
        self, at: int, group: Group, memory: Sequence[tuple[Role, int]], compute: Sequence[tuple[Role, int]]
    ) -> None:
        self._groups.setdefault(at, []).append(group)
        self._memory.setdefault(at, []).extend(memory)
        self._compute.setdefault(at, []).extend(compute)


def _meet(groups: Sequence[Group]) -> bool:
    """Whether containers of two groups run at the same time, one of which wants nobody beside.

    As in peak(): plain init containers run beside the sidecars that started before them, and no others.
    """
    running: list[tuple[int, Ask]] = []
    for at, group in enumerate(groups):
        for ask in group.asks:
            if any(other != at and (ask.exclusive or beside.exclusive) for other, beside in running):
                return True
            if ask.role != "init":
                running.append((at, ask))
    return False


def refusal(shape: Shape, state: NodeState | None, majority: str) -> Reason | None:
    """Why this node takes no pod like this, however small. majority is the unit that most nodes have."""
    if state is None or not state.known:
        return Reason.UNKNOWN_NODE
    if state.problem:
        return Reason.UNREADABLE
    if state.inventory is None:
        return Reason.NO_AGENT
    if state.inventory.problem or state.inventory.leaving:
        return Reason.CLOSED
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
    taken = Taken()
    chosen: list[tuple[int, ...]] = []
    for group in shape.groups:
        passed_over: Counter[str] = Counter()
        fitting: list[int] = []
        for at, card in enumerate(state.cards):
            why = _why_not(group, at, card, state, unit, shape, taken)
            if why is None:
                fitting.append(at)
            else:
                passed_over[why] += 1
        if len(fitting) < group.cards:
            return Rejection(Reason.NO_ROOM, dict(passed_over))
        choose = POLICIES[group.policy or shape.policy].choose
        found = choose([_view(state, at, taken) for at in fitting], group.cards)
        if len(found) < group.cards:
            passed_over[CardReason.NO_SET] = len(fitting)
            return Rejection(Reason.NO_ROOM, dict(passed_over))
        cards = tuple(fitting[position] for position in found)
        for at in cards:
            taken.add(at, group, *_amounts(group.asks, state.cards[at], unit))
        chosen.append(cards)
    return Placement(tuple(chosen))


def _why_not(
    group: Group, at: int, card: Card, state: NodeState, unit: Unit, shape: Shape, taken: Taken
) -> CardReason | None:
    if not card.healthy:
        return CardReason.UNHEALTHY
    if not _wanted(card, shape.selector):
        return CardReason.NOT_WANTED
    if state.exclusive[at]:
        return CardReason.EXCLUSIVE
    if state.tenants_of[at] and any(ask.exclusive for ask in group.asks):
        return CardReason.IN_USE
    if not taken.bears(at, group):
        return CardReason.IN_USE
    if 0 < shape.most <= state.tenants_of[at]:
        return CardReason.CROWDED
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
        [(ask.role, ask.memory.bytes_on(card.memory, unit)) for ask in asks],
        [(ask.role, ask.compute) for ask in asks],
    )


def _wanted(card: Card, selector: Selector) -> bool:
    if selector.ids and card.id not in selector.ids:
        return False
    if card.id in selector.not_ids:
        return False
    if selector.models and not _among(card.model, selector.models):
        return False
    return not _among(card.model, selector.not_models)


def _among(model: str, parts: Sequence[str]) -> bool:
    name = model.casefold()
    return any(part.casefold() in name for part in parts)


def _view(state: NodeState, at: int, taken: Taken) -> CardView:
    card = state.cards[at]
    return CardView(
        id=card.id,
        index=card.index,
        memory=card.memory,
        free=state.free[at] - taken.memory_with(at, ()),
        compute_free=state.compute[at] - taken.compute_with(at, ()),
        tenants=state.tenants_of[at],
        model=card.model,
        numa=card.numa,
        pcie=card.pcie,
        links=card.links,
    )


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
                container.ids,
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
    memory = ask.memory.bytes_on(card.memory, unit)
    return Share(card.id, card.index, memory, ask.compute, ask.exclusive)
