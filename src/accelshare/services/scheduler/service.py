"""The scheduler service as a process: watches, sockets, election and the tasks beside them.

start   sockets first, so that probes are answered; then both lists; then ready, and only then a candidate
lead    the Lease, then one more list of pods (succession), then the verbs that act
stop    not ready, no new binds, those under way are finished, the Lease is released; within 5 s. While the
        outcome of a binding is in doubt the Lease is left to run out: it may land after us
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from accelshare.core.errors import AccelshareError, BadInput
from accelshare.core.grant import Sign
from accelshare.core.objects import Node, Pod, version_number
from accelshare.kube.api.client import Client
from accelshare.kube.api.events import EventRecorder
from accelshare.kube.api.lease import Election
from accelshare.kube.api.watch import EventType, Reflector
from accelshare.services.scheduler.api import KubeApi
from accelshare.services.scheduler.app import App, make_app
from accelshare.services.scheduler.extender import Extender
from accelshare.services.scheduler.leader import LabelKeeper
from accelshare.services.scheduler.settings import Settings
from accelshare.services.scheduler.succession import Succession

_log = logging.getLogger(__name__)

COMPONENT = "accelshare-scheduler"

SWEEP_SECONDS = 2.0
FINISH_SECONDS = 4.0  # for binds under way at the end; each is over after as long
RELEASE_SECONDS = 0.7
CERTIFICATE_SECONDS = 30.0

# Longer than the 90 s for which Go keeps an idle connection: a connection must never be closed from this side
# while kube-scheduler sends a request on it.
KEEPALIVE_SECONDS = 120

# Pods that have finished leave the watch as DELETED: their room is free, which is all that matters here.
LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

# Above the largest answer to filter, and below a look at a whole large cluster: that is rare, and what
# it took is given back.
_LARGEST_KEPT = 4 * 1024 * 1024
_KEPT_IN_ALL = 8 * 1024 * 1024


def tune_allocator() -> None:
    """glibc gives large buffers back to the kernel after each request, and page faults to get them again."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_IN_ALL)


def settle_memory() -> None:
    """After the first lists: what is there stays, and what the lists took is given back."""
    gc.collect()
    gc.freeze()
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> Any:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version") else None


class _Server(uvicorn.Server):
    """Leaves signals to the service, which has two servers and more to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: App, settings: Settings, *, tls: bool) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,  # a header must not make anybody local
            timeout_keep_alive=KEEPALIVE_SECONDS,
            timeout_graceful_shutdown=int(FINISH_SECONDS),
            ssl_certfile=settings.tls_cert if tls else None,
            ssl_keyfile=settings.tls_key if tls else None,
        )
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as failure:
        raise AccelshareError(f"port {port} of {host} cannot be listened on: {failure}") from failure


def check_certificate(settings: Settings) -> None:
    """Raises BadInput where nobody could be served with it."""
    for field, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        try:
            Path(path).read_bytes()
        except OSError as failure:
            raise BadInput(field, path, f"a PEM file that can be read ({failure.strerror})") from failure
    files = (settings.tls_cert, settings.tls_key)
    try:
        # Without the empty passphrase, a key that has one would ask for it on a terminal that is not there.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files, password="")
    except (ssl.SSLError, ValueError) as failure:
        allowed = f"a certificate in PEM and its key without a passphrase ({failure})"
        raise BadInput("tls_cert and tls_key", files, allowed) from failure


class Service:
    def __init__(self, settings: Settings, client: Client, sign: Sign | None = None) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._api = KubeApi(client, EventRecorder(client, COMPONENT))
        self._client = client
        self._election = self._new_election(client)
        self._succession = Succession(self._has_the_lease, self._catch_up, on_ready=self._take_over)
        self.extender = Extender(
            settings,
            self._api,
            leads=self.leads,
            clock=time.monotonic,
            wall_ns=time.time_ns,
            sign=sign,
        )
        self._label = LabelKeeper(self._api, settings, self.leads)
        state = self.extender.state
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            Node,
            take=state.node_listed,
            on_replace=lambda names, _: state.nodes_listed(names),
            on_event=self._node_event,
        )
        self._pods = Reflector(
            client,
            "/api/v1/pods",
            Pod,
            take=state.pod_listed,
            on_replace=self._pods_listed,
            on_event=self._pod_event,
            params=LIVE_PODS,
        )
        self._add_gauges()

    def leads(self) -> bool:
        return self._succession.ready and self._has_the_lease()

    def _has_the_lease(self) -> bool:
        return not self._stopping.is_set() and (self._election is None or self._election.is_leader)

    def problems(self) -> list[str]:
        """Why this replica is not ready."""
        found = []
        if self._stopping.is_set():
            found.append("it is about to stop")
        if not self._nodes.synced.is_set():
            found.append("the list of nodes has not been read yet")
        if not self._pods.synced.is_set():
            found.append("the list of pods has not been read yet")
        return found

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Until it is told to stop. Raises what made it impossible to go on."""
        servers = self._servers()
        serving = [asyncio.create_task(server.serve([sock])) for server, sock in servers]
        self._tasks += [asyncio.create_task(self._nodes.run()), asyncio.create_task(self._pods.run())]
        beginning = asyncio.create_task(self._begin())
        self._tasks.append(beginning)
        for task in (*serving, *self._tasks):
            task.add_done_callback(self._ended)
        await self._stopping.wait()
        _log.info("stopping: no new binds, %d under way", self.extender.binder.running)
        await self._end([server for server, _ in servers], serving)
        if self._failure is not None:
            raise self._failure

    def _servers(self) -> list[tuple[_Server, socket.socket]]:
        settings = self._settings
        if settings.tls_cert:
            check_certificate(settings)
        plain = make_app(self.extender, problems=self.problems, trusted=False)
        servers = [(_server(plain, settings, tls=False), _listen(settings.host, settings.port))]
        if settings.tls_cert:
            trusted = make_app(self.extender, problems=self.problems, trusted=True)
            server = _server(trusted, settings, tls=True)
            servers.append((server, _listen(settings.host, settings.tls_port)))
            self._start(self._renew_certificate(server.config))
        return servers

    async def _begin(self) -> None:
        """What may only start on a ledger that is whole."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        settle_memory()
        _log.info("the ledger is whole: %d nodes", len(self.extender.state.ledger.nodes))
        self._start(self._succession.run())
        if self._election is not None:
            self._start(self._election.run())
        else:
            self._succession.began()
        if self._settings.pod_name:
            self._start(self._label.run())
        self._start(self.extender.nudger.run())
        self._start(self.extender.notices.run())
        self._start(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.extender.binder.sweep()

    async def _renew_certificate(self, config: uvicorn.Config) -> None:
        """Certificates are rotated under a running process; new connections get the new one."""
        files = (self._settings.tls_cert, self._settings.tls_key)
        seen = 0
        while True:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            try:
                changed = max(os.stat(file).st_mtime_ns for file in files)
                if seen and changed != seen and config.ssl is not None:
                    config.ssl.load_cert_chain(*files)
                seen = changed
            except OSError as failure:
                _log.warning("the certificate %s cannot be read again: %s", files[0], failure)

    # --- the end ----------------------------------------------------------------------------------------

    async def _end(self, servers: list[_Server], serving: list[asyncio.Task[None]]) -> None:
        """`leads` is false from here on, so no verb that acts begins any more."""
        for server in servers:
            server.should_exit = True
        await asyncio.wait(serving, timeout=FINISH_SECONDS)
        doubtful = self.extender.state.holds.in_doubt() + self.extender.binder.running
        if self._election is not None and doubtful:
            _log.warning("the outcome of %d bindings is in doubt: the Lease is left to run out", doubtful)
        elif self._election is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._election.release(), RELEASE_SECONDS)
        for task in (*serving, *self._tasks):
            task.cancel()
        await asyncio.gather(*serving, *self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A task that fails would leave the service half alive: it ends as a whole and is started anew."""
        if task.cancelled() or task.exception() is None:
            return
        _log.error("a part of the service failed", exc_info=task.exception())
        if self._failure is None:
            self._failure = task.exception()
        self._stopping.set()

    # --- parts ------------------------------------------------------------------------------------------

    def _new_election(self, client: Client) -> Election | None:
        settings = self._settings
        if not settings.elect:
            return None
        return Election(
            client,
            settings.lease_namespace,
            settings.lease_name,
            settings.identity or settings.pod_name or f"{socket.gethostname()}-{os.getpid()}",
            on_started=lambda: self._succession.began(),
            on_stopped=self._lost,
        )

    def _lost(self) -> None:
        self._succession.ended()
        self._label.changed()

    def _take_over(self) -> None:
        self._label.changed()
        self.extender.take_over()

    async def _catch_up(self) -> None:
        await self._list_pods()
        settle_memory()

    async def _list_pods(self) -> None:
        """Beside the watch, page by page as it lists; of the newest state, since it names no version."""
        state = self.extender.state
        uids: list[str | None] = []
        version = ""
        async with contextlib.aclosing(self._client.list_pages("/api/v1/pods", Pod, LIVE_PODS)) as pages:
            async for page in pages:
                uids += map(state.pod_listed, page.items)
                version = page.resource_version
        state.pods_listed(uids, version_number(version))

    def _pods_listed(self, uids: list[str | None], version: str) -> None:
        """A list that is behind what the watch has brought is a server's that came back from a backup."""
        at, before = version_number(version), version_number(self._pods.resource_version)
        self.extender.state.pods_listed(uids, at if at >= before else 0)

    def _node_event(self, kind: EventType, node: Node) -> None:
        state = self.extender.state
        (state.node_gone if kind == "DELETED" else state.node_changed)(node)

    def _pod_event(self, kind: EventType, pod: Pod) -> None:
        state = self.extender.state
        (state.pod_gone if kind == "DELETED" else state.pod_changed)(pod)

    def _add_gauges(self) -> None:
        parts: tuple[tuple[str, Callable[[], float]], ...] = (
            ("relists_total", lambda: self._nodes.relists + self._pods.relists),
            ("reconnects_total", lambda: self._nodes.reconnects + self._pods.reconnects),
            ("undecodable_total", lambda: self._nodes.undecodable + self._pods.undecodable),
        )
        for name, read in parts:
            self.extender.metrics.gauge(f"accelshare_watch_{name}", "Of the watches of nodes and pods.", read)


async def serve(settings: Settings, client: Client, sign: Sign | None = None) -> None:
    """Until SIGTERM or SIGINT, or until a part of it fails."""
    tune_allocator()
    service = Service(settings, client, sign)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    try:
        await service.run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
