"""Answers to filter, kept current from the ledger's changes, so that a question costs a look-up a name.

Most pods ask for a share of one card, counted in units. For these a node is one number: how much its best
card has free. These numbers are shared by all such shapes, so that they stay in the processor's cache:

    roomy    the nodes that have a certain amount free. Where it holds all names, one pass answers.
    free     the amount itself for every node, or why the node takes no such pod

Whatever else is asked (several cards, whole cards, compute, wishes) is placed node by node, and remembered
for each shape. The same shape comes again and again: replicas ask alike, and kube-scheduler asks again about
the same pod.
"""

from collections import OrderedDict

from accelshare.core.ledger import Ledger, NodeState
from accelshare.core.placement import Placement, Reason, place, refusal
from accelshare.core.policy import POLICIES
from accelshare.core.request import ANY_CARD, Ask, Shape, peak
from accelshare.core.units import Unit

REMEMBERED_SHAPES = 64  # of those that are placed: up to 2 MB each at 15,000 nodes
REMEMBERED_NEEDS = 1024

Asked = tuple[list[str], dict[str, Reason]]

_REASONS = tuple(Reason)
_FULL = -1  # no card takes any more, not even an ask for nothing
_REFUSED = -2  # and below: the reasons for which a node takes no such pod, however small
_UNKNOWN = _REFUSED - _REASONS.index(Reason.UNKNOWN_NODE)

_MISSES = 64  # answers without a refusal that `roomy` did not give, before it is made anew for them


class Verdicts:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rooms: dict[tuple[str, bool], _Rooms] = {}
        self._placed: OrderedDict[Shape, _Placed] = OrderedDict()
        ledger.on_change.append(self._changed)

    def ask(self, shape: Shape, names: list[str]) -> Asked:
        """Those of the names that fit, in their order, and why each of the others does not."""
        room = self._room(shape)
        need = room.need(shape)
        if need is None:
            return self._current(shape).ask(names)
        return room.ask(need, names)

    def fits(self, shape: Shape, name: str) -> bool:
        return not self.ask(shape, [name])[1]

    def _room(self, shape: Shape) -> "_Rooms":
        rooms = self._rooms.get((shape.dialect, shape.slots))
        if rooms is None:
            rooms = self._rooms[shape.dialect, shape.slots] = _Rooms(self._ledger, shape)
        rooms.follow_majority()
        return rooms

    def _current(self, shape: Shape) -> "_Placed":
        placed = self._placed.get(shape)
        if placed is None:
            placed = self._placed[shape] = _Placed(self._ledger, shape)
            if len(self._placed) > REMEMBERED_SHAPES:
                self._placed.popitem(last=False)
        else:
            self._placed.move_to_end(shape)
        placed.catch_up()
        return placed

    def _changed(self, name: str) -> None:
        for rooms in self._rooms.values():
            rooms.look(name)
        for placed in self._placed.values():
            placed.dirty.add(name)


def asks_of_one_card(shape: Shape) -> tuple[Ask, ...] | None:
    """What is asked of any one card, in units; None where that is not the whole question."""
    if len(shape.groups) != 1 or shape.selector != ANY_CARD:
        return None
    group = shape.groups[0]
    if group.cards != 1 or shape.most or POLICIES[group.policy or shape.policy].may_refuse:
        return None
    if any(ask.memory.per != "unit" or ask.compute or ask.exclusive for ask in group.asks):
        return None
    return group.asks


class _Free(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return _UNKNOWN


class _Rooms:
    """The nodes as pods of one dialect see them that ask for a share of one card, with a slot or without."""

    __slots__ = (
        "_any",
        "_free",
        "_ledger",
        "_level",
        "_majority",
        "_missed",
        "_missed_level",
        "_needs",
        "_roomy",
        "_unit",
    )

    def __init__(self, ledger: Ledger, shape: Shape) -> None:
        self._ledger = ledger
        self._any = Shape(shape.dialect, (), shape.policy, slots=shape.slots)
        self._majority = ledger.majority_unit(shape.dialect)
        self._unit: Unit | None = None  # of the majority, which every node has that is not refused
        self._needs: dict[Shape, int | None] = {}
        self._free = _Free()
        self._level = 0
        self._roomy: set[str] = set()
        self._missed = self._missed_level = 0
        self._look_at_all()

    def need(self, shape: Shape) -> int | None:
        """The bytes of one card that decide, None where more does; remembered for each shape."""
        try:
            return self._needs[shape]
        except KeyError:
            if len(self._needs) >= REMEMBERED_NEEDS:
                self._needs.clear()
            need = self._needs[shape] = self._worked_out(shape)
            return need

    def ask(self, need: int, names: list[str]) -> Asked:
        if need <= self._level and self._roomy.issuperset(names):
            return names, {}
        found = list(map(self._free.__getitem__, names))
        if min(found, default=need) >= need:
            self._note_miss(need)
            return names, {}
        fits = [name for name, free in zip(names, found, strict=True) if free >= need]
        return fits, {
            name: Reason.NO_ROOM if free > _REFUSED else _REASONS[_REFUSED - free]
            for name, free in zip(names, found, strict=True)
            if free < need
        }

    def follow_majority(self) -> None:
        """A new majority changes the answer of nodes that did not change themselves."""
        majority = self._ledger.majority_unit(self._any.dialect)
        if majority != self._majority:
            self._majority = majority
            self._look_at_all()

    def look(self, name: str) -> None:
        state = self._ledger.nodes.get(name)
        if state is None:
            self._free.pop(name, None)
            self._roomy.discard(name)
            return
        free = self._free[name] = self._free_of(state)
        if free >= self._level:
            self._roomy.add(name)
        else:
            self._roomy.discard(name)

    def _look_at_all(self) -> None:
        self._unit = None
        self._needs.clear()
        self._free.clear()
        self._roomy.clear()
        for name in self._ledger.nodes:
            self.look(name)

    def _free_of(self, state: NodeState) -> int:
        reason = refusal(self._any, state, self._majority)
        if reason is not None:
            return _REFUSED - _REASONS.index(reason)
        if self._unit is None:
            self._unit = state.offers[self._any.dialect].unit
            self._needs.clear()
        return max(state.best_free, _FULL)

    def _worked_out(self, shape: Shape) -> int | None:
        """Each ask is rounded down for itself, so several may fit where their sum would not."""
        asks, unit = asks_of_one_card(shape), self._unit
        if asks is None or unit is None:
            return None if asks is None else 0
        return peak((ask.role, unit.bytes(ask.memory.count)) for ask in asks)

    def _note_miss(self, need: int) -> None:
        """`roomy` follows what is asked: it is of use at the highest level at which everything still fits."""
        self._missed += 1
        self._missed_level = max(self._missed_level, need)
        if self._missed >= _MISSES:
            self._level = self._missed_level
            self._missed = self._missed_level = 0
            self._roomy = {name for name, free in self._free.items() if free >= self._level}


class _Placed:
    """One shape on every node, brought up to date only where the ledger has changed."""

    __slots__ = ("_fits", "_ledger", "_majority", "_refused", "_shape", "dirty")

    def __init__(self, ledger: Ledger, shape: Shape) -> None:
        self._ledger = ledger
        self._shape = shape
        self._majority = ledger.majority_unit(shape.dialect)
        self._fits: set[str] = set()
        self._refused: dict[str, Reason] = {}
        self.dirty = set(ledger.nodes)

    def ask(self, names: list[str]) -> Asked:
        fits = list(filter(self._fits.__contains__, names))
        if len(fits) == len(names):
            return names, {}
        refused = self._refused
        return fits, {
            name: refused.get(name, Reason.UNKNOWN_NODE) for name in names if name not in self._fits
        }

    def catch_up(self) -> None:
        majority = self._ledger.majority_unit(self._shape.dialect)
        if majority != self._majority:
            self._majority = majority
            self.dirty.update(self._ledger.nodes)
        if self.dirty:
            for name in self.dirty:
                self._look(name)
            self.dirty.clear()

    def _look(self, name: str) -> None:
        state = self._ledger.nodes.get(name)
        self._fits.discard(name)
        self._refused.pop(name, None)
        if state is None:
            return  # a name that is gone is not kept
        reason = refusal(self._shape, state, self._majority)
        if reason is None and not isinstance(place(self._shape, state), Placement):
            reason = Reason.NO_ROOM
        if reason is None:
            self._fits.add(name)
        else:
            self._refused[name] = reason
