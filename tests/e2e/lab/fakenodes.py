"""Node objects without a kubelet, by the hundred: kube-scheduler places pods there, and nothing ever runs.

A thread renews their leases, so that the node controller keeps them Ready. A pod bound to one stays Pending,
and its deletion needs grace period 0, since no kubelet confirms it.
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from .api import Api, ApiError

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "250"}
# The node controller gives up on a node after 50 s.
_RENEW_SECONDS = 12
_WORKERS = 4


class FakeNodes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._names: set[str] = set()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self,
        names: Iterable[str],
        capacity: Mapping[str, str],
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
    ) -> None:
        def create(name: str) -> None:
            self._api.request("POST", "/api/v1/nodes", _node(name, capacity, labels, annotations))
            self._api.request("POST", _LEASES, _lease(name))
            self._names.add(name)

        self._each(create, names)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, daemon=True)
            self._thread.start()

    def remove(self, names: Iterable[str]) -> None:
        def delete(name: str) -> None:
            self._names.discard(name)
            self._api.request("DELETE", f"/api/v1/nodes/{name}")
            self._api.request("DELETE", f"{_LEASES}/{name}")

        self._each(delete, names)

    def untainted(self, names: Iterable[str]) -> bool:
        """Whether kube-scheduler takes them: each is tainted until the node controller has seen it."""
        nodes = {
            node["metadata"]["name"]: node for node in self._api.request("GET", "/api/v1/nodes")["items"]
        }
        return all(name in nodes and not nodes[name]["spec"].get("taints") for name in names)

    def stop(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _renew(self) -> None:
        while not self._end.wait(_RENEW_SECONDS):
            self._each(self._renew_one, list(self._names))

    def _renew_one(self, name: str) -> None:
        try:
            self._api.request("PATCH", f"{_LEASES}/{name}", {"spec": {"renewTime": _now()}})
        except (ApiError, OSError):
            return  # removed in the meantime, or the API server is away; the next round tells

    def _each(self, work: Any, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(_WORKERS) as pool:
            list(pool.map(work, names))


def _node(
    name: str, capacity: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, Any]:
    amounts = {**_CAPACITY, **capacity}
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "accelshare.io/fake-node": "true"}
    seen = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Fake",
        "message": "a node without a kubelet",
        "lastHeartbeatTime": seen,
        "lastTransitionTime": seen,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**own, **labels}, "annotations": dict(annotations)},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


def _lease(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()},
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
