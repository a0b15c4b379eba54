"""Keeps plugins registered with kubelet, whatever kubelet does.

A plugin is registered, on a new socket each time, when one of these holds and it is not leaving:

    kubelet.sock is another one than it was registered with     kubelet has restarted
    its own socket's file is gone                               kubelet wipes the directory when it starts
    kubelet's stream has ended, or was never opened             kubelet has dropped us; up to 1.36 it does so
                                                                when an older process of ours goes

Nothing is registered before it has a list of devices: kubelet would know the resource, and fail every pod
that asks for it. A registration that fails, or whose stream ends at once, is tried again after a pause that
grows.
"""

import asyncio
import contextlib
import errno
import logging
import random
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from accelshare.core.errors import NotReady
from accelshare.kube.kubelet.plugin import REGISTER_TIMEOUT_S, Listener, PluginServer

DIRECTORY = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = "kubelet.sock"

# kubelet's socket and ours are looked at this often, with one stat each. A watch by inotify would save
# nothing worth its code, and has to be set anew when the directory itself is replaced.
POLL_S = 0.3

# PreStartContainer may take 30 s; a socket that was replaced answers for that long what it was asked before.
CALL_GRACE_S = 30.0

# kubelet opens its stream within milliseconds of a registration; one that lives this long is a steady one.
STEADY_S = 10.0

RETRY_FIRST_S = 0.25
RETRY_MOST_S = 10.0

_log = logging.getLogger(__name__)

Identity = tuple[int, int]  # inode and time of change: an inode alone may be used again at once


def identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def unlink_stale(directory: Path) -> list[Path]:
    """Removes sockets of ours on which nobody listens; another process of ours may be serving on the rest."""
    removed: list[Path] = []
    for path in sorted(directory.glob("accelshare-*.sock")):
        if _nobody_listens(path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                removed.append(path)
    return removed


def _nobody_listens(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a listener with a full queue would make us wait, and is alive
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


class PluginHost:
    """run() lasts until it is cancelled or leave() is called; the sockets answer on until stop()."""

    def __init__(
        self,
        directory: Path,
        servers: Sequence[PluginServer],
        *,
        jitter: Callable[[], float] = random.random,
        poll: float = POLL_S,
        register_timeout: float = REGISTER_TIMEOUT_S,
    ) -> None:
        self._directory = directory
        self._servers = tuple(servers)
        self._jitter = jitter
        self._poll = poll
        self._timeout = register_timeout
        self._keeping: list[asyncio.Task[None]] = []
        self._retiring: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        unlink_stale(self._directory)
        async with asyncio.TaskGroup() as group:
            self._keeping = [group.create_task(self._keep(server)) for server in self._servers]

    def leave(self) -> None:
        """From here on no list is sent and nothing is registered, not even what was about to be."""
        for server in self._servers:
            server.leave()
        for task in self._keeping:
            task.cancel()

    async def stop(self, grace: float = 1.0) -> None:
        """Leaves, and closes every socket; calls that came in are answered within the grace."""
        self.leave()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await asyncio.gather(
            *(server.stop(server.listener, grace) for server in self._servers if server.listener is not None)
        )

    async def _keep(self, server: PluginServer) -> None:
        keeper = Keeper(server, self._jitter, asyncio.get_running_loop().time)
        socket_path = self._directory / KUBELET_SOCKET
        while not server.leaving:
            server.changed.clear()
            kubelet = identity(socket_path)
            if kubelet is not None and keeper.due(kubelet):
                await self._register(keeper, socket_path)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await server.changed.wait()

    async def _register(self, keeper: "Keeper", socket_path: Path) -> None:
        server, old = keeper.server, keeper.server.listener
        fresh: Listener | None = None
        try:
            fresh = await server.bind(self._directory)
            if old is not None:
                # Up to 1.36, the end of an older stream ends the newest one, so it had better come before.
                server.end_streams(old)
            await server.register(fresh, socket_path, self._timeout)
        except NotReady as error:
            keeper.failed(str(error))
        else:
            keeper.succeeded()
            if old is not None:
                self._retire(server, old)
        finally:
            if fresh is not None and server.listener is not fresh:
                await server.stop(fresh, 0)

    def _retire(self, server: PluginServer, listener: Listener) -> None:
        task = asyncio.create_task(server.stop(listener, CALL_GRACE_S))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


class Keeper:
    """When one plugin is to be registered: a decision on what is known, without doing anything."""

    def __init__(self, server: PluginServer, jitter: Callable[[], float], clock: Callable[[], float]) -> None:
        self.server = server
        self._jitter = jitter
        self._clock = clock
        self._kubelet: Identity | None = None  # tried last, with or without success
        self._registered_at: float | None = None  # None: not with this kubelet
        self._not_before = 0.0
        self._attempts = 0  # since all was well
        self._told = ""

    def due(self, kubelet: Identity) -> bool:
        now = self._clock()
        if kubelet != self._kubelet:  # a new kubelet has not refused anything yet
            self._kubelet, self._registered_at = kubelet, None
            self._attempts, self._not_before = 0, now
        if self._steady(now):
            self._attempts = 0
        return self.server.published and now >= self._not_before and self._needed(now)

    def succeeded(self) -> None:
        listener = self.server.listener
        _log.info("registered %s on %s", self.server.resource, listener.path.name if listener else "")
        self._told = ""
        self._registered_at = self._clock()
        self._not_before = self._registered_at + self._pause()  # counts when kubelet drops us again at once
        self._attempts += 1

    def failed(self, why: str) -> None:
        if why != self._told:
            _log.warning("%s; trying again until it does", why)
            self._told = why
        self._registered_at = None
        self._attempts += 1
        self._not_before = self._clock() + self._pause()

    def _needed(self, now: float) -> bool:
        listener = self.server.listener
        if listener is None or self._registered_at is None or listener.lost or not listener.path.exists():
            return True
        return listener.opened == 0 and now > self._registered_at + STEADY_S

    def _steady(self, now: float) -> bool:
        listener = self.server.listener
        if listener is None or self._registered_at is None or listener.streams == 0:
            return False
        return now > self._registered_at + STEADY_S

    def _pause(self) -> float:
        if self._attempts == 0:
            return 0.0
        grown: float = RETRY_FIRST_S * 2 ** min(self._attempts - 1, 10)
        return min(RETRY_MOST_S, grown) * (0.5 + self._jitter())
