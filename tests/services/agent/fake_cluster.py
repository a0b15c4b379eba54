"""An API server with one node and its pods, that can be watched: enough of one for a whole agent.

Everything that is written is kept in `node`, `pods` and `events`; every change wakes `until`.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from accelshare.core.inventory import INVENTORY, Inventory, read_inventory
from accelshare.core.objects import Node, Pod
from tests.kube.stub_api import Answer, Recorded, Scripted, Stream, StubApi, line, object_list, status
from tests.services.agent.world import NODE

Object = dict[str, Any]


class FakeCluster:
    def __init__(self, api: StubApi, runtime: str = "containerd://2.1.0") -> None:
        self._api = api
        self._version = 1
        self._log: list[tuple[int, str, str, Object]] = []  # version, "nodes" or "pods", kind, object
        self._closing = False
        self.changed = asyncio.Condition()
        self.events: list[Object] = []
        self.deleted: list[str] = []  # UIDs that were given as preconditions
        self.pods: dict[str, Object] = {}  # by path
        self.away = False  # whether writes are refused
        self.refused = 0  # how many were
        self.node: Object = {
            "metadata": {
                "name": NODE,
                "uid": "uid-node",
                "labels": {"enflame.com/gcushare": "true"},
                "annotations": {},
                "resourceVersion": "1",
            },
            "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
        }
        path = f"/api/v1/nodes/{NODE}"
        api.handle("GET", "/api/v1/nodes", self._nodes)
        api.handle("GET", "/api/v1/pods", self._pods)
        api.handle("GET", path, self._get_node)
        api.handle("PATCH", path, self._patch_node)
        api.handle("PATCH", f"{path}/status", self._patch_node)
        for namespace in ("default", "ns"):
            api.handle("POST", f"/api/v1/namespaces/{namespace}/events", self._event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        await self._wake()

    # What tests do and wait for

    @property
    def inventory(self) -> Inventory | None:
        text = self.node["metadata"]["annotations"].get(INVENTORY)
        return read_inventory(text) if text else None

    async def until(self, condition: Callable[[], object]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    async def until_inventory(self, condition: Callable[[Inventory], object]) -> Inventory:
        await self.until(lambda: self.inventory is not None and condition(self.inventory))
        assert self.inventory is not None
        return self.inventory

    async def put_pod(self, pod: Pod) -> str:
        """Its path."""
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        kind = "MODIFIED" if path in self.pods else "ADDED"
        obj = self.pods[path] = msgspec.to_builtins(pod)
        self._api.handle("PATCH", path, self._patch_pod)
        self._api.handle("DELETE", path, self._delete)
        await self._log_change("pods", kind, obj)
        return path

    async def delete_pod(self, path: str) -> None:
        await self._log_change("pods", "DELETED", self.pods.pop(path))

    async def annotate_node(self, text: str) -> None:
        self.node["metadata"]["annotations"][INVENTORY] = text
        await self._log_change("nodes", "MODIFIED", self.node)

    async def set_runtime(self, runtime: str) -> None:
        self.node["status"]["nodeInfo"]["containerRuntimeVersion"] = runtime
        await self._log_change("nodes", "MODIFIED", self.node)

    # What it answers

    async def _nodes(self, request: Recorded) -> Scripted:
        return await self._list_or_watch("nodes", [self.node], request)

    async def _pods(self, request: Recorded) -> Scripted:
        return await self._list_or_watch("pods", list(self.pods.values()), request)

    async def _list_or_watch(self, kind: str, objects: list[Object], request: Recorded) -> Scripted:
        if request.query.get("watch") != "true":
            return object_list(objects, str(self._version))
        since = int(request.query["resourceVersion"])

        def news() -> list[bytes]:
            return [line(change, obj) for at, of, change, obj in self._log if of == kind and at > since]

        await self.until(lambda: self._closing or news())
        return Stream(news())

    async def _get_node(self, _request: Recorded) -> Scripted:
        return Answer(200, self.node)

    async def _patch_node(self, request: Recorded) -> Scripted:
        if self.away:
            return await self._refuse()
        known = self.node["metadata"]["resourceVersion"]
        if request.json.get("metadata", {}).get("resourceVersion", known) != known:
            return status(409, "Conflict", "the object has been modified")
        _merge(self.node, request.json)
        await self._log_change("nodes", "MODIFIED", self.node)
        return Answer(200, msgspec.convert(self.node, Node))

    async def _patch_pod(self, request: Recorded) -> Scripted:
        if self.away:
            return await self._refuse()
        pod = self.pods[request.path]
        if request.json["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            return status(409, "Conflict", "the UID is another")
        _merge(pod, request.json)
        await self._log_change("pods", "MODIFIED", pod)
        return Answer(200, pod)

    async def _refuse(self) -> Scripted:
        self.refused += 1
        await self._wake()
        return status(503, "ServiceUnavailable", "away")

    async def _delete(self, request: Recorded) -> Scripted:
        pod = self.pods[request.path]
        if request.json["preconditions"]["uid"] != pod["metadata"]["uid"]:
            return status(409, "Conflict", "the UID is another")
        self.deleted.append(pod["metadata"]["uid"])
        await self.delete_pod(request.path)
        return Answer(200, pod)

    async def _event(self, request: Recorded) -> Scripted:
        self.events.append(request.json)
        await self._wake()
        return Answer(201, {})

    async def _log_change(self, of: str, kind: str, obj: Object) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, of, kind, msgspec.json.decode(msgspec.json.encode(obj))))
        await self._wake()

    async def _wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
