"""What kube-scheduler and our scores make of several nodes, and what people see of it."""

import json
import os
import subprocess
import sys

from .services import LABEL, Services, gcu_pod


def twin(services: Services, name: str, **changes: object) -> None:
    """A second node, without a kubelet, that reports cards as the first one does."""
    node = services.cluster.api("GET", f"/api/v1/nodes/{services.cluster.node}")
    inventory = json.loads(node["metadata"]["annotations"]["accelshare.io/inventory"])
    for card in inventory["cards"]:
        card["id"] = f"{card['id']}-{name}"
    key, _, value = LABEL.partition("=")
    services.cluster.add_fake_node(
        name,
        capacity={"cpu": "64", "memory": "256Gi", "pods": "250", "enflame.com/gcu-memory": "128"},
        labels={key: value},
        annotations={"accelshare.io/inventory": json.dumps({**inventory, **changes})},
    )
    services.cluster.wait(lambda: services.get(f"/inspect/{name}", check=False), f"{name} in the ledger")


def test_a_node_in_use_is_taken_before_an_unused_one(services: Services, ns: str) -> None:
    """Also where kube-scheduler's own scores prefer the empty node, which is far larger."""
    services.create(ns, gcu_pod("first", 4))
    services.running(ns, "first")
    twin(services, "node-a")
    twin(services, "node-b")
    try:
        names = [f"next-{n}" for n in range(5)]
        for name in names:
            services.create(ns, gcu_pod(name, 4))
            services.bound(ns, name)
        assert {services.pod(ns, name)["spec"]["nodeName"] for name in names} == {services.cluster.node}
    finally:
        services.cluster.remove_fake_nodes(["node-a", "node-b"])


def test_a_node_of_another_unit_is_refused_and_both_units_are_named(services: Services, ns: str) -> None:
    """The number in a manifest would mean another amount there."""
    twin(services, "other-a")
    twin(services, "other-b", dialects={"gcushare": {"unit": "0.1GB"}})
    try:
        services.create(ns, *(gcu_pod(f"fills-{n}", 16) for n in range(16)), gcu_pod("waits", 16))
        said = services.refused(ns, "waits")
        assert "node counts enflame.com/gcu-memory in 0.1GB, most nodes in 1GB" in said
    finally:
        services.cluster.remove_fake_nodes(["other-a", "other-b"])


def test_the_command_line_and_the_service_tell_the_same(services: Services, ns: str) -> None:
    """accelshare inspect folds the cluster itself, and so answers while the scheduler service is down."""
    services.create(ns, gcu_pod("seen", 12))
    services.running(ns, "seen")
    told = services.get("/inspect")
    services.cluster.processes["accelshare-scheduler"].stop()

    environment = {**os.environ, "KUBECONFIG": str(services.cluster.admin_kubeconfig)}
    command = [sys.executable, "-m", "accelshare", "inspect"]
    answer = subprocess.run([*command, "-o", "json"], env=environment, capture_output=True, check=True)
    table = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(answer.stdout) == told
    assert f"{ns}/seen 12 GiB" in table


def test_the_guides_inspect_route_answers_as_the_guide_shows(services: Services, ns: str) -> None:
    """Totals, cards by index and pods with their share, in the guide's keys and units."""
    services.create(ns, gcu_pod("gcushare-pod-1", 4))
    services.running(ns, "gcushare-pod-1")
    pod = services.pod(ns, "gcushare-pod-1")

    node = services.get(f"/gcushare-scheduler/inspect/{services.cluster.node}")["nodes"][0]

    assert {key: node[key] for key in ("name", "totalGCU", "usedGCU", "availableGCU")} == {
        "name": services.cluster.node,
        "totalGCU": 128,
        "usedGCU": 4,
        "availableGCU": 124,
    }
    assert node["devices"][0] == {
        "id": 0,
        "totalGCU": 16,
        "usedGCU": 4,
        "availableGCU": 12,
        "pods": [
            {
                "name": "gcushare-pod-1",
                "namespace": ns,
                "uid": pod["metadata"]["uid"],
                "createTime": pod["metadata"]["creationTimestamp"],
                "usedGCU": 4,
            }
        ],
    }
    assert services.get("/version") == "v0.1.0\n"
