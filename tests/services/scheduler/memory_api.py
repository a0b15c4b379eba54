"""An API server in memory, as small as it can be and still honest about binding.

A binding is atomic: node and annotations together or not at all; it is refused for a pod that is bound, that
is being deleted, or whose UID is another. What a call's answer is and whether it took effect are two things,
and a test says both: see Outcome. Changes reach a watcher only when the test delivers them.
"""

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Literal, NamedTuple

import msgspec

from accelshare.core.objects import Meta, Pod
from accelshare.kube.api.client import check_annotations
from accelshare.kube.api.errors import ApiError, Conflict, Forbidden, NotFound, ServerError, Unreachable
from accelshare.services.scheduler.state import SchedulerState


class Outcome(Enum):
    """Of one call: whether it takes effect, and how it ends."""

    LOST = "the time is up, and it did not take effect"
    LANDED = "the time is up, and it took effect"
    LATE = "the time is up, and it takes effect when the test says so"
    BROKEN = "500, and it did not take effect"
    BROKEN_LANDED = "500, and it took effect"
    FORBIDDEN = "403"
    HANGS = "no answer until the test opens the gate; then it takes effect"


class Posted(NamedTuple):
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str]


class Told(NamedTuple):
    name: str
    kind: str
    reason: str
    message: str


def _copy(pod: Pod) -> Pod:
    return msgspec.convert(msgspec.to_builtins(pod), Pod)


class MemoryApi:
    def __init__(self, *, checks_uid: bool = True) -> None:
        self.checks_uid = checks_uid
        self.pods: dict[tuple[str, str], Pod] = {}
        self.binds: list[Outcome] = []  # what comes of the next calls of bind, in turn; then all go well
        self.reads: list[Outcome] = []
        self.posted: list[Posted] = []
        self.told: list[Told] = []
        self.labels: dict[str, dict[str, str]] = {}
        self.gate = asyncio.Event()
        self.hanging = asyncio.Event()  # a call waits at the gate
        self._late: list[Posted] = []
        self._version = 100
        self._undelivered: list[tuple[str, Pod]] = []

    # --- what others do to the cluster --------------------------------------------------------------------

    def create(self, pod: Pod) -> Pod:
        pod = _copy(pod)
        self.pods[pod.metadata.namespace, pod.metadata.name] = pod
        self._changed("ADDED", pod)
        return _copy(pod)

    def finish(self, name: str) -> None:
        pod = self.pods["default", name]
        assert pod.status is not None
        pod.status.phase = "Succeeded"
        self._changed("MODIFIED", pod)

    def remove(self, name: str) -> None:
        self._changed("DELETED", self.pods.pop(("default", name)))

    def land(self) -> None:
        """Calls that were late take effect now, as far as they still may."""
        late, self._late = self._late, []
        for post in late:
            try:
                self._bind("default", post)
            except ApiError:
                continue

    def deliver(self, state: SchedulerState) -> None:
        """The watch brings everything that it has not brought yet."""
        events, self._undelivered = self._undelivered, []
        for kind, pod in events:
            (state.pod_gone if kind == "DELETED" else state.pod_changed)(pod)

    def pod(self, name: str) -> Pod:
        return self.pods["default", name]

    # --- Api ------------------------------------------------------------------------------------------------

    async def read_pod(self, namespace: str, name: str) -> Pod:
        outcome = self.reads.pop(0) if self.reads else None
        if outcome is Outcome.HANGS:
            self.hanging.set()
            await self.gate.wait()
        elif outcome is not None:
            raise _error(outcome)
        return _copy(self._find(namespace, name))

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        standing: Mapping[str, str] | None,
        timeout: float,
    ) -> None:
        check_annotations(annotations, standing)
        assert timeout < 5, "kube-scheduler has given up by then"
        post = Posted(name, uid, node, dict(annotations))
        self.posted.append(post)
        outcome = self.binds.pop(0) if self.binds else None
        if outcome is Outcome.HANGS:
            self.hanging.set()
            await self.gate.wait()
            outcome = None
        if outcome is Outcome.LATE:
            self._late.append(post)
        elif outcome in (None, Outcome.LANDED, Outcome.BROKEN_LANDED):
            self._bind(namespace, post)
        if outcome is not None:
            raise _error(outcome)

    async def binding_checks_uid(self) -> bool:
        return self.checks_uid

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        if self._find(namespace, name).metadata.uid != uid:
            raise Conflict(409, "Conflict", "the UID in the precondition is another")
        self.remove(name)

    async def annotate(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        pod = self._find(namespace, name)
        if pod.metadata.uid != uid:
            raise Conflict(409, "Conflict", "the UID in the precondition is another")
        pod.metadata.annotations = {**(pod.metadata.annotations or {}), **annotations}
        self._changed("MODIFIED", pod)

    async def label(self, namespace: str, name: str, labels: Mapping[str, str | None]) -> None:
        standing = self.labels[name]
        for key, value in labels.items():
            if value is None:
                standing.pop(key, None)
            else:
                standing[key] = value

    async def labelled(self, namespace: str, selector: str) -> list[str]:
        wanted = dict(part.split("=") for part in selector.split(","))
        return [name for name, labels in self.labels.items() if wanted.items() <= labels.items()]

    async def tell(self, pod: Pod, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self.told.append(Told(pod.metadata.name, kind, reason, message))

    # --- inside ---------------------------------------------------------------------------------------------

    def _find(self, namespace: str, name: str) -> Pod:
        pod = self.pods.get((namespace, name))
        if pod is None:
            raise NotFound(404, "NotFound", f'pods "{name}" not found')
        return pod

    def _bind(self, namespace: str, post: Posted) -> None:
        pod = self._find(namespace, post.name)
        if self.checks_uid and pod.metadata.uid != post.uid:
            raise Conflict(409, "Conflict", "the UID in the precondition is another")
        if pod.spec.nodeName:
            raise Conflict(409, "Conflict", f'pod {post.name} is already assigned to node "{pod.node}"')
        if pod.metadata.deletionTimestamp:
            raise Conflict(409, "Conflict", f"pod {post.name} is being deleted")
        pod.spec.nodeName = post.node
        pod.metadata.annotations = {**(pod.metadata.annotations or {}), **post.annotations}
        self._changed("MODIFIED", pod)

    def _changed(self, kind: str, pod: Pod) -> None:
        self._version += 1
        pod.metadata.resourceVersion = str(self._version)
        self._undelivered.append((kind, _copy(pod)))


def _error(outcome: Outcome) -> ApiError:
    if outcome is Outcome.FORBIDDEN:
        return Forbidden(403, "Forbidden", "may not")
    if outcome in (Outcome.BROKEN, Outcome.BROKEN_LANDED):
        return ServerError(500, "InternalError", "etcd is away")
    return Unreachable("the time was up")


def renamed(pod: Pod, uid: str) -> Pod:
    """Another pod of the same name."""
    meta: Meta = msgspec.structs.replace(pod.metadata, uid=uid)
    return msgspec.structs.replace(_copy(pod), metadata=meta)
