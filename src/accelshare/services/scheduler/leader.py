"""The leader label: the extender's Service selects it, so that kube-scheduler finds whoever leads.

A leader that hangs cannot take its own label off. So a new one first takes the label from every other pod of
the application, and then sets its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from accelshare.core.errors import AccelshareError
from accelshare.services.scheduler.api import Api
from accelshare.services.scheduler.settings import Settings

_log = logging.getLogger(__name__)

LEADER = "accelshare.io/leader"
RETRY_SECONDS = 1.0


async def take_label(api: Api, settings: Settings) -> None:
    namespace, own = settings.pod_namespace, settings.pod_name
    for name in await api.labelled(namespace, f"{settings.app_label},{LEADER}=true"):
        if name != own:
            await api.label(namespace, name, {LEADER: None})
    await api.label(namespace, own, {LEADER: "true"})


async def drop_label(api: Api, settings: Settings) -> None:
    await api.label(settings.pod_namespace, settings.pod_name, {LEADER: None})


class LabelKeeper:
    """Follows the election: takes the label when leading begins, tried until it is done or lost."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        leads: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._settings = settings
        self._leads = leads
        self._sleep = sleep
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self.move()

    async def move(self) -> None:
        """Waits for the next change, and does what it asks for."""
        await self._changed.wait()
        self._changed.clear()
        while not await self._done():
            await self._sleep(RETRY_SECONDS)

    async def _done(self) -> bool:
        try:
            if self._leads():
                await take_label(self._api, self._settings)
            else:
                await drop_label(self._api, self._settings)
        except AccelshareError as failure:
            _log.warning("the leader label could not be moved: %s", failure)
            # One that leads no more need not insist: the new leader takes the label from it.
            return not self._leads()
        return True
