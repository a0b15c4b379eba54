"""Our services on the cluster under test: each under its own service account, with the manifests of deploy/."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from .lab.cluster import Cluster
from .lab.config import scheduler_config
from .lab.process import Process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GUIDE_NODE = ROOT / "examples" / "nodes" / "gcu-8x16.yaml"
LABEL = "enflame.com/gcushare=true"


class Services:
    """Scheduler service and agent, which a test starts, kills and starts again as it needs."""

    def __init__(self, cluster: Cluster, cards: Path = GUIDE_NODE, http_port: int = 32766) -> None:
        self.cluster = cluster
        self.folder = cluster.directory / "accelshare"
        self.folder.mkdir(exist_ok=True)
        self.cards = self.folder / "cards.yaml"
        self.cards.write_text(cards.read_text())
        self.http_port = http_port
        self.key, self.public = self._keys()
        cluster.kubectl("apply", "--server-side", "-f", str(DEPLOY / "access.yaml"))
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

    def start(self, *, agent: Sequence[str] = (), scheduler: Sequence[str] = ()) -> None:
        self.start_scheduler(*scheduler)
        self.start_agent(*agent)
        self.cluster.restart_scheduler(scheduler_config(self.extender()))
        self.cluster.kubectl("label", "node", self.cluster.node, LABEL, "--overwrite")
        self.wait_offered()

    def start_scheduler(
        self, *words: str, name: str = "accelshare-scheduler", server: str | None = None
    ) -> Process:
        identity = self.scheduler_identity
        process = self.cluster.run(
            name,
            [
                *(sys.executable, "-m", "accelshare", "scheduler", "--kubeconfig", str(identity.kubeconfig)),
                *("--http", f"127.0.0.1:{self.http_port}", "--no-tls", "--signing-key", str(self.key)),
                *words,
            ],
        )
        self.cluster.wait(lambda: self.get("/readyz", check=False), "the scheduler service to be ready")
        return process

    def start_agent(self, *words: str) -> Process:
        cluster = self.cluster
        return cluster.run(
            "accelshare-agent",
            [
                *(sys.executable, "-m", "accelshare", "agent"),
                *("--kubeconfig", str(self.agent_identity.kubeconfig), "--node", cluster.node),
                *("--driver", "simulated", "--driver-config", str(self.cards), "--poll", "0.5"),
                *("--runtime-socket", str(cluster.cri_socket), "--state-dir", str(self.folder / "state")),
                *("--trusted-key", str(self.public)),
                *words,
            ],
        )

    def wait_offered(self, resource: str = "enflame.com/gcu-memory", amount: int = 128) -> None:
        def offered() -> bool:
            node = self.cluster.api("GET", f"/api/v1/nodes/{self.cluster.node}")
            return bool(node["status"]["allocatable"].get(resource) == str(amount))

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
