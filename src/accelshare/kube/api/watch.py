"""A reflector: a list that is read once and then kept current by a watch.

    list in pages -> on_replace -> watch from there -> on_event, on_event, ... -> resume where it stopped

The rules:

    - Whatever ends a watch (its own time, a dropped connection, silence, a server that restarts), the next
      one resumes from the last resource version: a list costs the server far more.
    - Listed anew is only what cannot be resumed: a version the server has forgotten (410) or not yet reached,
      or a stream that cannot be understood. Before that comes a random pause, since thousands of agents lose
      the same server in the same second.
    - The same event may come twice, and a list may say what events said before: what the callbacks do must
      come to the same when done twice.
    - One object that cannot be decoded is named in the log, counted and passed over.
    - An error in a callback is a mistake in this program. It ends `run`, for the view would be wrong from
      then on without anyone knowing.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from accelshare.core.objects import Meta
from accelshare.kube.api.client import Client
from accelshare.kube.api.errors import ApiError, Gone, from_answer, read_status
from accelshare.kube.api.skipping import passed_over

_log = logging.getLogger(__name__)

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})

# The server sends bookmarks about once a minute while anything of the kind changes, so a connection silent
# for longer than this is taken for dead: a peer that lost power sends no FIN. A kind that nobody touches has
# no bookmarks either (as seen on 1.37); then this costs one resumed watch and one tiny list each time.
SILENCE_SECONDS = 90.0

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0

# A server that accepts a watch and closes it at once, again and again, is not one that works.
_SHORT_LIVED = 1.0


class Named(Protocol):
    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T", bound=Named)


class _Line(Struct):
    type: str
    object: Raw


class _Bookmark(Struct):
    metadata: Meta


_LINE = msgspec.json.Decoder(_Line)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)


class _Relist(Exception):
    """The watch cannot be resumed; the text says why."""


class Lines:
    """Cuts a stream into lines, whatever the borders of its chunks; a line may be of any length."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes. What is unfinished is kept, and not searched again."""
        head, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._parts.append(chunk)
            return []
        complete = [b"".join((*self._parts, head))]
        *more, tail = rest.split(b"\n")
        self._parts = [tail] if tail else []
        return [line for line in (*complete, *more) if line]


class Backoff:
    """Pauses that double from 0.1 s to 30 s, each drawn from its upper half."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = FIRST_PAUSE

    def pause(self) -> float:
        longest, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return self._rng.uniform(longest / 2, longest)

    @property
    def fresh(self) -> bool:
        return self._next == FIRST_PAUSE

    def reset(self) -> None:
        self._next = FIRST_PAUSE


class Reflector(Generic[T]):
    """`synced` is set after the first whole list; `connected` and `last_contact` tell how fresh it is.

    A long list need not stand in memory as a whole: `take` is given each object as its page comes, and
    `on_replace` then gets what `take` made of them.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        item_type: type[T],
        *,
        on_replace: Callable[[list[Any], str], None],
        on_event: Callable[[EventType, T], None],
        take: Callable[[T], Any] | None = None,
        params: Mapping[str, str] | None = None,
        initial_jitter: float = 0.0,
        silence: float = SILENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._path = path
        self._item_type = item_type
        self._decoder = msgspec.json.Decoder(item_type)
        self._on_replace = on_replace
        self._take_listed = take
        self._on_event = on_event
        self._params = dict(params or {})
        self._initial_jitter = initial_jitter
        self._silence = silence
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311
        self._backoff = Backoff(self._rng)
        self._opened_at: float | None = None
        self._spoke = False
        self.synced = asyncio.Event()
        self.connected = False
        self.last_contact: float | None = None
        self.resource_version = ""
        self.relists = 0
        self.reconnects = 0
        self.undecodable = 0

    async def run(self) -> None:
        """Until cancelled."""
        await self._sleep(self._rng.uniform(0, self._initial_jitter))
        while True:
            await self._list_until_done()
            try:
                await self._watch_until_lost()
            except _Relist as why:
                _log.info("%s is listed anew: %s", self._path, why)
            self.relists += 1
            await self._sleep(self._rng.uniform(0, max(self._initial_jitter, 1.0)))

    # --- list ------------------------------------------------------------------------------------------

    async def _list_until_done(self) -> None:
        while True:
            try:
                items, version = await self._list()
                break
            except ApiError as failure:
                await self._wait(failure)
        self._backoff.reset()
        # The callback comes first: it may ask what was known before this list.
        self._on_replace(items, version)
        self.resource_version = version
        self.synced.set()

    async def _list(self) -> tuple[list[Any], str]:
        items: list[Any] = []
        version = ""
        pages = self._client.list_pages(self._path, self._item_type, self._params)
        async with aclosing(pages):
            async for page in pages:
                self._heard()
                items += page.items if self._take_listed is None else map(self._take_listed, page.items)
                version = page.resource_version
                self.undecodable += page.undecodable
        return items, version

    # --- watch -----------------------------------------------------------------------------------------

    async def _watch_until_lost(self) -> None:
        """Resumes for as long as it can; ends only by raising _Relist."""
        while True:
            version = self.resource_version
            try:
                await self._watch_once()
            except ApiError as failure:
                why = await self._why_not_resume(failure)
                if why:
                    raise _Relist(why) from failure
                self._reset_if_it_worked(version)
                await self._wait(failure)
            else:
                if not self._reset_if_it_worked(version):
                    await self._sleep(self._backoff.pause())
            self.reconnects += 1

    def _reset_if_it_worked(self, version: str) -> bool:
        """Time counts only from the server's yes: waiting in vain for a connection takes long, too."""
        lived = self._opened_at is not None and self._clock() - self._opened_at >= _SHORT_LIVED
        worked = lived or self.resource_version != version
        if worked:
            self._backoff.reset()
        return worked

    async def _why_not_resume(self, failure: ApiError) -> str:
        """Empty where it can go on from the version that we hold."""
        if isinstance(failure, Gone) or _version_unknown(failure):
            return str(failure)
        timed_out = isinstance(failure.__cause__, TimeoutError)
        mute = timed_out and self._opened_at is not None and not self._spoke
        return await self._why_mute() if mute else ""

    async def _why_mute(self) -> str:
        """A server restored from a backup is behind the version that we hold, and does not say so.

        It accepts the watch and keeps silent until it has come so far, which may be never.
        """
        try:
            async with aclosing(self._client.list_pages(self._path, Raw, self._params, limit=1)) as pages:
                version = (await anext(pages)).resource_version
        except ApiError as failure:
            _log.info("whether the server is behind us is not known: %s", failure)
            return ""
        if _is_behind(version, self.resource_version):
            return f"the server is at {version}, behind our {self.resource_version}"
        return ""

    async def _watch_once(self) -> None:
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(self._rng.randint(300, 600)),
        }
        cutter = Lines()
        self._opened_at, self._spoke = None, False
        try:
            async with self._client.stream(self._path, params, self._silence) as chunks:
                self.connected = True
                self._opened_at = self.last_contact = self._clock()
                async for chunk in chunks:
                    self._heard()
                    self._spoke = True
                    for line in cutter.feed(chunk):
                        self._take(line)
        finally:
            # A line that was cut off is dropped with the cutter: the resumed watch brings it again, whole.
            self.connected = False

    def _take(self, line: bytes) -> None:
        try:
            change, version = self._understand(line)
        except msgspec.DecodeError as failure:
            raise _Relist(f"the stream cannot be read: {failure}") from failure
        if change is not None:
            # The callback comes first: the version is only moved past what has been applied.
            self._on_event(*change)
        self.resource_version = version

    def _understand(self, line: bytes) -> tuple[tuple[EventType, T] | None, str]:
        """The change in a line, if there is one for us, and the resource version after it."""
        event = _LINE.decode(line)
        if event.type == "ERROR":
            body = bytes(event.object)
            raise from_answer(read_status(body).code, body, verb="WATCH", path=self._path)
        if event.type == "BOOKMARK":
            return None, _BOOKMARK.decode(event.object).metadata.resourceVersion
        if event.type not in _CHANGES:
            raise msgspec.DecodeError(f"an event is of type {event.type!r}")
        try:
            obj = self._decoder.decode(event.object)
        except msgspec.DecodeError as failure:
            version = passed_over(self._path, event.object, failure)
            self.undecodable += 1
            return None, version
        return (cast(EventType, event.type), obj), obj.metadata.resourceVersion

    # --- both ------------------------------------------------------------------------------------------

    def _heard(self) -> None:
        self.last_contact = self._clock()

    async def _wait(self, failure: ApiError) -> None:
        # That a watch is lost now and then is how things are; what is refused, or lasts, is worth a warning.
        level = logging.WARNING if failure.definite or not self._backoff.fresh else logging.INFO
        pause = max(self._backoff.pause(), min(failure.retry_after or 0.0, LONGEST_PAUSE))
        _log.log(level, "%s; trying again in %.1f s", failure, pause)
        await self._sleep(pause)


def _version_unknown(failure: ApiError) -> bool:
    """The server says that it cannot go on from the version we hold."""
    return failure.status == 400 or (failure.status == 504 and "resource version" in failure.message.lower())


def _is_behind(version: str, ours: str) -> bool:
    """Resource versions of one server may be compared as numbers; what is not a number says nothing."""
    return version.isdecimal() and ours.isdecimal() and int(version) < int(ours)
