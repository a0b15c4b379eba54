"""One real Kubernetes on this machine: etcd, API server, controllers, scheduler, containerd and one kubelet.

    with Cluster(ensure()) as cluster:
        cluster.kubectl("apply", "-f", "-", input=manifest)

Everything listens on loopback, on ports that were free at the start, and lives in one directory with a short
name (`/tmp/as-XXXX`). A machine runs one kubelet, hence one cluster with a node at a time; a second one
waits. More nodes are Node objects without a kubelet. host.py tells what is changed outside the directory and
how that is undone, also after a crash:

    python -m tests.e2e.lab.cluster                 starts a cluster and keeps it until Ctrl-C
    python -m tests.e2e.lab.cluster --clean DIR     removes what a killed run left
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import yaml

from . import config, host, images
from .api import Api, ApiError, Watch
from .config import scheduler_config
from .fakenodes import FakeNodes
from .pki import Pki, write_kubeconfig
from .process import LabError, Process, tail
from .provision import ensure

__all__ = ["ApiError", "Cluster", "Identity", "LabError", "Process", "scheduler_config"]

NODE = "node-1"
_PORTS = ("etcd", "etcd-peer", "apiserver", "controllers", "scheduler", "kubelet", "kubelet-health")


@dataclass(frozen=True)
class Identity:
    """What a service needs to call the API server as its own service account."""

    username: str
    token_file: Path
    kubeconfig: Path
    authority: Path
    server: str


class Cluster:
    def __init__(
        self,
        bin: Path,  # noqa: A002
        directory: Path | None = None,
        *,
        nodes: int = 1,
        runtime: Literal["cdi", "nocdi"] = "cdi",
        kubelet: Mapping[str, Any] | None = None,
        feature_gates: Mapping[str, bool] | None = None,
    ) -> None:
        """`nodes=0` is a control plane alone (any number of them may run at once); from 2 on the further ones
        are fake. `kubelet` is laid over the kubelet's configuration."""
        self.bin = bin
        self.directory = directory or Path(tempfile.mkdtemp(prefix=host.PREFIX))
        self.directory.mkdir(exist_ok=True)
        self.node = NODE
        self.kubelet_dir = host.KUBELET
        self.cri_socket = self.directory / "containerd" / "containerd.sock"
        self.cdi_dir = self.directory / "cdi"
        self.processes: dict[str, Process] = {}
        self._nodes = nodes
        self._runtime = runtime
        self._kubelet_changes = dict(kubelet or {})
        self._gates = dict(feature_gates or {})
        self._held = ExitStack()
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None
        self._fake_nodes: FakeNodes | None = None
        self._before: host.Snapshot | None = None
        self._left: list[str] = []
        self._client: Api | None = None

    # --- up and down ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # a Ctrl-C too must not leave a half-started cluster
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._prepare()
        with ThreadPoolExecutor() as pool:
            runtime = pool.submit(self._start_runtime) if self._nodes else None
            self._start_etcd()
            self._write_identities()
            self._start_api_server()
            if runtime is not None:
                runtime.result()
            self._start_controllers()
            self.restart_scheduler(None)
            if self._nodes:
                self._keeper = threading.Thread(target=self._keep_sysctls, daemon=True)
                self._keeper.start()
                self.start_kubelet()
        self.wait(
            lambda: self._exists("/api/v1/namespaces/default/serviceaccounts/default"), "a service account"
        )
        if self._nodes:
            self.wait(self._node_takes_pods, f"{self.node} to be Ready", 60)
        for number in range(2, self._nodes + 1):
            self.add_fake_node(f"node-{number}")

    def close(self) -> None:
        """Services get SIGTERM and three seconds; all else ends at once, and nothing of it stays."""
        with self._held:  # the next cluster may start when this one is gone, or has failed to go
            self._closing.set()
            if self._fake_nodes is not None:
                self._fake_nodes.stop()
            if self._keeper is not None:
                self._keeper.join()
            for name, process in self.processes.items():
                if name not in config.DAEMONS:
                    process.stop(timeout=3)
            if self._client is not None:
                self._client.close()
            self._keep_logs()
            host.clean(self.directory)
            for process in self.processes.values():
                process.kill()  # dead already: this reaps it
            self._left = self._compare()

    def traces(self) -> list[str]:
        """What of this cluster was still to be seen on the machine when close() was done with it."""
        return self._left

    # --- asking the API server ------------------------------------------------------------------------------

    def api(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str | None = None,
        timeout: float = 30,
    ) -> Any:
        """The decoded answer to a request as administrator; ApiError (with .status) from 400 on."""
        return self._admin.request(method, path, body, content_type, timeout)

    def kubectl(self, *words: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        """What kubectl printed; with check=False also what it complained about."""
        environment = {**os.environ, "KUBECONFIG": str(self.admin_kubeconfig)}
        done = subprocess.run(
            [self.bin / "kubectl", f"--cache-dir={self.directory}/kubectl", *words],
            input=input,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"kubectl {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def through(self, port: int) -> Api:
        """The same client by another port of this machine, as that of a proxy."""
        return Api(port, self._pki.authority, self._pki.tokens["admin"])

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A name space that ends with the block; pods are gone then, whatever their grace."""
        self._create_unless_there("/api/v1/namespaces", name)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait(lambda: self._exists(account), f"the service account of {name}")
        try:
            yield name
        finally:
            self._empty(name)
            self.api("DELETE", f"/api/v1/namespaces/{name}")

    def wait(self, predicate: Callable[[], object], what: str, timeout: float = 30) -> Any:
        """Asks every 50 ms until the answer is true, and returns it. An ApiError counts as "not yet"."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if answer := predicate():
                    return answer
            except ApiError as error:
                answer = error
            if time.monotonic() > deadline:
                raise LabError(
                    f"waited {timeout:g} s for {what}; last answer: {answer!r}\n{self.log_tails()}"
                )
            time.sleep(0.05)

    def watch(self, path: str, **query: str) -> Watch:
        return self._admin.watch(path, **query)

    def watch_pods(self, namespace: str | None = None) -> Watch:
        return self.watch("/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods")

    def log_tails(self, lines: int = 8) -> str:
        logs = sorted((self.directory / "log").glob("*.log"))
        return "\n".join(f"--- {log.stem}\n{tail(log, lines)}" for log in logs)

    # --- services under test --------------------------------------------------------------------------------

    def service_account(
        self,
        namespace: str,
        name: str,
        manifests: Iterable[Path] = (),
        *,
        bound: tuple[Literal["Pod", "Node"], str] | None = None,
        server: str | None = None,
    ) -> Identity:
        """Makes the account, applies the manifests (its roles), asks for a token and writes a kubeconfig.

        `bound` ties the token to a pod or a node, whose name the API server then writes into the token;
        `server` is another way to the API server, as through a proxy.
        """
        for path, object_name in (
            ("/api/v1/namespaces", namespace),
            (f"/api/v1/namespaces/{namespace}/serviceaccounts", name),
        ):
            self._create_unless_there(path, object_name)
        for manifest in manifests:
            self.kubectl("apply", "--server-side", "-f", str(manifest))
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        spec: dict[str, Any] = {"audiences": [config.AUDIENCE], "expirationSeconds": 86400}
        if bound is not None:
            spec["boundObjectRef"] = self._reference(namespace, *bound)
        answer = self.api(
            "POST",
            f"{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        folder = (
            self.directory
            / "identity"
            / (f"{namespace}-{name}" if bound is None else f"{namespace}-{name}-{bound[1]}")
        )
        folder.mkdir(parents=True, exist_ok=True)
        token = folder / "token"
        token.write_text(answer["status"]["token"])
        token.chmod(0o600)
        address = server or self.server
        written = write_kubeconfig(
            folder / "kubeconfig", address, self._pki.authority, {"tokenFile": str(token)}
        )
        return Identity(
            f"system:serviceaccount:{namespace}:{name}", token, written, self._pki.authority, address
        )

    def run(
        self,
        name: str,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a service under test; its log is <directory>/log/<name>.log, and close() stops it."""
        if name in config.DAEMONS or ((old := self.processes.get(name)) is not None and old.running):
            raise LabError(f"a process called {name} runs already")
        return self._start(name, argv, env)

    def certificate(
        self, name: str, names: Iterable[str] = ("DNS:localhost", "IP:127.0.0.1")
    ) -> tuple[Path, Path]:
        """Certificate and key of a server under test, signed by the cluster's authority."""
        return self._pki.leaf(name, names)

    @property
    def authority(self) -> Path:
        return self._pki.authority

    @property
    def api_port(self) -> int:
        return self._ports["apiserver"]

    @property
    def log_dir(self) -> Path:
        return self.directory / "log"

    # --- parts that tests restart ---------------------------------------------------------------------------

    def restart_scheduler(self, configuration: Mapping[str, Any] | None) -> None:
        """Starts kube-scheduler anew with this KubeSchedulerConfiguration (None: the default one)."""
        if (old := self.processes.get("scheduler")) is not None:
            old.stop()
        wanted = configuration or scheduler_config(None)
        path = self.directory / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config.scheduler(wanted, self._pki)))
        self._start(
            "scheduler",
            config.scheduler_flags(self.bin, self._pki, path, self._ports["scheduler"], self._gates),
        )
        self._wait_healthy("scheduler")

    def start_kubelet(self, changes: Mapping[str, Any] | None = None) -> None:
        """Starts the kubelet and waits until it takes the registrations of device plugins."""
        self._kubelet_changes.update(changes or {})
        path = self.directory / "kubelet.yaml"
        written = config.kubelet(self.directory, self._pki, self._ports, self._gates)
        path.write_text(yaml.safe_dump({**written, **self._kubelet_changes}))
        last = self._registration_socket()
        self._start("kubelet", config.kubelet_flags(self.bin, self._pki, path, self.node))
        self._wait_ready(lambda: self._registration_socket() not in (None, last), "kubelet")

    def stop_kubelet(self) -> None:
        """Its pods go on running."""
        self.processes["kubelet"].stop()

    def restart_kubelet(self, changes: Mapping[str, Any] | None = None) -> None:
        self.stop_kubelet()
        self.start_kubelet(changes)

    # --- nodes without a kubelet ----------------------------------------------------------------------------

    def add_fake_node(
        self,
        name: str,
        capacity: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.add_fake_nodes([name], capacity, labels, annotations)

    def add_fake_nodes(
        self,
        names: Sequence[str],
        capacity: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Adds them all and waits until kube-scheduler would take them."""
        if self._fake_nodes is None:
            self._fake_nodes = FakeNodes(self._admin)
        nodes = self._fake_nodes
        nodes.add(names, capacity or {}, labels or {}, annotations or {})
        self.wait(lambda: nodes.untainted(names), f"{len(names)} fake nodes to be Ready", 60)

    def remove_fake_nodes(self, names: Iterable[str]) -> None:
        if self._fake_nodes is not None:
            self._fake_nodes.remove(names)

    # --- starting -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._nodes and os.geteuid():
            raise LabError(
                "a cluster with a node needs root: it mounts, makes control groups and network name spaces"
            )
        # The longest socket is one of containerd's; the kernel takes no longer path.
        if self._nodes and len(f"{self.cri_socket}.ttrpc") > 107:
            raise LabError(f"{self.directory} is too long a path for unix sockets: choose a shorter one")
        if self._nodes:
            self._held.enter_context(host.machine(self.directory))
            # A second start in the same directory finds it cleaned away together with the first.
            self.directory.mkdir(exist_ok=True)
        else:
            host.clean_dead_runs(with_node=False)
        self._before = host.claim(self.directory, self.node if self._nodes else None)
        for name in ("log", "pid", "containerd", "cdi", "cni", "etcd"):
            (self.directory / name).mkdir(mode=0o700)
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.server = f"https://127.0.0.1:{self._ports['apiserver']}"
        self.admin_kubeconfig = self.directory / "admin.kubeconfig"

    def _start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Process:
        process = Process(name, argv, self.directory, env or {})
        self.processes[name] = process
        return process

    def _start_etcd(self) -> None:
        self._start("etcd", config.etcd_flags(self.directory, self._ports))

    def _write_identities(self) -> None:
        self._pki = Pki(self.directory / "pki", self.node)
        self._client = Api(self._ports["apiserver"], self._pki.authority, self._pki.tokens["admin"])
        files = {
            "admin": self.admin_kubeconfig,
            "system:kube-controller-manager": Path(self._pki["controllers.kubeconfig"]),
            "system:kube-scheduler": Path(self._pki["scheduler.kubeconfig"]),
            f"system:node:{self.node}": Path(self._pki["kubelet.kubeconfig"]),
        }
        for user, path in files.items():
            write_kubeconfig(path, self.server, self._pki.authority, {"token": self._pki.tokens[user]})

    def _start_api_server(self) -> None:
        self._start("apiserver", config.api_server_flags(self.bin, self._pki, self._ports, self._gates))
        self._wait_ready(lambda: self.api("GET", "/readyz") == "ok", "apiserver")

    def _start_controllers(self) -> None:
        self._start(
            "controllers",
            config.controllers_flags(self.bin, self.directory, self._pki, self._ports, self._gates),
        )

    def _start_runtime(self) -> None:
        with ThreadPoolExecutor() as pool:
            built = pool.submit(images.build, self.directory / "images")
            path = self.directory / "containerd.toml"
            path.write_text(config.containerd(self.directory, self.cdi_dir, cdi=self._runtime == "cdi"))
            config.write_network(self.directory / "cni", host.NETWORK)
            # containerd finds its shim, and runc, by PATH.
            found = f"{self.bin}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
            self._start("containerd", [self.bin / "containerd", "--config", path], {"PATH": found})
            self._wait_ready(self.cri_socket.is_socket, "containerd")
            for archive in built.result():
                self._import(archive)

    def _import(self, archive: Path) -> None:
        done = subprocess.run(
            [
                *(
                    self.bin / "ctr",
                    "--address",
                    self.cri_socket,
                    "--connect-timeout",
                    "20s",
                    "--namespace",
                    "k8s.io",
                ),
                *("images", "import", "--local", archive),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LabError(f"the image {archive.name} was not imported: {done.stderr}\n{self.log_tails()}")

    def _wait_ready(self, ready: Callable[[], object], name: str, timeout: float = 60) -> None:
        """Until it answers; at once an error when it has ended instead."""

        def answers() -> bool:
            if not self.processes[name].running:
                raise LabError(f"{name} ended at its start:\n{tail(self.processes[name].log)}")
            try:
                return bool(ready())
            except (OSError, ApiError):
                return False

        self.wait(answers, f"{name} to be ready", timeout)

    def _wait_healthy(self, name: str) -> None:
        with Api(self._ports[name], self._pki.authority, "") as health:
            self._wait_ready(lambda: health.request("GET", "/healthz") == "ok", name)

    # --- small questions ------------------------------------------------------------------------------------

    def _exists(self, path: str) -> bool:
        self.api("GET", path)
        return True

    def _node_takes_pods(self) -> bool:
        node = self.api("GET", f"/api/v1/nodes/{self.node}")
        conditions = {entry["type"]: entry["status"] for entry in node["status"]["conditions"]}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def _registration_socket(self) -> int | None:
        """When the kubelet made the socket to register at: anew at each start, once all its parts run."""
        path = self.kubelet_dir / "device-plugins" / "kubelet.sock"
        return path.stat().st_ctime_ns if path.exists() else None

    def _create_unless_there(self, collection: str, name: str) -> None:
        try:
            self.api("POST", collection, {"metadata": {"name": name}})
        except ApiError as error:
            if error.status != 409:
                raise

    def _empty(self, namespace: str) -> None:
        """Owners go first, so that no pod is made anew. A kubelet gets a second for each pod and confirms its
        end; where there is none, nobody confirms anything and the object has to go at once."""
        kinds = "deployments,daemonsets,statefulsets,replicasets,jobs"
        self.kubectl("-n", namespace, "delete", kinds, "--all", "--wait=false")
        pods = f"/api/v1/namespaces/{namespace}/pods"
        seconds = 1 if "kubelet" in self.processes and self.processes["kubelet"].running else 0
        here, elsewhere = f"spec.nodeName%3D{self.node}", f"spec.nodeName!%3D{self.node}"

        def gone() -> bool:
            self.api("DELETE", f"{pods}?gracePeriodSeconds={seconds}&fieldSelector={here}")
            self.api("DELETE", f"{pods}?gracePeriodSeconds=0&fieldSelector={elsewhere}")
            return not self.api("GET", pods)["items"]

        self.wait(gone, f"the pods of {namespace} to be gone")

    def _reference(self, namespace: str, kind: Literal["Pod", "Node"], name: str) -> dict[str, str]:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}" if kind == "Pod" else f"/api/v1/nodes/{name}"
        uid = self.api("GET", path)["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}

    @property
    def _admin(self) -> Api:
        if self._client is None:
            raise LabError("the cluster has not been started")
        return self._client

    def _compare(self) -> list[str]:
        if self._before is None:
            return []
        left = self._before.differences(host.Snapshot.take())
        # Without a node the machine is not ours alone: what came up meanwhile may be another cluster's.
        return left if self._nodes else [line for line in left if str(self.directory) in line]

    # --- the machine ----------------------------------------------------------------------------------------

    def _keep_sysctls(self) -> None:
        """The kubelet sets kernel parameters at each of its starts: put back within a tenth of a second."""
        while not self._closing.wait(0.1):
            if self._before is not None:
                host.restore_sysctls(self._before)

    def _keep_logs(self) -> None:
        """Copies the logs to $ACCELSHARE_E2E_LOGS, for those who look after a failed run."""
        if (kept := os.environ.get("ACCELSHARE_E2E_LOGS")) and self.log_dir.is_dir():
            shutil.copytree(self.log_dir, Path(kept) / self.directory.name, dirs_exist_ok=True)


def free_ports(count: int) -> list[int]:
    """Ports below the range of outgoing connections, which could take them at any moment."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in range(20000 + os.getpid() % 5000, 32000):
            candidate = stack.enter_context(socket.socket())
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise LabError("no free ports between 20000 and 32000")


def _keep_until_interrupted(directory: Path | None, nodes: int) -> None:
    started = time.monotonic()
    cluster = Cluster(ensure(), directory, nodes=nodes)
    try:
        with cluster:
            print(f"ready after {time.monotonic() - started:.1f} s; Ctrl-C ends it", flush=True)
            print(f"export KUBECONFIG={cluster.admin_kubeconfig} PATH={cluster.bin}:$PATH", flush=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        print("\n".join(cluster.traces()) or "down, without a trace")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.lab.cluster", description="A real Kubernetes on this machine."
    )
    parser.add_argument("--clean", metavar="DIR", type=Path, help="remove what the killed run in DIR left")
    parser.add_argument(
        "--directory", metavar="DIR", type=Path, help="where the cluster lives (default: /tmp/as-…)"
    )
    parser.add_argument(
        "--nodes", type=int, default=1, help="0: no kubelet; from 2 on: the further ones are fake"
    )
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell starts what it puts into the background with SIGINT ignored.
        signal.signal(number, signal.default_int_handler)
    try:
        if options.clean is not None:
            host.clean_dead_run(options.clean)
        else:
            _keep_until_interrupted(options.directory, options.nodes)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
