"""Things break at the worst moment, and nothing is lost, doubled or stuck."""

import json
import time

from .services import Services, gcu_pod


def granted(services: Services, ns: str, name: str) -> None:
    """The container has what its pod's annotation says."""
    seen = services.sees(ns, name)
    pod = services.pod(ns, name)
    assert seen.devices == [f"gcu{pod['metadata']['annotations']['enflame.com/gcu-device-id']}"]
    assert seen.env["ACCELSHARE_POD_UID"] == pod["metadata"]["uid"]


def test_pods_that_came_while_the_scheduler_service_was_dead_run_when_it_is_back(
    services: Services, ns: str
) -> None:
    """kube-scheduler asks again, and the ledger is folded from what is there."""
    services.create(ns, gcu_pod("before", 12))
    services.running(ns, "before")
    services.cluster.processes["accelshare-scheduler"].kill()
    services.create(ns, gcu_pod("meanwhile", 12))
    services.start_scheduler()
    services.running(ns, "meanwhile", timeout=60)
    granted(services, ns, "meanwhile")
    assert services.sees(ns, "meanwhile").devices == ["gcu1"]


def test_a_scheduler_service_killed_among_many_bindings_loses_and_doubles_none(
    services: Services, ns: str
) -> None:
    """Whatever had been written counts; whatever had not is decided anew."""
    names = [f"burst-{n}" for n in range(32)]
    services.create(ns, *(gcu_pod(name, 4) for name in names))
    services.cluster.wait(
        lambda: sum(bool(services.pod(ns, name)["spec"].get("nodeName")) for name in names) >= 3, "bindings"
    )
    services.cluster.processes["accelshare-scheduler"].kill()
    services.start_scheduler()
    services.running(ns, *names, timeout=120)
    cards = [services.pod(ns, name)["metadata"]["annotations"]["enflame.com/gcu-device-id"] for name in names]
    assert sorted(cards) == sorted(str(n) for n in range(8) for _ in range(4))


def test_an_agent_killed_between_binding_and_allocate_costs_one_pod_and_no_room(
    services: Services, ns: str
) -> None:
    """Kubelet fails the pod that it asked about; its controller makes another, which gets the same room."""
    template = gcu_pod("unused", 16)
    labels = {"app": "once"}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
    }
    agent = services.cluster.processes["accelshare-agent"]
    agent.pause()
    path = f"/apis/apps/v1/namespaces/{ns}/replicasets"
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "once"}, "spec": spec}
    services.cluster.api("POST", path, body)
    services.cluster.wait(
        lambda: any(pod["spec"].get("nodeName") for pod in services.pods(ns)), "a pod to be bound"
    )
    agent.kill()
    services.start_agent()
    services.wait_offered()
    services.cluster.wait(
        lambda: services.cluster.api("GET", f"{path}/once")["status"].get("readyReplicas") == 1,
        "one replica",
        90,
    )
    (running,) = [pod for pod in services.pods(ns) if pod["status"]["phase"] == "Running"]
    granted(services, ns, running["metadata"]["name"])
    services.create(ns, *(gcu_pod(f"rest-{n}", 16) for n in range(7)))
    services.running(ns, *(f"rest-{n}" for n in range(7)), timeout=60)
    services.cluster.api("DELETE", f"{path}/once")


def test_an_agent_killed_between_allocate_and_the_start_is_made_good_by_the_next(
    services: Services, ns: str
) -> None:
    """The name of the allocation stands in kubelet's checkpoint; the next agent puts the grant under it."""
    services.cluster.processes["accelshare-agent"].stop()
    services.start_agent(disturbed="deaf")
    services.wait_offered()
    services.create(ns, gcu_pod("patient", 4))
    services.cluster.wait(
        lambda: "does not listen" in services.cluster.kubectl("describe", "pod", "-n", ns, "patient"),
        "an attempt",
    )
    services.cluster.processes["accelshare-agent"].kill()
    services.start_agent()
    services.running(ns, "patient", timeout=60)
    granted(services, ns, "patient")
    assert services.pod(ns, "patient")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_what_runs_goes_on_while_the_agent_is_dead(services: Services, ns: str) -> None:
    """The agent's death shows as resources that are not healthy; its return brings everything back."""
    services.create(ns, gcu_pod("before", 4))
    services.running(ns, "before")
    services.cluster.processes["accelshare-agent"].kill()
    assert services.sees(ns, "before").devices == ["gcu0"]
    services.start_agent()
    services.wait_offered()
    services.create(ns, gcu_pod("after", 4))
    services.running(ns, "after")
    granted(services, ns, "after")


def test_a_container_restarts_by_itself_after_the_agent_was_killed_and_came_back(
    services: Services, ns: str
) -> None:
    """The allocation stands in kubelet's checkpoint, its file on the disk."""
    services.create(ns, gcu_pod("loops", 4, command="sleep 6; exit 1"))
    services.running(ns, "loops")
    services.cluster.processes["accelshare-agent"].kill()
    services.start_agent()
    services.cluster.wait(
        lambda: services.pod(ns, "loops")["status"]["containerStatuses"][0]["restartCount"] >= 1,
        "a restart",
        60,
    )
    services.running(ns, "loops")
    granted(services, ns, "loops")


def test_the_agent_registers_again_with_a_new_kubelet(services: Services, ns: str) -> None:
    """Pods that run go on, and new ones start, without anything being restarted by hand."""
    services.create(ns, gcu_pod("before", 4))
    services.running(ns, "before")
    services.cluster.restart_kubelet()
    services.wait_offered()
    services.create(ns, gcu_pod("after", 4))
    services.running(ns, "after")
    granted(services, ns, "after")
    assert services.pod(ns, "before")["status"]["phase"] == "Running"


def test_a_sick_card_takes_no_pods_until_it_recovers(services: Services, ns: str) -> None:
    """Health goes both ways, within seconds and without a restart."""
    text = services.cards.read_text()
    services.cards.write_text(
        text.replace("serial: T10SIM00000\n", "serial: T10SIM00000\n    healthy: false\n")
    )
    try:
        services.wait_offered(amount=112)
        services.create(ns, gcu_pod("elsewhere", 4))
        services.running(ns, "elsewhere")
        assert services.sees(ns, "elsewhere").devices == ["gcu1"]
    finally:
        services.cards.write_text(text)
    services.wait_offered()
    services.create(ns, gcu_pod("recovered", 14))
    services.running(ns, "recovered")
    assert services.sees(ns, "recovered").devices == ["gcu0"]


def test_the_inventory_is_written_again_when_somebody_changes_it(services: Services, ns: str) -> None:
    """Within five seconds, and what was wrong meanwhile harmed nobody else."""
    path = f"/api/v1/nodes/{services.cluster.node}"
    good = services.cluster.api("GET", path)["metadata"]["annotations"]["accelshare.io/inventory"]
    began = time.monotonic()
    services.cluster.api(
        "PATCH",
        path,
        {"metadata": {"annotations": {"accelshare.io/inventory": "rubbish"}}},
        "application/merge-patch+json",
    )
    services.cluster.wait(
        lambda: (
            json.loads(
                services.cluster.api("GET", path)["metadata"]["annotations"][
                    "accelshare.io/inventory"
                ].replace("rubbish", "null")
            )
            == json.loads(good)
        ),
        "the inventory to be written again",
        10,
    )
    assert time.monotonic() - began < 5


def test_a_stop_is_clean_and_takes_less_than_five_seconds(services: Services, ns: str) -> None:
    """Exit status 0, the Lease is free, and the node says that its agent has left."""
    lease = "/apis/coordination.k8s.io/v1/namespaces/accelshare/leases/accelshare-scheduler"
    assert services.cluster.api("GET", lease)["spec"]["holderIdentity"]
    for name in ("accelshare-scheduler", "accelshare-agent"):
        began = time.monotonic()
        assert services.cluster.processes[name].stop(timeout=10) == 0
        assert time.monotonic() - began < 5
    assert not services.cluster.api("GET", lease)["spec"].get("holderIdentity")
    node = services.cluster.api("GET", f"/api/v1/nodes/{services.cluster.node}")
    assert json.loads(node["metadata"]["annotations"]["accelshare.io/inventory"])["leaving"] is True


def test_a_second_replica_takes_over_when_the_leader_hangs(services: Services, ns: str) -> None:
    """A stopped process holds its Lease until that ends; then the other binds, and the first never again."""
    first = services.cluster.processes["accelshare-scheduler"]
    services.http_port += 1
    try:
        services.start_scheduler("--identity", "second", name="accelshare-scheduler-2")
        first.pause()
        services.cluster.wait(
            lambda: "accelshare_leader 1" in str(services.get("/metrics")), "the second replica to lead", 40
        )
    finally:
        first.resume()
        services.cluster.processes["accelshare-scheduler-2"].stop()
        services.http_port -= 1
    services.cluster.wait(
        lambda: "accelshare_leader 1" in str(services.get("/metrics")), "the first to lead again", 40
    )
    services.create(ns, gcu_pod("after", 4))
    services.running(ns, "after", timeout=60)
