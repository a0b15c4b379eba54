"""Elections between processes on one virtual clock, over a real HTTP server that keeps one Lease."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from accelshare.kube.api.client import Client
from accelshare.kube.api.lease import Election, micro_time
from tests.kube.stub_api import Answer, Drop, Recorded, Scripted, StubApi, status

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
LEASE = f"{LEASES}/leader"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """Time that moves only when it is told to, and only once every process has gone to sleep again."""

    def __init__(self, api: StubApi, client: Client) -> None:
        self.api = api
        self.client = client
        self.now = 0.0
        self.lease: dict[str, Any] | None = None
        self.log: list[str] = []
        self.failing: Scripted | None = None
        self.slowness = 0.0
        self._sleepers: dict[str, tuple[float, asyncio.Event]] = {}
        self._awake = 0
        self._asleep = asyncio.Condition()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        api.handle("GET", LEASE, self._get)
        api.handle("PUT", LEASE, self._put)
        api.handle("POST", LEASES, self._post)

    # the server

    async def _get(self, request: Recorded) -> Scripted:
        if self.failing is not None:
            return self.failing
        return status(404, "NotFound", "no lease") if self.lease is None else Answer(200, self.lease)

    async def _post(self, request: Recorded) -> Scripted:
        if self.lease is not None:
            return status(409, "AlreadyExists", "there is one")
        return self._store(request.json, 201)

    async def _put(self, request: Recorded) -> Scripted:
        self.now += self.slowness
        lease = request.json
        if self.lease is None or lease["metadata"]["resourceVersion"] != self.version:
            return status(409, "Conflict", "the object has been modified")
        return self._store(lease, 200)

    def _store(self, lease: dict[str, Any], code: int) -> Answer:
        lease["metadata"]["resourceVersion"] = str(int(self.version) + 1)
        self.lease = lease
        return Answer(code, lease)

    @property
    def version(self) -> str:
        return "0" if self.lease is None else str(self.lease["metadata"]["resourceVersion"])

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    # the processes

    async def start(self, identity: str) -> Election:
        """A process that campaigns; its wall clock is an hour wrong for each letter of its name after 'a'."""

        async def sleep(seconds: float) -> None:
            woken = asyncio.Event()
            self._sleepers[identity] = (self.now + seconds, woken)
            await self._tell_settled(-1)
            await woken.wait()

        wrong = timedelta(hours=ord(identity[0]) - ord("a"))
        election = Election(
            self.client,
            "ns",
            "leader",
            identity,
            on_started=lambda: self.log.append(f"{self.now:g} {identity} starts"),
            on_stopped=lambda: self.log.append(f"{self.now:g} {identity} stops"),
            clock=lambda: self.now,
            wall=lambda: EPOCH + timedelta(seconds=self.now) + wrong,
            sleep=sleep,
            rng=random.Random(identity),
        )

        async def campaign() -> None:
            await election.run()
            await self._tell_settled(-1)

        self._awake += 1
        self._tasks[identity] = asyncio.create_task(campaign())
        await self._settled()
        return election

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [(at, name) for name, (at, _) in self._sleepers.items() if at <= end]:
            self.now, name = min(due)
            _, woken = self._sleepers.pop(name)
            self._awake += 1
            woken.set()
            await self._settled()
        self.now = max(self.now, end)

    def hang(self, identity: str) -> None:
        """As a SIGSTOP: its clock goes on, its code does not."""
        del self._sleepers[identity]

    async def kill(self, identity: str) -> None:
        self._sleepers.pop(identity, None)
        self._tasks[identity].cancel()
        await asyncio.gather(self._tasks[identity], return_exceptions=True)

    async def kill_all(self) -> None:
        for identity in self._tasks:
            await self.kill(identity)

    async def _tell_settled(self, change: int) -> None:
        async with self._asleep:
            self._awake += change
            self._asleep.notify_all()

    async def _settled(self) -> None:
        async with self._asleep:
            await self._asleep.wait_for(lambda: self._awake == 0)


def play(body: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with StubApi() as api, Client(api.config, "test") as client, asyncio.timeout(60):
            world = World(api, client)
            try:
                await body(world)
            finally:
                await world.kill_all()

    asyncio.run(whole())


def test_the_first_candidate_leads() -> None:
    """It makes the Lease, in the form that client-go reads."""

    async def body(world: World) -> None:
        a = await world.start("a")
        assert a.is_leader
        assert a.holder == "a"
        assert world.log == ["0 a starts"]
        assert world.spec == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }

    play(body)


def test_a_leader_that_renews_goes_on_leading() -> None:
    """Every two seconds; it started once, and its time of acquisition stands."""

    async def body(world: World) -> None:
        a = await world.start("a")
        b = await world.start("b")
        await world.advance(100)
        assert (a.is_leader, b.is_leader) == (True, False)
        assert world.log == ["0 a starts"]
        assert world.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"
        assert world.spec["renewTime"] == "2026-01-01T00:01:40.000000Z"
        assert world.spec["leaseTransitions"] == 0
        assert b.holder == "a"

    play(body)


def test_a_leader_that_hangs_leads_no_more_before_another_begins() -> None:
    """Its own clock says so after 10 s, though its loop never ran; the other takes over after 15 s."""

    async def body(world: World) -> None:
        a = await world.start("a")
        b = await world.start("b")
        world.hang("a")
        await world.advance(9.9)
        assert (a.is_leader, b.is_leader) == (True, False)
        await world.advance(0.1)
        assert (a.is_leader, b.is_leader) == (False, False)
        assert a.remaining == 0
        await world.advance(4.9)
        assert not b.is_leader
        await world.advance(5)
        assert (a.is_leader, b.is_leader) == (False, True)
        assert world.spec["holderIdentity"] == "b"
        assert world.spec["leaseTransitions"] == 1

    play(body)


@pytest.mark.parametrize("seed", range(5))
def test_there_are_never_two_leaders(seed: int) -> None:
    """Whoever hangs, dies or comes back, and whatever their wall clocks say."""

    async def body(world: World) -> None:
        rng = random.Random(seed)
        elections = [await world.start(name) for name in ("a", "b", "c")]
        alive = ["a", "b", "c"]
        for round_ in range(60):
            await world.advance(rng.uniform(0, 4))
            assert sum(election.is_leader for election in elections) <= 1
            if rng.random() < 0.1 and len(alive) > 1:
                victim = alive.pop(rng.randrange(len(alive)))
                world.hang(victim)
                name = f"{'abc'[round_ % 3]}{round_}"
                elections.append(await world.start(name))
                alive.append(name)
        await world.advance(30)
        assert sum(election.is_leader for election in elections) == 1

    play(body)


def test_a_leader_that_is_cut_off_is_told_so_and_leads_again_later() -> None:
    """It goes on trying, and says each change once and in turn."""

    async def body(world: World) -> None:
        a = await world.start("a")
        world.failing = Drop()
        await world.advance(30)
        assert not a.is_leader
        assert world.log == ["0 a starts", "10 a stops"]
        world.failing = None
        await world.advance(5)
        assert a.is_leader
        assert len(world.log) == 3
        assert world.log[2].endswith("a starts")

    play(body)


def test_a_leader_that_misses_less_than_the_deadline_does_not_stop() -> None:
    """An API server that restarts is no reason to change the leader."""

    async def body(world: World) -> None:
        await world.start("a")
        world.failing = Answer(503)
        await world.advance(8)
        world.failing = None
        await world.advance(20)
        assert world.log == ["0 a starts"]

    play(body)


def test_a_lease_counts_from_before_the_renewal_was_sent() -> None:
    """Others may have seen it at any moment after that; how long the answer took is our loss."""

    async def body(world: World) -> None:
        world.slowness = 3.0
        a = await world.start("a")
        await world.advance(2)
        assert (world.now, a.remaining) == (5.0, 7.0)

    play(body)


def test_a_renewal_that_comes_too_late_is_a_new_start() -> None:
    """What was begun under the old one has been stopped in between."""

    async def body(world: World) -> None:
        await world.start("a")
        world.slowness = 8.5
        await world.advance(2)
        world.slowness = 0.0
        await world.advance(30)
        assert world.log == ["0 a starts", "10.5 a stops", "10.5 a starts"]

    play(body)


def test_who_released_campaigns_no_more() -> None:
    """Even where nobody else wants the Lease."""

    async def body(world: World) -> None:
        a = await world.start("a")
        await a.release()
        await world.advance(30)
        assert not a.is_leader
        assert "holderIdentity" not in world.spec

    play(body)


def test_a_released_lease_is_taken_over_at_once() -> None:
    """Nobody waits for its end, and who released it does not take it again."""

    async def body(world: World) -> None:
        a = await world.start("a")
        b = await world.start("b")
        await world.advance(20)
        await a.release()
        assert not a.is_leader
        assert "holderIdentity" not in world.spec
        assert world.spec["leaseDurationSeconds"] == 1
        await world.advance(4.5)
        assert b.is_leader
        assert world.spec["leaseTransitions"] == 1
        assert world.log[:2] == ["0 a starts", "20 a stops"]
        await world.advance(30)
        assert not a.is_leader

    play(body)


def test_a_release_leaves_another_s_lease_alone() -> None:
    """A candidate that is told to stop changes nothing."""

    async def body(world: World) -> None:
        await world.start("a")
        b = await world.start("b")
        before = world.version
        await b.release()
        assert world.version == before
        assert world.spec["holderIdentity"] == "a"

    play(body)


def test_a_release_without_an_api_server_still_stops() -> None:
    """The Lease runs out by itself then."""

    async def body(world: World) -> None:
        a = await world.start("a")
        world.failing = Drop()
        await a.release()
        assert not a.is_leader
        assert world.log == ["0 a starts", "0 a stops"]

    play(body)


def test_of_two_that_take_at_once_one_gets_a_conflict() -> None:
    """The resource version decides."""

    async def body(world: World) -> None:
        a = await world.start("a")
        lease = world.lease
        assert lease is not None
        lease["metadata"]["resourceVersion"] = "9"  # read by one, written by another
        await world.advance(2)
        assert a.is_leader

        async def meanwhile(request: Recorded) -> Scripted:
            return status(409, "Conflict", "the object has been modified")

        world.api.handle("PUT", LEASE, meanwhile)
        await world.advance(10)
        assert not a.is_leader

    play(body)


def test_a_leader_whose_lease_was_taken_stops_at_once() -> None:
    """Whoever wrote it there: the Lease is what counts."""

    async def body(world: World) -> None:
        a = await world.start("a")
        assert world.lease is not None
        world.lease = {
            "metadata": {"name": "leader", "resourceVersion": "70"},
            "spec": {"holderIdentity": "z", "leaseDurationSeconds": 15},
        }
        await world.advance(2)
        assert not a.is_leader
        assert world.log == ["0 a starts", "2 a stops"]

    play(body)


def test_what_others_put_on_the_lease_stays() -> None:
    """A PUT replaces everything, so all metadata goes back as it came."""

    async def body(world: World) -> None:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "blockOwnerDeletion": True}
        meta = {"name": "leader", "resourceVersion": "3", "labels": {"a": "b"}, "ownerReferences": [owner]}
        world.lease = {"metadata": dict(meta), "spec": {}}
        a = await world.start("a")
        assert a.is_leader
        assert world.lease is not None
        assert world.lease["metadata"] == {**meta, "resourceVersion": "4"}

    play(body)


def test_a_process_that_comes_back_under_its_name_need_not_wait() -> None:
    """The Lease is its own already."""

    async def body(world: World) -> None:
        await world.start("a")
        await world.kill("a")
        again = await world.start("a")
        assert again.is_leader
        assert world.spec["leaseTransitions"] == 0

    play(body)


def test_times_have_microseconds() -> None:
    """The API server refuses a MicroTime without."""
    assert micro_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    assert msgspec.json.decode(f'"{micro_time(EPOCH)}"', type=datetime) == EPOCH


def test_periods_that_cannot_fence_are_refused() -> None:
    """A holder must stop before its lease ends."""

    async def body(world: World) -> None:
        with pytest.raises(ValueError, match="renew_deadline < lease_duration"):
            Election(
                world.client,
                "ns",
                "leader",
                "a",
                on_started=lambda: None,
                on_stopped=lambda: None,
                renew_deadline=15.0,
            )

    play(body)
