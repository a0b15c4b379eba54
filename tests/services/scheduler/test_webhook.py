"""Admission: slots for counted resources, a sentence for nonsense, and nobody else's grants."""

import base64
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from accelshare.core.grant import GRANT
from accelshare.core.objects import Pod
from accelshare.dialects import SLOT
from accelshare.services.scheduler.settings import Settings
from accelshare.services.scheduler.webhook import PROTECTED
from tests.builders import MEMORY, a_container, a_pod
from tests.services.scheduler.world import World

SERVICE = Settings().service_account
ALICE = "alice"


def review(new: object, old: object = None, *, user: str = ALICE, operation: str = "", sub: str = "") -> Any:
    request = {
        "uid": "r1",
        "operation": operation or ("UPDATE" if old else "CREATE"),
        "subResource": sub,
        "userInfo": {"username": user},
        "object": new,
        "oldObject": old,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def world(*counted: str) -> World:
    return World(settings=Settings(elect=False, counted=frozenset(counted)))


def patched(pod: Pod, *counted: str) -> list[dict[str, Any]]:
    answer = world(*counted).post("/webhook/mutate", review(pod)).json
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("r1", True)
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    steps: list[dict[str, Any]] = msgspec.json.decode(base64.b64decode(response["patch"]))
    return steps


def test_each_container_that_asks_gets_a_slot() -> None:
    """In limits and requests, also init containers; one that asks for nothing gets none."""
    pod = a_pod("p", 4, 0, 8, init=[a_container("setup", 2)])

    places = ("initContainers/0", "containers/0", "containers/2")
    assert patched(pod, "gcushare") == [
        {"op": "add", "path": f"/spec/{place}/resources/{field}/accelshare.io~1slot", "value": "1"}
        for place in places
        for field in ("limits", "requests")
    ]


def test_a_container_without_requests_gets_them() -> None:
    """JSON Patch cannot add to what is not there."""
    pod = a_pod("p", 4)
    assert pod.spec.containers is not None
    assert pod.spec.containers[0].resources is not None
    pod.spec.containers[0].resources.requests = None

    assert patched(pod, "gcushare")[1] == {
        "op": "add",
        "path": "/spec/containers/0/resources/requests",
        "value": {SLOT: "1"},
    }


def test_nothing_is_patched_where_nothing_is_counted() -> None:
    """Nor where the slot is there, where the pod asks for nothing, or for nonsense."""
    with_slot = a_pod("p", 4)
    assert with_slot.spec.containers is not None
    resources = with_slot.spec.containers[0].resources
    assert resources is not None
    resources.limits = resources.requests = {MEMORY: 4, SLOT: 1}

    assert patched(a_pod("p", 4)) == []
    assert patched(with_slot, "gcushare") == []
    assert patched(a_pod("p", 0), "gcushare") == []
    assert patched(a_pod("p", -4), "gcushare") == []


def validated(*words: Any, **more: Any) -> Any:
    return world().post("/webhook/validate", review(*words, **more)).json["response"]


def test_nonsense_is_refused_when_it_is_made() -> None:
    """With the sentence that filter would give; later updates of such a pod pass."""
    response = validated(a_pod("p", -1))

    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert "allowed is a whole number that is not negative" in response["status"]["message"]
    assert validated(a_pod("p", -1), a_pod("p", -1))["allowed"] is True


def test_more_than_a_card_holds_is_no_nonsense() -> None:
    """It stays pending with the document's reason."""
    assert validated(a_pod("p", 10_000))["allowed"] is True


KEYS = [GRANT, "enflame.com/gcu-device-id", "enflame.com/gcu-device-memory-request"]


@pytest.mark.parametrize("key", KEYS)
def test_nobody_else_writes_a_grant(key: str) -> None:
    """On a new pod, on a standing one, or by taking it away; the scheduler service may."""
    plain, granted = a_pod("p", 4), a_pod("p", 4, annotations={key: "1"})

    for new, old in ((granted, None), (granted, plain), (plain, granted)):
        refused = validated(new, old)
        assert refused["allowed"] is False
        assert refused["status"]["code"] == 403
        assert key in refused["status"]["message"]
        assert validated(new, old, user=SERVICE)["allowed"] is True


@pytest.mark.parametrize("sub", ["status", "resize", "ephemeralcontainers"])
def test_sub_resources_are_no_way_round(sub: str) -> None:
    """A kubelet can change annotations through pods/status."""
    plain, granted = a_pod("p", 4), a_pod("p", 4, annotations={GRANT: "{}"})

    assert validated(granted, plain, sub=sub, user="system:node:n1")["allowed"] is False
    assert validated(granted, granted, sub=sub, user="system:node:n1")["allowed"] is True


def test_a_binding_is_no_way_round() -> None:
    """Its annotations are copied onto the pod."""
    binding = {"metadata": {"name": "p", "annotations": {GRANT: "{}"}}, "target": {"name": "n1"}}

    assert validated(binding, sub="binding")["allowed"] is False
    assert validated({"metadata": {"name": "p"}, "target": {"name": "n1"}}, sub="binding")["allowed"] is True


def test_that_the_container_has_it_may_be_said_by_an_agent() -> None:
    """It grants nothing."""
    before = a_pod("p", 4, annotations={"enflame.com/gcu-device-assigned": "false"})
    after = a_pod("p", 4, annotations={"enflame.com/gcu-device-assigned": "true"})

    assert validated(after, before)["allowed"] is True


def test_any_replica_answers() -> None:
    """Admission does not depend on who leads, nor on the ledger."""
    follower = world("gcushare")
    follower.leading, follower.problems = False, ["the list of pods has not been read yet"]

    assert follower.post("/webhook/mutate", review(a_pod("p", 4))).status == 200
    assert follower.post("/webhook/validate", review(a_pod("p", 4))).status == 200


@pytest.mark.parametrize("path", ["/webhook/mutate", "/webhook/validate"])
def test_what_is_no_review_is_refused(path: str) -> None:
    """400 and a sentence; the API server then does what its failurePolicy says."""
    reply = world().post(path, b'{"request": 1}')

    assert reply.status == 400
    assert "an AdmissionReview" in reply.json["Error"]


def test_a_deletion_passes() -> None:
    """It has no object."""
    assert validated(None, a_pod("p", 4, annotations={}), operation="DELETE")["allowed"] is True


DEPLOY = Path(__file__).parents[3] / "deploy"


def manifests(name: str) -> list[Any]:
    return [part for part in yaml.safe_load_all((DEPLOY / name).read_text()) if part]


def keys_in(expression: str) -> set[str]:
    """Of an expression that begins with a list of texts."""
    return set(re.findall(r"'([^']+)'", expression[: expression.index("]")]))


def test_the_policy_protects_the_keys_that_the_webhook_protects() -> None:
    """deploy/access.yaml spells them for the API server."""
    (variables,) = (
        each["spec"]["variables"]
        for each in manifests("access.yaml")
        if each["kind"] == "ValidatingAdmissionPolicy" and "grants" in each["metadata"]["name"]
    )

    assert keys_in(next(each["expression"] for each in variables if each["name"] == "keys")) == PROTECTED


def grants_webhook() -> Any:
    (configuration,) = (
        each for each in manifests("webhook.yaml") if each["kind"] == "ValidatingWebhookConfiguration"
    )
    return next(each for each in configuration["webhooks"] if each["name"] == "grants.accelshare.io")


def test_the_webhook_is_called_for_the_keys_that_it_protects() -> None:
    """And not for what the scheduler service itself writes."""
    conditions = {each["name"]: each["expression"] for each in grants_webhook()["matchConditions"]}

    assert keys_in(conditions["touches-a-grant"]) == PROTECTED
    assert SERVICE in conditions["not-the-scheduler-service"]


def test_the_webhook_is_called_for_all_ways_to_write_a_grant() -> None:
    """The same that the policy looks at."""
    (constraints,) = (
        each["spec"]["matchConstraints"]["resourceRules"]
        for each in manifests("access.yaml")
        if each["kind"] == "ValidatingAdmissionPolicy" and "grants" in each["metadata"]["name"]
    )

    assert [(each["operations"], each["resources"]) for each in grants_webhook()["rules"]] == [
        (each["operations"], each["resources"]) for each in constraints
    ]
