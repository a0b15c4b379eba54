"""The reflector against a real HTTP server that drops, forgets, garbles and falls silent."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.objects import Pod
from accelshare.kube.api.client import Client
from accelshare.kube.api.watch import LONGEST_PAUSE, Backoff, EventType, Lines, Reflector
from tests.kube.stub_api import (
    Answer,
    Recorded,
    Scripted,
    Silence,
    Stream,
    StubApi,
    line,
    object_list,
    pod,
    status,
)

PODS = "/api/v1/pods"
HANG = Stream([], "hang")


class Scene:
    """A reflector at work on a stub, whose lists and watches are given in turn, the last one for ever."""

    def __init__(self, api: StubApi, client: Client, lists: list[Scripted], watches: list[Scripted]) -> None:
        self.api = api
        self.client = client
        self.lists = lists
        self.watches = watches
        self.seen: asyncio.Queue[tuple[str, Any, str]] = asyncio.Queue()
        self.pauses: list[float] = []
        self.now = 0.0
        api.handle("GET", PODS, self._answer)

    async def _answer(self, request: Recorded) -> Scripted:
        script = self.watches if "watch" in request.query else self.lists
        return script.pop(0) if len(script) > 1 else script[0]

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def on_replace(self, pods: list[Pod], version: str) -> None:
        self.seen.put_nowait(("REPLACE", [pod.metadata.name for pod in pods], version))

    def on_event(self, kind: EventType, obj: Pod) -> None:
        self.seen.put_nowait((kind, obj.metadata.name, obj.metadata.resourceVersion))

    def reflector(self, **settings: Any) -> Reflector[Pod]:
        defaults: dict[str, Any] = {
            "on_replace": self.on_replace,
            "on_event": self.on_event,
            "sleep": self.sleep,
            "clock": lambda: self.now,
            "rng": random.Random(1),
        }
        return Reflector(self.client, PODS, Pod, **{**defaults, **settings})

    def watched(self) -> list[dict[str, str]]:
        return [request.query for request in self.api.requests if "watch" in request.query]

    def resumed_from(self) -> list[str]:
        return [query["resourceVersion"] for query in self.watched()]

    async def expect(self, *expected: tuple[str, Any, str]) -> None:
        for one in expected:
            assert await self.seen.get() == one


@asynccontextmanager
async def running(reflector: Reflector[Pod]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reflector.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def play(lists: list[Scripted], watches: list[Scripted], body: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with StubApi() as api, Client(api.config, "test") as client, asyncio.timeout(60):
            await body(Scene(api, client, lists, watches))

    asyncio.run(whole())


def test_a_list_may_be_compared_with_what_was_known_before() -> None:
    """A server that came back from a backup is behind it."""
    known: list[str] = []

    async def body(scene: Scene) -> None:
        def on_replace(pods: list[Pod], version: str) -> None:
            known.append(reflector.resource_version)
            scene.on_replace(pods, version)

        reflector = scene.reflector(on_replace=on_replace)
        async with running(reflector):
            await scene.expect(("REPLACE", ["a"], "5"), ("ADDED", "b", "9"), ("REPLACE", ["a"], "6"))
        assert known == ["", "9"]

    gone = line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    play(
        [object_list([pod("a", "5")], "5"), object_list([pod("a", "5")], "6")],
        [Stream([line("ADDED", pod("b", "9")), gone]), Stream([], "hang")],
        body,
    )


def test_a_list_and_then_its_changes() -> None:
    """What stood comes as one replacement, what changes as events, each once and in order."""
    changes = b"".join(
        [line("ADDED", pod("b", "6")), line("MODIFIED", pod("a", "7")), line("DELETED", pod("b", "8"))]
    )

    async def body(scene: Scene) -> None:
        async with running(scene.reflector(params={"fieldSelector": "spec.nodeName=n"})):
            await scene.expect(
                ("REPLACE", ["a"], "5"), ("ADDED", "b", "6"), ("MODIFIED", "a", "7"), ("DELETED", "b", "8")
            )
        (query,) = scene.watched()
        assert 300 <= int(query.pop("timeoutSeconds")) <= 600
        assert query == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "5",
            "fieldSelector": "spec.nodeName=n",
        }
        assert scene.api.requests[0].query == {"limit": "250", "fieldSelector": "spec.nodeName=n"}

    play([object_list([pod("a")], "5")], [Stream([changes], "hang")], body)


def test_all_pages_come_as_one_replacement() -> None:
    """Half a list would make the other half vanish from the ledger."""

    async def body(scene: Scene) -> None:
        async with running(scene.reflector()):
            await scene.expect(("REPLACE", ["a", "b"], "5"))

    play([object_list([pod("a")], "5", "more"), object_list([pod("b")], "5")], [HANG], body)


def test_a_list_whose_continue_token_ran_out_begins_anew() -> None:
    """What was read of it counts for nothing."""

    async def body(scene: Scene) -> None:
        async with running(scene.reflector()):
            await scene.expect(("REPLACE", ["c"], "9"))

    lists: list[Scripted] = [
        object_list([pod("a")], "5", "more"),
        status(410, "Expired", "the continue token is too old"),
        object_list([pod("c")], "9"),
    ]
    play(lists, [HANG], body)


def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    """The next watch begins there."""
    bookmark = line("BOOKMARK", {"metadata": {"resourceVersion": "50"}, "spec": {"containers": None}})

    async def body(scene: Scene) -> None:
        async with running(scene.reflector()) as _:
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "b", "51"))
            assert scene.resumed_from() == ["5", "50"]

    play([object_list([], "5")], [Stream([bookmark]), Stream([line("ADDED", pod("b", "51"))], "hang")], body)


def test_a_watch_whose_time_is_over_is_resumed() -> None:
    """From the last event on, without a list and without a pause."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector()
        async with running(reflector):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"), ("ADDED", "b", "7"))
            assert scene.resumed_from() == ["5", "6"]
            assert (reflector.relists, reflector.reconnects) == (0, 1)
            assert scene.pauses == [0.0]

    watches: list[Scripted] = [
        Stream([line("ADDED", pod("a", "6"))]),
        Stream([line("ADDED", pod("b", "7"))], "hang"),
    ]
    play([object_list([], "5")], watches, body)


def test_a_connection_dropped_within_a_line_loses_nothing() -> None:
    """The half line is forgotten, and comes again whole."""
    whole = line("ADDED", pod("b", "7"))

    async def body(scene: Scene) -> None:
        reflector = scene.reflector()
        async with running(reflector):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"), ("ADDED", "b", "7"))
            assert scene.resumed_from() == ["5", "6"]
            assert reflector.relists == 0
            assert 0.05 <= scene.pauses[1] <= 0.1

    watches: list[Scripted] = [
        Stream([line("ADDED", pod("a", "6")), whole[:20]], "drop"),
        Stream([whole], "hang"),
    ]
    play([object_list([], "5")], watches, body)


EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 5"}
FORGOTTEN: dict[str, Scripted] = {
    "an ERROR event with 410": Stream([line("ERROR", EXPIRED)], "hang"),
    "an answer 410": status(410, "Expired", "too old resource version"),
    "a version the server does not know": status(504, "Timeout", "Too large resource version: 5"),
    "a version the server cannot read": status(400, "BadRequest", "invalid resource version"),
    "a line that is no JSON": Stream([b"<html>\n"], "hang"),
    "an event of an unknown type": Stream([line("RENAMED", pod("a"))], "hang"),
    "an object without metadata": Stream([line("ADDED", 7)], "hang"),
}


@pytest.mark.parametrize("watch", FORGOTTEN.values(), ids=FORGOTTEN.keys())
def test_what_cannot_be_resumed_is_listed_anew(watch: Scripted) -> None:
    """After a random pause, for thousands of agents may be in the same case."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector(initial_jitter=10.0)
        async with running(reflector):
            await scene.expect(("REPLACE", ["a"], "5"), ("REPLACE", ["b"], "9"))
            assert reflector.relists == 1
            assert 1.0 < scene.pauses[-1] <= 10.0

    play([object_list([pod("a")], "5"), object_list([pod("b")], "9")], [watch, HANG], body)


PASSING: dict[str, Scripted] = {
    "a server that fails": Answer(500),
    "a gateway that waits in vain": Answer(504),
    "a right that is missing for a while": status(403, "Forbidden", "no"),
    "an ERROR event with 500": Stream([line("ERROR", {"code": 500, "message": "etcd is away"})], "hang"),
    "a watch that ends at once": Stream([]),
    "a watch that is dropped at once": Stream([], "drop"),
}


@pytest.mark.parametrize("watch", PASSING.values(), ids=PASSING.keys())
def test_what_passes_is_waited_for_and_resumed(watch: Scripted) -> None:
    """A list would make a server that struggles struggle more. The pauses grow."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector()
        async with running(reflector):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"))
            assert reflector.relists == 0
            assert scene.resumed_from() == ["5", "5", "5"]
            _, first, second = scene.pauses
            assert 0.05 <= first <= 0.1 <= second <= 0.2

    play([object_list([], "5")], [watch, watch, Stream([line("ADDED", pod("a", "6"))], "hang")], body)


def test_after_a_watch_that_worked_the_pauses_begin_anew() -> None:
    """It worked if it brought something."""

    async def body(scene: Scene) -> None:
        async with running(scene.reflector()):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"), ("ADDED", "b", "7"))
            _, *growing, last = scene.pauses
            assert len(growing) == 3
            assert growing[2] >= 0.2
            assert last <= 0.1

    watches: list[Scripted] = [
        *[Answer(500)] * 3,
        Stream([line("ADDED", pod("a", "6"))]),
        Answer(500),
        Stream([line("ADDED", pod("b", "7"))], "hang"),
    ]
    play([object_list([], "5")], watches, body)


def test_a_watch_that_lived_for_a_while_worked() -> None:
    """Nothing happened in it: the next one follows without a pause."""
    clock = itertools.count(0, 60)

    async def body(scene: Scene) -> None:
        async with running(scene.reflector(clock=lambda: next(clock))):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"))
            assert scene.pauses == [0.0]

    play([object_list([], "5")], [Stream([]), Stream([line("ADDED", pod("a", "6"))], "hang")], body)


def test_waiting_in_vain_for_an_answer_is_no_success() -> None:
    """However long each try takes, the pauses between them grow."""
    clock = itertools.count(0, 60)

    async def body(scene: Scene) -> None:
        async with running(scene.reflector(clock=lambda: next(clock), silence=0.1)):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"))
            assert 0.05 <= scene.pauses[1] <= 0.1 <= scene.pauses[2] <= 0.2

    watches: list[Scripted] = [Silence(), Silence(), Stream([line("ADDED", pod("a", "6"))], "hang")]
    play([object_list([], "5")], watches, body)


def test_a_throttled_watch_waits_as_long_as_it_is_told() -> None:
    """The server knows best when it has room again."""

    async def body(scene: Scene) -> None:
        async with running(scene.reflector()):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"))
            assert scene.pauses == [0.0, 7.0]

    watches: list[Scripted] = [
        Answer(429, b"", {"Retry-After": "7"}),
        Stream([line("ADDED", pod("a", "6"))], "hang"),
    ]
    play([object_list([], "5")], watches, body)


def test_a_list_is_tried_until_it_is_there() -> None:
    """Nothing is synced before."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector()
        async with running(reflector):
            await scene.expect(("REPLACE", ["a"], "5"))
            assert reflector.synced.is_set()
            assert len(scene.pauses) == 3

    play([Answer(500), Answer(403), object_list([pod("a")], "5")], [HANG], body)


def test_an_event_that_cannot_be_decoded_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """It is named and counted; the watch goes on, and does not come back to it."""
    broken = line("MODIFIED", pod("bad", "6", containers="none"))

    async def body(scene: Scene) -> None:
        reflector = scene.reflector()
        async with running(reflector):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "7"))
            assert reflector.undecodable == 1
            assert reflector.relists == 0
            assert scene.resumed_from() == ["5", "6"]

    play([object_list([], "5")], [Stream([broken]), Stream([line("ADDED", pod("a", "7"))], "hang")], body)
    assert "ns/bad of /api/v1/pods is passed over" in caplog.text


def test_an_item_of_a_list_that_cannot_be_decoded_is_counted() -> None:
    """The rest of the list stands."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector()
        async with running(reflector):
            await scene.expect(("REPLACE", ["a"], "5"))
            assert reflector.undecodable == 1

    play([object_list([pod("a"), pod("bad", containers=1)], "5")], [HANG], body)


@pytest.mark.parametrize("probe", [object_list([pod("x")], "7", "more"), Answer(500)])
def test_a_silent_connection_is_taken_for_dead(probe: Scripted) -> None:
    """A peer that lost power says nothing; the next watch resumes, if the server has come as far as we."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector(silence=0.1)
        async with running(reflector):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"))
            assert (reflector.relists, reflector.reconnects) == (0, 1)
            assert scene.resumed_from() == ["5", "5"]

    play([object_list([], "5"), probe], [HANG, Stream([line("ADDED", pod("a", "6"))], "hang")], body)


def test_a_version_the_server_has_not_reached_is_given_up() -> None:
    """A server restored from a backup accepts the watch and says nothing."""

    async def body(scene: Scene) -> None:
        reflector = scene.reflector(silence=0.1)
        async with running(reflector):
            await scene.expect(("REPLACE", [], "500"), ("REPLACE", ["a"], "5"))
            assert scene.resumed_from()[0] == "500"
            assert reflector.relists == 1

    play([object_list([], "500"), object_list([pod("a")], "5")], [HANG], body)


def test_how_fresh_the_view_is_can_be_told() -> None:
    """Connected and heard of while a watch is open; neither moves when it is lost."""
    gate = asyncio.Event()

    async def body(scene: Scene) -> None:
        async def wait(seconds: float) -> None:
            if seconds > 0:
                lost.set()
                await gate.wait()

        lost = asyncio.Event()
        reflector = scene.reflector(sleep=wait)
        assert (reflector.connected, reflector.last_contact) == (False, None)
        scene.now = 3.0
        async with running(reflector):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "a", "6"))
            assert (reflector.connected, reflector.last_contact) == (True, 3.0)
            scene.now = 9.0
            await lost.wait()
            assert (reflector.connected, reflector.last_contact) == (False, 3.0)

    play([object_list([], "5")], [Stream([line("ADDED", pod("a", "6"))], "drop")], body)


def test_the_first_list_comes_after_a_random_pause() -> None:
    """5,000 agents that start together do not ask together."""

    async def body(scene: Scene) -> None:
        async with running(scene.reflector(initial_jitter=60.0)):
            await scene.expect(("REPLACE", [], "5"))
            assert 0 < scene.pauses[0] < 60

    play([object_list([], "5")], [HANG], body)


@pytest.mark.parametrize("failure", [KeyError("x"), ValueError("x"), OSError("x"), TimeoutError()])
def test_an_error_in_a_callback_ends_the_reflector(failure: Exception) -> None:
    """The view would be wrong from then on without anyone knowing."""

    def on_event(kind: EventType, obj: Pod) -> None:
        raise failure

    async def body(scene: Scene) -> None:
        async with running(scene.reflector(on_event=on_event)) as task:
            with pytest.raises(type(failure)):
                await task

    play([object_list([], "5")], [Stream([line("ADDED", pod("a", "6"))], "hang")], body)


def test_a_line_may_be_a_megabyte() -> None:
    """A pod with many annotations is larger than any reader's default."""
    big = pod("big", "6")
    big["metadata"]["annotations"] = {"a": "x" * 2**20}

    async def body(scene: Scene) -> None:
        async with running(scene.reflector()):
            await scene.expect(("REPLACE", [], "5"), ("ADDED", "big", "6"))

    play([object_list([], "5")], [Stream([line("ADDED", big)], "hang")], body)


@given(st.lists(st.binary(max_size=6).map(lambda part: part.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_the_same_whatever_the_borders_of_the_chunks(parts: list[bytes], data: Any) -> None:
    """A stream cut anywhere, in bytes or in the middle of nothing, gives the lines that were written."""
    stream = b"".join(part + b"\n" for part in parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    cutter = Lines()
    assert [found for chunk in chunks for found in cutter.feed(chunk)] == [part for part in parts if part]


def test_an_unfinished_line_is_kept_back() -> None:
    """It is no line yet."""
    cutter = Lines()
    assert cutter.feed(b"a\nb") == [b"a"]
    assert cutter.feed(b"c") == []
    assert cutter.feed(b"\n\nd") == [b"bc"]


@given(st.integers())
def test_pauses_double_up_to_half_a_minute_and_never_vanish(seed: int) -> None:
    """Each is drawn from the upper half of its range, so that peers spread and none hurries."""
    backoff = Backoff(random.Random(seed))
    pauses = [backoff.pause() for _ in range(12)]
    ranges = [min(0.1 * 2**n, LONGEST_PAUSE) for n in range(12)]
    assert all(longest / 2 <= pause <= longest for pause, longest in zip(pauses, ranges, strict=True))
    backoff.reset()
    assert backoff.pause() <= 0.1
