"""Answers to filter, kept for each shape of request and brought up to date only where the ledger changed.

A filter call then costs a look-up for each name. The same shape comes again and again: replicas ask alike,
and kube-scheduler asks again about the same pod.
"""

from collections import OrderedDict

from accelshare.core.ledger import Ledger, NodeState
from accelshare.core.objects import Role
from accelshare.core.placement import Placement, Reason, place, refusal
from accelshare.core.request import ANY_CARD, Shape, peak

REMEMBERED_SHAPES = 64  # 0.4 MB each at 5,000 nodes


class _Answers:
    __slots__ = ("dirty", "fits", "plain", "refused")

    def __init__(self, shape: Shape) -> None:
        self.fits: set[str] = set()
        self.refused: dict[str, Reason] = {}
        self.dirty: set[str] = set()
        self.plain = _is_plain(shape)


class Verdicts:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._answers: OrderedDict[Shape, _Answers] = OrderedDict()
        self._majorities: dict[str, str] = {}
        ledger.on_change.append(self._changed)

    def ask(self, shape: Shape, names: list[str]) -> tuple[list[str], dict[str, Reason]]:
        """Those of the names that fit, in their order, and why each of the others does not."""
        answers = self._current(shape)
        fits = list(filter(answers.fits.__contains__, names))
        if len(fits) == len(names):
            return fits, {}
        refused = answers.refused
        return fits, {
            name: refused.get(name, Reason.UNKNOWN_NODE) for name in names if name not in answers.fits
        }

    def fits(self, shape: Shape, name: str) -> bool:
        return name in self._current(shape).fits

    def _current(self, shape: Shape) -> _Answers:
        majority = self._ledger.majority_unit(shape.dialect)
        if self._majorities.get(shape.dialect) != majority:
            # A new majority changes the answer of nodes that did not change themselves.
            self._majorities[shape.dialect] = majority
            for other in [other for other in self._answers if other.dialect == shape.dialect]:
                del self._answers[other]
        answers = self._answers.get(shape)
        if answers is None:
            answers = self._answers[shape] = _Answers(shape)
            answers.dirty.update(self._ledger.nodes)
            if len(self._answers) > REMEMBERED_SHAPES:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(shape)
        if answers.dirty:
            for name in answers.dirty:
                self._look(shape, answers, name, majority)
            answers.dirty.clear()
        return answers

    def _look(self, shape: Shape, answers: _Answers, name: str, majority: str) -> None:
        state = self._ledger.nodes.get(name)
        reason = refusal(shape, state, majority)
        if reason is None and state is not None and not _has_room(shape, state, answers.plain):
            reason = Reason.NO_ROOM
        if reason is None:
            answers.fits.add(name)
            answers.refused.pop(name, None)
        else:
            answers.fits.discard(name)
            answers.refused[name] = reason
        if state is None:
            answers.refused.pop(name, None)  # a name that is gone is not kept

    def _changed(self, name: str) -> None:
        for answers in self._answers.values():
            answers.dirty.add(name)


def _has_room(shape: Shape, state: NodeState, plain: "_Plain | None") -> bool:
    if plain is None:
        return isinstance(place(shape, state), Placement)
    unit = state.offers[shape.dialect].unit
    need = plain.need.get(unit.name)
    if need is None:
        need = plain.need[unit.name] = peak((role, unit.bytes(count)) for role, count in plain.asks)
    return need <= state.best_free


class _Plain:
    """A share of any one card, by units: the card with most room decides, so one number answers."""

    __slots__ = ("asks", "need")

    def __init__(self, asks: tuple[tuple[Role, int], ...]) -> None:
        self.asks = asks
        self.need: dict[str, int] = {}


def _is_plain(shape: Shape) -> _Plain | None:
    if len(shape.groups) != 1 or shape.selector != ANY_CARD:
        return None
    group = shape.groups[0]
    if group.cards != 1:
        return None
    if any(ask.memory.per != "unit" or ask.compute or ask.exclusive for ask in group.asks):
        return None
    return _Plain(tuple((ask.role, ask.memory.count) for ask in group.asks))
