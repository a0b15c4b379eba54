"""Our services on the cluster under test, each under its own service account, with deploy's manifests."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .lab.api import ApiError
from .lab.cluster import Cluster
from .lab.config import scheduler_config
from .lab.process import Process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GUIDE_NODE = ROOT / "examples" / "nodes" / "gcu-8x16.yaml"
LABEL = "enflame.com/gcushare=true"


def command(verb: str, also: str | None = None) -> list[str]:
    """The service's command; with $ACCELSHARE_WITHOUT set, with that mechanism switched off."""
    switches = [switch for switch in (os.environ.get("ACCELSHARE_WITHOUT"), also) if switch]
    if switches:
        return [sys.executable, "-m", "tests.e2e.without", "+".join(switches), "--", verb]
    return [sys.executable, "-m", "accelshare", verb]


class Seen(NamedTuple):
    devices: list[str]
    env: dict[str, str]


def plain(quantity: str) -> str:
    """640k, as Kubernetes writes 640000, in digits."""
    return quantity.replace("k", "000")


def is_running(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    return bool(statuses) and all("running" in status["state"] for status in statuses)


class Services:
    """Scheduler service and agent, which a test starts, kills and starts again as it needs."""

    def __init__(self, cluster: Cluster, cards: Path = GUIDE_NODE, http_port: int = 32766) -> None:
        self.cluster = cluster
        self.folder = cluster.directory / "accelshare"
        self.folder.mkdir(exist_ok=True)
        self.cards = self.folder / "cards.yaml"
        self.cards.write_text(cards.read_text())
        self.http_port = http_port
        self._former = ""  # the agent before the one that runs: what it wrote does not count
        self.access = DEPLOY / "access.yaml"
        self.key, self.public = self._keys()
        cluster.kubectl("apply", "--server-side", "-f", str(self.access))
        self.scheduler_identity = cluster.service_account("accelshare", "accelshare-scheduler")
        self.agent_identity = cluster.service_account(
            "accelshare", "accelshare-agent", bound=("Node", cluster.node)
        )

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def extender(self, **changes: Any) -> dict[str, Any]:
        """The extender's entry of deploy/kube-scheduler.yaml, on this test's port."""
        entry = yaml.safe_load((DEPLOY / "kube-scheduler.yaml").read_text())["extenders"][0]
        return {**entry, "urlPrefix": self.http, **changes}

    def start(self, *, agent: Sequence[str] = (), scheduler: Sequence[str] = (), offered: int = 128) -> None:
        self.start_scheduler(*scheduler)
        self.start_agent(*agent)
        self.use_extender(offered)

    def use_extender(self, offered: int = 128) -> None:
        """From here on kube-scheduler asks our service, and the node takes pods."""
        self.cluster.restart_scheduler(scheduler_config(self.extender()))
        self.cluster.kubectl("label", "node", self.cluster.node, LABEL, "--overwrite")
        self.wait_offered(amount=offered)

    def mend(self) -> None:
        """Starts again what the last test ended."""
        if not self._runs("accelshare-scheduler"):
            self.start_scheduler()
        if not self._runs("accelshare-agent"):
            self.start_agent()
        self.cluster.kubectl("label", "node", self.cluster.node, LABEL, "--overwrite")
        self.wait_offered()

    def _runs(self, name: str) -> bool:
        process = self.cluster.processes.get(name)
        return process is not None and process.running

    def stop(self) -> None:
        """Ends both services, and gives kube-scheduler back its own configuration."""
        for name in ("accelshare-agent", "accelshare-scheduler"):
            if self._runs(name):
                self.cluster.processes[name].stop(timeout=10)
        self.cluster.restart_scheduler(None)

    def start_scheduler(
        self, *words: str, name: str = "accelshare-scheduler", through: int | None = None
    ) -> Process:
        """through: the port of a proxy before the API server."""
        identity = self.scheduler_identity
        if through is not None:
            identity = self.cluster.service_account(
                "accelshare", "accelshare-scheduler", server=f"https://127.0.0.1:{through}"
            )
        process = self.cluster.run(
            name,
            [
                *(*command("scheduler"), "--kubeconfig", str(identity.kubeconfig)),
                *("--http", f"127.0.0.1:{self.http_port}", "--signing-key", str(self.key)),
                *words,
            ],
        )
        self.cluster.wait(lambda: self.get("/readyz", check=False), "the scheduler service to be ready")
        return process

    def start_agent(
        self,
        *words: str,
        driver: str = "simulated",
        disturbed: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """disturbed: a switch of tests/e2e/without.py that makes life harder for it."""
        cluster = self.cluster
        node = cluster.api("GET", f"/api/v1/nodes/{cluster.node}")
        text = node["metadata"].get("annotations", {}).get("accelshare.io/inventory", "{}")
        self._former = json.loads(text).get("agent", "")
        return cluster.run(
            "accelshare-agent",
            [
                *command("agent", disturbed),
                *("--kubeconfig", str(self.agent_identity.kubeconfig), "--node", cluster.node),
                *("--driver", driver, "--poll", "0.5"),
                *(("--driver-config", str(self.cards)) if driver == "simulated" else ()),
                *("--runtime-socket", str(cluster.cri_socket), "--state-dir", str(self.folder / "state")),
                *("--trusted-key", str(self.public)),
                *words,
            ],
            env,
        )

    def wait_offered(self, resource: str = "enflame.com/gcu-memory", amount: int = 128) -> None:
        def offered() -> bool:
            node = self.cluster.api("GET", f"/api/v1/nodes/{self.cluster.node}")
            inventory = json.loads(node["metadata"]["annotations"].get("accelshare.io/inventory", "{}"))
            gone = (
                inventory.get("problem") or inventory.get("leaving") or inventory.get("agent") == self._former
            )
            return not gone and plain(node["status"]["allocatable"].get(resource, "")) == str(amount)

        self.cluster.wait(offered, f"{amount} of {resource}")

    def get(self, path: str, check: bool = True) -> Any:
        """A GET of the scheduler service; JSON where it is JSON."""
        done = subprocess.run(
            ["curl", "--silent", "--fail-with-body", "--max-time", "5", f"{self.http}{path}"],
            capture_output=True,
            text=True,
            check=check,
        )
        if done.returncode:
            return None
        try:
            return json.loads(done.stdout)
        except ValueError:
            return done.stdout or "empty"

    # Pods

    def create(self, namespace: str, *pods: dict[str, Any]) -> None:
        for pod in pods:
            self.cluster.api("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return found

    def running(self, namespace: str, *names: str, timeout: float = 30) -> None:
        for name in names:
            self.cluster.wait(partial(self._is_running, namespace, name), f"{name} to run", timeout)

    def _is_running(self, namespace: str, name: str) -> bool:
        return is_running(self.pod(namespace, name))

    def delete(self, namespace: str, name: str) -> None:
        self.cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def bound(self, namespace: str, name: str) -> str:
        """The node that the pod was given, once it was given one."""

        def node() -> str | None:
            found: str | None = self.pod(namespace, name)["spec"].get("nodeName")
            return found

        answer: str = self.cluster.wait(node, f"{name} to be bound")
        return answer

    def gone(self, namespace: str, *names: str) -> None:
        for name in names:
            self.cluster.wait(partial(self._is_gone, namespace, name), f"{name} to be gone", 60)

    def _is_gone(self, namespace: str, name: str) -> bool:
        try:
            self.pod(namespace, name)
        except ApiError as error:
            return error.status == 404
        return False

    def card_ids(self) -> list[str]:
        """The ids of the node's cards, by index."""
        node = self.cluster.api("GET", f"/api/v1/nodes/{self.cluster.node}")
        inventory = json.loads(node["metadata"]["annotations"]["accelshare.io/inventory"])
        return [card["id"] for card in inventory["cards"]]

    def ids_of(self, uid: str) -> frozenset[str]:
        """The device ids that kubelet gave a pod, by its checkpoint."""
        path = self.cluster.kubelet_dir / "device-plugins" / "kubelet_internal_checkpoint"
        entries = json.loads(path.read_text())["Data"]["PodDeviceEntries"]
        return frozenset(
            name
            for entry in entries
            if entry["PodUID"] == uid
            for names in entry["DeviceIDs"].values()
            for name in names
        )

    def device_list_bytes(self, resource: str) -> int:
        """How long the list is that kubelet was told of a resource, by the ids in its checkpoint."""
        path = self.cluster.kubelet_dir / "device-plugins" / "kubelet_internal_checkpoint"
        ids = json.loads(path.read_text())["Data"]["RegisteredDevices"][resource]
        # Tag and length of the device, of its id and of its health, and the word Healthy.
        return sum(len(name) + 13 for name in ids)

    def refused(self, namespace: str, name: str) -> str:
        """What kube-scheduler says about a pod that waits."""

        def message() -> str:
            events = self.cluster.api("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
            said = [
                event.get("message") or event.get("note", "")
                for event in events
                if event["reason"] == "FailedScheduling" and event["involvedObject"]["name"] == name
            ]
            return said[-1] if said else ""

        found: str = self.cluster.wait(message, f"an event that says why {name} waits")
        return found

    def annotations(self, namespace: str, name: str, until: tuple[str, str] | None = None) -> dict[str, str]:
        def read() -> dict[str, str] | None:
            found: dict[str, str] = self.pod(namespace, name)["metadata"].get("annotations", {})
            return found if until is None or found.get(until[0]) == until[1] else None

        answer: dict[str, str] = self.cluster.wait(read, f"annotation {until} of {name}")
        return answer

    def sees(self, namespace: str, name: str) -> Seen:
        """What the container finds: its device nodes and what its environment says of its grant."""
        text = self.cluster.kubectl(
            *("exec", "-n", namespace, name, "--", "sh", "-c", "ls /dev; echo --; env")
        )
        devices, _, environment = text.partition("--\n")
        variables = dict(line.partition("=")[::2] for line in environment.splitlines())
        return Seen([name for name in devices.split() if name.startswith("gcu")], variables)

    def _keys(self) -> tuple[Path, Path]:
        key, public = self.folder / "grant.key", self.folder / "grant.pub"
        if not key.exists():
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
            subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
        return key, public


def gcu_pod(
    name: str, units: int, *, command: str = "sleep 3600", image: str = "localhost/busybox:1"
) -> dict[str, Any]:
    """A pod of the guide: one container that asks for so many units."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["sh", "-c", command],
                    "resources": {"limits": {"enflame.com/gcu-memory": units}},
                }
            ],
        },
    }
