"""kubelet's side of its sockets, in the test's own process: real gRPC over real unix sockets.

It does what kubelet does and nothing more: takes a registration, connects to the plugin, asks for its
options, then answers; reads the stream of lists until it ends; and wipes its directory's sockets when it
starts.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from grpc import aio

from accelshare.kube.kubelet.protos import deviceplugin_pb2 as pb
from accelshare.kube.kubelet.protos.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

PATIENCE_S = 20.0  # after which a test that waits has failed


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A unix socket's path has 107 characters at most, and pytest's own folders are long."""
    with TemporaryDirectory(prefix="k", dir="/tmp") as path:
        yield Path(path)


class Plugin:
    """One registration as kubelet holds it."""

    def __init__(self, request: pb.RegisterRequest, channel: aio.Channel) -> None:
        self.request = request
        self.channel = channel
        self.stub: Any = DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        self.options = pb.DevicePluginOptions()
        self.lists: list[list[pb.Device]] = []
        self.ended = False
        self.reading: asyncio.Task[None] | None = None

    async def allocate(self, *ids: str) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer: pb.AllocateResponse = await self.stub.Allocate(request)
        (only,) = answer.container_responses
        return only

    async def pre_start(self, *ids: str) -> None:
        await self.stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=30)

    async def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        answer: pb.PreferredAllocationResponse = await self.stub.GetPreferredAllocation(request)
        (only,) = answer.container_responses
        return list(only.deviceIDs)


class FakeKubelet(RegistrationServicer):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "kubelet.sock"
        self.registered: list[Plugin] = []  # every registration since the beginning, also before a restart
        self.asked = 0  # registrations that came in, refused ones too
        self.refuse: str = ""  # the reason with which registrations are refused
        self.hold: asyncio.Event | None = None  # registrations wait for it
        self.changed = asyncio.Condition()
        self._server: aio.Server | None = None

    async def start(self) -> None:
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = aio.server()
        add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix://{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        for plugin in self.registered:
            await self.drop(plugin)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def drop(self, plugin: Plugin) -> None:
        """Ends the connection to one plugin."""
        if plugin.reading is not None:
            plugin.reading.cancel()
            await asyncio.gather(plugin.reading, return_exceptions=True)
        await plugin.channel.close(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(condition)

    async def plugin(self, count: int = 1, lists: int = 1) -> Plugin:
        """The plugin of the count-th registration, once it has sent so many lists."""
        await self.until(lambda: len(self.registered) >= count)
        await self.until(lambda: len(self.registered[count - 1].lists) >= lists)
        return self.registered[count - 1]

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        await self._count()
        if self.refuse:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse)
        if self.hold is not None:
            await self.hold.wait()
        # As large as kubelet's own client reads: the default, 4 MiB.
        plugin = Plugin(request, aio.insecure_channel(f"unix://{self.directory / request.endpoint}"))
        plugin.options = await plugin.stub.GetDevicePluginOptions(pb.Empty(), timeout=10, wait_for_ready=True)
        plugin.reading = asyncio.create_task(self._read(plugin))
        async with self.changed:
            self.registered.append(plugin)
            self.changed.notify_all()
        return pb.Empty()

    async def _count(self) -> None:
        async with self.changed:
            self.asked += 1
            self.changed.notify_all()

    async def _read(self, plugin: Plugin) -> None:
        try:
            async for answer in plugin.stub.ListAndWatch(pb.Empty()):
                async with self.changed:
                    plugin.lists.append(list(answer.devices))
                    self.changed.notify_all()
        except aio.AioRpcError:
            pass  # the plugin went away; that is all that kubelet makes of it
        async with self.changed:
            plugin.ended = True
            self.changed.notify_all()


@contextlib.asynccontextmanager
async def fake_kubelet() -> AsyncIterator[FakeKubelet]:
    with short_directory() as directory:
        kubelet = FakeKubelet(directory)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.stop()
