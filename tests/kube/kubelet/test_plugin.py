"""A plugin's answers to kubelet, and how it stays registered; kubelet's side is played in this process."""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc import aio

from accelshare.core.container import DeviceNode, Mount
from accelshare.core.errors import BadInput, GrantRefused, NotReady
from accelshare.kube.kubelet.host import Keeper, PluginHost, unlink_stale
from accelshare.kube.kubelet.plugin import (
    MAX_LIST_BYTES,
    AllocateAnswer,
    PluginServer,
    device_chunk,
)
from accelshare.kube.kubelet.protos import deviceplugin_pb2 as pb
from tests.kube.kubelet.fake_kubelet import PATIENCE_S, FakeKubelet, fake_kubelet, short_directory

RESOURCE = "enflame.com/gcu-memory"


class Recorder:
    """Handlers that remember what they were asked and answer what they were given."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.answer = AllocateAnswer(cdi=("accelshare.io/grant=n1",))
        self.preferred: list[str] = []
        self.error: Exception | None = None
        self.entered = asyncio.Event()
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def allocate(self, ids: list[str]) -> AllocateAnswer:
        await self._asked(ids)
        return self.answer

    async def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        await self._asked((available, must, size))
        return self.preferred

    async def pre_start(self, ids: frozenset[str]) -> None:
        await self._asked(ids)

    async def _asked(self, what: object) -> None:
        self.asked.append(what)
        self.entered.set()
        await self.proceed.wait()
        if self.error is not None:
            raise self.error


def make(handlers: Recorder | None = None, resource: str = RESOURCE) -> PluginServer:
    names = itertools.count()
    return PluginServer(resource, handlers or Recorder(), draw=lambda: f"{next(names):08x}")


@contextlib.asynccontextmanager
async def hosted(kubelet: FakeKubelet, *servers: PluginServer) -> AsyncIterator[PluginHost]:
    host = PluginHost(kubelet.directory, servers, poll=0.02, jitter=lambda: 0.0)
    running = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        await host.stop(0.1)
        await running


def in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario()

    asyncio.run(whole())


def test_a_plugin_is_registered_with_both_options() -> None:
    """kubelet believes the registration up to 1.25 and the call from 1.26 on, so both say the same."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                plugin = await kubelet.plugin()
                assert plugin.request.resource_name == RESOURCE
                assert plugin.request.version == "v1beta1"
                assert plugin.request.endpoint == "accelshare-enflame-com-gcu-memory-00000000.sock"
                assert plugin.request.options == plugin.options
                assert plugin.options.pre_start_required
                assert plugin.options.get_preferred_allocation_available

    in_loop(scenario)


def test_the_list_says_id_health_and_numa_node() -> None:
    """Chunks made by hand read as protobuf's own messages."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a", "b" * 200], numa=1), device_chunk(["c"], healthy=False)])
            async with hosted(kubelet, server):
                (devices,) = (await kubelet.plugin()).lists
                assert [(device.ID, device.health) for device in devices] == [
                    ("a", "Healthy"),
                    ("b" * 200, "Healthy"),
                    ("c", "Unhealthy"),
                ]
                assert [[node.ID for node in device.topology.nodes] for device in devices] == [[1], [1], []]

    in_loop(scenario)


@pytest.mark.parametrize("numa", [None, 0, 1, 300])
@pytest.mark.parametrize("healthy", [True, False])
def test_a_chunk_is_what_protobuf_would_write(healthy: bool, numa: int | None) -> None:
    """Byte for byte, also where a length needs more than one byte."""
    ids = ["a", "é", "x" * 120, "y" * 20000]
    topology = None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])
    health = "Healthy" if healthy else "Unhealthy"
    devices = [pb.Device(ID=each, health=health, topology=topology) for each in ids]
    expected = pb.ListAndWatchResponse(devices=devices).SerializeToString(deterministic=True)
    assert device_chunk(ids, healthy=healthy, numa=numa) == expected


def test_a_list_that_is_the_same_is_not_sent_again() -> None:
    """kubelet rewrites its checkpoint at every list."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            assert server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                await kubelet.plugin()
                assert not server.publish([device_chunk(["a"])])
                assert server.publish([device_chunk(["a"], healthy=False)])
                plugin = await kubelet.plugin(lists=2)
                assert [[device.health for device in each] for each in plugin.lists] == [
                    ["Healthy"],
                    ["Unhealthy"],
                ]

    in_loop(scenario)


def test_the_largest_list_is_read_and_a_larger_one_refused() -> None:
    """4 MiB exactly pass kubelet's client; one device more is refused here, and told what to do."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            chunk = device_chunk(f"{number:03x}" for number in range(4096))  # 16 bytes each
            server.publish([chunk] * (MAX_LIST_BYTES // len(chunk)))
            async with hosted(kubelet, server):
                (devices,) = (await kubelet.plugin()).lists
                assert len(devices) == MAX_LIST_BYTES // 16
                with pytest.raises(BadInput, match="--counted"):
                    server.publish([*[chunk] * (MAX_LIST_BYTES // len(chunk)), device_chunk(["a"])])

    in_loop(scenario)


def test_an_answer_to_allocate_arrives_whole() -> None:
    """Every field of it, under kubelet's names."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            handlers = Recorder()
            handlers.answer = AllocateAnswer(
                cdi=("accelshare.io/grant=n1",),
                env={"GCU": "1"},
                mounts=(Mount("/host", "/inside"),),
                devices=(DeviceNode("/dev/gcu0", permissions="rwm"),),
                annotations={"accelshare.io/nonce": "n1"},
            )
            server = make(handlers)
            server.publish([device_chunk(["a", "b"])])
            async with hosted(kubelet, server):
                answer = await (await kubelet.plugin()).allocate("a", "b")
                assert answer == pb.ContainerAllocateResponse(
                    cdi_devices=[pb.CDIDevice(name="accelshare.io/grant=n1")],
                    envs={"GCU": "1"},
                    mounts=[pb.Mount(host_path="/host", container_path="/inside", read_only=True)],
                    devices=[
                        pb.DeviceSpec(host_path="/dev/gcu0", container_path="/dev/gcu0", permissions="rwm")
                    ],
                    annotations={"accelshare.io/nonce": "n1"},
                )
                assert handlers.asked == [["a", "b"]]

    in_loop(scenario)


def test_a_preference_is_handed_on() -> None:
    """With what is available, what must be in it, and how many; more ids than gRPC's own limit allows."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            handlers = Recorder()
            handlers.preferred = ["b", "a"]
            server = make(handlers)
            server.publish([device_chunk(["a", "b"])])
            available = [f"{number:060d}" for number in range(80_000)]
            async with hosted(kubelet, server):
                assert await (await kubelet.plugin()).prefer(available, ["a"], 2) == ["b", "a"]
                assert handlers.asked == [(available, ["a"], 2)]

    in_loop(scenario)


def test_a_preference_that_fails_is_no_preference(caplog: pytest.LogCaptureFixture) -> None:
    """kubelet would fail the pod for an error in what is only a hint."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            handlers = Recorder()
            handlers.error = ValueError("nonsense")
            server = make(handlers)
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                assert await (await kubelet.plugin()).prefer(["a"], [], 1) == []

    in_loop(scenario)
    assert "no preference" in caplog.text


@pytest.mark.parametrize("call", ["allocate", "pre_start"])
def test_a_refusal_reaches_kubelet_in_its_own_words(call: str) -> None:
    """The sentence stands in the pod's event."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            handlers = Recorder()
            handlers.error = GrantRefused("the grant is forged")
            server = make(handlers)
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                plugin = await kubelet.plugin()
                with pytest.raises(aio.AioRpcError) as raised:
                    await getattr(plugin, call)("a")
                assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
                assert raised.value.details() == "the grant is forged"

    in_loop(scenario)


def test_pre_start_hands_on_the_ids() -> None:
    """As a set: kubelet has no order for them."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            handlers = Recorder()
            server = make(handlers)
            server.publish([device_chunk(["a", "b"])])
            async with hosted(kubelet, server):
                await (await kubelet.plugin()).pre_start("b", "a")
                assert handlers.asked == [frozenset({"a", "b"})]

    in_loop(scenario)


def test_nothing_is_registered_before_it_has_devices() -> None:
    """kubelet would know the resource and fail every pod that asks for it."""
    server = make()
    keeper = Keeper(server, lambda: 0.5, lambda: 0.0)
    assert not keeper.due((1, 1))
    server.publish([device_chunk(["a"])])
    assert keeper.due((1, 1))


def test_a_first_list_is_registered_at_once() -> None:
    """Its publishing wakes the host, which would else look only now and then."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            host = PluginHost(kubelet.directory, [server], poll=3600)
            running = asyncio.create_task(host.run())
            await asyncio.sleep(0)  # it has begun and found nothing to do
            server.publish([device_chunk(["a"])])
            await kubelet.plugin()
            await host.stop(0)
            await running

    in_loop(scenario)


def test_pauses_grow_from_one_failure_to_the_next_up_to_a_limit() -> None:
    """Half a factor of chance is in each, so that a node's plugins do not come together."""
    now = 0.0
    server = make()
    server.publish([device_chunk(["a"])])
    keeper = Keeper(server, lambda: 0.5, lambda: now)
    pauses = []
    for _ in range(9):
        assert keeper.due((1, 1))
        keeper.failed("no")
        began = now
        while not keeper.due((1, 1)):
            now += 0.25
        pauses.append(now - began)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_a_new_kubelet_is_asked_at_once_whatever_the_old_one_said() -> None:
    """It has refused nothing yet."""
    server = make()
    server.publish([device_chunk(["a"])])
    keeper = Keeper(server, lambda: 0.5, lambda: 0.0)
    assert keeper.due((1, 1))
    keeper.failed("no")
    assert not keeper.due((1, 1))
    assert keeper.due((1, 2))


def test_after_a_restart_of_kubelet_a_plugin_registers_on_a_new_socket() -> None:
    """kubelet has wiped the old one; the list is sent again at once."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                first = await kubelet.plugin()
                await kubelet.restart()
                second = await kubelet.plugin(2)
                assert first.request.endpoint != second.request.endpoint
                assert [device.ID for device in second.lists[0]] == ["a"]

    in_loop(scenario)


def test_a_socket_that_vanished_is_replaced() -> None:
    """The directory may be wiped while kubelet's own socket stays."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                first = await kubelet.plugin()
                kubelet.hold = asyncio.Event()
                (kubelet.directory / first.request.endpoint).unlink()
                await kubelet.until(
                    lambda: first.ended
                )  # before the new one, whose end it would be up to 1.36
                kubelet.hold.set()
                second = await kubelet.plugin(2)
                assert (kubelet.directory / second.request.endpoint).is_socket()

    in_loop(scenario)


def test_a_stream_that_kubelet_ended_is_won_back() -> None:
    """kubelet drops a resource, up to 1.36, when an older process that served it goes."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                first = await kubelet.plugin()
                await kubelet.drop(first)
                second = await kubelet.plugin(2)
                assert second.request.endpoint != first.request.endpoint
                await second.allocate("a")

    in_loop(scenario)


def test_a_call_in_flight_is_answered_on_the_socket_that_was_replaced() -> None:
    """kubelet has asked there and waits there."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            handlers = Recorder()
            handlers.proceed.clear()
            server = make(handlers)
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                first = await kubelet.plugin()
                call = asyncio.create_task(first.pre_start("a"))
                await handlers.entered.wait()
                (kubelet.directory / first.request.endpoint).unlink()
                await kubelet.plugin(2)
                handlers.proceed.set()
                await call

    in_loop(scenario)


def test_a_refused_registration_is_tried_again_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line for as long as the reason stays the same."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            kubelet.refuse = "not today"
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                await kubelet.until(lambda: kubelet.asked >= 3)
                kubelet.refuse = ""
                await kubelet.plugin()

    in_loop(scenario)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "not today" in told[0]


def test_a_refused_registration_leaves_no_socket_behind() -> None:
    """Only the socket that kubelet knows is in the directory."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            kubelet.refuse = "not today"
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                await kubelet.until(lambda: kubelet.asked >= 2)
                kubelet.refuse = ""
                plugin = await kubelet.plugin()
                names = [path.name for path in kubelet.directory.glob("accelshare-*")]
                assert names == [plugin.request.endpoint]

    in_loop(scenario)


def test_who_leaves_answers_on_and_sends_no_list() -> None:
    """What is bound is served; the successor's list is the one that counts."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server) as host:
                plugin = await kubelet.plugin()
                host.leave()
                assert not server.publish([device_chunk(["a"], healthy=False)])
                await plugin.allocate("a")
                await plugin.pre_start("a")
                assert len(plugin.lists) == 1

    in_loop(scenario)


def test_who_leaves_never_registers_again() -> None:
    """Neither for a stream that ended nor for a kubelet that restarted: run() is over."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            host = PluginHost(kubelet.directory, [server], poll=0.02)
            running = asyncio.create_task(host.run())
            plugin = await kubelet.plugin()
            host.leave()
            await running
            await kubelet.drop(plugin)
            await kubelet.restart()
            assert kubelet.asked == 1
            await host.stop(0)

    in_loop(scenario)


def test_leaving_gives_up_a_registration_that_is_on_its_way() -> None:
    """Its successor may have registered meanwhile."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            kubelet.hold = asyncio.Event()
            server = make()
            server.publish([device_chunk(["a"])])
            host = PluginHost(kubelet.directory, [server], register_timeout=3600)
            running = asyncio.create_task(host.run())
            await kubelet.until(lambda: kubelet.asked == 1)
            host.leave()
            async with asyncio.timeout(PATIENCE_S):
                await running
            assert list(kubelet.directory.glob("accelshare-*")) == []

    in_loop(scenario)


def test_stopping_ends_the_stream_and_takes_the_socket_away() -> None:
    """kubelet sees the end at once and not after a time-out."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            server = make()
            server.publish([device_chunk(["a"])])
            async with hosted(kubelet, server):
                plugin = await kubelet.plugin()
            await kubelet.until(lambda: plugin.ended)
            assert list(kubelet.directory.glob("accelshare-*")) == []

    in_loop(scenario)


def test_a_successor_registers_beside_the_one_that_leaves() -> None:
    """Two processes serve the same resource for a while, each on its own socket."""

    async def scenario() -> None:
        async with fake_kubelet() as kubelet:
            old, new = make(), PluginServer(RESOURCE, Recorder())
            old.publish([device_chunk(["a"])])
            new.publish([device_chunk(["a"])])
            async with hosted(kubelet, old) as leaving:
                first = await kubelet.plugin()
                leaving.leave()
                async with hosted(kubelet, new):
                    second = await kubelet.plugin(2)
                    await first.pre_start("a")
                    await second.pre_start("a")

    in_loop(scenario)


def test_only_sockets_on_which_nobody_listens_are_removed() -> None:
    """A predecessor that still serves keeps its socket, and what is not ours is not touched."""
    with short_directory() as directory, socket.socket(socket.AF_UNIX) as alive:
        dead = {name: directory / name for name in ("accelshare-a-1.sock", "other.sock")}
        for path in dead.values():
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind(str(path))
        alive.bind(str(directory / "accelshare-a-2.sock"))
        alive.listen()
        (directory / "accelshare-a-3.sock").write_text("no socket")
        assert unlink_stale(directory) == [dead["accelshare-a-1.sock"]]
        assert sorted(path.name for path in directory.iterdir()) == [
            "accelshare-a-2.sock",
            "accelshare-a-3.sock",
            "other.sock",
        ]


def test_a_directory_that_is_not_there_is_told() -> None:
    """It is kubelet's to make."""

    async def scenario() -> None:
        with pytest.raises(NotReady, match="cannot listen"):
            await make().bind(Path("/nonexistent"))

    in_loop(scenario)
