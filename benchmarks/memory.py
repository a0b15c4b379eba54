"""What the services keep in memory once they have settled: 30 s after the last event, median of three starts.

A service runs as it does in a cluster, `python -m accelshare ...` with a service account's files, against an
API server in another process (this file, run as a program), which pages lists and keeps watches open. The
agent has a kubelet too, played here, that has allocated every id of the node. `imports` is what the same
modules take in a process that does nothing else.
"""

import asyncio
import base64
import contextlib
import ipaddress
import itertools
import json
import os
import ssl
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import yaml
from aiohttp import ClientSession, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from accelshare.core.grant import GRANT, ContainerGrant, Grant, Share, Sign, write_grant
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, write_inventory
from accelshare.core.units import GIB
from accelshare.dialects import DIALECTS
from accelshare.kube.kubelet.checkpoint import FILE_NAME
from accelshare.services.keys import signer
from benchmarks.figures import Figure
from tests.e2e.lab.cluster import free_ports
from tests.kube.kubelet.fake_kubelet import FakeKubelet

STARTS = 3
SETTLED_SECONDS = 30.0
PATIENCE_SECONDS = 120.0
MEMORY = "enflame.com/gcu-memory"
UNIT = DIALECTS["gcushare"].units["0.1GB"]
CARDS = 8
PARTS = 4  # pods on each card, which fill it
PART = UNIT.count(16 * GIB) // PARTS
ROOT = Path(__file__).parents[1]

Object = dict[str, Any]


# --- figures --------------------------------------------------------------------------------------------


def agent_figures(_only: str) -> list[Figure]:
    """A node of 8 cards in units of 0.1 GB: 1,280 ids, all of them held by pods that were served."""
    return [
        Figure("agent.rss", asyncio.run(_agents()), "MB", bar=70),
        Figure("agent.rss.imports", _imports("accelshare.cli.agent", *AGENT_MODULES), "MB"),
    ]


def scheduler_figures(_only: str) -> list[Figure]:
    """5,000 nodes of 8 cards and 20,000 bound pods, all as whole objects."""
    return [
        Figure("scheduler.rss", asyncio.run(_schedulers()), "MB", bar=90),
        Figure("scheduler.rss.imports", _imports("accelshare.cli.scheduler", *SCHEDULER_MODULES), "MB"),
    ]


AGENT_MODULES = (
    "accelshare.drivers.simulated",
    "accelshare.kube.api.client",
    "accelshare.services.agent.service",
)
SCHEDULER_MODULES = ("accelshare.kube.api.client", "accelshare.services.scheduler.service")


def _imports(*modules: str) -> float:
    code = f"import sys, {', '.join(modules)}; sys.stdout.write(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return _resident(done.stdout)


def _resident(status: str) -> float:
    """Megabytes, of a process's status in /proc."""
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return round(int(line.split()[1]) * 1024 / 1e6, 1)


async def _settled(processes: Sequence[asyncio.subprocess.Process]) -> float:
    await asyncio.sleep(SETTLED_SECONDS)
    return statistics.median(_resident(_status(process)) for process in processes)


def _status(process: asyncio.subprocess.Process) -> str:
    if process.returncode is not None:
        raise RuntimeError(f"a service has ended with {process.returncode}")
    return Path(f"/proc/{process.pid}/status").read_text()


# --- the services ---------------------------------------------------------------------------------------


async def _agents() -> float:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="m", dir="/tmp")))
        api = await stack.enter_async_context(_api_server(folder, "agent"))
        nodes = [await stack.enter_async_context(_agent(api, folder, f"node{n}")) for n in range(STARTS)]
        await asyncio.gather(*[_serve_pods(kubelet, name) for kubelet, name, _ in nodes])
        return await _settled([process for _, _, process in nodes])


@contextlib.asynccontextmanager
async def _agent(
    api: dict[str, str], folder: Path, node: str
) -> AsyncIterator[tuple[FakeKubelet, str, asyncio.subprocess.Process]]:
    """An agent that is registered with a kubelet of its own."""
    plugins = folder / node
    plugins.mkdir()
    kubelet = FakeKubelet(plugins)
    await kubelet.start()
    cards = folder / f"{node}.yaml"
    cards.write_text(f'cards: [{{count: {CARDS}, serial: "{node}-{{index}}-", memory: 16GiB}}]\n')
    words = (
        *("--node", node, "--driver", "simulated", "--driver-config", str(cards)),
        *("--unit", f"gcushare={UNIT.name}", "--cdi-dir", str(folder / f"{node}-cdi")),
        *("--trusted-key", str(folder / "grant.pub")),
        *("--plugin-dir", str(plugins), "--state-dir", str(folder / f"{node}-state")),
        *("--runtime-socket", str(folder / "none.sock")),
    )
    try:
        async with _service(api, folder, "agent", *words) as process:
            await kubelet.plugin()
            yield kubelet, node, process
    finally:
        await kubelet.stop()


async def _serve_pods(kubelet: FakeKubelet, node: str) -> None:
    """Every id goes to one of the node's pods, and each container is about to start."""
    plugin = await kubelet.plugin()
    entries: list[Object] = []
    for index in range(CARDS):
        for part in range(PARTS):
            held = [f"{card_id(node, index)}-_-{n}" for n in range(part * PART, (part + 1) * PART)]
            answer = await plugin.allocate(*held)
            entries.append(
                {
                    "PodUID": f"uid-{pod_name(node, index, part)}",
                    "ContainerName": "main",
                    "ResourceName": MEMORY,
                    "DeviceIDs": {"-1": held},
                    "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
                }
            )
            data = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}
            fresh = kubelet.directory / "checkpoint.new"
            fresh.write_bytes(msgspec.json.encode(data))
            fresh.replace(kubelet.directory / FILE_NAME)
            await plugin.pre_start(*held)


async def _schedulers() -> float:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="m", dir="/tmp")))
        api = await stack.enter_async_context(_api_server(folder, "scheduler"))
        ports = free_ports(STARTS)
        words = ("--no-election", "--signing-key", str(folder / "grant.key"))
        processes = [
            await stack.enter_async_context(
                _service(api, folder, "scheduler", *words, "--http", f"127.0.0.1:{port}")
            )
            for port in ports
        ]
        await asyncio.gather(*[_until_ready(port) for port in ports])
        await asyncio.sleep(EVENTS_SECONDS)
        return await _settled(processes)


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), ClientSession() as session:
        while True:
            with contextlib.suppress(OSError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def _service(
    api: dict[str, str], folder: Path, verb: str, *words: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    call = ("-m", "accelshare", verb, "--credentials", str(folder), "--log-level", "warning", *words)
    environment = {**os.environ, **api, "PYTHONPATH": str(ROOT / "src")}
    process = await asyncio.create_subprocess_exec(sys.executable, *call, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def _api_server(folder: Path, kind: str) -> AsyncIterator[dict[str, str]]:
    """What a service in a pod reads of it from its environment; its files are in the folder."""
    _write_identity(folder)
    _write_keys(folder)
    call = ("-m", "benchmarks.memory", kind, str(folder))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *call,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = (await process.stdout.readline()).decode().strip()
        yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    finally:
        process.terminate()
        await process.wait()


def _write_keys(folder: Path) -> None:
    """What signs grants, and what checks them."""
    key = ed25519.Ed25519PrivateKey.generate()
    (folder / "grant.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "grant.pub").write_bytes(public)


def _write_identity(folder: Path) -> None:
    """A certificate for the server, and what a pod is given of its service account."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    own = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(own, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    (folder / "ca.crt").write_bytes(pem)
    (folder / "token").write_text("token")
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(pem + secret)


# --- objects as they are in a real cluster: most of what they hold is nothing to us -------------------------

_NODE = """
metadata:
  creationTimestamp: "2026-01-01T00:00:00Z"
  resourceVersion: "1"
spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}
status:
  addresses: [{type: InternalIP, address: 10.1.2.3}, {type: Hostname, address: host}]
  nodeInfo:
    {containerRuntimeVersion: "containerd://2.1.4", kubeletVersion: v1.36.4, osImage: Linux,
     architecture: amd64, bootID: 5f2a6c1e-0000-4000-8000-000000000000}
"""

_POD = """
metadata:
  namespace: training
  resourceVersion: "1"
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {app: train, pod-template-hash: 5d4f8c7b9}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: train, uid: r, controller: true}]
spec:
  schedulerName: default-scheduler
  serviceAccountName: default
  priority: 0
  tolerations:
    - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
    - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  volumes:
    - {name: data, persistentVolumeClaim: {claimName: data}}
    - {name: token, projected: {sources: [{serviceAccountToken: {expirationSeconds: 3607, path: token}}]}}
  containers:
    - name: main
      image: registry.example/team/train:1.2.3
      command: [python, -m, train, --config, /etc/train/config.yaml]
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: token, mountPath: /var/run/secrets/token, readOnly: true}
      terminationMessagePath: /dev/termination-log
      imagePullPolicy: IfNotPresent
status:
  phase: Running
  podIP: 10.0.0.7
  hostIP: 10.1.2.3
  conditions:
    - {type: Initialized, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: Ready, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: ContainersReady, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: PodScheduled, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}
  containerStatuses:
    - name: main
      ready: true
      restartCount: 0
      image: registry.example/team/train:1.2.3
      imageID: train@sha256:0000000000000000000000000000000000000000000000000000000000000007
      containerID: containerd://0000000000000000000000000000000000000000000000000000000000000007
      state: {running: {startedAt: "2026-01-01T00:00:00Z"}}
"""


def template(text: str) -> bytes:
    return msgspec.json.encode(yaml.safe_load(text))


NODE_TEMPLATE, POD_TEMPLATE = template(_NODE), template(_POD)


def a_node(name: str, *, inventory: bool) -> Object:
    """An object of about 8 kB."""
    node: Object = msgspec.json.decode(NODE_TEMPLATE)
    meta, status = node["metadata"], node["status"]
    meta |= {"name": name, "uid": f"uid-{name}"}
    meta["labels"] = {f"topology.example/{name}-{n}": f"value-{n}" for n in range(12)}
    meta["labels"]["enflame.com/gcushare"] = "true"
    meta["annotations"] = {"node.alpha.kubernetes.io/ttl": "0"}
    if inventory:
        meta["annotations"][INVENTORY] = write_inventory(an_inventory(name))
    amounts = {"cpu": "64", "memory": "527812340Ki", "pods": "110", MEMORY: "1280"}
    status |= {"capacity": amounts, "allocatable": amounts}
    status["conditions"] = [
        {
            "type": kind,
            "status": "False",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "reason": f"KubeletHas{kind}",
            "message": f"kubelet says of {kind} that nothing is the matter with it",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    image = "registry.example/team/image"
    status["images"] = [
        {"names": [f"{image}-{n}@sha256:{n:064x}", f"{image}-{n}:1.{n}"], "sizeBytes": 10**8 + n}
        for n in range(24)
    ]
    return node


def an_inventory(node: str) -> Inventory:
    cards = tuple(
        Card(
            id=card_id(node, index),
            index=index,
            memory=16 * GIB,
            minor=index,
            model="T10",
            vendor="enflame",
            numa=index // 4,
            pcie=(f"0000:{index:02x}:00.0", "0000:0f:00.0"),
        )
        for index in range(CARDS)
    )
    return Inventory(
        driver="enflame",
        cards=cards,
        dialects={"gcushare": FrontEnd(UNIT.name)},
        injection="cdi",
        agent="0.1.0/0a0b0c0d",
    )


def card_id(node: str, index: int) -> str:
    return f"GCU-{node}-{index}-"


def pod_name(node: str, index: int, part: int) -> str:
    return f"train-{node}-{index}-{part}"


def a_pod(node: str, index: int, part: int, sign: Sign) -> Object:
    """A quarter of a card, in an object of about 4 kB."""
    name = pod_name(node, index, part)
    share = Share(card_id(node, index), index, UNIT.bytes(PART))
    grant = Grant(
        dialect="gcushare",
        uid=f"uid-{name}",
        node=node,
        containers=(ContainerGrant("main", "app", (share,), PART),),
        unit=UNIT.name,
        time=1_767_225_600_000_000_000,
    )
    pod: Object = msgspec.json.decode(POD_TEMPLATE)
    pod["metadata"] |= {"name": name, "uid": grant.uid}
    pod["metadata"]["annotations"] = {
        GRANT: write_grant(grant, sign),
        "enflame.com/gcu-device-id": str(index),
        "enflame.com/gcu-device-memory": "160",
        "enflame.com/gcu-device-memory-request": str(PART),
        "enflame.com/gcu-device-assigned": "true",
        "enflame.com/gcu-device-assign-time": str(grant.time),
    }
    pod["spec"]["nodeName"] = node
    (container,) = pod["spec"]["containers"]
    asked = {"cpu": "2", "memory": "8Gi", MEMORY: str(PART)}
    container["resources"] = {"limits": asked, "requests": asked}
    container["env"] = [{"name": f"SETTING_{n}", "value": f"what-is-set-for-number-{n}"} for n in range(24)]
    return pod


# --- the API server, in a process of its own ----------------------------------------------------------------

NODES = 5_000
PODS_PER_NODE = 4
TOUCHED = 2_000  # objects of each kind that change after the first list
EVENTS_SECONDS = 5.0  # by which all services have read these


class Store:
    """Objects of one kind, by name, and who watches them."""

    def __init__(self, objects: Iterable[Object], touched: int = 0) -> None:
        self.objects = {obj["metadata"]["name"]: msgspec.json.encode(obj) for obj in objects}
        self.touched = touched
        self.watchers: list[tuple[Callable[[Object], bool], asyncio.Queue[bytes]]] = []

    def patch(self, name: str, patch: Object, version: int) -> bytes:
        obj = msgspec.json.decode(self.objects[name])
        _merge(obj, patch)
        obj["metadata"]["resourceVersion"] = str(version)
        data = self.objects[name] = msgspec.json.encode(obj)
        for wanted, queue in self.watchers:
            if wanted(obj):
                queue.put_nowait(_line(data))
        return data


def _merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _line(data: bytes) -> bytes:
    return b'{"type":"MODIFIED","object":' + data + b"}\n"


def _wanted(selector: str) -> Callable[[Object], bool]:
    """`a.b=c` of one field; what a selector leaves out is not there to begin with."""
    path, equals, value = selector.partition("=")
    if not equals or path.endswith("!"):
        return lambda _: True
    outer, inner = path.split(".")
    return lambda obj: bool(obj[outer].get(inner) == value)


class ApiServer:
    def __init__(self, stores: dict[str, Store]) -> None:
        self._stores = stores
        self._version = 10
        self.app = web.Application()
        self.app.router.add_get("/api/v1/{kind}", self._list)
        self.app.router.add_patch("/api/v1/{kind:nodes}/{name}", self._patch)
        self.app.router.add_patch("/api/v1/{kind:nodes}/{name}/status", self._patch)
        self.app.router.add_patch("/api/v1/namespaces/{namespace}/{kind:pods}/{name}", self._patch)
        self.app.router.add_route("*", "/{rest:.*}", self._other)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        store = self._stores[request.match_info["kind"]]
        wanted = _wanted(request.query.get("fieldSelector", ""))
        if request.query.get("watch") == "true":
            return await self._watch(request, store, wanted)
        first, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        found = list(store.objects.values())
        if len(found) <= 1000:
            found = [data for data in found if wanted(msgspec.json.decode(data))]
        following = str(first + limit) if first + limit < len(found) else ""
        head = json.dumps({"resourceVersion": str(self._version), "continue": following})
        items = b",".join(found[first : first + limit])
        return web.Response(body=b'{"metadata":%b,"items":[%b]}' % (head.encode(), items))

    async def _watch(
        self, request: web.Request, store: Store, wanted: Callable[[Object], bool]
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        store.watchers.append((wanted, queue))
        for data in list(store.objects.values())[: store.touched]:
            obj = msgspec.json.decode(data)
            obj["metadata"]["resourceVersion"] = str(self._version + 1)
            await response.write(_line(msgspec.json.encode(obj)))
        while True:
            await response.write(await queue.get())

    async def _patch(self, request: web.Request) -> web.Response:
        self._version += 1
        store = self._stores[request.match_info["kind"]]
        return web.Response(body=store.patch(request.match_info["name"], await request.json(), self._version))

    async def _other(self, _request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "taken"}})


def _stores(kind: str, sign: Sign) -> dict[str, Store]:
    if kind == "agent":
        names = [f"node{n}" for n in range(STARTS)]
        places = itertools.product(names, range(CARDS), range(PARTS))
        pods = (a_pod(name, index, part, sign) for name, index, part in places)
        return {"nodes": Store(a_node(name, inventory=False) for name in names), "pods": Store(pods)}
    names = [f"gcu-node-{n:05}.pool.example" for n in range(NODES)]
    return {
        "nodes": Store((a_node(name, inventory=True) for name in names), TOUCHED),
        "pods": Store((a_pod(name, n, 0, sign) for name in names for n in range(PODS_PER_NODE)), TOUCHED),
    }


async def serve(kind: str, folder: Path) -> None:
    server = ApiServer(_stores(kind, signer(folder / "grant.key")))
    runner = web.AppRunner(server.app, access_log=None)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "server.pem")
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
