"""The node agent, put together: cards in, inventory out, kubelet's calls answered.

    driver -> look() -> inventory -> the node's annotation, kubelet's device lists
    API server -> pods of this node -> view
    kubelet -> Allocate, PreStartContainer -> serving -> CDI file

Everything runs on one loop; the driver's calls, which block, run in threads, and so do writes to the disk.

A part that fails by a fault of its own ends the whole agent, with a sentence: whoever started it starts it
anew, and nothing of it goes on half alive.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import structs

from accelshare.core.errors import AccelshareError, BadInput, DriverError
from accelshare.core.inventory import Card, FrontEnd, Inventory
from accelshare.core.objects import Node, Pod
from accelshare.dialects import DIALECTS, SLOT
from accelshare.drivers.interface import Driver
from accelshare.kube.api.client import Client
from accelshare.kube.api.events import ObjectReference
from accelshare.kube.api.watch import EventType, Reflector
from accelshare.kube.kubelet.cri import CdiState, cdi_by_version, runtime_cdi
from accelshare.kube.kubelet.host import PluginHost
from accelshare.kube.kubelet.plugin import PluginServer, device_chunk
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.aside import aside
from accelshare.services.agent.book import GrantBook
from accelshare.services.agent.injection import Cdi, Direct, Injector
from accelshare.services.agent.node import NodeKeeper, agent_name
from accelshare.services.agent.offers import Device, Offered, closed, offer, spoken
from accelshare.services.agent.record import KubeletRecord
from accelshare.services.agent.reports import PodReports, missing_marks
from accelshare.services.agent.serving import Serving
from accelshare.services.agent.settings import AgentSettings
from accelshare.services.agent.view import NodeView, pods_of
from accelshare.services.keys import verifier

_log = logging.getLogger(__name__)

CDI_FOLDER = Path("/var/run/cdi")
YOUNG_SECONDS = 60.0  # an allocation this young may not stand in kubelet's checkpoint yet
RUNTIME_SECONDS = 5.0
LEAVE_SECONDS = 2.0
REPORT_SECONDS = 1.0  # what is being reported when we are told to stop


class Agent:
    def __init__(
        self, settings: AgentSettings, client: Client, driver: Driver, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._client = client
        self._driver = driver
        self._now = now
        self._name = agent_name(int(now() * 1e9), secrets.token_hex(4))
        self._view = NodeView(client, settings.node)
        self._keeper = NodeKeeper(client, settings.node)
        self._reports = PodReports(client)
        self._record = KubeletRecord(settings.plugin_folder)
        self._cards: tuple[Card, ...] = ()
        self._asking: asyncio.Future[tuple[Card, ...]] | None = None
        self._driver_problem = ""
        self._ends: dict[str, FrontEnd] = {}
        self._offered = Offered()
        self._look = asyncio.Event()
        self._servers: dict[str, PluginServer] = {}
        self._servings: dict[str, Serving] = {}
        self._injector: Injector | None = None
        self._injection_problem = ""
        self._said = ""  # the problem that was published last
        self._host: PluginHost | None = None
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
            initial_jitter=settings.spread_seconds,
        )
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            Node,
            params={"fieldSelector": f"metadata.name={settings.node}"},
            on_replace=self._node_listed,
            on_event=self._node_changed,
            initial_jitter=settings.spread_seconds,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until stop is set; then what was asked is answered, and the node is marked as left."""
        parts = (self._pods.run(), self._nodes.run(), self._keeper.run(), self._work())
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(part) for part in parts]
                try:
                    await stop.wait()
                    await self._leave()
                finally:
                    if self._host is not None:
                        await self._host.stop(grace=0)
                    self._reports.cancel()
                    for task in running:
                        task.cancel()
        except ExceptionGroup as failures:
            failure = _first(failures)
            if not isinstance(failure, AccelshareError):
                _log.critical("a part of the agent has failed", exc_info=failure)
            raise AccelshareError(f"the agent ends, to be started anew: {failure!r}") from failure

    async def _work(self) -> None:
        injector = await self._ready()
        self._serve_resources(injector)
        self._publish()
        self._host = PluginHost(self._settings.plugin_folder, list(self._servers.values()))
        _log.info("agent %s serves node %s: %s", self._name, self._settings.node, self._summary())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._host.run())
            group.create_task(self._look_after_cards())
            group.create_task(self._publish_changes())
            group.create_task(self._sweep())

    async def _leave(self) -> None:
        if self._host is not None:
            self._host.leave()
        with contextlib.suppress(AccelshareError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._keeper.leave()
        await self._reports.settle(REPORT_SECONDS)
        if self._host is not None:
            await self._host.stop(grace=1.0)

    def _summary(self) -> str:
        way = self._injector.way if self._injector else "none"
        problem = self._problem()
        return f"{len(self._cards)} cards, injection {way}" + (f"; {problem}" if problem else "")

    # Putting together

    async def _ready(self) -> Injector:
        """Waits until there are cards and a way into containers; until then the node says why it has none."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()
        said = ""
        while True:
            await self._discover()
            await self._choose_injection()
            if not self._view.found:
                self._injection_problem = f"there is no node {self._settings.node}: see kubectl get nodes"
            elif self._cards and self._injector is not None:
                return self._injector
            self._publish()
            if said != self._problem():
                said = self._problem()
                _log.warning("nothing is offered yet: %s", said)
            await asyncio.sleep(self._settings.poll_seconds)

    def _serve_resources(self, injector: Injector) -> None:
        ends = spoken(self._cards, self._settings.dialects)
        counted = frozenset(name for name, end in ends.items() if end.mode == "counted")
        primaries = {SLOT if end.mode == "counted" else DIALECTS[name].primary for name, end in ends.items()}
        for resource in sorted(primaries):
            serving = Serving(
                resource,
                view=self._view,
                driver=self._driver,
                book=self._book,
                allocations=self._allocations,
                injector=injector,
                reports=self._reports,
                record=self._record,
                now=self._now,
                counted=counted if resource == SLOT else frozenset(),
            )
            self._servings[resource] = serving
            self._servers[resource] = PluginServer(resource, serving)
            self._servers[resource].on_change.append(self._look.set)

    async def _choose_injection(self) -> None:
        settings = self._settings
        self._injection_problem = ""
        if settings.injection == "direct":
            self._injector = Direct(self._allocations)
            return
        state = await runtime_cdi(settings.runtime_socket, RUNTIME_SECONDS)
        enabled = state.enabled
        if enabled is None:
            enabled = cdi_by_version(self._view.runtime_version)
            _log.warning(
                "the container runtime cannot be asked how grants get into containers (%s); by its version, "
                "%s, it %s CDI files. If that is wrong, or containers stay in CreateContainerError, give "
                "--runtime-socket, or --injection and --cdi-dir",
                state.detail,
                self._view.runtime_version or "unknown",
                "reads" if enabled else "does not read",
            )
        if enabled:
            self._injector = Cdi(settings.cdi_folder or _dynamic(state.dirs))
        elif settings.injection == "cdi":
            self._injection_problem = _no_cdi(state)
        else:
            self._injector = Direct(self._allocations)

    # Cards

    async def _discover(self) -> bool:
        """Whether anything is other than before."""
        before = (self._cards, self._driver_problem)
        try:
            self._cards = await self._asked_driver()
            self._driver_problem = "" if self._cards else f"the {self._driver.name} driver finds no card here"
        except (DriverError, BadInput) as error:
            # What runs keeps its cards; nothing new comes here until they can be asked again.
            self._cards = tuple(_sick(card, str(error)) for card in self._cards)
            self._driver_problem = str(error)
        self._view.cards = {card.id: card for card in self._cards}
        return before != (self._cards, self._driver_problem)

    async def _asked_driver(self) -> tuple[Card, ...]:
        """A call that hangs is not asked a second time beside, but waited for again."""
        if self._asking is None:
            self._asking = aside(self._driver.discover)
        await asyncio.wait([self._asking], timeout=self._settings.driver_seconds)
        if not self._asking.done():
            raise DriverError(
                f"the {self._driver.name} driver has not answered for {self._settings.driver_seconds:g} s"
            )
        asked, self._asking = self._asking, None
        return asked.result()

    async def _look_after_cards(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            before = {card.id: card for card in self._cards}
            if not await self._discover() and self._problem() == self._said:
                continue
            self._publish()
            for card in _turned(before, self._view.cards):
                self._tell_tenants(card)

    def _tell_tenants(self, card: Card) -> None:
        level = logging.INFO if card.healthy else logging.WARNING
        _log.log(level, "card %s (%s) is %s", card.index, card.id, _health(card))
        for tenant in self._view.tenants():
            if any(charge.card == card.id for charge in tenant.charges):
                about = ObjectReference("Pod", tenant.name, tenant.uid, tenant.namespace)
                text = f"card {card.index} ({card.id}) on node {self._settings.node} is {_health(card)}"
                if card.healthy:
                    self._reports.event(about, "Normal", "CardRecovered", text)
                else:
                    self._reports.event(about, "Warning", "CardUnhealthy", text)

    # What is published

    def _problem(self) -> str:
        return (
            self._driver_problem
            or self._injection_problem
            or self._offered.problem
            or self._unregistered()
            or self._lingering()
        )

    def _unregistered(self) -> str:
        """A pod that is bound before kubelet knows the resource would fail for good: no room until then."""
        missing = sorted(name for name, server in self._servers.items() if not server.connected)
        return f"kubelet has not registered {', '.join(missing)} yet" if missing else ""

    def _lingering(self) -> str:
        """Enumerated before, counted now: until kubelet forgets the ids, it fails every pod that asks."""
        counted = {DIALECTS[name].primary for name, end in self._ends.items() if end.mode == "counted"}
        names = ", ".join(sorted(counted & self._record.registered()))
        return (
            f"kubelet still hands out {names} by device ids; it forgets them in five minutes" if names else ""
        )

    def _publish(self) -> None:
        # Where no card is seen any more, what was offered before is what may still be held.
        self._ends = spoken(self._cards, self._settings.dialects) or self._ends
        tenants, held = self._view.tenants(), self._held()
        if self._injection_problem:
            self._offered = closed(self._ends, tenants, held, self._injection_problem)
        else:
            self._offered = offer(self._cards, self._ends, tenants, held)
        self._said = self._problem()
        inventory = Inventory(
            driver=self._driver.name,
            cards=self._cards,
            dialects=self._ends,
            injection=self._injector.way if self._injector else None,
            problem=self._said,
            agent=self._name,
        )
        self._keeper.want(inventory, self._offered.status)
        for resource, server in self._servers.items():
            server.publish(chunks(self._offered.devices.get(resource, ())))

    async def _publish_changes(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            self._publish()
            await self._view.tell()

    def _held(self) -> dict[str, frozenset[str]]:
        """By resource, the ids that kubelet's checkpoint gives to pods that live."""
        held: dict[str, set[str]] = {}
        for allocation in self._record.latest():
            if self._view.living(allocation.pod_uid):
                held.setdefault(allocation.resource, set()).update(allocation.ids)
        return {resource: frozenset(ids) for resource, ids in held.items()}

    # The API server's events

    def _pods_listed(self, pods: list[Pod], version: str) -> None:
        self._view.replace(pods, version)
        self._look.set()

    def _pod_changed(self, kind: EventType, pod: Pod) -> None:
        self._view.apply(kind, pod)
        self._look.set()

    def _node_listed(self, nodes: list[Node], _version: str) -> None:
        for node in nodes:
            self._node_changed("MODIFIED", node)

    def _node_changed(self, kind: EventType, node: Node) -> None:
        if kind == "DELETED":
            self._keeper.gone()
        else:
            self._view.set_node(node)
            self._keeper.seen(node)

    # Files of allocations that are over

    async def _sweep(self) -> None:
        while self._settings.sweep_seconds > 0:
            await asyncio.sleep(self._settings.sweep_seconds)
            self.sweep()

    def sweep(self) -> None:
        """Removes what kubelet's checkpoint no longer holds, and reports what could not be reported before.

        Where the checkpoint cannot be read, nothing is removed.
        """
        recorded = self._record.read()
        if recorded is None or self._injector is None:
            return
        before = self._now() - YOUNG_SECONDS
        live = {allocation.nonce for allocation in recorded}
        for nonce in {*self._allocations.given, *self._injector.nonces()} - live:
            # Another agent of this node, which we replace or which replaces us, gives and puts beside us:
            # what it did since the checkpoint was read is on the disk, and young.
            given = self._allocations.find(nonce)
            if (self._injector.put_at(nonce) if given is None else given.time) < before:
                self._injector.withdraw(nonce)
                self._allocations.forget(nonce)
        for part in (self._allocations, self._book, self._injector):
            part.tidy(before)
        for serving in self._servings.values():
            serving.forget_ended()
            for uid, pod in self._view.pods.items():
                if missing_marks(pod) and serving.complete(uid):
                    self._reports.served(pod)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def _no_cdi(state: CdiState) -> str:
    return (
        "the container runtime does not read CDI files, and --injection=cdi was given: turn CDI on "
        f"(containerd: enable_cdi), or start the agent with --injection=direct ({state.detail})"
    )


def _turned(before: Mapping[str, Card], now: Mapping[str, Card]) -> Iterable[Card]:
    """The cards whose health is other than before; one that is gone is a sick one."""
    for card in before.values():
        if card.id not in now and card.healthy:
            yield _sick(card, "the driver does not find it any more")
    for card in now.values():
        known = before.get(card.id)
        if known is not None and known.healthy != card.healthy:
            yield card


def _dynamic(folders: tuple[str, ...]) -> Path:
    """Of the folders that the runtime reads, the one for files that do not outlive a reboot."""
    if not folders or str(CDI_FOLDER) in folders:
        return CDI_FOLDER
    return Path(next((folder for folder in folders if folder.startswith(("/run", "/var/run"))), folders[-1]))


def chunks(devices: tuple[Device, ...]) -> list[bytes]:
    """The list as kubelet is sent it, devices that are alike together."""
    alike: dict[tuple[bool, int | None], list[str]] = {(True, None): [], (False, None): []}
    for device in devices:
        alike.setdefault((device.healthy, device.numa), []).append(device.id)
    return [device_chunk(ids, healthy=healthy, numa=numa) for (healthy, numa), ids in alike.items()]


def _sick(card: Card, reason: str) -> Card:
    return structs.replace(card, healthy=False, reason=reason)


def _health(card: Card) -> str:
    return "healthy again" if card.healthy else f"unhealthy: {card.reason or 'no reason given'}"
