"""What the scheduler's verbs cost, as ratios: to a handler on the same stack that does nothing but answer.

The other handler decodes the same request with the same types and answers all names with the same encoder;
for bind it posts the same binding, by the same client, to the same stub API server in this process. Both are
called in turn through their ASGI apps, on a ledger of 15,000 nodes, with 20 shapes of requests in random
order and a change of the ledger between calls. Filter hands on every name that fits, and here all fit;
filter_best hands on the best 32.
"""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, write_inventory
from accelshare.core.objects import Meta, Node, Pod, PodSpec
from accelshare.core.units import GIB
from accelshare.kube.api.client import Client
from accelshare.kube.api.events import EventRecorder
from accelshare.services.scheduler.api import Api, KubeApi
from accelshare.services.scheduler.app import Answer, App, make_app, read_body, send_answer
from accelshare.services.scheduler.extender import Extender
from accelshare.services.scheduler.service import tune_allocator
from accelshare.services.scheduler.settings import Settings
from accelshare.services.scheduler.wire import (
    ErrorAnswer,
    FilterAnswer,
    HostPriority,
    encode,
    read_args,
    read_bind,
)
from benchmarks.figures import Figure
from tests.kube.stub_api import Answer as Served
from tests.kube.stub_api import StubApi

NODES = 15_000
SHAPES = 20
CALLS = 2_000
MEMORY = "enflame.com/gcu-memory"
POD = "train-5d4f8c7b9-x2x9z"


# --- the cluster ----------------------------------------------------------------------------------------


def node_name(at: int) -> str:
    return f"gcu-node-{at:05}.pool.example"


def a_node(at: int) -> Node:
    cards = tuple(
        Card(id=f"GCU-{at:05}{index}", index=index, memory=16 * GIB, minor=index, model="T10")
        for index in range(8)
    )
    inventory = Inventory(driver="simulated", cards=cards, dialects={"gcushare": FrontEnd("1GB")})
    return Node(
        Meta(
            name=node_name(at),
            uid=f"node-{at}",
            resourceVersion=str(at + 1),
            labels={"enflame.com/gcushare": "true"},
            annotations={INVENTORY: write_inventory(inventory)},
        )
    )


def a_pod(at: int, asks: Sequence[int]) -> dict[str, Any]:
    """A pod as kube-scheduler sends it, with much that nobody here reads."""
    meta = {
        "name": POD,
        "namespace": "team-a",
        "uid": f"00000000-0000-0000-0000-{at:012}",
        "resourceVersion": str(100_000 + at),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "train", "pod-template-hash": "5d4f8c7b9"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "train", "controller": True}],
        "managedFields": [
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "apiVersion": "v1",
                "fieldsV1": {f"f:field-{n}": {"f:name": {}, "f:value": {}} for n in range(40)},
            }
        ],
    }
    containers = [
        {
            "name": f"c{n}",
            "image": "registry.example/team/train:1.2.3",
            "command": ["python", "-m", "train"],
            "env": [{"name": f"VARIABLE_{e}", "value": f"value-{e}"} for e in range(12)],
            "resources": {kind: {"cpu": "4", MEMORY: str(ask)} for kind in ("limits", "requests")},
            "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/token", "readOnly": True}],
        }
        for n, ask in enumerate(asks)
    ]
    spec = {
        "containers": containers,
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "volumes": [{"name": "token", "projected": {"sources": [{"secret": {"name": "token"}}]}}],
    }
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}


def shapes(rng: random.Random) -> list[tuple[int, ...]]:
    """20 different ones, of one to three containers, that each fit a card."""
    found: set[tuple[int, ...]] = set()
    while len(found) < SHAPES:
        found.add(tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 3))))
    return sorted(found)


class Bench:
    def __init__(self, best: int | None, api: Api, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.extender = Extender(
            Settings(best=best, elect=False),
            api,
            leads=lambda: True,
            clock=time.perf_counter,
            wall_ns=time.time_ns,
        )
        for at in range(NODES):
            self.extender.state.node_changed(a_node(at))
        self.app = make_app(self.extender, problems=list, trusted=True)
        self.pods = [a_pod(at, asks) for at, asks in enumerate(shapes(self.rng))]
        for pod in self.pods:
            self.extender.state.pod_changed(msgspec.convert(pod, Pod))
        self._changes = 0
        for _ in range(NODES // 3):
            self.change(keep=True)

    def change(self, *, keep: bool = False) -> None:
        """A pod comes to some card, and goes again: no node is ever so full that a shape is refused."""
        at, self._changes = self.rng.randrange(NODES), self._changes + 1
        uid = f"other-{self._changes}"
        share = Share(f"GCU-{at:05}0", 0, GIB)
        grant = Grant(
            dialect="gcushare",
            uid=uid,
            node=node_name(at),
            containers=(ContainerGrant("main", "app", (share,), 1),),
            unit="1GB",
        )
        ledger = self.extender.state.ledger
        ledger.hold(Pod(Meta(name=uid, namespace="team-b"), PodSpec()), grant)
        if not keep:
            ledger.release(uid)

    def bodies(self, names: int, lists: int = 10) -> list[bytes]:
        """kube-scheduler goes round the nodes in one order, and begins where it stopped the last time."""
        every = [node_name(at) for at in range(NODES)] * 2
        found = []
        for pod in self.pods:
            for _ in range(lists):
                begin = self.rng.randrange(NODES)
                chosen = every[begin : begin + names]
                found.append(msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": chosen}))
        return found


# --- the handlers to compare with ------------------------------------------------------------------------


def bare(work: Callable[[bytes], Awaitable[bytes]]) -> App:
    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        await send_answer(send, Answer(await work(await read_body(scope, receive, 1 << 25))))

    return app


async def bare_filter(body: bytes) -> bytes:
    return encode(FilterAnswer(node_names=read_args(body).node_names))


async def bare_prioritize(body: bytes) -> bytes:
    return encode([HostPriority(name, 0) for name in read_args(body).node_names or ()])


def bare_bind(client: Client, annotations: Mapping[str, str]) -> Callable[[bytes], Awaitable[bytes]]:
    async def work(body: bytes) -> bytes:
        args = read_bind(body)
        await client.bind(args.pod_namespace, args.pod_name, args.pod_uid, args.node, annotations)
        return encode(ErrorAnswer())

    return work


async def call(app: App, path: str, body: bytes) -> tuple[float, bytes]:
    """Seconds that the app took, and what it answered."""
    answer: list[bytes] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "client": ("127.0.0.1", 1),
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if "body" in message:
            answer.append(message["body"])

    began = time.perf_counter()
    await app(scope, receive, send)
    return time.perf_counter() - began, b"".join(answer)


# --- measuring -------------------------------------------------------------------------------------------


class Ratio(Struct):
    ours: list[float] = []
    theirs: list[float] = []

    def at(self, quantile: float) -> float:
        return _quantile(self.ours, quantile) / _quantile(self.theirs, quantile)


def _quantile(values: Sequence[float], quantile: float) -> float:
    return sorted(values)[int(len(values) * quantile)]


async def compare(
    bench: Bench, path: str, other: App, bodies: Sequence[bytes], calls: int, expect: Callable[[bytes], None]
) -> Ratio:
    """Ours and the other in turn, each after a change and with a request of its own, drawn by lot.

    With the same request the second would find it in the processor's cache. The first ones are not counted.
    """
    ratio = Ratio()
    for body in bodies[:: max(1, len(bodies) // SHAPES)]:
        expect((await call(bench.app, path, bodies[-1]))[1])
        await call(other, path, body)
    gc.collect()
    gc.freeze()
    for _ in range(calls):
        for app, times in ((bench.app, ratio.ours), (other, ratio.theirs)):
            bench.change()
            times.append((await call(app, path, bench.rng.choice(bodies)))[0])
    expect((await call(bench.app, path, bodies[-1]))[1])
    gc.unfreeze()
    return ratio


def expect_names(count: int) -> Callable[[bytes], None]:
    def check(answer: bytes) -> None:
        found = len(msgspec.json.decode(answer)["NodeNames"])
        assert found == count, f"{found} names were handed on, and {count} were to be"

    return check


def expect_scores(answer: bytes) -> None:
    scores = [item["Score"] for item in msgspec.json.decode(answer)]
    assert min(scores) == 0
    assert 6 <= max(scores) <= 10


async def compare_binds(bench: Bench, client: Client, calls: int) -> Ratio:
    """A pod of each shape in turn goes to some node; then it is seen to be gone."""
    ratio = Ratio()
    state = bench.extender.state
    pods = [msgspec.convert(pod, Pod) for pod in bench.pods]
    for count in range(calls):
        pod = bench.rng.choice(pods)
        meta = msgspec.structs.replace(pod.metadata, uid=f"bound-{count}", resourceVersion=str(count + 1))
        pod = msgspec.structs.replace(pod, metadata=meta)
        state.pod_changed(pod)
        names = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid}
        body = encode({**names, "Node": node_name(bench.rng.randrange(NODES))})
        seconds, answer = await call(bench.app, "/bind", body)
        assert answer == b'{"Error":""}', answer
        ratio.ours.append(seconds)
        hold = state.holds.main(meta.uid)
        assert hold is not None
        theirs = bare(bare_bind(client, hold.annotations))
        ratio.theirs.append((await call(theirs, "/bind", body))[0])
        state.pod_gone(pod)
    return ratio


def _both(name: str, ratio: Ratio, bar: float | None = None) -> list[Figure]:
    return [
        Figure(name, round(ratio.at(0.5), 2), "x", bar),
        Figure(f"{name}.p99", round(ratio.at(0.99), 2), "x"),
    ]


async def _measure() -> list[Figure]:
    tune_allocator()
    found: list[Figure] = []
    async with StubApi() as server, Client(server.config, "benchmark") as client:
        server.answer("GET", "/version", Served(200, {"gitVersion": "v1.37.0"}))
        server.answer("POST", f"/api/v1/namespaces/team-a/pods/{POD}/binding", Served(201, {}))
        api = KubeApi(client, EventRecorder(client, "benchmark"))
        bench = Bench(None, api)
        filtering, scoring = bare(bare_filter), bare(bare_prioritize)
        few, many = bench.bodies(500), bench.bodies(5_000, 2)
        ratio = await compare(bench, "/filter", filtering, few, CALLS, expect_names(500))
        found += _both("scheduler.filter.500", ratio, 2.0)
        ratio = await compare(bench, "/filter", filtering, many, CALLS // 4, expect_names(5_000))
        found += _both("scheduler.filter.5000", ratio)
        ratio = await compare(bench, "/prioritize", scoring, few, CALLS, expect_scores)
        found += _both("scheduler.prioritize.500", ratio)
        found += _both("scheduler.bind", await compare_binds(bench, client, CALLS // 4))
        best = Bench(32, api)
        ratio = await compare(best, "/filter", filtering, few, CALLS, expect_names(32))
        found += _both("scheduler.filter_best.500", ratio)
    return found


def figures(only: str = "") -> Iterator[Figure]:
    """All of them together: they share a ledger that takes longer to fold than a figure to measure."""
    yield from asyncio.run(_measure())


if __name__ == "__main__":
    for figure in figures():
        print(f"{figure.name:34} {figure.value:>8} {figure.unit}")
