"""What the agent says about pods: events, and the mark that a pod has what it was granted.

Nobody waits for a report; one that cannot be made is a line in the log. A mark that is missing is seen and
written at the next sweep, an event is not made up for.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine

from accelshare.core.errors import AccelshareError
from accelshare.core.objects import Pod
from accelshare.dialects import DIALECTS
from accelshare.dialects.interface import MarksStart
from accelshare.kube.api.client import Client, pod_path
from accelshare.kube.api.errors import Conflict, NotFound
from accelshare.kube.api.events import EventKind, EventRecorder, ObjectReference

_log = logging.getLogger(__name__)


class PodReports:
    """serving.Reports, told to the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._events = EventRecorder(client, "accelshare-agent")
        self._tasks: set[asyncio.Task[None]] = set()

    def refused(self, pod: Pod, why: str) -> None:
        _log.warning("%s", why)
        meta = pod.metadata
        about = ObjectReference("Pod", meta.name, meta.uid, meta.namespace)
        self.event(about, "Warning", "GrantRefused", why)

    def mismatched(self, pod: Pod, why: str) -> None:
        self.refused(pod, why)
        self._later(self._delete(pod))

    def served(self, pod: Pod) -> None:
        self._later(self._mark_started(pod))

    def event(self, about: ObjectReference, kind: EventKind, reason: str, text: str) -> None:
        self._later(self._events.record(about, kind, reason, text))

    async def settle(self, seconds: float) -> None:
        """Waits so long for what is being reported."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _delete(self, pod: Pod) -> None:
        """No eviction: a policy cannot limit that to the pods of this node."""
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(pod_path(pod.metadata.namespace, pod.metadata.name), pod.metadata.uid)

    async def _mark_started(self, pod: Pod) -> None:
        marks = missing_marks(pod)
        if not marks:
            return
        patch = {"metadata": {"uid": pod.metadata.uid, "annotations": marks}}
        with contextlib.suppress(NotFound):
            await self._client.patch(pod_path(pod.metadata.namespace, pod.metadata.name), patch, Pod)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(_report_failure(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def missing_marks(pod: Pod) -> dict[str, str]:
    """What is to be written on the pod once all of its containers have what they were granted."""
    marks: dict[str, str] = {}
    for dialect in DIALECTS.values():
        if isinstance(dialect, MarksStart):
            marks |= dialect.started(pod)
    return marks


async def _report_failure(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except AccelshareError as error:
        _log.warning("%s", error)
    except Exception:
        _log.exception("a report could not be made")
