"""Answers to filter, kept current from the ledger's changes, so that a question costs a look-up a name.

Most pods ask for a share of one card, counted in units. For these a node is one number: how many units its
best card has free. These numbers are shared by all such shapes, so that they stay in the processor's cache:

    roomy    the nodes that have a certain number of units free. Where it holds all names, one pass answers.
    units    the number itself for every node, or why the node takes no such pod

Whatever else is asked (several cards, whole cards, compute, wishes) is placed node by node, and remembered
for each shape. The same shape comes again and again: replicas ask alike, and kube-scheduler asks again about
the same pod.
"""

from collections import OrderedDict

from accelshare.core.ledger import Ledger, NodeState
from accelshare.core.placement import Placement, Reason, place, refusal
from accelshare.core.request import ANY_CARD, Shape

REMEMBERED_SHAPES = 64  # of those that are placed: up to 2 MB each at 15,000 nodes

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
        self._plain: OrderedDict[Shape, int | None] = OrderedDict()
        ledger.on_change.append(self._changed)

    def ask(self, shape: Shape, names: list[str]) -> Asked:
        """Those of the names that fit, in their order, and why each of the others does not."""
        need = self._units(shape)
        if need is None:
            return self._current(shape).ask(names)
        return self._room(shape).ask(need, names)

    def fits(self, shape: Shape, name: str) -> bool:
        return not self.ask(shape, [name])[1]

    def _units(self, shape: Shape) -> int | None:
        """units_asked, remembered."""
        try:
            return self._plain[shape]
        except KeyError:
            need = self._plain[shape] = units_asked(shape)
            if len(self._plain) > 16 * REMEMBERED_SHAPES:
                self._plain.popitem(last=False)
            return need

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


def units_asked(shape: Shape) -> int | None:
    """How many units of any one card are asked for, None where that is not the whole question."""
    if len(shape.groups) != 1 or shape.selector != ANY_CARD:
        return None
    group = shape.groups[0]
    if group.cards != 1 or len(group.asks) != 1:
        return None  # each container's bytes are rounded down: several may fit where their sum does not
    (ask,) = group.asks
    if ask.memory.per != "unit" or ask.compute or ask.exclusive:
        return None
    return ask.memory.count


class _Units(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return _UNKNOWN


class _Rooms:
    """The nodes as pods of one dialect see them that ask for a share of one card, with a slot or without."""

    __slots__ = ("_any", "_ledger", "_level", "_majority", "_missed", "_missed_level", "_roomy", "_units")

    def __init__(self, ledger: Ledger, shape: Shape) -> None:
        self._ledger = ledger
        self._any = Shape(shape.dialect, (), shape.policy, slots=shape.slots)
        self._majority = ledger.majority_unit(shape.dialect)
        self._units = _Units()
        self._level = 0
        self._roomy: set[str] = set()
        self._missed = self._missed_level = 0
        self._look_at_all()

    def ask(self, need: int, names: list[str]) -> Asked:
        if need <= self._level and self._roomy.issuperset(names):
            return names, {}
        units = list(map(self._units.__getitem__, names))
        if min(units, default=need) >= need:
            self._note_miss(need)
            return names, {}
        fits = [name for name, free in zip(names, units, strict=True) if free >= need]
        return fits, {
            name: Reason.NO_ROOM if free > _REFUSED else _REASONS[_REFUSED - free]
            for name, free in zip(names, units, strict=True)
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
            self._units.pop(name, None)
            self._roomy.discard(name)
            return
        free = self._units[name] = self._free(state)
        if free >= self._level:
            self._roomy.add(name)
        else:
            self._roomy.discard(name)

    def _look_at_all(self) -> None:
        self._units.clear()
        self._roomy.clear()
        for name in self._ledger.nodes:
            self.look(name)

    def _free(self, state: NodeState) -> int:
        reason = refusal(self._any, state, self._majority)
        if reason is not None:
            return _REFUSED - _REASONS.index(reason)
        unit = state.offers[self._any.dialect].unit
        # The most units whose bytes, rounded down, are no more than what is free.
        most = -(-(state.best_free + 1) * unit.denominator // unit.numerator) - 1
        return max(most, _FULL)

    def _note_miss(self, need: int) -> None:
        """`roomy` follows what is asked: it is of use at the highest level at which everything still fits."""
        self._missed += 1
        self._missed_level = max(self._missed_level, need)
        if self._missed >= _MISSES:
            self._level = self._missed_level
            self._missed = self._missed_level = 0
            self._roomy = {name for name, free in self._units.items() if free >= self._level}


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
