"""Events on objects, as `kubectl describe` shows them: said once, repeats counted.

An event is for people, so saying it must never disturb the work: a recorder raises nothing. What the API
server does not take is logged and counted. The same thing said again about the same object raises the count
of the event that stands; an object about which too much is said is passed over for a while.
"""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from accelshare.core.errors import AccelshareError
from accelshare.kube.api.client import Client
from accelshare.kube.api.errors import NotFound

_log = logging.getLogger(__name__)

EventKind = Literal["Normal", "Warning"]

MESSAGE_CHARS = 1_024  # the API server refuses longer ones
REMEMBERED = 1_000

# As client-go's: 25 at once about one object, then one in five minutes.
BURST = 25
REFILL_SECONDS = 300.0

_NAME_CHARS = 200  # of the 253 that a name may have; the rest tells the events of one object apart


class ObjectReference(Struct, frozen=True, omit_defaults=True):
    kind: str
    name: str
    uid: str = ""
    namespace: str = ""
    apiVersion: str = "v1"  # noqa: N815


class _Created(Struct):
    """Nothing of the answer is needed."""


class _Told(Struct):
    """What stands on the server about one (object, reason, message); no name while nothing does."""

    first: str
    lock: asyncio.Lock
    name: str = ""
    count: int = 0


class _Bucket(Struct):
    tokens: float
    at: float


def _utc_now() -> datetime:
    return datetime.now(UTC)


def event_namespace(about: ObjectReference) -> str:
    """The API server wants events on objects without a namespace, such as nodes, in `default`."""
    return about.namespace or "default"


def events_path(about: ObjectReference) -> str:
    return f"/api/v1/namespaces/{event_namespace(about)}/events"


def clip(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS else message[: MESSAGE_CHARS - 3] + "..."


def event_body(
    about: ObjectReference,
    kind: EventKind,
    reason: str,
    message: str,
    component: str,
    *,
    name: str,
    first: str,
    last: str,
    count: int = 1,
) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": event_namespace(about)},
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "message": clip(message),
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": first,
        "lastTimestamp": last,
        "count": count,
    }


async def create_event(
    client: Client,
    about: ObjectReference,
    kind: EventKind,
    reason: str,
    message: str,
    component: str,
    *,
    first: str,
    last: str,
    count: int = 1,
) -> str:
    """The name under which the event now stands."""
    name = f"{about.name[:_NAME_CHARS].rstrip('.-')}.{uuid.uuid4().hex[:16]}"
    body = event_body(about, kind, reason, message, component, name=name, first=first, last=last, count=count)
    await client.create(events_path(about), body, _Created)
    return name


class EventRecorder:
    """`sent`, `failed` and `held_back` count what became of what was recorded."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        wall: Callable[[], datetime] = _utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._component = component
        self._wall = wall
        self._clock = clock
        self._told: OrderedDict[tuple[str, str, str], _Told] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self.sent = 0
        self.failed = 0
        self.held_back = 0

    async def record(self, about: ObjectReference, kind: EventKind, reason: str, message: str) -> None:
        """Returns when the API server has it, or when it is clear that it will not."""
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = self._remember(about, reason, clip(message), now)
        told.count += 1
        if not self._allowed(_identity(about)):
            self.held_back += 1
            return
        try:
            # One at a time for each key: of two at once, the second must find the name of the first.
            async with told.lock:
                await self._send(told, about, kind, reason, message, now)
            self.sent += 1
        except AccelshareError as failure:
            self.failed += 1
            _log.warning("the event %s on %s %s was not taken: %s", reason, about.kind, about.name, failure)

    async def _send(
        self, told: _Told, about: ObjectReference, kind: EventKind, reason: str, message: str, now: str
    ) -> None:
        if told.name:
            try:
                change = {"count": told.count, "lastTimestamp": now}
                await self._client.patch(f"{events_path(about)}/{told.name}", change, _Created)
                return
            except NotFound:
                told.name = ""  # the API server forgets events after an hour
        told.name = await create_event(
            self._client,
            about,
            kind,
            reason,
            message,
            self._component,
            first=told.first,
            last=now,
            count=told.count,
        )

    def _remember(self, about: ObjectReference, reason: str, message: str, now: str) -> _Told:
        key = (_identity(about), reason, message)
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = _Told(first=now, lock=asyncio.Lock())
        self._told.move_to_end(key)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return told

    def _allowed(self, identity: str) -> bool:
        now = self._clock()
        bucket = self._buckets.get(identity)
        if bucket is None:
            bucket = self._buckets[identity] = _Bucket(BURST, now)
        self._buckets.move_to_end(identity)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at) / REFILL_SECONDS)
        bucket.at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _identity(about: ObjectReference) -> str:
    return about.uid or f"{about.kind}/{about.namespace}/{about.name}"
