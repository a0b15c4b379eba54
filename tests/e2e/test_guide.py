"""The GCUShare guide's story on a real kube-scheduler, kubelet and containerd."""

import pytest

from .services import Services, gcu_pod

TELL = "env | grep ACCELSHARE_MEMORY_BYTES; exec sleep 3600"
REFUSAL = "insufficient GCU Memory in one gcu device"


def test_the_guides_four_pods_get_what_the_guide_says(services: Services, ns: str) -> None:
    """4 and 8 GB share GCU0, 12 GB gets GCU1, 20 GB waits with the guide's reason; then the cards fill."""
    services.create(ns, gcu_pod("gcushare-pod-1", 4))
    services.running(ns, "gcushare-pod-1")
    services.create(ns, gcu_pod("gcushare-pod-2", 8))
    services.running(ns, "gcushare-pod-2")
    services.create(ns, gcu_pod("gcushare-pod-3", 12))
    services.running(ns, "gcushare-pod-3")
    services.create(ns, gcu_pod("gcushare-pod-4", 20))

    assert services.sees(ns, "gcushare-pod-1").devices == ["gcu0"]
    second = services.sees(ns, "gcushare-pod-2")
    assert second.devices == ["gcu0"]
    assert second.env["ACCELSHARE_MEMORY_BYTES"] == str(8 << 30)
    assert second.env["ENFLAME_VISIBLE_DEVICES"] == "0"
    assert services.sees(ns, "gcushare-pod-3").devices == ["gcu1"]
    assert services.refused(ns, "gcushare-pod-4").startswith(f"0/1 nodes are available: 1 {REFUSAL}.")
    annotations = services.annotations(
        ns, "gcushare-pod-3", until=("enflame.com/gcu-device-assigned", "true")
    )
    assert annotations["enflame.com/gcu-device-id"] == "1"
    assert annotations["enflame.com/gcu-device-memory"] == "16"
    assert annotations["enflame.com/gcu-device-memory-request"] == "12"

    services.create(ns, *(gcu_pod(f"whole-{n}", 16) for n in range(2, 8)))
    services.running(ns, *(f"whole-{n}" for n in range(2, 8)))
    assert sorted(services.sees(ns, f"whole-{n}").devices[0] for n in range(2, 8)) == [
        f"gcu{n}" for n in range(2, 8)
    ]
    services.create(ns, gcu_pod("waiting", 8))
    # 8 GB are free, 4 on each of two cards: enough in sum, so it is our extender that refuses.
    assert services.refused(ns, "waiting").startswith(f"0/1 nodes are available: 1 {REFUSAL}.")
    services.delete(ns, "gcushare-pod-3")
    services.running(ns, "waiting")
    assert services.sees(ns, "waiting").devices == ["gcu1"]


def test_what_a_container_may_open_is_its_own_card_and_no_other(services: Services, ns: str) -> None:
    """Opening the granted node says ENXIO, since no driver is behind it; any other is forbidden."""
    services.create(ns, gcu_pod("opens", 4))
    services.running(ns, "opens")
    own = services.cluster.kubectl("exec", "-n", ns, "opens", "--", "sh", "-c", "cat /dev/gcu0 2>&1; true")
    made = services.cluster.kubectl(
        *("exec", "-n", ns, "opens", "--", "sh", "-c", "mknod /tmp/gcu1 c 1023 1 && cat /tmp/gcu1 2>&1; true")
    )
    assert "No such device or address" in own
    assert "not permitted" in made.lower()


def test_a_node_without_the_label_takes_no_new_pods_and_keeps_its_own(services: Services, ns: str) -> None:
    """Taken away, the label stops new pods; set again, its room counts at once."""
    services.create(ns, gcu_pod("before", 4))
    services.running(ns, "before")
    services.cluster.kubectl("label", "node", services.cluster.node, "enflame.com/gcushare-")
    services.create(ns, gcu_pod("without", 4))
    assert "node takes no gcushare pods" in services.refused(ns, "without")
    assert services.sees(ns, "before").devices == ["gcu0"]
    services.cluster.kubectl("label", "node", services.cluster.node, "enflame.com/gcushare=true")
    services.running(ns, "without")


def test_several_containers_of_a_pod_share_one_card(services: Services, ns: str) -> None:
    """Init and app containers each see their own amount, on the same card; their peak is what is taken."""
    services.create(ns, gcu_pod("filler", 8))
    services.running(ns, "filler")
    pod = gcu_pod("several", 6, command=TELL)
    second = {**pod["spec"]["containers"][0], "name": "second"}
    first = {**pod["spec"]["containers"][0], "name": "first", "command": ["sh", "-c", "env | grep BYTES"]}
    second["resources"] = {"limits": {"enflame.com/gcu-memory": 3}}
    first["resources"] = {"limits": {"enflame.com/gcu-memory": 10}}
    pod["spec"]["containers"].append(second)
    pod["spec"]["initContainers"] = [first]
    services.create(ns, pod)
    services.running(ns, "several")
    told = {
        name: services.cluster.kubectl("logs", "-n", ns, "several", "-c", name).split()[-1]
        for name in ("first", "main", "second")
    }
    assert told == {
        "first": f"ACCELSHARE_MEMORY_BYTES={10 << 30}",
        "main": f"ACCELSHARE_MEMORY_BYTES={6 << 30}",
        "second": f"ACCELSHARE_MEMORY_BYTES={3 << 30}",
    }
    annotations = services.annotations(ns, "several", until=("enflame.com/gcu-device-assigned", "true"))
    assert annotations["enflame.com/gcu-device-memory-request"] == "10"
    assert annotations["enflame.com/gcu-device-id"] == "1"


def test_a_container_that_crashes_comes_back_with_its_card(services: Services, ns: str) -> None:
    """Kubelet asks PreStartContainer again, and the answer is the same."""
    services.create(ns, gcu_pod("other", 12), gcu_pod("crashes", 8, command="sleep 2; exit 1"))
    services.running(ns, "other", "crashes")
    before = services.sees(ns, "crashes")
    services.cluster.wait(
        lambda: services.pod(ns, "crashes")["status"]["containerStatuses"][0]["restartCount"] > 0, "a restart"
    )
    services.running(ns, "crashes")
    assert services.sees(ns, "crashes").devices == before.devices


@pytest.mark.parametrize("count", [12, 50])
def test_many_equal_pods_at_once_each_get_their_own(services: Services, ns: str, count: int) -> None:
    """However kubelet hands out ids, every container has the card that its own pod was granted."""
    names = [f"equal-{n}" for n in range(count)]
    services.create(ns, *(gcu_pod(name, 2) for name in names))
    services.running(ns, *names, timeout=120)
    for name in names:
        pod = services.pod(ns, name)
        seen = services.sees(ns, name)
        assert seen.env["ACCELSHARE_POD_UID"] == pod["metadata"]["uid"]
        assert seen.devices == [f"gcu{pod['metadata']['annotations']['enflame.com/gcu-device-id']}"]
