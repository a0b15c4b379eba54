"""What the service asks of the API server, as a small interface, and its one implementation on a real one.

The simulator and the tests bring implementations of their own. Errors are those of kube.api.errors: what
matters of them is whether they are definite.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from accelshare.core.objects import Meta, Pod
from accelshare.kube.api.client import Client, pod_path
from accelshare.kube.api.events import EventRecorder, ObjectReference


class Api(Protocol):
    async def read_pod(self, namespace: str, name: str) -> Pod:
        """Raises NotFound."""
        ...

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
        """Node and annotations in one write, for the pod of this UID only."""
        ...

    async def binding_checks_uid(self) -> bool:
        """Whether bind can be trusted to look at the UID: not on servers before 1.23, nor on 1.25.0."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None: ...

    async def annotate(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Raises Conflict where the name is another pod's by now."""
        ...

    async def label(self, namespace: str, name: str, labels: Mapping[str, str | None]) -> None: ...

    async def labelled(self, namespace: str, selector: str) -> list[str]:
        """The names of the pods that carry these labels."""
        ...

    async def tell(self, pod: Pod, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None: ...


class _Ignored(Struct):
    """An answer of which nothing is needed."""


class _Named(Struct):
    metadata: Meta


class KubeApi:
    """The Api of a real cluster."""

    def __init__(self, client: Client, recorder: EventRecorder) -> None:
        self._client = client
        self._recorder = recorder

    async def read_pod(self, namespace: str, name: str) -> Pod:
        return await self._client.get(pod_path(namespace, name), Pod)

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
        await self._client.bind(namespace, name, uid, node, annotations, standing, timeout)

    async def binding_checks_uid(self) -> bool:
        return await self._client.binding_checks_uid()

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        await self._client.delete(pod_path(namespace, name), uid)

    async def annotate(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        # A UID in a patch is a precondition: the API server refuses to change it.
        change = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._client.patch(pod_path(namespace, name), change, _Ignored)

    async def label(self, namespace: str, name: str, labels: Mapping[str, str | None]) -> None:
        await self._client.patch(pod_path(namespace, name), {"metadata": {"labels": dict(labels)}}, _Ignored)

    async def labelled(self, namespace: str, selector: str) -> list[str]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        pages = self._client.list_pages(path, _Named, {"labelSelector": selector})
        return [pod.metadata.name async for page in pages for pod in page.items]

    async def tell(self, pod: Pod, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        meta = pod.metadata
        about = ObjectReference(kind="Pod", name=meta.name, uid=meta.uid, namespace=meta.namespace)
        await self._recorder.record(about, kind, reason, message)
