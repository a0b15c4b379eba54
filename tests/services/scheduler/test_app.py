"""The HTTP side: routes, who may call what, and answers to what is not there."""

import asyncio

import pytest

import accelshare
from accelshare.core.errors import AccelshareError, NotReady
from accelshare.services.scheduler.app import translated
from accelshare.services.scheduler.settings import Settings
from tests.services.scheduler.memory_api import Outcome
from tests.services.scheduler.world import World, eight_cards, one_card

ACTING = ["/filter", "/prioritize", "/bind", "/gcushare-scheduler/filter", "/gcushare-scheduler/bind"]


def test_version_is_text() -> None:
    """As the guide's own extender answers."""
    assert World().get("/version").body == f"v{accelshare.__version__}\n".encode()


def test_every_answer_says_its_length() -> None:
    """Never chunked: kube-scheduler would not use the connection again."""
    world = World(eight_cards())

    for path in ("/version", "/inspect", "/healthz", "/readyz", "/metrics", "/nowhere"):
        reply = world.get(path)
        assert int(reply.headers[b"content-length"]) == len(reply.body)


def test_the_guides_inspection() -> None:
    """Its shape to the letter, indented."""
    world = World(one_card("n1"))
    world.run("p", 4)

    reply = world.get("/gcushare-scheduler/inspect/n1")

    assert reply.body.startswith(b'{\n  "nodes": [\n    {\n      "name": "n1"')
    pod = {
        "name": "p",
        "namespace": "default",
        "uid": "uid-p",
        "createTime": "2026-01-01T00:00:00Z",
        "usedGCU": 4,
    }
    device = {"id": 0, "totalGCU": 16, "usedGCU": 4, "availableGCU": 12, "pods": [pod]}
    node = {"name": "n1", "totalGCU": 16, "usedGCU": 4, "availableGCU": 12, "devices": [device]}
    assert reply.json == {"nodes": [node]}
    assert world.get("/gcushare-scheduler/inspect").json == {"nodes": [node]}


def test_our_inspection_shows_held_room() -> None:
    """What is decided and not yet seen takes room too."""
    world = World(one_card("n1"))
    pod = world.create("p", 4)
    world.api.binds = [Outcome.LATE]
    world.bind(pod)

    (node,) = world.get("/inspect/n1").json["nodes"]

    (card,) = node["cards"]
    assert (card["used"], card["free"], card["memory"]) == (4 << 30, 12 << 30, 16 << 30)
    assert [(shown["name"], shown["memory"], shown["held"]) for shown in card["pods"]] == [
        ("p", 4 << 30, True)
    ]
    assert node["dialects"]["gcushare"] == {"unit": "1GB", "mode": "enumerated", "offered": True}


@pytest.mark.parametrize("path", ["/inspect/n9", "/gcushare-scheduler/inspect/n9"])
def test_a_node_that_is_not_there(path: str) -> None:
    """404 and a sentence."""
    reply = World(eight_cards()).get(path)

    assert reply.status == 404
    assert reply.json["Error"].startswith("node n9 is not in the ledger")


@pytest.mark.parametrize("path", ["/", "/nowhere", "/inspect/", "/inspect/a/b", "/filter/", "/debug/pprof/"])
def test_a_path_that_is_not_there(path: str) -> None:
    """404 and a sentence."""
    reply = World().get(path)

    assert (reply.status, reply.json) == (404, {"Error": f"there is nothing at {path}"})


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/filter", b"POST"), ("DELETE", "/bind", b"POST"), ("POST", "/inspect", b"GET, HEAD")],
)
def test_a_method_that_is_not_taken(method: str, path: str, allow: bytes) -> None:
    """405, and the one that is."""
    reply = asyncio.run(World().call(method, path))

    assert (reply.status, reply.headers[b"allow"]) == (405, allow)


@pytest.mark.parametrize("path", [*ACTING, "/webhook/mutate", "/webhook/validate"])
@pytest.mark.parametrize("client", ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1", "example"])
def test_acting_verbs_on_the_plain_port_are_for_loopback(path: str, client: str) -> None:
    """Others are told which port to use."""
    settings = Settings(elect=False, tls_cert="cert.pem", tls_key="key.pem")
    reply = World(eight_cards(), settings=settings).post(path, {}, client=client)

    assert reply.status == 403
    assert "32767" in reply.json["Error"]


def test_a_port_on_which_nobody_listens_is_not_named() -> None:
    """Without a certificate there is no TLS listener."""
    reply = World(eight_cards()).post("/filter", {}, client="10.0.0.7")

    assert reply.status == 403
    assert "32767" not in reply.json["Error"]
    assert "--tls-cert" in reply.json["Error"]


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_has_many_spellings(client: str) -> None:
    """400 says that the body was looked at."""
    assert World(eight_cards()).post("/filter", b"x", client=client).status == 400


def test_the_tls_port_answers_everybody() -> None:
    """And inspection is for everybody on both."""
    assert World(eight_cards(), trusted=True).post("/filter", b"x", client="10.0.0.7").status == 400
    assert World(eight_cards()).get("/inspect", client="10.0.0.7").status == 200


@pytest.mark.parametrize("path", ACTING)
def test_a_replica_that_does_not_lead_does_not_act(path: str) -> None:
    """503, and the connection closed, so that the next one goes to whoever leads."""
    world = World(eight_cards())
    world.leading = False

    reply = world.post(path, {})

    assert (reply.status, reply.headers[b"connection"]) == (503, b"close")
    for readable in ("/inspect", "/metrics", "/healthz", "/readyz", "/version"):
        assert world.get(readable).status == 200


def test_a_replica_that_is_not_ready_says_why() -> None:
    """In the body of /readyz, and to whoever wants it to act."""
    world = World(eight_cards())
    world.problems = ["the list of pods has not been read yet"]

    assert (world.get("/readyz").status, world.get("/healthz").status) == (503, 200)
    assert b"the list of pods" in world.get("/readyz").body
    assert "the list of pods" in world.post("/filter", {}).json["Error"]


def test_errors_are_translated_in_one_place() -> None:
    """Ours say what they are; a mistake of ours shows nobody its inside."""
    assert translated(NotReady("later")).status == 500
    assert b"later" in translated(AccelshareError("later")).body
    mistake = translated(KeyError("secret"))
    assert mistake.status == 500
    assert b"secret" not in mistake.body


def test_metrics_are_prometheus_text() -> None:
    """Each with help and type, and each name once."""
    world = World(eight_cards())
    world.run("p", 4)

    reply = world.get("/metrics")

    assert reply.headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert all(name.startswith("accelshare_") for name in types)
    assert 'accelshare_verb_seconds_count{verb="filter"} 1' in lines
    assert 'accelshare_verb_seconds_bucket{verb="bind",le="+Inf"} 1' in lines
    assert "accelshare_leader 1" in lines
