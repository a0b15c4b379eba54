"""Nonsense from anybody stops nobody else: not other pods, not other nodes, not the service."""

import msgspec
import pytest

from accelshare.core.grant import GRANT
from accelshare.core.objects import Container, Meta, Pod, PodSpec, Resources
from tests.builders import MEMORY, a_node, a_pod
from tests.services.scheduler.world import World, eight_cards

WHOLE = "a whole number that is not negative"


def asking(limit: object, request: object = None) -> Pod:
    resources = {"limits": {MEMORY: limit}, "requests": {MEMORY: limit if request is None else request}}
    return Pod(
        Meta(name="bad", namespace="default", uid="uid-bad", creationTimestamp="2026-01-01T00:00:00Z"),
        PodSpec([Container("main", msgspec.convert(resources, Resources))]),
    )


def assert_others_are_served(world: World) -> None:
    """A good pod goes the whole way on a good node."""
    world.run("good", 4)
    assert world.get("/gcushare-scheduler/inspect").json["nodes"][0]["usedGCU"] == 4
    assert world.get("/inspect").status == world.get("/metrics").status == 200


@pytest.mark.parametrize("limit", ["-1", "1.5", "500m", "many", "", "1e99999", "٣", "9" * 60])
def test_an_amount_that_is_none(limit: str) -> None:
    """Refused on every node with the field, the value and what is allowed; bind says the same."""
    world = World(eight_cards())
    bad = asking(limit)
    world.state.pod_changed(bad)
    world.api.create(bad)

    answer = world.filter(bad, "n1", "n2")

    assert answer["NodeNames"] == []
    texts = set(answer["FailedAndUnresolvableNodes"].values())
    assert len(texts) == 1
    text = texts.pop()
    assert text.startswith(f"resources.limits[{MEMORY}] of container main is ")
    assert WHOLE in text
    assert world.bind(bad) == text
    assert_others_are_served(world)


def test_a_request_that_differs_from_its_limit() -> None:
    """The API server refuses it for extended resources; whoever gets it past is told which is meant."""
    world = World(eight_cards())

    (text,) = world.filter(asking("4", "2"))["FailedAndUnresolvableNodes"].values()

    assert text == f"resources.requests[{MEMORY}] of container main is '2'; allowed is its limit, 4"
    assert_others_are_served(world)


@pytest.mark.parametrize("grant", ["", "{", "[]", "null", '{"dialect":"gcushare"}', "\ud800", "{}" * 1000])
def test_a_malformed_grant_on_a_bound_pod(grant: str) -> None:
    """It takes no room, is shown as a problem, and the node goes on."""
    world = World(eight_cards())

    world.state.pod_changed(a_pod("forged", 4, node="n1", version=1, annotations={GRANT: grant}))

    assert world.free() == [16] * 8
    (problem,) = world.get("/inspect/n1").json["nodes"][0]["problems"]
    assert problem["name"] == "forged"
    assert GRANT in problem["problem"]
    assert_others_are_served(world)


@pytest.mark.parametrize("key", ["enflame.com/gcu-device-id", "enflame.com/gcu-device-memory"])
def test_malformed_annotations_of_another_system(key: str) -> None:
    """As left by a scheduler that was here before."""
    world = World(eight_cards())
    standing = {
        "enflame.com/gcu-device-id": "0",
        "enflame.com/gcu-device-memory": "16",
        "enflame.com/gcu-device-memory-request": "4",
        key: "0; rm -rf /",
    }

    world.state.pod_changed(a_pod("old", 4, node="n1", version=1, annotations=standing))

    assert world.free() == [16] * 8
    assert_others_are_served(world)


@pytest.mark.parametrize("inventory", ["", "{", "[]", '{"driver":1}', '{"driver":"x","cards":[{}]}'])
def test_a_corrupt_inventory(inventory: str) -> None:
    """That node is refused, and says why in inspection; the others are not touched."""
    world = World(eight_cards(), a_node("broken", inventory))
    pod = world.create("p", 4)

    answer = world.filter(pod, "n1", "broken")

    assert answer["NodeNames"] == ["n1"]
    assert set(answer["FailedNodes"]) == {"broken"}
    shown = world.get("/inspect/broken").json["nodes"][0]
    assert "annotation accelshare.io/inventory" in shown["problem"]
    assert_others_are_served(world)


BODIES = {
    "nothing": b"",
    "not JSON": b"hello",
    "cut off": b'{"Pod":{"metadata":',
    "a list": b"[]",
    "no pod": b'{"NodeNames":["n1"]}',
    "no names": b'{"Pod":{"metadata":{},"spec":{}}}',
    "names of another type": b'{"Pod":{"metadata":{},"spec":{}},"NodeNames":"n1"}',
    "nodes without names": b'{"Pod":{"metadata":{},"spec":{}},"Nodes":{"items":[{}]}}',
    "a pod without a spec": b'{"Pod":{"metadata":{}},"NodeNames":["n1"]}',
    "too deep": b'{"Pod":' * 100_000,
    "not UTF-8": b'{"Pod":{"metadata":{"name":"\xff\xfe"},"spec":{}},"NodeNames":["n1"]}',
}


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "gcushare-scheduler/filter"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_that_is_none(verb: str, body: bytes) -> None:
    """400, and a sentence with the field, the value and what is allowed."""
    world = World(eight_cards())

    reply = world.post(f"/{verb}", body)

    assert reply.status == 400
    assert "; allowed is " in reply.json["Error"]
    assert_others_are_served(world)


@pytest.mark.parametrize("missing", ["PodName", "PodUID", "Node"])
def test_a_binding_that_lacks_a_name(missing: str) -> None:
    """Absent and empty are the same."""
    world = World(eight_cards())
    body = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}

    assert world.post("/bind", {**body, missing: ""}).status == 400
    assert world.post("/bind", {key: value for key, value in body.items() if key != missing}).status == 400


@pytest.mark.parametrize("chunk", [0, 1 << 20])
def test_a_body_of_50_megabytes(chunk: int) -> None:
    """413 without reading it all, whether its length was announced or not."""
    world = World(eight_cards())

    reply = world.post("/filter", b"x" * 50_000_000, chunk=chunk)

    assert (reply.status, reply.headers[b"connection"]) == (413, b"close")
    assert "33554432" in reply.json["Error"]
    assert_others_are_served(world)
