"""Between winning the Lease and acting: a new leader first sees all that the one before it has bound.

Its watch may be behind, and what it does not know of it would grant once more. So it reads one list that the
API server answers from what is stored, and no verb acts before that has come. The one before writes nothing
any more: it let the Lease run out, or gave it up with nothing under way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from accelshare.core.errors import AccelshareError

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class Succession:
    """`ready` is true from the end of the list until the Lease is lost, and for each Lease anew."""

    def __init__(
        self,
        leads: Callable[[], bool],
        catch_up: Callable[[], Awaitable[None]],
        *,
        on_ready: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leads = leads
        self._catch_up = catch_up
        self._on_ready = on_ready
        self._sleep = sleep
        self._term = 0  # of leading: counted so that a list begun in one makes nobody ready in the next
        self._begun = asyncio.Event()
        self.ready = False

    def began(self) -> None:
        self._term += 1
        self.ready = False
        self._begun.set()

    def ended(self) -> None:
        self._term += 1
        self.ready = False
        self._begun.clear()

    async def run(self) -> None:
        while True:
            await self._begun.wait()
            self._begun.clear()
            await self.take_over()

    async def take_over(self) -> None:
        """Until it is ready, or this term is over."""
        term = self._term
        while term == self._term and self._leads():
            try:
                await self._catch_up()
            except AccelshareError as failure:
                _log.warning("the pods could not be listed, and nothing is bound before: %s", failure)
                await self._sleep(RETRY_SECONDS)
                continue
            if term == self._term and self._leads():
                self.ready = True
                _log.info("it has caught up with the one before it, and acts")
                self._on_ready()
            return
