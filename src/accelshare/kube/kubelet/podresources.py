"""kubelet's pod-resources socket: who holds which ids, asked once for many who wait.

kubelet answers 100 calls a second for the whole node, and refuses the rest. So there is one call at a time,
and everybody who asks while it runs shares the next: an answer is only good for those who had asked before
its call began, since what they wait for had happened by then.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from grpc import StatusCode, aio

from accelshare.core.errors import NotReady
from accelshare.core.ownership import ContainerDevices, PodDevices
from accelshare.kube.kubelet.protos import podresources_pb2 as pb
from accelshare.kube.kubelet.protos.podresources_pb2_grpc import PodResourcesListerStub
from accelshare.kube.kubelet.sockets import ask, connect

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

# Between the beginnings of two calls: half of what kubelet allows, since others on the node ask it too.
SPACING_S = 0.02

_PASSING = frozenset({StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE})


class _Shared:
    """A call that has not begun, and those who wait for it."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline  # the latest of all
        self.task: asyncio.Task[tuple[PodDevices, ...]] | None = None


class PodResources:
    def __init__(self, socket: Path = SOCKET, *, jitter: Callable[[], float] = random.random) -> None:
        self._socket = socket
        self._jitter = jitter
        self._channel: aio.Channel | None = None
        self._turn = asyncio.Lock()
        self._waiting: _Shared | None = None
        self._began = float("-inf")
        self._tasks: set[asyncio.Task[tuple[PodDevices, ...]]] = set()

    async def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """What kubelet answered to a call that began after this one did. Raises NotReady."""
        deadline = asyncio.get_running_loop().time() + timeout
        shared = self._waiting
        if shared is None:
            self._waiting = shared = _Shared(deadline)
            shared.task = asyncio.create_task(self._list(shared))
            self._tasks.add(shared.task)
            shared.task.add_done_callback(self._done)
        shared.deadline = max(shared.deadline, deadline)
        assert shared.task is not None
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(shared.task)
        except TimeoutError as error:
            raise NotReady(f"pod-resources does not answer within {timeout} s") from error

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close(None)

    async def _list(self, shared: _Shared) -> tuple[PodDevices, ...]:
        async with self._turn:
            clock = asyncio.get_running_loop().time
            await asyncio.sleep(self._began + SPACING_S - clock())
            self._waiting = None  # whoever asks from here on waits for the next
            self._began = clock()
            if self._channel is None:
                self._channel = connect(self._socket)
            stub = PodResourcesListerStub(self._channel)  # type: ignore[no-untyped-call]
            answer: pb.ListPodResourcesResponse = await ask(
                "pod-resources",
                lambda left: stub.List(pb.ListPodResourcesRequest(), timeout=left),
                deadline=shared.deadline,
                jitter=self._jitter,
                passing=_PASSING,
            )
        return tuple(map(_pod, answer.pod_resources))

    def _done(self, task: asyncio.Task[tuple[PodDevices, ...]]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, for all who waited may have given up


def _pod(pod: pb.PodResources) -> PodDevices:
    return PodDevices(
        pod.namespace,
        pod.name,
        tuple(
            ContainerDevices(container.name, devices.resource_name, tuple(devices.device_ids))
            for container in pod.containers
            for devices in container.devices
        ),
    )
