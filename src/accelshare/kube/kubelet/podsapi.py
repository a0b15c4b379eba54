"""kubelet's Pods API: the pods of this node, without a watch on the API server. On by default from 1.37.

A pod comes as Kubernetes encodes it; what is read of it is what a node agent asks of a pod: names, UID,
annotations, containers with their resources, node and phase. The rest of core.objects.Pod stays empty.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from google.protobuf.message import DecodeError
from grpc import StatusCode, aio
from msgspec import Struct

from accelshare.core.errors import NotReady
from accelshare.core.objects import Container, Meta, Pod, PodSpec, PodStatus, Resources
from accelshare.kube.kubelet.protos import pod_pb2, pods_pb2
from accelshare.kube.kubelet.protos.pods_pb2_grpc import PodsStub
from accelshare.kube.kubelet.sockets import ask, connect

SOCKET = Path("/var/lib/kubelet/pods-api/pods-api.sock")

# Refused for the rate, away for a restart, or not yet through with reading its pods.
_PASSING = frozenset({StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE, StatusCode.FAILED_PRECONDITION})

Kind = Literal["added", "modified", "deleted", "synced"]
_KINDS: dict[int, Kind] = {
    pods_pb2.ADDED: "added",
    pods_pb2.MODIFIED: "modified",
    pods_pb2.DELETED: "deleted",
    pods_pb2.INITIAL_SYNC_COMPLETE: "synced",
}

T = TypeVar("T")


class PodEvent(Struct, frozen=True):
    """`synced` comes once, without a pod, after an `added` for each pod. A deleted pod has its names only."""

    kind: Kind
    pod: Pod | None = None


class PodsApi:
    def __init__(self, socket: Path = SOCKET, *, jitter: Callable[[], float] = random.random) -> None:
        self._socket = socket
        self._jitter = jitter
        self._channel: aio.Channel | None = None

    async def available(self, timeout: float = 2.0) -> bool:
        """Whether this kubelet serves it at this moment: asked once."""
        try:
            await self._stub().ListPods(pods_pb2.ListPodsRequest(), timeout=timeout)
        except aio.AioRpcError:
            return False
        return True

    async def list(self, timeout: float) -> tuple[Pod, ...]:
        answer: pods_pb2.ListPodsResponse = await self._ask(
            lambda left: self._stub().ListPods(pods_pb2.ListPodsRequest(), timeout=left), timeout
        )
        return tuple(map(read_pod, answer.pods))

    async def get(self, uid: str, timeout: float) -> Pod | None:
        """None when kubelet has no pod of that UID."""
        request = pods_pb2.GetPodRequest(podUID=uid)
        try:
            answer: pods_pb2.GetPodResponse = await self._ask(
                lambda left: self._stub().GetPod(request, timeout=left), timeout
            )
        except NotReady as error:
            if _status(error) == StatusCode.NOT_FOUND:
                return None
            raise
        return read_pod(answer.pod)

    async def watch(self) -> AsyncIterator[PodEvent]:
        """Every pod, `synced`, then every change, until kubelet ends it: then NotReady, and one starts anew.

        kubelet cuts off who reads too slowly (100 events behind), so do not work within the loop.
        """
        call = self._stub().WatchPods(pods_pb2.WatchPodsRequest())
        try:
            async for event in call:
                kind = _KINDS.get(event.type)
                if kind is not None:
                    yield PodEvent(kind, None if kind == "synced" else read_pod(event.pod))
        except aio.AioRpcError as error:
            raise NotReady(
                f"kubelet's Pods API ended the watch: {error.code().name}, {error.details()}"
            ) from error
        finally:
            call.cancel()
        raise NotReady("kubelet's Pods API ended the watch")

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close(None)

    def _stub(self) -> Any:
        if self._channel is None:
            self._channel = connect(self._socket)
        return PodsStub(self._channel)  # type: ignore[no-untyped-call]

    async def _ask(self, call: Callable[[float], Awaitable[T]], timeout: float) -> T:
        return await ask(
            "kubelet's Pods API",
            call,
            deadline=asyncio.get_running_loop().time() + timeout,
            jitter=self._jitter,
            passing=_PASSING,
        )


def _status(error: NotReady) -> StatusCode | None:
    cause = error.__cause__
    return cause.code() if isinstance(cause, aio.AioRpcError) else None


def read_pod(data: bytes) -> Pod:
    """Raises NotReady on bytes that are no pod, which no kubelet sends."""
    try:
        pod = pod_pb2.Pod.FromString(data)
    except DecodeError as error:
        raise NotReady(f"kubelet's Pods API sent a pod that cannot be read: {error}") from error
    meta = pod.metadata
    deleted = datetime.fromtimestamp(meta.deletion_timestamp.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Pod(
        metadata=Meta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            deletionTimestamp=deleted if meta.HasField("deletion_timestamp") else None,
            labels=dict(meta.labels),
            annotations=dict(meta.annotations),
        ),
        spec=PodSpec(
            containers=[_container(each) for each in pod.spec.containers],
            initContainers=[_container(each) for each in pod.spec.init_containers],
            nodeName=pod.spec.node_name or None,
        ),
        status=PodStatus(pod.status.phase),
    )


def _container(container: pod_pb2.Container) -> Container:
    resources = container.resources
    return Container(
        name=container.name,
        resources=Resources(
            limits={name: quantity.string for name, quantity in resources.limits.items()},
            requests={name: quantity.string for name, quantity in resources.requests.items()},
        ),
        restartPolicy=container.restart_policy or None,
    )
