"""Events for users, said beside the verbs: filter only puts them into a queue, and a task says them.

Told is what somebody has to do something about: a pod that must be made again to get its slot, and a pod
whose number has changed meaning because its nodes count in another unit now.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from accelshare.core.objects import Pod
from accelshare.core.placement import Reason
from accelshare.dialects.interface import Dialect
from accelshare.services.scheduler.api import Api
from accelshare.services.scheduler.metrics import Metrics
from accelshare.services.scheduler.state import Waiting

MOST_QUEUED = 1024
REMEMBERED = 4096

_NAMES: Mapping[Reason, str] = {Reason.NO_SLOT: "NoSlot", Reason.OTHER_UNIT: "OtherUnit"}


class Notice(Struct, frozen=True):
    pod: Pod
    kind: Literal["Normal", "Warning"]
    reason: str
    text: str


class Notices:
    def __init__(self, api: Api, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics
        self._queue: asyncio.Queue[Notice] = asyncio.Queue(MOST_QUEUED)
        # A pod is asked about again and again; it is told once.
        self._told: OrderedDict[tuple[str, Reason], None] = OrderedDict()
        self._units: dict[str, str] = {}  # dialect -> the unit that its numbers were last read in

    def refused(self, pod: Pod, reasons: Mapping[str, Reason], texts: Mapping[str, str]) -> None:
        """At most one event for each reason: the text of the first node that has it."""
        for reason, name in _NAMES.items():
            node = next((node for node, given in reasons.items() if given is reason), None)
            if node is not None and self._is_news(pod.metadata.uid, reason):
                self._put(Notice(pod, "Warning", name, _sentence(reason, texts[node])))

    def unit_before(self, dialect: str, unit: str) -> str:
        """The unit before this one, "" where numbers mean what they meant.

        That no node offers the dialect for a while is no change: agents may leave and come back with another.
        """
        before = self._units.get(dialect, "")
        if unit:
            self._units[dialect] = unit
        return before if unit and unit != before else ""

    def tell_of_unit(self, dialect: Dialect, old: str, new: str, wishes: Iterable[Waiting]) -> None:
        """Once for each pod and change."""
        text = (
            f"nodes count {dialect.primary} in {new} now, not in {old} any more: "
            "the number that this pod asks for means another amount than when it was made"
        )
        for wish in wishes:
            self._put(Notice(wish.pod, "Warning", "UnitChanged", text))

    @property
    def empty(self) -> bool:
        return self._queue.empty()

    async def say_one(self) -> None:
        notice = await self._queue.get()
        self._metrics.events.add(notice.reason)
        await self._api.tell(notice.pod, notice.kind, notice.reason, notice.text)

    async def run(self) -> None:
        while True:
            await self.say_one()

    def _is_news(self, uid: str, reason: Reason) -> bool:
        if (uid, reason) in self._told:
            return False
        self._told[uid, reason] = None
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return True

    def _put(self, notice: Notice) -> None:
        if not self._queue.full():
            self._queue.put_nowait(notice)


def _sentence(reason: Reason, text: str) -> str:
    if reason is Reason.OTHER_UNIT:
        return f"{text}: the pod's number means another amount there, so these nodes are not used for it"
    return text
