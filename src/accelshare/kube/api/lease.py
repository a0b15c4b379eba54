"""Leader election by a Lease: at most one process acts, and one that hangs stops acting by itself.

Client-go's protocol, so that its tools read the Lease as any other:

    - A candidate takes the Lease when nobody holds it, or when it has not changed for its duration *as seen
      on the candidate's own monotonic clock*. What another process wrote as a time is compared with nothing.
    - The holder renews every `retry_period`. Every write carries the resource version that was read, so of
      two candidates one gets a conflict.
    - Fencing: `is_leader` is computed, never stored. It is false as soon as `renew_deadline` has passed since
      the last renewal was *sent*, on this process's clock, also when the loop hangs and could tell nobody.
      Nobody else can hold the Lease before `lease_duration` has passed since then; the time between the two
      is for calls under way.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from msgspec import Struct

from accelshare.core.errors import AccelshareError
from accelshare.kube.api.client import Client
from accelshare.kube.api.errors import Conflict, NotFound

_log = logging.getLogger(__name__)

LEASE_DURATION = 15.0
RENEW_DEADLINE = 10.0
RETRY_PERIOD = 2.0

# Candidates that lost the same leader must not all write in the same moment (client-go's figure).
_JITTER = 1.2

# With less than this left, a leader waits for its end instead of trying again ever faster.
_LAST_MOMENT = 1.0

_RELEASE_TRIES = 3
_RELEASE_SECONDS = 2.0


class LeaseSpec(Struct, omit_defaults=True):
    holderIdentity: str | None = None  # noqa: N815
    leaseDurationSeconds: int | None = None  # noqa: N815
    acquireTime: str | None = None  # noqa: N815
    renewTime: str | None = None  # noqa: N815
    leaseTransitions: int | None = None  # noqa: N815
    strategy: str | None = None
    preferredHolder: str | None = None  # noqa: N815


class Lease(Struct):
    """The metadata goes back as it came, labels and owners of others included: a PUT replaces everything."""

    metadata: dict[str, object]
    spec: LeaseSpec
    apiVersion: str = "coordination.k8s.io/v1"  # noqa: N815
    kind: str = "Lease"


def _utc_now() -> datetime:
    return datetime.now(UTC)


def micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election:
    """`on_started` and `on_stopped` are called in turns from the loop, and must return at once."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
        lease_duration: float = LEASE_DURATION,
        renew_deadline: float = RENEW_DEADLINE,
        retry_period: float = RETRY_PERIOD,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = _utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        if not 0 < retry_period * _JITTER < renew_deadline < lease_duration:
            raise ValueError("an election needs 1.2 * retry_period < renew_deadline < lease_duration")
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._key = {"namespace": namespace, "name": name}
        self.identity = identity
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311
        self._observed: LeaseSpec | None = None
        self._observed_at = 0.0
        self._renewed_at: float | None = None
        self._acting = False
        self._released = False
        self.holder = ""

    @property
    def remaining(self) -> float:
        """Seconds for which this process may act yet, if it does not renew again; 0 when it may not."""
        if self._renewed_at is None:
            return 0.0
        return max(0.0, self._renewed_at + self._renew_deadline - self._clock())

    @property
    def is_leader(self) -> bool:
        return self.remaining > 0

    async def run(self) -> None:
        """Until cancelled or released. Whatever the API server answers, the next try follows."""
        while not self._released:
            self._tell()
            failed = False
            try:
                await self._step()
            except AccelshareError as failure:
                failed = True
                _log.warning("the lease %s could not be renewed or taken: %s", self._path, failure)
            self._tell()
            if not self._released:
                await self._sleep(self._pause(failed))

    async def release(self) -> None:
        """Stop acting at once, and give the Lease up, so that another need not wait for its end."""
        self._released = True
        self._renewed_at = None
        self._tell()
        for _ in range(_RELEASE_TRIES):
            try:
                return await self._give_up()
            except Conflict:
                continue  # a renewal that was under way came in between
            except NotFound:
                return None
            except AccelshareError as failure:
                _log.warning("the lease %s could not be released, and runs out: %s", self._path, failure)
                return None
        return None

    # --- one try ---------------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Renew or take the Lease, if it is ours to take."""
        lease = await self._read()
        if lease is None:
            await self._write(self._create)
            return
        self._observe(lease.spec)
        if not self._ours(lease.spec) and self._still_held(lease.spec):
            self._renewed_at = None
            return
        taken = Lease(lease.metadata, self._claim(lease.spec))
        await self._write(lambda: self._replace(taken))

    async def _read(self) -> Lease | None:
        try:
            return await self._client.request("GET", self._path, into=Lease, timeout=self._call_seconds)
        except NotFound:
            return None

    async def _write(self, write: Callable[[], Awaitable[Lease]]) -> None:
        """The lease counts from before the call: others may have seen the write at any moment after that."""
        sent = self._clock()
        written = await write()
        if self._released:
            await self._give_up()
            return
        if not self.is_leader:
            # It had run out on the way: what was stopped then is told so before it is started again.
            self._tell()
        self._renewed_at = sent
        self._observe(written.spec)

    async def _create(self) -> Lease:
        lease = Lease(dict(self._key), self._claim(LeaseSpec()))
        return await self._client.request(
            "POST", self._collection, lease, into=Lease, timeout=self._call_seconds
        )

    async def _replace(self, lease: Lease) -> Lease:
        return await self._client.replace(self._path, lease, Lease, timeout=self._call_seconds)

    async def _give_up(self) -> None:
        lease = await self._client.request("GET", self._path, into=Lease, timeout=_RELEASE_SECONDS)
        if not self._ours(lease.spec):
            return
        now = micro_time(self._wall())
        # One second, since the API server allows no less; the holder that is missing says that it is free.
        empty = LeaseSpec(None, 1, now, now, lease.spec.leaseTransitions)
        await self._client.replace(self._path, Lease(lease.metadata, empty), Lease, timeout=_RELEASE_SECONDS)

    # --- what is known ---------------------------------------------------------------------------------

    def _observe(self, spec: LeaseSpec) -> None:
        holder = spec.holderIdentity or ""
        if holder not in (self.holder, "", self.identity):
            _log.info("%s waits for %s, which %s holds", self.identity, self._path, holder)
        self.holder = holder
        if spec != self._observed:
            self._observed, self._observed_at = spec, self._clock()

    def _ours(self, spec: LeaseSpec) -> bool:
        return spec.holderIdentity == self.identity

    def _still_held(self, spec: LeaseSpec) -> bool:
        duration = spec.leaseDurationSeconds or self._lease_duration
        return bool(spec.holderIdentity) and self._clock() < self._observed_at + duration

    def _claim(self, before: LeaseSpec) -> LeaseSpec:
        now = micro_time(self._wall())
        kept = self._ours(before)
        transitions = before.leaseTransitions or 0
        first = before.acquireTime is None
        return LeaseSpec(
            holderIdentity=self.identity,
            leaseDurationSeconds=round(self._lease_duration),
            acquireTime=before.acquireTime if kept else now,
            renewTime=now,
            leaseTransitions=transitions if kept or first else transitions + 1,
            strategy=before.strategy,
            preferredHolder=before.preferredHolder,
        )

    def _tell(self) -> None:
        if self.is_leader == self._acting:
            return
        self._acting = not self._acting
        _log.info("%s %s %s", self.identity, "leads by" if self._acting else "no longer leads by", self._path)
        (self._on_started if self._acting else self._on_stopped)()

    @property
    def _call_seconds(self) -> float:
        """Two calls fit before the deadline, as in client-go; near it, none may delay that it is told."""
        half = self._renew_deadline / 2
        return min(half, max(0.5, self.remaining)) if self.is_leader else half

    def _pause(self, failed: bool) -> float:
        """A leader renews punctually, hurries after a failure, and wakes at the end to say so."""
        if not self.is_leader:
            return self._retry_period * (1 + self._rng.random() * _JITTER)
        if self.remaining < _LAST_MOMENT:
            return self.remaining
        pause = self._retry_period * (self._rng.uniform(0.5, 1) if failed else 1)
        return min(pause, self.remaining / 2)
