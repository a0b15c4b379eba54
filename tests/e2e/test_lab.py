"""The lab itself: what its clusters can do, and that nothing of them stays, whatever ends them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .conftest import Machine
from .lab import host
from .lab.cluster import Cluster, scheduler_config
from .lab.images import BUSYBOX
from .lab.record import DelayProxy, ExtenderRecorder, read_calls

_ROOT = Path(__file__).parents[2]


def _pod(name: str, script: str = "echo hello; sleep 1000", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def _create(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
    cluster.api("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def _wait_running(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"

    def running() -> dict[str, Any] | None:
        pod: dict[str, Any] = cluster.api("GET", path)
        return pod if pod["status"]["phase"] == "Running" else None

    found: dict[str, Any] = cluster.wait(running, f"pod {name} to run")
    return found


def test_a_pod_runs_and_its_log_and_exec_work(cluster: Cluster, namespace: str) -> None:
    _create(cluster, namespace, _pod("plain"))

    pod = _wait_running(cluster, namespace, "plain")

    assert pod["status"]["podIP"].startswith("10.88.")
    cluster.wait(lambda: "hello" in cluster.kubectl("-n", namespace, "logs", "plain"), "the pod's log")
    assert cluster.kubectl("-n", namespace, "exec", "plain", "--", "echo", "inside") == "inside\n"


def test_a_pod_outlives_a_restart_of_the_kubelet(cluster: Cluster, namespace: str) -> None:
    _create(cluster, namespace, _pod("steady"))
    before = _wait_running(cluster, namespace, "steady")["status"]["containerStatuses"][0]["containerID"]

    cluster.restart_kubelet()
    _create(cluster, namespace, _pod("later"))
    _wait_running(cluster, namespace, "later")

    after = _wait_running(cluster, namespace, "steady")["status"]["containerStatuses"][0]["containerID"]
    assert after == before


def test_fake_nodes_take_pods(cluster: Cluster, namespace: str) -> None:
    names = [f"fake-{number}" for number in range(20)]
    cluster.add_fake_nodes(names, {"example.com/cards": "4"}, {"kind": "fake"}, {"example.com/note": "seen"})
    container = {"name": "c", "image": BUSYBOX, "resources": {"limits": {"example.com/cards": "3"}}}

    with cluster.watch_pods(namespace) as pods:
        for number in range(3):
            _create(cluster, namespace, _pod(f"p-{number}", containers=[container]))
        for number in range(3):
            pods.wait(
                lambda event, name=f"p-{number}": (  # type: ignore[misc]
                    event.object["metadata"]["name"] == name and "nodeName" in event.object["spec"]
                ),
                f"p-{number} to be bound",
            )
        nodes = {
            event.object["spec"]["nodeName"] for event in pods.events if "nodeName" in event.object["spec"]
        }

    cluster.remove_fake_nodes(names)
    assert len(nodes) == 3
    assert nodes < set(names)


def test_a_service_calls_as_its_own_account(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """A manifest's role is in force, and nothing else; the token of an agent names its node."""
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    subject = {"kind": "ServiceAccount", "name": "agent", "namespace": namespace}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lab-agent"}
    objects: list[dict[str, Any]] = [
        {"kind": "ClusterRole", "rules": rules},
        {"kind": "ClusterRoleBinding", "roleRef": role_ref, "subjects": [subject]},
    ]
    common: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "lab-agent"}}
    manifest = tmp_path / "roles.json"
    manifest.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [common | o for o in objects]})
    )

    identity = cluster.service_account(namespace, "agent", [manifest], bound=("Node", cluster.node))

    kubectl = [f"{cluster.bin}/kubectl", f"--kubeconfig={identity.kubeconfig}", f"--cache-dir={tmp_path}"]
    who = json.loads(subprocess.check_output([*kubectl, "auth", "whoami", "-o", "json"]))["status"][
        "userInfo"
    ]
    allowed = subprocess.run([*kubectl, "get", "node", cluster.node], capture_output=True, check=False)
    refused = subprocess.run([*kubectl, "get", "pods"], capture_output=True, text=True, check=False)
    assert who["username"] == identity.username == f"system:serviceaccount:{namespace}:agent"
    assert who["extra"]["authentication.kubernetes.io/node-name"] == [cluster.node]
    assert allowed.returncode == 0
    assert "forbidden" in refused.stderr


def test_a_service_is_started_paused_and_stopped(cluster: Cluster) -> None:
    script = "echo up; trap 'echo bye; exit 7' TERM; while :; do sleep 0.05; done"
    process = cluster.run("service", ["sh", "-c", script])

    process.wait_line("up")
    process.pause()
    process.resume()

    assert process.stop() == 7
    assert process.log.read_text() == "up\nbye\n"
    assert cluster.run("service", ["sleep", "100"]).kill() == -signal.SIGKILL


def test_calls_of_the_scheduler_to_an_extender_are_written_down(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The extender is one that refuses everything: a server of the lab's own that answers each call alike."""
    calls = tmp_path / "calls.jsonl"
    answer = {"NodeNames": [], "FailedNodes": {cluster.node: "no card"}}
    container = {"name": "c", "image": BUSYBOX, "resources": {"limits": {"example.com/card": "1"}}}
    resource = {"name": "example.com/card", "ignoredByScheduler": True}
    with ExtenderRecorder(answer, calls) as recorder:
        cluster.restart_scheduler(
            scheduler_config(
                {"urlPrefix": recorder.url, "filterVerb": "filter", "managedResources": [resource]}
            )
        )
        _create(cluster, namespace, _pod("refused", containers=[container]))
        cluster.wait(calls.read_text, "a call")
        cluster.wait(
            lambda: "no card" in cluster.kubectl("-n", namespace, "get", "events", "-o", "yaml"),
            "the reason in an event",
        )
    cluster.restart_scheduler(None)

    call = read_calls(calls)[0]
    assert (call.method, call.path, call.status, call.response) == ("POST", "/filter", 200, answer)
    assert call.request["Pod"]["metadata"]["name"] == "refused"
    assert call.request["NodeNames"] == [cluster.node]
    assert 0 <= call.ended - call.began < 5


def test_a_watch_can_be_made_late(cluster: Cluster, namespace: str) -> None:
    with DelayProxy("127.0.0.1", cluster.api_port) as proxy, cluster.watch_pods(namespace) as direct:
        late = cluster.through(proxy.port).watch(f"/api/v1/namespaces/{namespace}/pods")
        _create(cluster, namespace, _pod("first"))
        late.wait(lambda event: bool(event.object["metadata"]["name"] == "first"), "the first pod")
        proxy.delay = 1.0

        _create(cluster, namespace, _pod("second"))

        events = [
            watch.wait(lambda event: bool(event.object["metadata"]["name"] == "second"), "the second pod")
            for watch in (direct, late)
        ]
        late.stop()
    assert 0.9 < events[1].at - events[0].at < 2


def test_a_cluster_leaves_nothing(machine: Machine) -> None:
    machine.free()  # the one of the other tests must not hide what this one leaves
    with Cluster(machine.programs, nodes=2) as cluster:
        cluster.run("service", ["sleep", "1000"])
        _create(cluster, "default", _pod("left-behind", nodeName=cluster.node))
        _wait_running(cluster, "default", "left-behind")

    assert cluster.traces() == []
    assert not cluster.directory.exists()


def test_what_a_killed_run_leaves_is_removed_by_the_next(machine: Machine, tmp_path: Path) -> None:
    machine.free()
    with host.machine(tmp_path / "before"):
        before = host.Snapshot.take()

    with _harness() as harness:
        os.kill(harness.pid, signal.SIGKILL)
    left = before.differences(host.Snapshot.take())
    with host.machine(tmp_path / "next"):
        after = host.Snapshot.take()

    for kind in ("mounts: left /var/lib/kubelet", "cgroups: left", "hosts: left", "processes: left"):
        assert any(line.startswith(kind) for line in left)
    assert before.differences(after) == []


def test_what_a_killed_run_leaves_is_removed_by_hand(tmp_path: Path) -> None:
    """And not before it was killed."""
    directory = tmp_path / "run"
    clean = [sys.executable, "-m", "tests.e2e.lab.cluster", f"--clean={directory}"]

    with _harness("--nodes=0", f"--directory={directory}") as harness:
        early = subprocess.run(clean, cwd=_ROOT, capture_output=True, text=True, check=False)
        os.kill(harness.pid, signal.SIGKILL)
    late = subprocess.run(clean, cwd=_ROOT, capture_output=True, check=False)

    assert "belongs to a living process" in early.stderr
    assert late.returncode == 0
    assert not directory.exists()
    assert [line for line in host.Snapshot.take().processes if str(directory) in line] == []


@contextmanager
def _harness(*options: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has started a cluster."""
    command = [sys.executable, "-m", "tests.e2e.lab.cluster", *options]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        try:
            assert any(line.startswith("ready") for line in harness.stdout)
            yield harness
        finally:
            harness.kill()
