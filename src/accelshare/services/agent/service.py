"""The node agent, put together: cards in, inventory out, kubelet's calls answered.

    driver -> look() -> inventory -> the node's annotation, kubelet's device lists
    API server -> pods of this node -> view
    kubelet -> Allocate, PreStartContainer -> serving -> CDI file

Everything runs on one loop; the driver's calls, which block, run in a thread.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from msgspec import structs

import accelshare
from accelshare.core.errors import AccelshareError, BadInput, DriverError
from accelshare.core.inventory import Card, Inventory
from accelshare.core.objects import Node, Pod
from accelshare.dialects import DIALECTS, SLOT
from accelshare.dialects.interface import MarksStart
from accelshare.drivers.interface import Driver
from accelshare.kube.api.client import Client, pod_path
from accelshare.kube.api.errors import NotFound
from accelshare.kube.api.events import EventRecorder, ObjectReference
from accelshare.kube.api.watch import EventType, Reflector
from accelshare.kube.kubelet.cri import cdi_by_version, runtime_cdi
from accelshare.kube.kubelet.host import PluginHost
from accelshare.kube.kubelet.plugin import PluginServer, device_chunk
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.book import GrantBook
from accelshare.services.agent.injection import Cdi, Direct, Injector
from accelshare.services.agent.node import NodeKeeper
from accelshare.services.agent.offers import Device, Offer, offer, spoken
from accelshare.services.agent.serving import Serving
from accelshare.services.agent.settings import AgentSettings
from accelshare.services.agent.view import NodeView, pods_of
from accelshare.services.keys import verifier

_log = logging.getLogger(__name__)

CDI_FOLDER = Path("/var/run/cdi")
YOUNG_SECONDS = 60.0  # an allocation this young may not stand in kubelet's checkpoint yet


class Agent:
    def __init__(
        self, settings: AgentSettings, client: Client, driver: Driver, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._client = client
        self._driver = driver
        self._now = now
        self._name = f"{accelshare.__version__}/{secrets.token_hex(4)}"
        self._view = NodeView(client, settings.node)
        self._keeper = NodeKeeper(client, settings.node)
        self._events = EventRecorder(client, "accelshare-agent")
        self._tasks: set[asyncio.Task[None]] = set()
        self._cards: tuple[Card, ...] = ()
        self._driver_problem = ""
        self._offered = Offer()
        self._look = asyncio.Event()
        self._servers: dict[str, PluginServer] = {}
        self._servings: dict[str, Serving] = {}
        self._injector: Injector | None = None
        self._injection_problem = ""
        state = settings.state_folder
        self._book = GrantBook(
            state / "grants", None if settings.unsigned else verifier(settings.trusted_keys)
        )
        self._allocations = Allocations(state / "allocations")
        self._pods = Reflector(
            client,
            "/api/v1/pods",
            Pod,
            params=pods_of(settings.node),
            on_replace=self._pods_listed,
            on_event=self._pod_changed,
            initial_jitter=1.0,
        )
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            Node,
            params={"fieldSelector": f"metadata.name={settings.node}"},
            on_replace=self._node_listed,
            on_event=self._node_changed,
            initial_jitter=1.0,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until stop is set; then what was asked is answered, and the node is marked as left."""
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._pods.run()), group.create_task(self._nodes.run())]
            running.append(group.create_task(self._keeper.run()))
            if not await self._ready(stop):
                for task in (*running, *self._tasks):
                    task.cancel()
                return
            host = PluginHost(self._settings.plugin_folder, list(self._servers.values()))
            running += [
                group.create_task(host.run()),
                group.create_task(self._look_after_cards()),
                group.create_task(self._publish_changes()),
                group.create_task(self._sweep()),
            ]
            _log.info("agent %s serves node %s: %s", self._name, self._settings.node, self._summary())
            await stop.wait()
            host.leave()
            with contextlib.suppress(AccelshareError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._keeper.leave()
            await host.stop(grace=1.0)
            for task in (*running, *self._tasks):
                task.cancel()

    def _summary(self) -> str:
        way = self._injector.way if self._injector else "none"
        problem = self._problem()
        return f"{len(self._cards)} cards, injection {way}" + (f"; {problem}" if problem else "")

    # Putting together

    async def _ready(self, stop: asyncio.Event) -> bool:
        """Waits until there are cards and a way into containers; until then the node says why it has none."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        while True:
            await self._discover()
            await self._choose_injection()
            self._publish()
            if self._cards and self._injector is not None:
                break
            _log.warning("nothing is offered yet: %s", self._problem())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_seconds):
                    await stop.wait()
                    return False
        self._serve_resources(self._injector)
        self._publish()
        return True

    def _serve_resources(self, injector: Injector) -> None:
        ends = spoken(self._cards, self._settings.dialects)
        primaries = {SLOT if end.mode == "counted" else DIALECTS[name].primary for name, end in ends.items()}
        for resource in sorted(primaries):
            serving = Serving(
                resource,
                view=self._view,
                driver=self._driver,
                book=self._book,
                allocations=self._allocations,
                injector=injector,
                reports=self,
                plugin_folder=self._settings.plugin_folder,
                now=self._now,
            )
            self._servings[resource] = serving
            self._servers[resource] = PluginServer(resource, serving)

    async def _choose_injection(self) -> None:
        settings = self._settings
        if settings.injection == "direct":
            self._injector = Direct()
            return
        state = await runtime_cdi(str(settings.runtime_socket), 5.0)
        enabled = state.enabled
        if enabled is None:
            enabled = cdi_by_version(self._view.runtime_version)
        if enabled:
            self._injector = Cdi(settings.cdi_folder or _dynamic(state.dirs))
        elif settings.injection == "cdi":
            self._injection_problem = (
                "the container runtime does not read CDI files, and --injection=cdi was given: turn CDI on "
                f"(containerd: enable_cdi), or start the agent with --injection=direct ({state.detail})"
            )
        else:
            self._injector = Direct()

    # Cards

    async def _discover(self) -> bool:
        """Whether anything is other than before."""
        before = (self._cards, self._driver_problem)
        try:
            self._cards = await asyncio.to_thread(self._driver.discover)
            self._driver_problem = ""
        except (DriverError, BadInput) as error:
            # What runs keeps its cards; nothing new comes here until they can be asked again.
            self._cards = tuple(_sick(card, str(error)) for card in self._cards)
            self._driver_problem = str(error)
        self._view.cards = {card.id: card for card in self._cards}
        return before != (self._cards, self._driver_problem)

    async def _look_after_cards(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            before = {card.id: card.healthy for card in self._cards}
            if not await self._discover():
                continue
            self._publish()
            for card in self._cards:
                if before.get(card.id, True) != card.healthy:
                    self._tell_tenants(card)

    def _tell_tenants(self, card: Card) -> None:
        _log.warning("card %s (%s) is %s", card.index, card.id, _health(card))
        for tenant in self._view.tenants():
            if any(charge.card == card.id for charge in tenant.charges):
                about = ObjectReference("Pod", tenant.name, tenant.uid, tenant.namespace)
                text = f"card {card.index} ({card.id}) on node {self._settings.node} is {_health(card)}"
                if card.healthy:
                    self._later(self._events.record(about, "Normal", "CardRecovered", text))
                else:
                    self._later(self._events.record(about, "Warning", "CardUnhealthy", text))

    # What is published

    def _problem(self) -> str:
        return self._driver_problem or self._injection_problem or self._offered.problem

    def _publish(self) -> None:
        ends = spoken(self._cards, self._settings.dialects)
        tenants = self._view.tenants()
        old = any(tenant.dialect in ends and tenant.unit != ends[tenant.dialect].unit for tenant in tenants)
        self._offered = offer(self._cards, ends, tenants, self._held() if old else None)
        problem = self._problem()
        inventory = Inventory(
            driver=self._driver.name,
            cards=self._cards,
            dialects=ends,
            injection=self._injector.way if self._injector else None,
            problem=problem,
            agent=self._name,
        )
        self._keeper.want(inventory, {} if problem else self._offered.status)
        for resource, server in self._servers.items():
            devices = () if problem and not self._driver_problem else self._offered.devices.get(resource, ())
            server.publish(_chunks(devices))

    async def _publish_changes(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            self._publish()
            await self._view.tell()

    def _held(self) -> dict[str, frozenset[str]]:
        """By resource, the ids that kubelet's checkpoint gives to pods that live."""
        held: dict[str, set[str]] = {}
        for serving in list(self._servings.values())[:1]:
            for allocation in serving.recorded() or ():
                if self._view.living(allocation.pod_uid):
                    held.setdefault(allocation.resource, set()).update(allocation.ids)
        return {resource: frozenset(ids) for resource, ids in held.items()}

    # The API server's events

    def _pods_listed(self, pods: list[Pod], _version: str) -> None:
        self._view.replace(pods)
        self._look.set()

    def _pod_changed(self, kind: EventType, pod: Pod) -> None:
        self._view.apply(kind, pod)
        self._look.set()

    def _node_listed(self, nodes: list[Node], _version: str) -> None:
        for node in nodes:
            self._node_changed("MODIFIED", node)

    def _node_changed(self, kind: EventType, node: Node) -> None:
        if kind != "DELETED":
            self._view.set_node(node)
            self._keeper.seen(node)

    # Reports of serving

    def refused(self, pod: Pod, why: str) -> None:
        _log.warning("%s", why)
        self._later(self._events.record(_about(pod), "Warning", "GrantRefused", why))

    def mismatched(self, pod: Pod, why: str) -> None:
        self.refused(pod, why)
        self._later(self._evict(pod))

    def served(self, pod: Pod) -> None:
        self._later(self._mark_started(pod))

    async def _evict(self, pod: Pod) -> None:
        with contextlib.suppress(NotFound):
            await self._client.evict(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)

    async def _mark_started(self, pod: Pod) -> None:
        marks: dict[str, str] = {}
        for dialect in DIALECTS.values():
            if isinstance(dialect, MarksStart):
                marks |= dialect.started(pod)
        if not marks:
            return
        patch = {"metadata": {"uid": pod.metadata.uid, "annotations": marks}}
        with contextlib.suppress(NotFound):
            await self._client.patch(pod_path(pod.metadata.namespace, pod.metadata.name), patch, Pod)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(_report_failure(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Files of allocations that are over

    async def _sweep(self) -> None:
        while self._settings.sweep_seconds > 0:
            await asyncio.sleep(self._settings.sweep_seconds)
            self.sweep()

    def sweep(self) -> None:
        """Removes what kubelet's checkpoint no longer holds; where that cannot be read, nothing."""
        serving = next(iter(self._servings.values()), None)
        recorded = serving.recorded() if serving else None
        if recorded is None or self._injector is None:
            return
        live = {allocation.nonce for allocation in recorded}
        for nonce in {*self._allocations.given, *self._injector.nonces()} - live:
            given = self._allocations.given.get(nonce or "")
            if nonce is None or (given is not None and self._now() - given.time < YOUNG_SECONDS):
                continue
            self._injector.withdraw(nonce)
            self._allocations.forget(nonce)


async def _report_failure(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except AccelshareError as error:
        _log.warning("%s", error)


def _dynamic(folders: tuple[str, ...]) -> Path:
    """Of the folders that the runtime reads, the one for files that do not outlive a reboot."""
    if not folders or str(CDI_FOLDER) in folders:
        return CDI_FOLDER
    return Path(next((folder for folder in folders if folder.startswith(("/run", "/var/run"))), folders[-1]))


def _chunks(devices: tuple[Device, ...]) -> list[bytes]:
    return [
        device_chunk((number for number, healthy in devices if healthy is state), healthy=state)
        for state in (True, False)
    ]


def _sick(card: Card, reason: str) -> Card:
    return structs.replace(card, healthy=False, reason=reason)


def _health(card: Card) -> str:
    return "healthy again" if card.healthy else f"unhealthy: {card.reason or 'no reason given'}"


def _about(pod: Pod) -> ObjectReference:
    return ObjectReference("Pod", pod.metadata.name, pod.metadata.uid, pod.metadata.namespace)
