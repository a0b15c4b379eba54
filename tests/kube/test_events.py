"""Events: said once, repeats counted, and never a reason for the work to fail."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accelshare.kube.api.client import Client
from accelshare.kube.api.config import ApiConfig
from accelshare.kube.api.events import BURST, MESSAGE_CHARS, REMEMBERED, EventRecorder, ObjectReference
from tests.kube.stub_api import Answer, Recorded, Scripted, StubApi, status

EVENTS = "/api/v1/namespaces/ns/events"
POD = ObjectReference("Pod", "p", uid="u", namespace="ns")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Scene:
    def __init__(self, api: StubApi, client: Client) -> None:
        self.api = api
        self.now = 0.0
        self.recorder = EventRecorder(
            client, "scheduler", wall=lambda: EPOCH + timedelta(seconds=self.now), clock=lambda: self.now
        )
        api.handle("POST", EVENTS, self._take)

    async def _take(self, request: Recorded) -> Scripted:
        self.api.answer("PATCH", f"{EVENTS}/{request.json['metadata']['name']}", Answer(200, {}))
        return Answer(201, {})

    @property
    def sent(self) -> list[tuple[str, Any]]:
        return [(request.method, request.json) for request in self.api.requests]


def play(body: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with StubApi() as api, Client(api.config, "test") as client:
            await body(Scene(api, client))

    asyncio.run(whole())


def test_an_event_says_what_about_which_object() -> None:
    """With everything that `kubectl describe` and the API server want of it."""

    async def body(scene: Scene) -> None:
        await scene.recorder.record(POD, "Warning", "NoGrant", "bound by another scheduler")
        ((_, event),) = scene.sent
        name = event.pop("metadata")["name"]
        assert name.startswith("p.")
        assert event == {
            "apiVersion": "v1",
            "kind": "Event",
            "involvedObject": {"kind": "Pod", "name": "p", "uid": "u", "namespace": "ns"},
            "type": "Warning",
            "reason": "NoGrant",
            "message": "bound by another scheduler",
            "source": {"component": "scheduler"},
            "reportingComponent": "scheduler",
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "count": 1,
        }

    play(body)


def test_a_repeat_raises_the_count() -> None:
    """The event that stands is changed, and no second one made."""

    async def body(scene: Scene) -> None:
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        scene.now = 60
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        assert scene.sent[1] == ("PATCH", {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z"})

    play(body)


def test_repeats_at_the_same_time_are_one_event() -> None:
    """The second waits for the name of the first."""

    async def body(scene: Scene) -> None:
        await asyncio.gather(*(scene.recorder.record(POD, "Normal", "Waiting", "full") for _ in range(5)))
        assert [method for method, _ in scene.sent] == ["POST", "PATCH", "PATCH", "PATCH", "PATCH"]
        assert scene.sent[-1][1]["count"] == 5

    play(body)


@pytest.mark.parametrize(
    "other",
    [
        (ObjectReference("Pod", "p", uid="u2", namespace="ns"), "Waiting", "full"),
        (POD, "Refused", "full"),
        (POD, "Waiting", "fuller"),
    ],
)
def test_another_object_reason_or_message_is_another_event(other: tuple[ObjectReference, str, str]) -> None:
    """A pod that was made anew under its name has its own."""

    async def body(scene: Scene) -> None:
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        await scene.recorder.record(other[0], "Normal", other[1], other[2])
        assert [method for method, _ in scene.sent] == ["POST", "POST"]

    play(body)


def test_an_event_the_server_has_forgotten_is_made_again() -> None:
    """With its count and its first time: the API server keeps events for an hour."""

    async def body(scene: Scene) -> None:
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        name = scene.sent[0][1]["metadata"]["name"]
        scene.api.answer("PATCH", f"{EVENTS}/{name}", status(404, "NotFound", "gone"))
        scene.now = 7200
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        method, event = scene.sent[2]
        assert (method, event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
            "POST",
            2,
            "2026-01-01T00:00:00Z",
            "2026-01-01T02:00:00Z",
        )

    play(body)


def test_an_event_on_a_node_stands_in_default() -> None:
    """The API server takes it nowhere else."""

    async def body(scene: Scene) -> None:
        scene.api.answer("POST", "/api/v1/namespaces/default/events", Answer(201, {}))
        await scene.recorder.record(ObjectReference("Node", "n", uid="n"), "Normal", "Sick", "card 3")
        ((_, event),) = scene.sent
        assert event["metadata"]["namespace"] == "default"
        assert scene.recorder.sent == 1

    play(body)


def test_a_long_message_is_cut() -> None:
    """The API server would refuse the event."""

    async def body(scene: Scene) -> None:
        await scene.recorder.record(POD, "Normal", "Waiting", "x" * 5_000)
        message = scene.sent[0][1]["message"]
        assert len(message) == MESSAGE_CHARS
        assert message.endswith("x...")

    play(body)


def test_an_object_about_which_too_much_is_said_is_held_back() -> None:
    """Others are not; after five minutes one more passes, with the whole count."""

    async def body(scene: Scene) -> None:
        for _ in range(BURST + 5):
            await scene.recorder.record(POD, "Normal", "Waiting", "full")
        other = ObjectReference("Pod", "q", uid="v", namespace="ns")
        await scene.recorder.record(other, "Normal", "Waiting", "full")
        assert (scene.recorder.sent, scene.recorder.held_back) == (BURST + 1, 5)
        scene.now = 300
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        assert scene.sent[-1][1]["count"] == BURST + 6

    play(body)


def test_a_refused_event_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Saying something never disturbs the work."""

    async def body(scene: Scene) -> None:
        async def refuse(request: Recorded) -> Scripted:
            return status(403, "Forbidden", "namespace is being terminated")

        scene.api.handle("POST", EVENTS, refuse)
        await scene.recorder.record(POD, "Normal", "Waiting", "full")
        assert (scene.recorder.sent, scene.recorder.failed) == (0, 1)

    play(body)
    assert "the event Waiting on Pod p was not taken" in caplog.text


def test_without_an_api_server_nothing_is_raised() -> None:
    """Not even then."""

    async def whole() -> None:
        async with Client(ApiConfig("http://127.0.0.1:1"), "test") as client:
            recorder = EventRecorder(client, "scheduler")
            await recorder.record(POD, "Normal", "Waiting", "full")
            assert recorder.failed == 1

    asyncio.run(whole())


def test_what_is_remembered_is_bounded() -> None:
    """A scheduler that runs for months forgets what it said first."""

    async def body(scene: Scene) -> None:
        for number in range(REMEMBERED + 1):
            about = ObjectReference("Pod", "p", uid=f"u{number}", namespace="ns")
            await scene.recorder.record(about, "Normal", "Waiting", "full")
        first = ObjectReference("Pod", "p", uid="u0", namespace="ns")
        await scene.recorder.record(first, "Normal", "Waiting", "full")
        assert scene.sent[-1][0] == "POST"

    play(body)
