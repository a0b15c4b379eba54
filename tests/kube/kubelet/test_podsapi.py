"""kubelet's Pods API: lists, single pods and the watch, decoded to the pods that the rest of us reads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from accelshare.core.errors import NotReady
from accelshare.core.objects import Container, Meta, Pod, PodSpec, PodStatus, Resources
from accelshare.core.ownership import known_pod
from accelshare.kube.kubelet.podsapi import PodEvent, PodsApi, read_pod
from accelshare.kube.kubelet.protos import pod_pb2, pods_pb2
from accelshare.kube.kubelet.protos.pods_pb2_grpc import PodsServicer, add_PodsServicer_to_server
from tests.kube.kubelet.fake_kubelet import PATIENCE_S, short_directory


def encoded(uid: str = "u1") -> bytes:
    resources = pod_pb2.ResourceRequirements(limits={"enflame.com/gcu-memory": pod_pb2.Quantity(string="8")})
    return pod_pb2.Pod(
        metadata=pod_pb2.ObjectMeta(
            name="train-0",
            namespace="ml",
            uid=uid,
            labels={"app": "t"},
            annotations={"accelshare.io/grant": "g"},
        ),
        spec=pod_pb2.PodSpec(
            containers=[pod_pb2.Container(name="main", resources=resources)],
            init_containers=[pod_pb2.Container(name="proxy", restart_policy="Always")],
            node_name="n1",
        ),
        status=pod_pb2.PodStatus(phase="Running"),
    ).SerializeToString()


class Pods(PodsServicer):
    def __init__(self) -> None:
        self.pods = {"u1": encoded()}
        self.refuse: list[grpc.StatusCode] = []
        self.events: list[pods_pb2.WatchPodsEvent] = []

    async def ListPods(self, request: Any, context: Any) -> pods_pb2.ListPodsResponse:  # noqa: N802
        if self.refuse:
            await context.abort(self.refuse.pop(0), "Kubelet is initializing")
        return pods_pb2.ListPodsResponse(pods=self.pods.values())

    async def GetPod(self, request: Any, context: Any) -> pods_pb2.GetPodResponse:  # noqa: N802
        if request.podUID not in self.pods:
            await context.abort(grpc.StatusCode.NOT_FOUND, "pod not found")
        return pods_pb2.GetPodResponse(pod=self.pods[request.podUID])

    async def WatchPods(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        for event in self.events:
            yield event
        if self.refuse:
            await context.abort(self.refuse.pop(0), "watch client channel closed")


@contextlib.asynccontextmanager
async def serving(path: Path, *servicers: Pods) -> AsyncIterator[PodsApi]:
    server = aio.server()
    for servicer in servicers:
        add_PodsServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    client = PodsApi(path, jitter=lambda: 0.0)
    try:
        yield client
    finally:
        await client.close()
        await server.stop(0)


def scenario(body: Callable[[Pods, PodsApi], Awaitable[None]]) -> None:
    async def whole() -> None:
        pods = Pods()
        with short_directory() as directory:
            async with serving(directory / "s", pods) as client:
                await body(pods, client)

    asyncio.run(whole())


def test_a_pod_reads_like_one_from_the_api_server() -> None:
    """Names, annotations, containers in their roles with what they ask for, node and phase."""
    pod = read_pod(encoded())
    assert pod == Pod(
        metadata=Meta(
            name="train-0",
            namespace="ml",
            uid="u1",
            labels={"app": "t"},
            annotations={"accelshare.io/grant": "g"},
        ),
        spec=PodSpec(
            containers=[
                Container("main", Resources(limits={"enflame.com/gcu-memory": "8"}, requests={}), None)
            ],
            initContainers=[Container("proxy", Resources(limits={}, requests={}), "Always")],
            nodeName="n1",
        ),
        status=PodStatus("Running"),
    )
    assert known_pod(pod).containers == (("proxy", "sidecar"), ("main", "app"))


def test_a_pod_that_is_being_deleted_says_so() -> None:
    """With the time as the API server writes it."""
    raw = pod_pb2.Pod(metadata=pod_pb2.ObjectMeta(deletion_timestamp=pod_pb2.Time(seconds=1_700_000_000)))
    assert read_pod(raw.SerializeToString()).metadata.deletionTimestamp == "2023-11-14T22:13:20Z"


def test_bytes_that_are_no_pod_are_refused() -> None:
    """Nothing of protobuf's own comes out."""
    with pytest.raises(NotReady, match="cannot be read"):
        read_pod(b"\xff\xff")


def test_all_pods_are_listed() -> None:
    """Each one decoded."""

    async def body(pods: Pods, client: PodsApi) -> None:
        pods.pods["u2"] = encoded("u2")
        assert [pod.metadata.uid for pod in await client.list(PATIENCE_S)] == ["u1", "u2"]

    scenario(body)


@pytest.mark.parametrize("code", [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_list_waits_for_a_kubelet_that_is_not_ready(code: grpc.StatusCode) -> None:
    """It refuses while it reads its pods, and beyond 100 calls a second."""

    async def body(pods: Pods, client: PodsApi) -> None:
        pods.refuse = [code]
        assert len(await client.list(PATIENCE_S)) == 1

    scenario(body)


def test_a_single_pod_is_found_by_its_uid() -> None:
    """None means that kubelet has no such pod."""

    async def body(pods: Pods, client: PodsApi) -> None:
        found = await client.get("u1", PATIENCE_S)
        assert found is not None
        assert found.key == "ml/train-0"
        assert await client.get("u9", PATIENCE_S) is None

    scenario(body)


def test_a_watch_gives_every_pod_then_synced_then_changes() -> None:
    """Kinds that a later kubelet may add are passed over, and its end is told."""

    async def body(pods: Pods, client: PodsApi) -> None:
        pods.events = [
            pods_pb2.WatchPodsEvent(type=pods_pb2.ADDED, pod=encoded()),
            pods_pb2.WatchPodsEvent(type=pods_pb2.INITIAL_SYNC_COMPLETE),
            pods_pb2.WatchPodsEvent(type=9, pod=encoded()),  # type: ignore[arg-type]
            pods_pb2.WatchPodsEvent(type=pods_pb2.DELETED, pod=encoded()),
        ]
        watch = client.watch()
        seen: list[PodEvent] = [await anext(watch) for _ in range(3)]
        with pytest.raises(NotReady, match="ended the watch"):
            await anext(watch)
        assert [event.kind for event in seen] == ["added", "synced", "deleted"]
        assert seen[1].pod is None

    scenario(body)


def test_a_reader_that_is_too_slow_is_told_why_it_was_cut_off() -> None:
    """kubelet keeps 100 events for it and no more."""

    async def body(pods: Pods, client: PodsApi) -> None:
        pods.refuse = [grpc.StatusCode.RESOURCE_EXHAUSTED]
        with pytest.raises(NotReady, match="RESOURCE_EXHAUSTED, watch client channel closed"):
            await anext(client.watch())

    scenario(body)


def test_a_kubelet_that_serves_it_is_seen() -> None:
    """One call tells."""

    async def body(pods: Pods, client: PodsApi) -> None:
        assert await client.available()

    scenario(body)


def test_a_kubelet_without_it_is_seen_too() -> None:
    """Neither a socket that is not there nor one that serves something else counts."""

    async def whole() -> None:
        with short_directory() as directory:
            async with serving(directory / "s") as other:
                assert not await other.available()
                with pytest.raises(NotReady, match="UNIMPLEMENTED"):
                    await other.list(PATIENCE_S)
            nowhere = PodsApi(directory / "t")
            assert not await nowhere.available()
            await nowhere.close()

    asyncio.run(whole())
