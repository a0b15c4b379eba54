"""What the agent knows of its node: the cards as the driver last saw them, and the pods bound to it.

Two sources tell of the pods: a watch, and lists that are asked for where a decision cannot wait for it.
Each may know what the other does not yet, so all that is told carries its resource version, and what is
older than what is known changes nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from accelshare.core.errors import AccelshareError
from accelshare.core.inventory import Card
from accelshare.core.ledger import Ledger, Tenant
from accelshare.core.objects import Node, Pod, version_number
from accelshare.core.ownership import KnownPod, known_pod
from accelshare.dialects import Dialects
from accelshare.kube.api.client import Client

REMEMBERED_GONE = 1024  # deleted pods, so that a list which was under way cannot bring one back


class NodeView:
    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self.pods: dict[str, Pod] = {}
        self.cards: Mapping[str, Card] = {}
        self.changed = asyncio.Condition()
        self.found = False  # whether a Node object of this name has been seen
        self.runtime_version = ""  # as the node's status says it: containerd://2.4.2
        self._client = client
        self._node: Node | None = None
        self._ledger = Ledger(Dialects())
        self._listed = 0  # the resource version of the newest list
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._begun = self._answered = 0  # numbers of lists that were asked for

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
        self.found = True
        self._node = node
        if node.status is not None and node.status.nodeInfo is not None:
            self.runtime_version = node.status.nodeInfo.containerRuntimeVersion
        self._ledger.set_node(node)

    def replace(self, pods: Iterable[Pod], version: str = "") -> None:
        """The watch begins anew with this list, whatever was known: the server may be back from a backup."""
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self._listed = version_number(version)
        self._gone.clear()
        self._ledger = Ledger(Dialects())
        if self._node is not None:
            self._ledger.set_node(self._node)
        self._ledger.replace_pods(self.pods.values())

    def apply(self, kind: str, pod: Pod) -> None:
        if 0 < _version(pod) <= self._listed:
            return  # a newer list said so already
        if kind == "DELETED":
            self._drop(pod.metadata.uid)
            self._gone[pod.metadata.uid] = None
            if len(self._gone) > REMEMBERED_GONE:
                self._gone.popitem(last=False)
        else:
            self._put(pod)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # Asked of the API server, where the watch may be behind

    async def refresh(self) -> None:
        """Lists this node's pods anew, so that a decision rests on what stands now.

        Many containers start at once: a list that was begun after we asked answers us too.
        """
        asked = self._begun
        async with self._turn:
            if self._answered > asked:
                return
            self._begun += 1
            pods: list[Pod] = []
            version = ""
            async for page in self._client.list_pages("/api/v1/pods", Pod, pods_of(self.name)):
                pods.extend(page.items)
                version = page.resource_version
            self.merge(pods, version)
            self._answered = self._begun
        await self.tell()

    def merge(self, pods: Iterable[Pod], version: str) -> None:
        """A list beside the watch, as of this resource version."""
        at = version_number(version)
        listed = {pod.metadata.uid: pod for pod in pods if pod.metadata.uid not in self._gone}
        for pod in listed.values():
            self._put(pod)
        for uid in [uid for uid, pod in self.pods.items() if uid not in listed and _version(pod) <= at]:
            self._drop(uid)
        self._listed = max(self._listed, at)

    # Inside

    def _put(self, pod: Pod) -> None:
        known = self.pods.get(pod.metadata.uid)
        if known is None or not 0 < _version(pod) < _version(known):
            self.pods[pod.metadata.uid] = pod
            self._ledger.set_pod(pod)

    def _drop(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self._ledger.remove_pod(uid)


def pods_of(node: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={node}"}


def _version(pod: Pod) -> int:
    return version_number(pod.metadata.resourceVersion)


async def quietly_refresh(view: NodeView) -> bool:
    """Whether it could be done; the API server may be away while containers start."""
    try:
        await view.refresh()
    except AccelshareError:
        return False
    return True
