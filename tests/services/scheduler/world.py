"""The service in this process: its HTTP application, an API server in memory, a clock that stands still.

Everything a test asks goes through the ASGI app, as kube-scheduler's calls do.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from accelshare.core.inventory import Card, Inventory
from accelshare.core.objects import Node, Pod
from accelshare.services.scheduler.app import App, make_app
from accelshare.services.scheduler.extender import Extender
from accelshare.services.scheduler.settings import Settings
from tests.builders import a_node, a_pod, an_inventory, cards
from tests.services.scheduler.memory_api import MemoryApi


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reply(NamedTuple):
    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def eight_cards(name: str = "n1", gib: int = 16) -> Node:
    """The node of the guide: eight cards of 16 GB."""
    return a_node(name, an_inventory(cards(8, gib, prefix=f"{name}-")), uid=f"uid-{name}")


def one_card(name: str = "n1", gib: int = 16) -> Node:
    of: tuple[Card, ...] = cards(1, gib, prefix=f"{name}-")
    inventory: Inventory = an_inventory(of)
    return a_node(name, inventory, uid=f"uid-{name}")


class World:
    def __init__(
        self,
        *nodes: Node,
        settings: Settings | None = None,
        checks_uid: bool = True,
        trusted: bool = False,
        api: MemoryApi | None = None,
    ) -> None:
        self.api = api or MemoryApi(checks_uid=checks_uid)
        self.clock = Clock()
        self.leading = True
        self.problems: list[str] = []
        self.extender = Extender(
            settings or Settings(elect=False),
            self.api,
            leads=lambda: self.leading,
            clock=self.clock,
            wall_ns=lambda: int(self.clock.now * 1e9),
        )
        self.state = self.extender.state
        self.ledger = self.state.ledger
        self.app: App = make_app(self.extender, problems=lambda: self.problems, trusted=trusted)
        for node in nodes:
            self.state.node_changed(node)

    # --- HTTP ----------------------------------------------------------------------------------------

    async def call(
        self, method: str, path: str, body: bytes = b"", *, client: str = "127.0.0.1", chunk: int = 0
    ) -> Reply:
        parts = [body[at : at + chunk] for at in range(0, len(body), chunk)] if chunk else [body]
        messages = [
            {"type": "http.request", "body": part, "more_body": at + 1 < len(parts)}
            for at, part in enumerate(parts)
        ]
        sent: list[dict[str, Any]] = []
        length = [] if chunk else [(b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": method, "path": path, "client": (client, 1), "headers": length}

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start, rest = sent
        return Reply(start["status"], dict(start["headers"]), rest["body"])

    def get(self, path: str, **more: Any) -> Reply:
        return asyncio.run(self.call("GET", path, **more))

    def post(self, path: str, obj: object, **more: Any) -> Reply:
        body = obj if isinstance(obj, bytes) else msgspec.json.encode(obj)
        return asyncio.run(self.call("POST", path, body, **more))

    # --- the verbs, as kube-scheduler calls them ----------------------------------------------------

    def filter(self, pod: Pod, *names: str) -> Any:
        return self.post("/filter", {"Pod": pod, "NodeNames": names or ("n1",)}).json

    def scores(self, pod: Pod, *names: str) -> dict[str, int]:
        answer = self.post("/prioritize", {"Pod": pod, "NodeNames": names}).json
        return {item["Host"]: item["Score"] for item in answer}

    async def binding(self, pod: Pod, node: str = "n1") -> str:
        meta = pod.metadata
        body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        reply = await self.call("POST", "/bind", msgspec.json.encode(body))
        error: str = reply.json["Error"]
        return error

    def bind(self, pod: Pod, node: str = "n1") -> str:
        return asyncio.run(self.binding(pod, node))

    def sweep(self) -> None:
        asyncio.run(self.extender.binder.sweep())

    def tick(self) -> None:
        asyncio.run(self.extender.nudger.tick())

    # --- the cluster ---------------------------------------------------------------------------------

    def create(self, name: str, *asks: int, **more: Any) -> Pod:
        """A new pod, which the watch has brought."""
        pod = self.api.create(a_pod(name, *asks, **more))
        self.deliver()
        return pod

    def deliver(self) -> None:
        self.api.deliver(self.state)

    def run(self, name: str, *asks: int, node: str = "n1") -> Pod:
        """A pod that goes the whole way."""
        pod = self.create(name, *asks)
        assert self.filter(pod, node)["NodeNames"] == [node]
        assert self.bind(pod, node) == ""
        self.deliver()
        return pod

    def card_of(self, name: str) -> str:
        return (self.api.pod(name).metadata.annotations or {})["enflame.com/gcu-device-id"]

    def free(self, node: str = "n1") -> list[int]:
        """Free GiB of each card."""
        return [size >> 30 for size in self.ledger.nodes[node].free]
