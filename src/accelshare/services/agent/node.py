"""Keeps the node's own object as this agent wants it: one annotation, and the amounts in its status.

The agent is the only writer of both. Whoever else changes them finds them written again at the next event,
and at the latest after five seconds.
"""

import asyncio
import logging
from collections.abc import Mapping
from urllib.parse import quote

from msgspec import structs

from accelshare.core.errors import AccelshareError
from accelshare.core.inventory import INVENTORY, Inventory, read_inventory, write_inventory
from accelshare.core.objects import Node
from accelshare.kube.api.client import Client

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


class NodeKeeper:
    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._path = f"/api/v1/nodes/{quote(name, safe='')}"
        self._node: Node | None = None
        self._inventory: Inventory | None = None
        self._status: Mapping[str, int] = {}
        self._look = asyncio.Event()
        self._said = ""

    def want(self, inventory: Inventory, status: Mapping[str, int]) -> None:
        self._inventory, self._status = inventory, status
        self._look.set()

    def seen(self, node: Node) -> None:
        """The node as the watch shows it."""
        self._node = node
        self._look.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            try:
                await self.write()
                self._said = ""
            except AccelshareError as error:
                if str(error) != self._said:
                    _log.warning("the node's object is not as it should be: %s", error)
                    self._said = str(error)
                await asyncio.sleep(1.0)
                self._look.set()

    async def write(self) -> None:
        """Patches what differs, and nothing where nothing does."""
        if self._node is None or self._inventory is None:
            return
        text = write_inventory(self._inventory)
        if self._node.annotation(INVENTORY) != text:
            patch = {"metadata": {"annotations": {INVENTORY: text}}}
            self._node = await self._client.patch(self._path, patch, Node)
        amounts = differing(self._node, self._status)
        if amounts:
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            self._node = await self._client.patch(f"{self._path}/status", status, Node)

    async def leave(self) -> None:
        """Says that this agent goes, unless another one has taken over already."""
        if self._inventory is None or self._node is None or self._node.annotation(INVENTORY) is None:
            return
        if read_inventory(self._node.annotation(INVENTORY) or "").agent != self._inventory.agent:
            return
        leaving = structs.replace(self._inventory, leaving=True)
        await self._client.patch(
            self._path, {"metadata": {"annotations": {INVENTORY: write_inventory(leaving)}}}, Node
        )


def differing(node: Node, wanted: Mapping[str, int]) -> dict[str, str]:
    """The amounts that the node's status does not show as they should be."""
    capacity = (node.status.capacity if node.status else None) or {}
    allocatable = (node.status.allocatable if node.status else None) or {}
    return {
        name: str(amount)
        for name, amount in wanted.items()
        if capacity.get(name) != str(amount) or allocatable.get(name) != str(amount)
    }
