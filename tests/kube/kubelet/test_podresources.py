"""Pod-resources: one call for many who wait, never an answer older than the question, and patience."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from accelshare.core.errors import NotReady
from accelshare.core.ownership import ContainerDevices, PodDevices
from accelshare.kube.kubelet.podresources import PodResources
from accelshare.kube.kubelet.protos import podresources_pb2 as pb
from accelshare.kube.kubelet.protos.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from tests.kube.kubelet.fake_kubelet import PATIENCE_S, short_directory


class Lister(PodResourcesListerServicer):
    """Answers with the number of the call as the pod's name, so that one sees which call it was."""

    def __init__(self) -> None:
        self.calls = 0
        self.called = asyncio.Condition()
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.refuse: list[grpc.StatusCode] = []

    async def List(self, request: Any, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802
        async with self.called:
            self.calls += 1
            number = self.calls
            self.called.notify_all()
        await self.proceed.wait()
        if self.refuse:
            await context.abort(self.refuse.pop(0), "rejected by rate limit")
        devices = [pb.ContainerDevices(resource_name="r", device_ids=[each]) for each in ("a", "b")]
        container = pb.ContainerResources(name="main", devices=devices)
        pod = pb.PodResources(namespace="ml", name=f"call-{number}", containers=[container])
        return pb.ListPodResourcesResponse(pod_resources=[pod])

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.called:
            await self.called.wait_for(lambda: self.calls >= calls)


@contextlib.asynccontextmanager
async def serving(path: Path, lister: Lister) -> AsyncIterator[None]:
    server = aio.server()
    add_PodResourcesListerServicer_to_server(lister, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def scenario(body: Callable[[Lister, PodResources], Awaitable[None]]) -> None:
    async def whole() -> None:
        lister = Lister()
        with short_directory() as directory:
            async with serving(directory / "s", lister):
                client = PodResources(directory / "s", jitter=lambda: 0.0)
                try:
                    await body(lister, client)
                finally:
                    lister.proceed.set()
                    await client.close()

    asyncio.run(whole())


def names(answer: tuple[PodDevices, ...]) -> list[str]:
    return [pod.name for pod in answer]


def test_an_answer_keeps_the_pieces_of_every_pod() -> None:
    """Joining them is for who knows what they mean."""

    async def body(lister: Lister, client: PodResources) -> None:
        pieces = (ContainerDevices("main", "r", ("a",)), ContainerDevices("main", "r", ("b",)))
        assert await client.list(PATIENCE_S) == (PodDevices("ml", "call-1", pieces),)

    scenario(body)


def test_all_who_ask_at_once_share_one_call() -> None:
    """Fifty containers that start together cost kubelet one answer."""

    async def body(lister: Lister, client: PodResources) -> None:
        answers = await asyncio.gather(*(client.list(PATIENCE_S) for _ in range(50)))
        assert {tuple(names(answer)) for answer in answers} == {("call-1",)}
        assert lister.calls == 1

    scenario(body)


def test_who_asks_during_a_call_gets_the_next_one() -> None:
    """What he waits for may have happened after the first call was begun; he shares it with all like him."""

    async def body(lister: Lister, client: PodResources) -> None:
        lister.proceed.clear()
        early = asyncio.create_task(client.list(PATIENCE_S))
        await lister.until(1)
        late = [asyncio.create_task(client.list(PATIENCE_S)) for _ in range(20)]
        await asyncio.sleep(0)  # they have asked
        lister.proceed.set()
        assert names(await early) == ["call-1"]
        assert [names(answer) for answer in await asyncio.gather(*late)] == [["call-2"]] * 20
        assert lister.calls == 2

    scenario(body)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
def test_a_refusal_that_passes_is_tried_again(code: grpc.StatusCode) -> None:
    """kubelet refuses beyond its rate instead of making one wait."""

    async def body(lister: Lister, client: PodResources) -> None:
        lister.refuse = [code, code]
        assert names(await client.list(PATIENCE_S)) == ["call-3"]

    scenario(body)


def test_a_refusal_that_does_not_pass_is_told_at_once() -> None:
    """With kubelet's own words."""

    async def body(lister: Lister, client: PodResources) -> None:
        lister.refuse = [grpc.StatusCode.UNIMPLEMENTED]
        with pytest.raises(NotReady, match="UNIMPLEMENTED, rejected"):
            await client.list(PATIENCE_S)
        assert lister.calls == 1

    scenario(body)


def test_whose_time_is_up_is_told_while_others_wait_on() -> None:
    """Each caller has a deadline of his own, and the call lasts as long as somebody waits."""

    async def body(lister: Lister, client: PodResources) -> None:
        lister.refuse = [grpc.StatusCode.UNAVAILABLE] * 1000
        patient = asyncio.create_task(client.list(PATIENCE_S))
        with pytest.raises(NotReady, match=r"within 0\.1 s"):
            await client.list(0.1)
        lister.refuse = []
        assert names(await patient) == [f"call-{lister.calls}"]

    scenario(body)


def test_who_gives_up_does_not_take_the_call_from_others() -> None:
    """The caller's task may be cancelled: kubelet's own deadline for a container may be over."""

    async def body(lister: Lister, client: PodResources) -> None:
        lister.proceed.clear()
        first, second = (asyncio.create_task(client.list(PATIENCE_S)) for _ in range(2))
        await lister.until(1)
        first.cancel()
        lister.proceed.set()
        assert names(await second) == ["call-1"]

    scenario(body)


def test_a_socket_that_comes_later_is_found() -> None:
    """kubelet makes it anew when it starts."""

    async def whole() -> None:
        with short_directory() as directory:
            client = PodResources(directory / "s", jitter=lambda: 0.0)
            asked = asyncio.create_task(client.list(PATIENCE_S))
            await asyncio.sleep(0)
            async with serving(directory / "s", Lister()):
                assert names(await asked) == ["call-1"]
            await client.close()

    asyncio.run(whole())


def test_without_a_socket_the_deadline_ends_it() -> None:
    """A sentence and no exception of gRPC's."""

    async def whole() -> None:
        with short_directory() as directory:
            client = PodResources(directory / "s")
            with pytest.raises(NotReady, match="does not answer"):
                await client.list(0.2)
            await client.close()

    asyncio.run(whole())
