"""A new leader acts on what the one before it has bound, and not before it knows."""

import asyncio

from accelshare.kube.api.errors import Unreachable
from accelshare.services.scheduler.succession import Succession


class Heir:
    """Lists when the test lets it, and notes what becomes of it."""

    def __init__(self) -> None:
        self.leading = True
        self.answers: list[Exception | None] = []
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.told = 0
        self.pauses: list[float] = []
        self.succession = Succession(
            lambda: self.leading, self._list, on_ready=self._ready, sleep=self._pause
        )

    async def _list(self) -> None:
        self.asked.set()
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def _ready(self) -> None:
        self.told += 1


def test_it_is_ready_after_the_list_and_not_before() -> None:
    """The Lease alone makes no leader."""

    async def body() -> None:
        heir = Heir()
        heir.succession.began()
        taking = asyncio.create_task(heir.succession.take_over())
        await heir.asked.wait()
        assert (heir.succession.ready, heir.told) == (False, 0)

        heir.gate.set()
        await taking
        assert (heir.succession.ready, heir.told) == (True, 1)

    asyncio.run(body())


def test_a_list_that_fails_is_tried_again() -> None:
    """After a pause."""

    async def body() -> None:
        heir = Heir()
        heir.answers = [Unreachable("away"), Unreachable("away")]
        heir.gate.set()
        heir.succession.began()
        await heir.succession.take_over()
        assert (heir.succession.ready, len(heir.pauses)) == (True, 2)

    asyncio.run(body())


def test_who_loses_the_lease_is_ready_no_more() -> None:
    """The next Lease begins with a list of its own."""

    async def body() -> None:
        heir = Heir()
        heir.gate.set()
        heir.succession.began()
        await heir.succession.take_over()
        heir.succession.ended()
        assert not heir.succession.ready
        heir.succession.began()
        assert not heir.succession.ready

    asyncio.run(body())


def test_a_list_begun_under_an_earlier_lease_makes_nobody_ready() -> None:
    """Somebody else may have led, and bound, in between."""

    async def body() -> None:
        heir = Heir()
        heir.succession.began()
        taking = asyncio.create_task(heir.succession.take_over())
        await heir.asked.wait()
        heir.succession.ended()
        heir.succession.began()
        heir.gate.set()
        await taking
        assert (heir.succession.ready, heir.told) == (False, 0)

    asyncio.run(body())
