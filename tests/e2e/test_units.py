"""Finer units, counted resources and a change of the unit, each with services of its own settings."""

import base64
import os
import stat
from collections.abc import Iterator

import pytest

from .conftest import Machine
from .services import DEPLOY, ROOT, Services, gcu_pod

EIGHTY = ROOT / "examples" / "nodes" / "gcu-8x80.yaml"


@pytest.fixture
def plain(machine: Machine) -> Iterator[Services]:
    """Services that are not started yet, on a cluster that they leave as they found it."""
    machine.rest()
    services = Services(machine.cluster())
    yield services
    services.stop()


@pytest.fixture
def new(machine: Machine) -> Iterator[Services]:
    """The same on a cluster of its own: for minutes, kubelet keeps in mind what was enumerated to it."""
    machine.free()
    services = Services(machine.cluster())
    yield services
    machine.free()


def bytes_of(services: Services, ns: str, name: str) -> int:
    return int(services.sees(ns, name).env["ACCELSHARE_MEMORY_BYTES"])


def test_tenths_of_a_gigabyte_are_exact_to_the_byte(plain: Services) -> None:
    """160 units fill a card of 16 GiB; a pod of 40 has 4 GiB, one of a single unit its bytes rounded down."""
    plain.start(agent=("--unit", "gcushare=0.1GB"), offered=1280)
    with plain.cluster.namespace("tenths") as ns:
        plain.create(ns, gcu_pod("forty", 40), gcu_pod("one", 1))
        plain.running(ns, "forty", "one")
        assert bytes_of(plain, ns, "forty") == 4 << 30
        assert bytes_of(plain, ns, "one") == 107374182
        assert plain.annotations(ns, "forty")["enflame.com/gcu-device-memory"] == "160"


def test_too_many_ids_to_enumerate_are_not_offered_and_the_setting_is_named(plain: Services) -> None:
    """Kubelet pays for every id; the agent says so instead of failing in some other way."""
    plain.start_scheduler()
    plain.start_agent("--unit", "gcushare=0.01GB")
    node = plain.cluster.node

    def problem() -> str:
        answer = plain.get(f"/inspect/{node}", check=False)
        return str(answer["nodes"][0]["problem"]) if answer else ""

    assert "--counted=gcushare" in plain.cluster.wait(
        lambda: problem() if "ids" in problem() else "", "the problem"
    )


def test_a_counted_request_gets_its_slot_at_admission_and_exactly_its_share(new: Services) -> None:
    """8 cards of 80 GB in thousandths: the webhook adds the slot, the container has 12.345 GB."""
    new.cards.write_text(EIGHTY.read_text())
    cert, key = new.cluster.certificate("accelshare-webhook")
    tls_port = new.http_port + 1
    new.start(
        agent=("--unit", "gcushare=0.001GB", "--counted", "gcushare"),
        scheduler=(
            *("--counted", "gcushare", "--tls-port", str(tls_port)),
            *("--tls-cert", str(cert), "--tls-key", str(key)),
        ),
        offered=640_000,
    )
    authority = base64.b64encode(new.cluster.authority.read_bytes()).decode()
    manifest = (DEPLOY / "webhook.yaml").read_text()
    manifest = manifest.replace("HOST:32767", f"127.0.0.1:{tls_port}").replace("CA_BUNDLE", authority)
    new.cluster.kubectl("apply", "-f", "-", input=manifest)
    try:
        with new.cluster.namespace("counted") as ns:
            first = new.cluster.wait(lambda: admitted(new, ns, "fine", 12345), "the webhook to answer")
            assert first["spec"]["containers"][0]["resources"]["limits"]["accelshare.io/slot"] == "1"
            new.running(ns, "fine")
            assert bytes_of(new, ns, "fine") == 12345 * 2**30 // 1000
            new.create(ns, gcu_pod("too-much", 80_001))
            assert "insufficient GCU Memory in one gcu device" in new.refused(ns, "too-much")
    finally:
        new.cluster.kubectl("delete", "-f", "-", input=manifest)


def admitted(services: Services, ns: str, name: str, units: int) -> dict[str, object] | None:
    """A pod that got its slot; API servers learn of a webhook a moment after it was applied."""
    services.create(ns, gcu_pod(name, units))
    pod = services.pod(ns, name)
    if "accelshare.io/slot" in pod["spec"]["containers"][0]["resources"]["limits"]:
        return pod
    services.cluster.api("DELETE", f"/api/v1/namespaces/{ns}/pods/{name}?gracePeriodSeconds=0")
    return None


def test_a_node_that_was_enumerated_takes_no_counted_pods_before_kubelet_has_forgotten_the_ids(
    plain: Services,
) -> None:
    """Kubelet would fail such a pod for good; it waits instead, and the node says for what."""
    plain.start()
    for name in ("accelshare-agent", "accelshare-scheduler"):
        plain.cluster.processes[name].stop()
    plain.start_scheduler("--counted", "gcushare")
    plain.start_agent("--counted", "gcushare")
    node = plain.cluster.node

    def said() -> bool:
        answer = plain.get(f"/inspect/{node}", check=False)
        return bool(answer) and "still hands out enflame.com/gcu-memory" in answer["nodes"][0]["problem"]

    plain.cluster.wait(said, "the node to say for what it waits")
    with plain.cluster.namespace("patient") as ns:
        pod = gcu_pod("patient", 4)
        pod["spec"]["containers"][0]["resources"]["limits"]["accelshare.io/slot"] = 1
        plain.create(ns, pod)
        assert plain.refused(ns, "patient")
        assert plain.pod(ns, "patient")["status"]["phase"] == "Pending"


def test_a_counted_node_refuses_a_pod_without_a_slot_and_says_what_to_do(new: Services) -> None:
    """It was made while the webhook was away: made again it will do."""
    new.start(agent=("--counted", "gcushare"), scheduler=("--counted", "gcushare"))
    with new.cluster.namespace("slotless") as ns:
        new.create(ns, gcu_pod("slotless", 4))
        assert "create it again" in new.refused(ns, "slotless")


def test_the_unit_can_be_changed_under_running_pods(plain: Services) -> None:
    """Old pods keep what they have and where; what is free is offered in the new unit, and never more."""
    plain.start()
    with plain.cluster.namespace("changed") as ns:
        plain.create(ns, gcu_pod("old", 12))
        plain.running(ns, "old")
        plain.cluster.processes["accelshare-agent"].stop()
        plain.start_agent("--unit", "gcushare=0.1GB")
        # 12 units that are held in the old unit, 40 tenths beside them, and 7 cards of 160 tenths.
        plain.wait_offered(amount=12 + 40 + 7 * 160)
        plain.create(ns, gcu_pod("new", 40), gcu_pod("next", 41))
        plain.running(ns, "new", "next")
        assert plain.sees(ns, "new").devices == ["gcu0"]
        assert plain.sees(ns, "next").devices == ["gcu1"]
        assert bytes_of(plain, ns, "new") == 4 << 30
        assert plain.sees(ns, "old").devices == ["gcu0"]
        assert bytes_of(plain, ns, "old") == 12 << 30
        plain.delete(ns, "old")
        plain.gone(ns, "old")
        plain.wait_offered(amount=1280)


def test_direct_injection_gives_each_its_own_where_there_is_no_cdi(
    plain: Services, device_nodes: None
) -> None:
    """The edits stand in Allocate's answer; equal pods on different cards are told apart or come again."""
    plain.start(agent=("--injection", "direct"))
    with plain.cluster.namespace("direct") as ns:
        names = [f"direct-{n}" for n in range(4)]
        for name in names:
            plain.create(ns, gcu_pod(name, 12))
            plain.running(ns, name)
        for n, name in enumerate(names):
            assert plain.sees(ns, name).devices == [f"gcu{n}"]
            assert plain.sees(ns, name).env["ENFLAME_VISIBLE_DEVICES"] == str(n)


@pytest.fixture
def device_nodes() -> Iterator[None]:
    """Kubelet's device specs name nodes of the host, so the simulated cards need theirs."""
    made = [f"/dev/gcu{n}" for n in range(8) if not os.path.exists(f"/dev/gcu{n}")]
    for n, path in enumerate(made):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1023, n))
    yield
    for path in made:
        os.unlink(path)


def test_direct_injection_puts_a_mixed_up_pod_right_by_making_it_anew(
    plain: Services, device_nodes: None
) -> None:
    """Kubelet asks in its own order; who would get another's card is refused, deleted, and comes again."""
    plain.start(agent=("--injection", "direct"))
    with plain.cluster.namespace("mixed") as ns:
        pod = gcu_pod("unused", 12)
        template = {"metadata": {"labels": {"app": "mixed"}}, "spec": pod["spec"]}
        spec = {"replicas": 6, "selector": {"matchLabels": {"app": "mixed"}}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "mixed"}, "spec": spec}
        plain.cluster.api("POST", f"/apis/apps/v1/namespaces/{ns}/replicasets", body)

        def ready() -> bool:
            path = f"/apis/apps/v1/namespaces/{ns}/replicasets/mixed"
            return bool(plain.cluster.api("GET", path)["status"].get("readyReplicas", 0) == 6)

        plain.cluster.wait(ready, "six replicas", 120)
        pods = plain.cluster.api("GET", f"/api/v1/namespaces/{ns}/pods")["items"]
        for found in pods:
            name, card = (
                found["metadata"]["name"],
                found["metadata"]["annotations"]["enflame.com/gcu-device-id"],
            )
            if not found["metadata"].get("deletionTimestamp"):
                assert plain.sees(ns, name).devices == [f"gcu{card}"]
        plain.cluster.api("DELETE", f"/apis/apps/v1/namespaces/{ns}/replicasets/mixed")
