"""What the agent knows of its node: the cards as the driver last saw them, and the pods bound to it."""

import asyncio
from collections.abc import Iterable, Mapping

from accelshare.core.errors import AccelshareError
from accelshare.core.inventory import Card
from accelshare.core.ledger import Ledger, Tenant
from accelshare.core.objects import Node, Pod
from accelshare.core.ownership import KnownPod, known_pod
from accelshare.dialects import Dialects
from accelshare.kube.api.client import Client


class NodeView:
    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self.pods: dict[str, Pod] = {}
        self.cards: Mapping[str, Card] = {}
        self.changed = asyncio.Condition()
        self.runtime_version = ""  # as the node's status says it: containerd://2.4.2
        self._client = client
        self._ledger = Ledger(Dialects())

    def known(self) -> Mapping[str, KnownPod]:
        return {uid: known_pod(pod) for uid, pod in self.pods.items()}

    def tenants(self) -> list[Tenant]:
        state = self._ledger.nodes.get(self.name)
        return list(state.tenants.values()) if state else []

    def living(self, uid: str) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and not pod.finished

    # Fed by the watch

    def set_node(self, node: Node) -> None:
        if node.status is not None and node.status.nodeInfo is not None:
            self.runtime_version = node.status.nodeInfo.containerRuntimeVersion
        self._ledger.set_node(node)

    def replace(self, pods: Iterable[Pod]) -> None:
        pods = list(pods)
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self._ledger.replace_pods(pods)

    def apply(self, kind: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        if kind == "DELETED":
            self.pods.pop(uid, None)
            self._ledger.remove_pod(uid)
        else:
            self.pods[uid] = pod
            self._ledger.set_pod(pod)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # Asked of the API server, where the watch may be behind

    async def refresh(self) -> None:
        """Lists this node's pods anew, so that a decision rests on what stands now."""
        pods: list[Pod] = []
        async for page in self._client.list_pages("/api/v1/pods", Pod, pods_of(self.name)):
            pods.extend(page.items)
        self.replace(pods)
        await self.tell()


def pods_of(node: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={node}"}


async def quietly_refresh(view: NodeView) -> bool:
    """Whether it could be done; the API server may be away while containers start."""
    try:
        await view.refresh()
    except AccelshareError:
        return False
    return True
