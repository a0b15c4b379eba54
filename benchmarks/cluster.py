"""Figures that only a real cluster can show. Each starts one of its own on this machine (root)."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.figures import Figure, below
from tests.e2e.lab.cluster import Cluster
from tests.e2e.lab.provision import ensure
from tests.e2e.lab.record import DelayProxy
from tests.e2e.services import ROOT, Services, gcu_pod, is_running

TELLS = (
    'echo "$OWN_UID $ACCELSHARE_POD_UID $ACCELSHARE_CARDS $ACCELSHARE_MEMORY_BYTES"; '
    "ls /dev | grep gcu; exec sleep 3600"
)


def figures(only: str) -> Iterator[Figure]:
    parts = (
        (units, ("agent.units",)),
        (reuse, ("e2e.wrong_grants.reuse", "e2e.pods.reuse")),
        (freed_room, ("e2e.freed_room",)),
    )
    for measure, names in parts:
        if not only or any(below(name, only) or below(only, name) for name in names):
            yield from measure()


# Wrong grants where ids are used again


def reuse(waves: int = 34, seed: int = 1) -> Iterator[Figure]:
    """Pods of two sizes, two to a card, come and go, so that the same ids soon stand for other cards."""
    with Cluster(ensure()) as cluster, busy_cpus(4):
        services = Services(cluster)
        services.start_scheduler()
        services.start_agent("--sweep", "0", disturbed="shuffled-blocks")
        services.use_extender()
        with cluster.namespace("reuse") as namespace:
            seen = _waves(services, namespace, waves, random.Random(seed))
        services.stop()
    yield Figure("e2e.pods.reuse", seen.reused, "pods", 200, at_least=True)
    yield Figure("e2e.wrong_grants.reuse", seen.wrong, "pods", 0)


class Seen:
    """How many pods had the ids that an earlier one had for another card, and how many are wrong."""

    def __init__(self) -> None:
        self.reused = 0
        self.wrong = 0
        self._cards: dict[frozenset[str], set[str]] = {}

    def look(self, services: Services, namespace: str, name: str) -> None:
        pod = services.pod(namespace, name)
        card = pod["metadata"]["annotations"]["enflame.com/gcu-device-id"]
        cards = self._cards.setdefault(services.ids_of(pod["metadata"]["uid"]), set())
        self.reused += bool(cards - {card})
        cards.add(card)
        self.wrong += not tells_right(services, namespace, name)


def _waves(services: Services, namespace: str, waves: int, rng: random.Random) -> Seen:
    alive: list[str] = []
    seen = Seen()
    for wave in range(waves):
        rng.shuffle(alive)
        for name in alive[8:]:
            services.delete(namespace, name)
        services.gone(namespace, *alive[8:])
        alive = alive[:8]
        new = [f"w{wave}-{n}" for n in range(16 - len(alive))]
        services.create(namespace, *(telling_pod(name, rng.choice((6, 8))) for name in new))
        services.running(namespace, *new, timeout=180)
        for name in new:
            seen.look(services, namespace, name)
        alive += new
    return seen


def telling_pod(name: str, units: int) -> dict[str, Any]:
    """A pod whose log says who it is and what it was given."""
    pod = gcu_pod(name, units, command=TELLS)
    uid = {"name": "OWN_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    pod["spec"]["containers"][0]["env"] = [uid]
    return pod


def tells_right(services: Services, namespace: str, name: str) -> bool:
    """Whether the container was given exactly what its own pod's annotations say."""
    pod = services.pod(namespace, name)
    annotations = pod["metadata"]["annotations"]
    index = annotations["enflame.com/gcu-device-id"]
    units = int(annotations["enflame.com/gcu-device-memory-request"])
    lines = services.cluster.wait(
        lambda: _whole(services.cluster.kubectl("logs", "-n", namespace, name)), f"{name} to tell", 60
    )
    own, uid, card, memory = lines[0].split(" ")
    right = bool(
        own == uid == pod["metadata"]["uid"]
        and card == services.card_ids()[int(index)]
        and memory == str(units << 30)
        and lines[1:] == [f"gcu{index}"]
    )
    if not right:
        print(f"wrong: {name} was granted card {index}, and says {lines}", file=sys.stderr)
    return right


def _whole(text: str) -> list[str] | None:
    lines = text.split("\n")
    return lines[:-1] if len(lines) >= 3 else None


@contextmanager
def busy_cpus(count: int) -> Iterator[None]:
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


# Freed room


def freed_room(times: int = 5, scheduler: tuple[str, ...] = ()) -> Iterator[Figure]:
    """Seconds from a pod's DELETED event to the container of the pod that waited for its room."""
    with Cluster(ensure()) as cluster, DelayProxy("127.0.0.1", cluster.api_port, delay=0.5) as proxy:
        services = Services(cluster)
        services.start_agent()
        services.start_scheduler(*scheduler, through=proxy.port)
        services.use_extender()
        with cluster.namespace("freed") as namespace:
            worst = max(_freed_once(services, namespace, number) for number in range(times))
        services.stop()
    yield Figure("e2e.freed_room", round(worst, 2), "s", 5)


def _freed_once(services: Services, namespace: str, number: int) -> float:
    """Two pods of 6 on each card of 16; a pod of 10 waits until one goes: enough in sum, 4 on each."""
    cluster = services.cluster
    halves = [f"half-{number}-{n}" for n in range(16)]
    services.create(namespace, *(gcu_pod(name, 6) for name in halves))
    services.running(namespace, *halves, timeout=120)
    waiting = f"waiting-{number}"
    with cluster.watch_pods(namespace) as watch:
        services.create(namespace, gcu_pod(waiting, 10))
        assert "insufficient GCU Memory in one gcu device" in services.refused(namespace, waiting)
        time.sleep(8)  # an idle cluster: kube-scheduler has fallen silent about the pod
        services.delete(namespace, halves[0])
        gone = watch.wait(
            lambda event: event.type == "DELETED" and event.object["metadata"]["name"] == halves[0], "DELETED"
        )
        started = watch.wait(
            lambda event: event.object["metadata"]["name"] == waiting and is_running(event.object),
            f"{waiting} to run",
            timeout=330,
        )
    freed = gone.object["metadata"]["annotations"]["enflame.com/gcu-device-id"]
    given = started.object["metadata"]["annotations"]["enflame.com/gcu-device-id"]
    if given != freed:
        raise AssertionError(f"card {freed} was freed, and {waiting} got card {given}")
    for name in (*halves[1:], waiting):
        services.delete(namespace, name)
    services.gone(namespace, *halves[1:], waiting)
    return started.at - gone.at


# Fine units


def units() -> Iterator[Figure]:
    """8 cards of 80 GB in units of 0.001 GB, counted: one pod of 12.345 GB gets exactly that."""
    with Cluster(ensure()) as cluster:
        services = Services(cluster, ROOT / "examples" / "nodes" / "gcu-8x80.yaml")
        services.start(
            agent=("--unit", "gcushare=0.001GB", "--counted", "gcushare"),
            scheduler=("--counted", "gcushare"),
            offered=8 * 80_000,
        )
        with cluster.namespace("units") as namespace:
            pod = gcu_pod("fine", 12345)
            pod["spec"]["containers"][0]["resources"]["limits"]["accelshare.io/slot"] = 1
            services.create(namespace, pod)
            services.running(namespace, "fine")
            got = int(services.sees(namespace, "fine").env["ACCELSHARE_MEMORY_BYTES"])
            status = services.cluster.kubectl(
                "get", "pod", "-n", namespace, "fine", "-o", "jsonpath={.status}"
            )
            listed = services.device_list_bytes("accelshare.io/slot")
        services.stop()
    if got != 12345 * 2**30 // 1000:
        raise AssertionError(f"12.345 GB were granted and {got} bytes given")
    yield Figure("agent.units", round(max(len(status), listed) / 1000, 1), "kB", 64)
