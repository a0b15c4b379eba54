"""A device plugin as kubelet wants it: one resource, served on sockets of which each is registered once.

Rule 1. Every registration has a socket of its own under a new name. kubelet 1.37 refuses a path that it is
        still connected to, and up to 1.36 it mixes up two connections of one resource.
Rule 2. A list of devices is sent as bytes that were made before, and only when it differs from the last one:
        kubelet rewrites its checkpoint at every list.
Rule 3. Who is leaving sends no list and registers nothing any more, since its successor may have done so
        already; it only answers for what is bound.

What keeps a plugin registered is PluginHost (accelshare.kube.kubelet.host).
"""

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc
from grpc import aio
from msgspec import Struct

from accelshare.core.container import DeviceNode, Mount
from accelshare.core.errors import AccelshareError, BadInput, NotReady
from accelshare.kube.kubelet.protos import deviceplugin_pb2 as pb
from accelshare.kube.kubelet.protos.deviceplugin_pb2_grpc import RegistrationStub
from accelshare.kube.kubelet.sockets import connect

VERSION = "v1beta1"

# What kubelet's client reads at most in one message, in 1.20 and in 1.37 alike.
MAX_LIST_BYTES = 4 * 1024 * 1024

# kubelet takes up to 10 s to connect to us before it answers a registration, with the reason if it could not.
REGISTER_TIMEOUT_S = 15.0

_OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
_NO_LIMIT = [("grpc.max_receive_message_length", -1)]  # GetPreferredAllocation carries every free id
_log = logging.getLogger(__name__)

Context: TypeAlias = "aio.ServicerContext[Any, Any]"


class AllocateAnswer(Struct, frozen=True):
    """What goes into a container directly, and the CDI names under which the rest will be found."""

    cdi: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = {}


class Handlers(Protocol):
    """Whoever decides. An AccelshareError's sentence goes to kubelet, and from there to the pod's events."""

    async def allocate(self, ids: list[str]) -> AllocateAnswer:
        """Within 50 ms and without a network call; an error fails the pod for good."""

    async def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        """Which ids kubelet had better take; an error counts as having no opinion."""

    async def pre_start(self, ids: frozenset[str]) -> None:
        """Within 30 s; an error makes the container wait and kubelet ask again."""


def device_chunk(ids: Iterable[str], *, healthy: bool = True, numa: int | None = None) -> bytes:
    """The bytes of these devices within a list, to be kept for each card and joined whenever one changes."""
    tail = _field(2, b"Healthy" if healthy else b"Unhealthy")
    if numa is not None:
        tail += pb.Device(topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])).SerializeToString()
    return b"".join(_field(1, _field(1, each.encode()) + tail) for each in ids)


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited field of protobuf's wire format; `number` is below 16."""
    size = len(value)
    head = bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + value


class Listener:
    """One socket of a plugin, from its binding to its end."""

    def __init__(self, path: Path, server: aio.Server) -> None:
        self.path = path
        self.opened = 0  # streams that kubelet has opened here, ever
        self.streams = 0  # those that are open
        self.closing = False
        self._server = server

    @property
    def lost(self) -> bool:
        """kubelet was connected and is no longer."""
        return self.opened > 0 and self.streams == 0

    async def stop(self, grace: float) -> None:
        """Calls that came in are answered within the grace; the socket's file goes with it."""
        await self._server.stop(grace)
        with contextlib.suppress(OSError):
            self.path.unlink()


class PluginServer:
    """One resource: its list of devices, and the answers to kubelet's questions about it."""

    def __init__(
        self, resource: str, handlers: Handlers, *, draw: Callable[[], str] = lambda: secrets.token_hex(4)
    ) -> None:
        self.resource = resource
        self.listener: Listener | None = None  # the one that kubelet was told of last
        self.leaving = False
        self.changed = asyncio.Event()  # set when streams came or went or the first list is there
        self._handlers = handlers
        self._draw = draw
        self._slug = re.sub(r"[^A-Za-z0-9]+", "-", resource)
        self._list: bytes | None = None
        self._next = asyncio.Event()  # set, and replaced, at each new list
        self.on_change: list[Callable[[], None]] = []  # told when kubelet's stream opened or ended

    @property
    def connected(self) -> bool:
        """kubelet reads the list of devices, so that pods which ask for them are admitted."""
        return self.listener is not None and self.listener.streams > 0

    @property
    def published(self) -> bool:
        return self._list is not None

    def publish(self, chunks: Iterable[bytes]) -> bool:
        """Sends the list that these chunks make, unless it is the last one again; says whether it is new."""
        devices = b"".join(chunks)
        if len(devices) > MAX_LIST_BYTES:
            raise BadInput(
                f"device list of {self.resource}",
                f"{len(devices)} bytes",
                f"at most {MAX_LIST_BYTES} bytes, the most that kubelet reads: "
                "use a coarser unit, or count the resource instead of listing it (--counted)",
            )
        if self.leaving or devices == self._list:
            return False
        self._list = devices
        self._wake_streams()
        self.changed.set()
        return True

    def leave(self) -> None:
        self.leaving = True
        self.changed.set()

    async def bind(self, directory: Path) -> Listener:
        """A new socket that answers, of which kubelet does not know yet."""
        server = aio.server(options=_NO_LIMIT)
        listener = Listener(directory / f"accelshare-{self._slug}-{self._draw()}.sock", server)
        server.add_generic_rpc_handlers((self._rpcs(listener),))
        try:
            server.add_insecure_port(f"unix://{listener.path}")
        except RuntimeError as error:
            raise NotReady(f"cannot listen on {listener.path}: {error}") from error
        await server.start()
        return listener

    async def register(
        self, listener: Listener, kubelet_socket: Path, timeout: float = REGISTER_TIMEOUT_S
    ) -> None:
        """Tells kubelet of the socket. kubelet connects to it before this returns."""
        request = pb.RegisterRequest(
            version=VERSION, endpoint=listener.path.name, resource_name=self.resource, options=_OPTIONS
        )
        async with connect(kubelet_socket) as channel:
            try:
                await RegistrationStub(channel).Register(request, timeout=timeout)  # type: ignore[no-untyped-call]
            except aio.AioRpcError as error:
                raise NotReady(
                    f"kubelet does not register {self.resource}: {error.code().name}, {error.details()}"
                ) from error
        self.listener = listener
        self._tell()

    def end_streams(self, listener: Listener) -> None:
        """kubelet takes the end of its stream as the plugin's; calls are answered all the same."""
        listener.closing = True
        self._wake_streams()

    async def stop(self, listener: Listener, grace: float) -> None:
        self.end_streams(listener)
        await listener.stop(grace)
        if self.listener is listener:
            self.listener = None

    def _tell(self) -> None:
        self.changed.set()
        for told in self.on_change:
            told()

    def _wake_streams(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    def _rpcs(self, listener: Listener) -> "grpc.GenericRpcHandler[Any, Any]":
        async def list_and_watch(_request: bytes, context: Context) -> None:
            await self._stream(listener, context)

        return grpc.method_handlers_generic_handler(
            f"{VERSION}.DevicePlugin",
            {
                "GetDevicePluginOptions": _unary(self._options, pb.Empty),
                "GetPreferredAllocation": _unary(self._prefer, pb.PreferredAllocationRequest),
                "Allocate": _unary(self._allocate, pb.AllocateRequest),
                "PreStartContainer": _unary(self._pre_start, pb.PreStartContainerRequest),
                # Bytes in and out: protobuf would build each of a hundred thousand devices anew.
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
            },
        )

    async def _stream(self, listener: Listener, context: Context) -> None:
        listener.opened += 1
        listener.streams += 1
        self._tell()
        sent: bytes | None = None
        try:
            while not listener.closing:
                following = self._next  # taken before the list is looked at, so that no list is missed
                if self._list is not None and self._list is not sent:
                    sent = self._list
                    await context.write(sent)
                else:
                    await following.wait()
        finally:
            listener.streams -= 1
            self._tell()

    async def _options(self, _request: pb.Empty, _context: Context) -> pb.DevicePluginOptions:
        return _OPTIONS

    async def _prefer(
        self, request: pb.PreferredAllocationRequest, _context: Context
    ) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for asked in request.container_requests:
            try:
                ids = await self._handlers.prefer(
                    list(asked.available_deviceIDs), list(asked.must_include_deviceIDs), asked.allocation_size
                )
            except Exception:
                # It is a hint; kubelet would fail the pod for an error here, and does well without one.
                _log.exception("no preference among the ids of %s", self.resource)
                ids = []
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def _allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        answer = pb.AllocateResponse()
        for asked in request.container_requests:
            try:
                given = await self._handlers.allocate(list(asked.devices_ids))
            except AccelshareError as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            answer.container_responses.append(_response(given))
        return answer

    async def _pre_start(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        try:
            await self._handlers.pre_start(frozenset(request.devices_ids))
        except AccelshareError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PreStartContainerResponse()


def _unary(method: Callable[..., Any], request: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        method,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def _response(given: AllocateAnswer) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=given.env,
        mounts=[
            pb.Mount(container_path=mount.container, host_path=mount.host, read_only=mount.read_only)
            for mount in given.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.path, host_path=node.path, permissions=node.permissions)
            for node in given.devices
        ],
        annotations=given.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in given.cdi],
    )
