"""The whole agent in this process, between an API server and a kubelet that are played here."""

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from msgspec import structs

from accelshare.core.container import Edits, nonce_of
from accelshare.core.errors import AccelshareError, DriverError
from accelshare.core.inventory import Card, Inventory, write_inventory
from accelshare.core.objects import Pod
from accelshare.dialects import SLOT
from accelshare.kube.api.client import Client
from accelshare.kube.api.config import ApiConfig
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.injection import Cdi
from accelshare.services.agent.service import YOUNG_SECONDS, Agent
from accelshare.services.agent.settings import AgentSettings, front_ends
from tests.builders import MEMORY, a_card, a_pod, bound, cards
from tests.kube.kubelet.fake_kubelet import FakeKubelet, fake_kubelet
from tests.kube.stub_api import StubApi
from tests.services.agent.fake_cluster import FakeCluster
from tests.services.agent.world import (
    NODE,
    FakeDriver,
    a_grant,
    entry,
    granted,
    ids,
    in_loop,
    write_checkpoint,
)

ASSIGNED = "enflame.com/gcu-device-assigned"
LEAVES_WITHIN_S = 5.0
NOBODY_THERE = ApiConfig("http://127.0.0.1:1")


class World:
    """One node: its API server, its kubelet, its cards, and the agent, which may be started several times."""

    def __init__(self, cluster: FakeCluster, client: Client, kubelet: FakeKubelet, state: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.kubelet = kubelet
        self.driver = FakeDriver(cards(2))
        self.state = state
        self.cdi = state / "cdi"
        self.now = 1000.0
        self.entries: list[dict[str, object]] = []

    def agent(self, *, counted: bool = False, unit: str = "1GB", **changes: Any) -> Agent:
        settings = AgentSettings(
            node=NODE,
            driver="fake",
            dialects=front_ends({"gcushare": unit}, frozenset({"gcushare"} if counted else ())),
            cdi_folder=self.cdi,
            runtime_socket=self.state / "no-runtime.sock",
            plugin_folder=self.kubelet.directory,
            state_folder=self.state,
            unsigned=True,
            poll_seconds=0.02,
            sweep_seconds=0.02,
            spread_seconds=0.0,
        )
        return Agent(structs.replace(settings, **changes), self.client, self.driver, lambda: self.now)

    @contextlib.asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Agent]:
        """An agent that serves, until the end of the block."""
        agent, stop = self.agent(**options), asyncio.Event()
        task = asyncio.create_task(agent.run(stop))
        try:
            yield agent
        finally:
            stop.set()
            await task

    async def offering(self) -> Inventory:
        """As soon as kubelet has a list and the node says so."""
        return await self.cluster.until_inventory(lambda inventory: inventory.cards and not inventory.problem)

    def record(self, *entries: dict[str, object]) -> None:
        self.entries += entries
        write_checkpoint(self.kubelet.directory, *self.entries)

    async def allocate(self, pod: Pod, held: Sequence[str], container: str = "c0", **of: Any) -> str:
        """As kubelet does it: asks the plugin of its last registration, and writes down the answer."""
        answer = await self.kubelet.registered[-1].allocate(*held)
        (device,) = answer.cdi_devices
        nonce = nonce_of(device.name)
        assert nonce is not None
        self.record(entry(pod.metadata.uid, held, nonce, container=container, **of))
        return nonce

    async def start(self, pod: Pod, held: Sequence[str], container: str = "c0", **of: Any) -> str:
        nonce = await self.allocate(pod, held, container, **of)
        await self.kubelet.registered[-1].pre_start(*held)
        return nonce

    def env(self, nonce: str) -> dict[str, str]:
        (device,) = json.loads((self.cdi / f"accelshare.io-{nonce}.json").read_text())["devices"]
        return dict(line.split("=", 1) for line in device["containerEdits"]["env"])

    def nonces(self) -> set[str]:
        return {path.name.removeprefix("accelshare.io-")[:-5] for path in self.cdi.glob("*.json")}

    def sockets(self) -> list[str]:
        return sorted(path.name for path in self.kubelet.directory.glob("accelshare-*.sock"))


def together(
    scenario: Callable[[World], Awaitable[None]], path: Path, runtime: str = "containerd://2.1.0"
) -> None:
    async def whole() -> None:
        async with (
            StubApi() as api,
            FakeCluster(api, runtime) as cluster,
            fake_kubelet() as kubelet,
            Client(api.config, "test") as client,
        ):
            await scenario(World(cluster, client, kubelet, path))

    in_loop(whole)


def pending(name: str, *units: int, card: Card | None = None) -> Pod:
    """A bound pod as the scheduler service leaves it for other tools to read."""
    pod = granted(name, *units, card=card)
    assert pod.metadata.annotations is not None
    pod.metadata.annotations[ASSIGNED] = "false"
    return pod


async def lists(kubelet: FakeKubelet, condition: Callable[[list[tuple[str, str]]], object]) -> None:
    """Until the last list that kubelet got is as it should be."""

    def holds() -> bool:
        plugin = kubelet.registered[-1] if kubelet.registered else None
        if plugin is None or not plugin.lists:
            return False
        return bool(condition([(device.ID, device.health) for device in plugin.lists[-1]]))

    await kubelet.until(holds)


def healthy(devices: Sequence[tuple[str, str]]) -> list[str]:
    return sorted(number for number, health in devices if health == "Healthy")


def test_it_registers_and_publishes_the_nodes_cards(tmp_path: Path) -> None:
    """kubelet has one id a unit, and the node's annotation and status say what there is."""

    async def scenario(world: World) -> None:
        async with world.running():
            plugin = await world.kubelet.plugin()
            inventory = await world.offering()
            assert plugin.request.resource_name == MEMORY
            assert sorted(device.ID for device in plugin.lists[-1]) == sorted(
                [*ids(0, 16, 0), *ids(0, 16, 1)]
            )
            assert inventory.cards == world.driver.cards
            assert (inventory.driver, inventory.injection) == ("fake", "cdi")
            assert inventory.dialects["gcushare"].unit == "1GB"
            await world.cluster.until(lambda: world.cluster.node["status"].get("capacity"))
            assert world.cluster.node["status"]["capacity"] == {"enflame.com/gcu-count": "2"}

    together(scenario, tmp_path)


def test_nothing_is_offered_before_kubelet_knows_the_resource(tmp_path: Path) -> None:
    """A pod that is bound before would fail for good: the inventory says why there is no room yet."""

    async def scenario(world: World) -> None:
        world.kubelet.refuse = "not yet"
        async with world.running():
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert "kubelet has not registered enflame.com/gcu-memory yet" in inventory.problem
            world.kubelet.refuse = ""
            await world.offering()

    together(scenario, tmp_path)


def test_a_pod_is_served_from_allocate_to_its_cdi_file(tmp_path: Path) -> None:
    """Its container gets its own card, and the pod's annotation says so afterwards."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            pod = pending("a", 4, card=a_card(1))
            path = await world.cluster.put_pod(pod)
            nonce = await world.start(pod, ids(0, 4))
            assert world.env(nonce)["ACCELSHARE_CARDS"] == "GCU-1"
            await world.cluster.until(
                lambda: world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "true"
            )

    together(scenario, tmp_path)


def test_assigned_waits_for_the_last_container(tmp_path: Path) -> None:
    """Only when all granted containers have theirs, the pod is marked."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            pod = pending("a", 4, 2)
            path = await world.cluster.put_pod(pod)
            await world.allocate(pod, ids(0, 4), "c0")
            await world.allocate(pod, ids(4, 2), "c1")
            await world.kubelet.registered[-1].pre_start(*ids(0, 4))
            assert world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "false"
            await world.kubelet.registered[-1].pre_start(*ids(4, 2))
            await world.cluster.until(
                lambda: world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "true"
            )

    together(scenario, tmp_path)


def test_a_mark_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """The API server was away when the container started, and nobody will ask us again."""

    async def scenario(world: World) -> None:
        pod = pending("a", 4)
        async with world.running():
            await world.offering()
            path = await world.cluster.put_pod(pod)
            world.cluster.away = True
            await world.start(pod, ids(0, 4))
            await world.cluster.until(lambda: world.cluster.refused)
            assert world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "false"
            world.cluster.away = False
            await world.cluster.until(
                lambda: world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "true"
            )

    together(scenario, tmp_path)


def test_a_pod_without_a_grant_is_refused_with_an_event(tmp_path: Path) -> None:
    """Who looks at the pod reads why it does not start."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            pod = a_pod("a", 4, node=NODE)
            await world.cluster.put_pod(pod)
            with pytest.raises(aio.AioRpcError) as failure:
                await world.start(pod, ids(0, 4))
            assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            await world.cluster.until(lambda: world.cluster.events)
            (event,) = world.cluster.events
            assert event["reason"] == "GrantRefused"
            assert event["involvedObject"]["uid"] == "uid-a"
            assert "was not bound by accelshare's scheduler service" in event["message"]

    together(scenario, tmp_path)


def test_directly_a_mismatched_pod_is_deleted(tmp_path: Path) -> None:
    """The pod that got another's answer is made anew; its UID is the precondition."""

    async def scenario(world: World) -> None:
        async with world.running(injection="direct"):
            await world.offering()
            old, young = pending("old", 4, card=a_card(1)), pending("young", 4)
            young = bound(young, a_grant(young, 4, time=9))
            for pod in (old, young):
                await world.cluster.put_pod(pod)
            answer = await world.kubelet.registered[-1].allocate(*ids(0, 4))
            nonce = answer.annotations["accelshare.io/nonce"]
            world.record(entry("uid-young", ids(0, 4), nonce, direct=True))
            with pytest.raises(aio.AioRpcError):
                await world.kubelet.registered[-1].pre_start(*ids(0, 4))
            await world.cluster.until(lambda: world.cluster.deleted)
            assert world.cluster.deleted == ["uid-young"]

    together(scenario, tmp_path)


def test_a_card_that_falls_sick_is_seen_everywhere_and_comes_back(tmp_path: Path) -> None:
    """kubelet's list, the node's annotation and the pods on it tell of it within a look, both ways."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            await world.cluster.put_pod(pending("a", 4, card=a_card(1)))
            world.driver.cards = (a_card(), structs.replace(a_card(1, healthy=False), reason="too hot"))
            await lists(world.kubelet, lambda devices: len(healthy(devices)) == 16 + 4)
            await world.cluster.until_inventory(lambda inventory: not inventory.cards[1].healthy)
            await world.cluster.until(lambda: len(world.cluster.events) == 1)
            world.driver.cards = cards(2)
            await lists(world.kubelet, lambda devices: len(healthy(devices)) == 32)
            await world.cluster.until_inventory(lambda inventory: inventory.cards[1].healthy)
            await world.cluster.until(lambda: len(world.cluster.events) == 2)
            sick, well = world.cluster.events
            assert (sick["reason"], well["reason"]) == ("CardUnhealthy", "CardRecovered")
            assert sick["involvedObject"]["uid"] == "uid-a"
            assert "card 1 (GCU-1) on node n1 is unhealthy: too hot" in sick["message"]

    together(scenario, tmp_path)


def test_a_card_that_is_taken_out_is_told_to_its_pods(tmp_path: Path) -> None:
    """It is no longer in the inventory; the ids that containers hold stay."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            pod = pending("a", 4, card=a_card(1))
            await world.cluster.put_pod(pod)
            await world.start(pod, ids(0, 4, 1))
            world.driver.cards = cards(1)
            await lists(world.kubelet, lambda devices: len(devices) == 16 + 4)
            assert set(ids(0, 4, 1)) <= set(healthy_now(world))
            await world.cluster.until(lambda: world.cluster.events)
            assert "does not find it any more" in world.cluster.events[0]["message"]

    together(scenario, tmp_path)


def healthy_now(world: World) -> list[str]:
    return [device.ID for device in world.kubelet.registered[-1].lists[-1] if device.health == "Healthy"]


def test_a_driver_that_fails_at_the_start_is_said_and_waited_for(tmp_path: Path) -> None:
    """The node says why it offers nothing, and offers its cards as soon as the driver works."""

    async def scenario(world: World) -> None:
        world.driver.error = DriverError("the library is not installed: install it")
        async with world.running():
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert inventory.problem == "the library is not installed: install it"
            assert world.kubelet.registered == []
            world.driver.error = None
            assert (await world.offering()).cards == world.driver.cards

    together(scenario, tmp_path)


def test_a_node_without_cards_says_so(tmp_path: Path) -> None:
    """The driver works and finds nothing."""

    async def scenario(world: World) -> None:
        world.driver.cards = ()
        async with world.running():
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert inventory.problem == "the fake driver finds no card here"

    together(scenario, tmp_path)


def test_a_driver_that_fails_later_keeps_all_ids_as_unhealthy(tmp_path: Path) -> None:
    """What runs keeps its cards, nothing new comes, and it heals by itself."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            world.driver.error = DriverError("the library is being replaced")
            await lists(world.kubelet, lambda devices: len(devices) == 32 and not healthy(devices))
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert inventory.problem == "the library is being replaced"
            world.driver.error = None
            await lists(world.kubelet, lambda devices: len(healthy(devices)) == 32)
            await world.offering()

    together(scenario, tmp_path)


def test_a_driver_that_hangs_counts_as_one_that_fails(tmp_path: Path) -> None:
    """The node says so, it heals when the driver answers, and the agent can be stopped all the same."""

    async def scenario(world: World) -> None:
        driver = world.driver = Hanging()
        async with world.running(driver_seconds=0.05):
            await world.offering()
            driver.free.clear()
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert "has not answered for 0.05 s" in inventory.problem
            driver.free.set()
            await world.offering()
            driver.free.clear()
            await world.cluster.until_inventory(lambda inventory: inventory.problem)
        driver.free.set()

    together(scenario, tmp_path)


def test_a_driver_that_hangs_is_not_asked_again_beside(tmp_path: Path) -> None:
    """However often the cards are looked at, one thread waits for the answer."""

    async def scenario(world: World) -> None:
        driver = world.driver = Hanging()
        driver.free.clear()
        agent = world.agent(driver_seconds=0.01)
        for _ in range(3):
            await agent._discover()
        assert driver.asked == 1
        driver.free.set()
        await agent._discover()
        assert (driver.asked, agent._cards) == (1, driver.cards)

    together(scenario, tmp_path)


class Hanging(FakeDriver):
    """Answers only while it is free to."""

    def __init__(self) -> None:
        super().__init__(cards(2))
        self.free = threading.Event()
        self.free.set()
        self.asked = 0

    def discover(self) -> tuple[Card, ...]:
        self.asked += 1
        self.free.wait()
        return super().discover()


def test_too_many_ids_are_a_problem_that_stands_on_the_node(tmp_path: Path) -> None:
    """kubelet gets no id, and the operator reads which setting to change."""

    async def scenario(world: World) -> None:
        async with world.running(unit="0.001GB"):
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert "--counted=gcushare" in inventory.problem
            await lists(world.kubelet, lambda devices: devices == [])

    together(scenario, tmp_path)


def test_counted_units_stand_in_the_nodes_status(tmp_path: Path) -> None:
    """kubelet hands out slots; a pod is served by them."""

    async def scenario(world: World) -> None:
        async with world.running(counted=True, unit="0.001GB"):
            await world.offering()
            await world.cluster.until(lambda: MEMORY in world.cluster.node["status"].get("capacity", {}))
            assert world.cluster.node["status"]["capacity"][MEMORY] == "32k"
            plugin = await world.kubelet.plugin()
            assert plugin.request.resource_name == SLOT
            assert len(plugin.lists[-1]) == 2 * 64
            pod = pending("a", 4)
            await world.cluster.put_pod(pod)
            nonce = await world.start(pod, ["GCU-1-slot-0"], resource=SLOT)
            assert world.env(nonce)["ACCELSHARE_CARDS"] == "GCU-0"

    together(scenario, tmp_path)


def test_a_runtime_without_cdi_is_served_directly(tmp_path: Path) -> None:
    """Its version says that it reads no CDI files, and its socket does not say otherwise."""

    async def scenario(world: World) -> None:
        async with world.running():
            assert (await world.offering()).injection == "direct"

    together(scenario, tmp_path, runtime="containerd://1.7.20")


def test_cdi_that_is_demanded_and_not_there_is_a_problem(tmp_path: Path) -> None:
    """The node says why it offers nothing, until the runtime is one that reads CDI files."""

    async def scenario(world: World) -> None:
        async with world.running(injection="cdi"):
            inventory = await world.cluster.until_inventory(lambda inventory: inventory.problem)
            assert "does not read CDI files" in inventory.problem
            assert world.kubelet.registered == []
            await world.cluster.set_runtime("containerd://2.4.1")
            assert (await world.offering()).injection == "cdi"

    together(scenario, tmp_path, runtime="containerd://1.7.20")


def test_a_restarted_kubelet_is_registered_with_anew(tmp_path: Path) -> None:
    """Under another name each time; what was allocated before is still served."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            pod = pending("a", 4)
            await world.cluster.put_pod(pod)
            nonce = await world.allocate(pod, ids(0, 4))
            await world.kubelet.restart()
            await world.kubelet.plugin(2)
            first, second = (plugin.request.endpoint for plugin in world.kubelet.registered)
            assert first != second
            await world.kubelet.registered[-1].pre_start(*ids(0, 4))
            assert world.nonces() == {nonce}

    together(scenario, tmp_path)


def test_a_restarted_agent_serves_what_was_allocated_before(tmp_path: Path) -> None:
    """The answer of the agent before stands in kubelet's record."""

    async def scenario(world: World) -> None:
        pod = pending("a", 4, card=a_card(1))
        async with world.running():
            await world.offering()
            await world.cluster.put_pod(pod)
            nonce = await world.allocate(pod, ids(0, 4))
        async with world.running():
            await world.kubelet.plugin(2)
            await world.kubelet.registered[-1].pre_start(*ids(0, 4))
            assert world.env(nonce)["ACCELSHARE_CARDS"] == "GCU-1"

    together(scenario, tmp_path)


def test_a_new_unit_keeps_old_pods_and_ends_in_the_plain_list(tmp_path: Path) -> None:
    """The operator changes the unit while a pod runs that was counted in the old one."""

    async def scenario(world: World) -> None:
        pod = pending("old", 10)
        async with world.running():
            await world.offering()
            path = await world.cluster.put_pod(pod)
            await world.start(pod, ids(0, 10))
        async with world.running(unit="0.1GB"):
            await world.kubelet.plugin(2)
            await lists(world.kubelet, lambda devices: len(healthy(devices)) == 10 + 60 + 160)
            assert set(ids(0, 10)) <= set(healthy_now(world))
            await world.cluster.delete_pod(path)
            await lists(world.kubelet, lambda devices: len(healthy(devices)) == 320)

    together(scenario, tmp_path)


def test_an_edited_inventory_is_written_again(tmp_path: Path) -> None:
    """Somebody changes the annotation by hand."""

    async def scenario(world: World) -> None:
        async with world.running():
            inventory = await world.offering()
            for text in ("nonsense", "", write_inventory(structs.replace(inventory, cards=()))):
                await world.cluster.annotate_node(text)
                await world.cluster.until(lambda: is_again(world, inventory))

    together(scenario, tmp_path)


def is_again(world: World, inventory: Inventory) -> bool:
    with contextlib.suppress(AccelshareError):
        return world.cluster.inventory == inventory
    return False


def test_a_successor_that_runs_beside_takes_the_node_and_keeps_it(tmp_path: Path) -> None:
    """An agent is replaced with surge: the older one yields, and does not close the node when it goes."""

    async def scenario(world: World) -> None:
        old, stop = world.agent(), asyncio.Event()
        running = asyncio.create_task(old.run(stop))
        await world.offering()
        world.now += 1
        async with world.running() as new:
            await world.kubelet.plugin(2)
            await world.cluster.until_inventory(lambda inventory: inventory.agent == new._name)
            stop.set()
            await running
            inventory = await world.offering()
            assert (inventory.agent, inventory.leaving) == (new._name, False)

    together(scenario, tmp_path)


def test_it_leaves_within_five_seconds_and_says_so(tmp_path: Path) -> None:
    """The node is marked as left, and no socket of ours is left over."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            assert world.sockets() != []
            began = time.monotonic()
        assert time.monotonic() - began < LEAVES_WITHIN_S
        assert world.cluster.inventory is not None
        assert world.cluster.inventory.leaving
        assert world.sockets() == []

    together(scenario, tmp_path)


def test_it_can_be_stopped_before_it_has_begun(tmp_path: Path) -> None:
    """The API server is not there, and nobody has to wait for it."""

    async def scenario(world: World) -> None:
        async with Client(NOBODY_THERE, "test") as client:
            world.client = client
            began = time.monotonic()
            async with world.running():
                pass
            assert time.monotonic() - began < LEAVES_WITHIN_S

    together(scenario, tmp_path)


def test_a_fault_of_its_own_ends_the_whole_agent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A part that fails unexpectedly leaves no half of an agent: the log has the fault, no socket stays."""

    async def scenario(world: World) -> None:
        agent = world.agent()
        running = asyncio.create_task(agent.run(asyncio.Event()))
        await world.offering()
        world.driver.error = ZeroDivisionError("a bug")
        with pytest.raises(AccelshareError, match=r"the agent ends.*ZeroDivisionError\('a bug'\)"):
            await running
        assert world.sockets() == []
        assert world.cluster.inventory is not None
        assert not world.cluster.inventory.leaving

    with caplog.at_level(logging.CRITICAL):
        together(scenario, tmp_path)
    assert "a part of the agent has failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_files_that_nobody_holds_any_more_are_removed_when_they_are_old(tmp_path: Path) -> None:
    """kubelet's record decides; what it may not have written down yet is left alone."""

    async def scenario(world: World) -> None:
        async with world.running(sweep_seconds=0.0) as agent:
            await world.offering()
            gone, stays = pending("gone", 4), pending("stays", 4)
            for pod in (gone, stays):
                await world.cluster.put_pod(pod)
            over = await world.start(gone, ids(0, 4))
            live = await world.start(stays, ids(4, 4))
            del world.entries[0]
            world.record()
            agent.sweep()
            assert world.nonces() == {over, live}
            world.now += YOUNG_SECONDS + 1
            fresh = await world.kubelet.registered[-1].allocate(*ids(8, 4))
            agent.sweep()
            assert world.nonces() == {live}
            nonces = {path.name for path in (world.state / "allocations").iterdir()}
            assert nonces == {live, nonce_of(fresh.cdi_devices[0].name)}

    together(scenario, tmp_path)


def test_without_kubelets_record_nothing_is_removed(tmp_path: Path) -> None:
    """A record that cannot be read is not one in which nobody holds anything."""

    async def scenario(world: World) -> None:
        async with world.running(sweep_seconds=0.0) as agent:
            await world.offering()
            pod = pending("a", 4)
            await world.cluster.put_pod(pod)
            nonce = await world.start(pod, ids(0, 4))
            (world.kubelet.directory / "kubelet_internal_checkpoint").write_bytes(b"{")
            world.now += YOUNG_SECONDS + 1
            agent.sweep()
            assert world.nonces() == {nonce}

    together(scenario, tmp_path)


def test_a_pod_that_has_ended_leaves_no_grant_behind(tmp_path: Path) -> None:
    """The file of its grant goes with the sweep, and so does what a crash left half written."""

    async def scenario(world: World) -> None:
        async with world.running(sweep_seconds=0.0) as agent:
            await world.offering()
            pod = pending("a", 4)
            path = await world.cluster.put_pod(pod)
            await world.start(pod, ids(0, 4))
            unfinished = world.state / "grants" / ".uid-b.00000000.tmp"
            unfinished.write_bytes(b"{")
            os.utime(unfinished, (0, 0))
            await world.cluster.delete_pod(path)
            async with agent._view.changed:
                await agent._view.changed.wait_for(lambda: not agent._view.pods)
            agent.sweep()
            assert [path.name for path in (world.state / "grants").iterdir()] == []

    together(scenario, tmp_path)


def test_what_another_agent_of_this_node_has_just_put_is_left_alone(tmp_path: Path) -> None:
    """While an agent is replaced, the other one gives and puts between our two looks."""

    async def scenario(world: World) -> None:
        async with world.running(sweep_seconds=0.0) as agent:
            await world.offering()
            world.record()
            other, files = Allocations(world.state / "allocations"), Cdi(world.cdi)
            nonce = await other.give(MEMORY, ids(0, 4), world.now)
            await files.put(nonce, Edits())
            agent.sweep()
            assert world.nonces() == {nonce}
            world.now += YOUNG_SECONDS + 1
            agent.sweep()
            assert world.nonces() == set()

    together(scenario, tmp_path)


def test_a_file_of_which_nothing_is_known_goes_when_it_is_old(tmp_path: Path) -> None:
    """Its own age counts where no allocation is written down; a name that we never gave is not touched."""

    async def scenario(world: World) -> None:
        world.now = time.time()
        async with world.running(sweep_seconds=0.0) as agent:
            await world.offering()
            world.record()
            for nonce in ("old", "young", "not-ours"):
                (world.cdi / f"accelshare.io-{nonce}.json").write_bytes(b"{}")
            os.utime(world.cdi / "accelshare.io-old.json", (0, 0))
            os.utime(world.cdi / "accelshare.io-not-ours.json", (0, 0))
            agent.sweep()
            assert world.nonces() == {"young", "not-ours"}

    together(scenario, tmp_path)


def test_directly_a_mark_is_written_also_after_a_restart(tmp_path: Path) -> None:
    """The API server was away when the container started, and the agent was replaced before it came back."""

    async def scenario(world: World) -> None:
        pod = pending("a", 4)
        path = await world.cluster.put_pod(pod)
        async with world.running(injection="direct"):
            await world.offering()
            world.cluster.away = True
            answer = await world.kubelet.registered[-1].allocate(*ids(0, 4))
            nonce = answer.annotations["accelshare.io/nonce"]
            world.record(entry("uid-a", ids(0, 4), nonce, direct=True))
            await world.kubelet.registered[-1].pre_start(*ids(0, 4))
            await world.cluster.until(lambda: world.cluster.refused)
        world.cluster.away = False
        assert world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "false"
        async with world.running(injection="direct"):
            await world.cluster.until(
                lambda: world.cluster.pods[path]["metadata"]["annotations"][ASSIGNED] == "true"
            )

    together(scenario, tmp_path)


def test_another_systems_pod_is_not_overfilled(tmp_path: Path) -> None:
    """It was bound before we came, and holds a card that a grant of ours names too."""

    async def scenario(world: World) -> None:
        async with world.running():
            await world.offering()
            theirs = {
                "enflame.com/gcu-device-id": "0",
                "enflame.com/gcu-device-memory": "16",
                "enflame.com/gcu-device-memory-request": "14",
            }
            await world.cluster.put_pod(a_pod("theirs", 14, node=NODE, annotations=theirs))
            pod = pending("a", 4)
            await world.cluster.put_pod(pod)
            with pytest.raises(aio.AioRpcError, match="would overfill card 0"):
                await world.start(pod, ids(0, 4))

    together(scenario, tmp_path)
