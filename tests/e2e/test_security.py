"""Nobody gets a card but by a grant of the scheduler service, whatever they write."""

import json

import pytest

from .lab.api import ApiError
from .services import Services, gcu_pod

INVENTORY = "accelshare.io/inventory={}"
MERGE = "application/merge-patch+json"


def bound_by_hand(services: Services, name: str, units: int) -> dict[str, object]:
    """A pod that goes around the scheduler."""
    pod = gcu_pod(name, units)
    pod["spec"]["nodeName"] = services.cluster.node
    return pod


def refusal(services: Services, ns: str, name: str) -> str:
    def message() -> str:
        events = services.cluster.api("GET", f"/api/v1/namespaces/{ns}/events")["items"]
        said = [
            event["message"]
            for event in events
            if event["involvedObject"]["name"] == name and event["reason"] == "GrantRefused"
        ]
        return said[-1] if said else ""

    found: str = services.cluster.wait(message, f"a refusal of {name}", 40)
    return found


def test_a_pod_that_goes_around_the_scheduler_gets_no_card(services: Services, ns: str) -> None:
    """It waits, and an event on it says why and what to do."""
    services.create(ns, bound_by_hand(services, "around", 4))
    assert "was not bound by accelshare's scheduler service" in refusal(services, ns, "around")


def test_a_grant_written_by_somebody_else_is_refused_at_admission(services: Services, ns: str) -> None:
    """At creation, and by a later patch, even by an administrator."""
    pod = gcu_pod("forged", 4)
    pod["metadata"]["annotations"] = {"accelshare.io/grant": "{}"}
    with pytest.raises(ApiError, match="grants are written by accelshare's scheduler service"):
        services.create(ns, pod)
    services.create(ns, gcu_pod("plain", 4))
    with pytest.raises(ApiError, match="grants are written by accelshare's scheduler service"):
        services.cluster.api(
            "PATCH",
            f"/api/v1/namespaces/{ns}/pods/plain",
            {"metadata": {"annotations": {"enflame.com/gcu-device-id": "7"}}},
            MERGE,
        )


def test_a_copied_or_forged_grant_is_not_served_even_without_the_policy(services: Services, ns: str) -> None:
    """The agent checks the signature, the pod's UID and the room, whoever wrote the annotation."""
    cluster = services.cluster
    binding = "accelshare-grants-come-from-the-scheduler"
    cluster.kubectl("delete", "validatingadmissionpolicybinding", binding)
    try:
        services.create(ns, gcu_pod("honest", 4))
        services.running(ns, "honest")
        grant = services.annotations(ns, "honest")["accelshare.io/grant"]
        services.create(ns, bound_by_hand(services, "copier", 4))
        uid = services.pod(ns, "copier")["metadata"]["uid"]
        forged = json.dumps({**json.loads(grant), "uid": uid}, separators=(",", ":"))
        path = f"/api/v1/namespaces/{ns}/pods/copier"
        services_patch = {"metadata": {"annotations": {"accelshare.io/grant": forged}}}
        cluster.wait(lambda: cluster.api("PATCH", path, services_patch, MERGE), "the policy to be gone", 20)
        assert "no trusted key has signed" in refusal(services, ns, "copier")
    finally:
        cluster.kubectl("apply", "--server-side", "-f", str(services.access))


def test_an_agent_may_write_to_its_own_node_and_pods_only(services: Services, ns: str) -> None:
    """RBAC cannot say so; the admission policy does, by the node's name in the agent's token."""
    cluster = services.cluster
    cluster.add_fake_node(
        "not-home", capacity={"cpu": "1", "memory": "1Gi", "pods": "9"}, labels={}, annotations={}
    )
    try:
        agent = f"--kubeconfig={services.agent_identity.kubeconfig}"
        said = cluster.kubectl(agent, "annotate", "node", "not-home", INVENTORY, check=False)
        assert "may change its own node only" in said
        services.create(ns, gcu_pod("waiting", 20))
        said = cluster.kubectl(agent, "annotate", "pod", "-n", ns, "waiting", "a=b", check=False)
        assert "may change pods of its own node only" in said
        said = cluster.kubectl(agent, "delete", "pod", "-n", ns, "waiting", check=False)
        assert "may change pods of its own node only" in said
        for words in (
            ("cordon", cluster.node),
            ("label", "node", cluster.node, "a=b"),
            ("annotate", "node", cluster.node, "a=b"),
        ):
            said = cluster.kubectl(agent, *words, check=False)
            assert "may change the annotations only that it writes" in said
    finally:
        cluster.remove_fake_nodes(["not-home"])


def test_a_token_of_no_node_may_write_nothing(services: Services, ns: str) -> None:
    """An agent's account without the node's claim is worth nothing."""
    loose = services.cluster.service_account("accelshare", "accelshare-agent")
    said = services.cluster.kubectl(
        f"--kubeconfig={loose.kubeconfig}", "annotate", "node", services.cluster.node, "a=b", check=False
    )
    assert "needs a token that is bound to a pod or a node" in said
