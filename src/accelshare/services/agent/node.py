"""Keeps the node's own object as this agent wants it: one annotation, and the amounts in its status.

The agent is the only writer of both. Whoever else changes them finds them written again at the next event,
and at the latest after five seconds.

While an agent is replaced, two run on the node, and each would write over the other for ever. The newer one
wins: an annotation that another agent wrote after we wrote ours is left alone for a minute, by which time
one of the two is gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from msgspec import structs

from accelshare.core.errors import AccelshareError, BadInput
from accelshare.core.inventory import INVENTORY, Inventory, read_inventory, write_inventory
from accelshare.core.objects import Node
from accelshare.kube.api.client import Client

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
RETRY_SECONDS = 1.0
YIELD_SECONDS = 60.0


class NodeKeeper:
    def __init__(
        self,
        client: Client,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        again: float = AGAIN_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._again = again
        self._retry = retry
        self._path = f"/api/v1/nodes/{quote(name, safe='')}"
        self._node: Node | None = None
        self._inventory: Inventory | None = None
        self._status: Mapping[str, int] = {}
        self._look = asyncio.Event()
        self._said = ""
        self._left = False
        self._wrote = False
        self._yielded_to = ""
        self._yielded_at = 0.0

    def want(self, inventory: Inventory, status: Mapping[str, int]) -> None:
        if self._left or (inventory, status) == (self._inventory, self._status):
            return
        self._inventory, self._status = inventory, status
        self._look.set()

    def seen(self, node: Node) -> None:
        """The node as the watch shows it."""
        self._take(node)
        self._look.set()

    def gone(self) -> None:
        """The node's object was deleted; it may come again, and is then another one."""
        self._node = None

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._again):
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
                await asyncio.sleep(self._retry)
                self._look.set()

    async def write(self) -> None:
        """Patches what differs, and nothing where nothing does."""
        if self._node is None or self._inventory is None or self._taken_over(self._node, self._inventory):
            return
        text = write_inventory(self._inventory)
        if self._node.annotation(INVENTORY) != text:
            patch = {"metadata": {"annotations": {INVENTORY: text}}}
            self._take(await self._client.patch(self._path, patch, Node))
        self._wrote = True
        amounts = differing(self._node, self._status)
        if amounts:
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            self._take(await self._client.patch(f"{self._path}/status", status, Node))

    async def leave(self) -> None:
        """Says that this agent goes, unless another one has taken over already."""
        inventory, self._inventory, self._left = self._inventory, None, True  # run() writes no more
        if inventory is None or self._node is None or _author(self._node) != inventory.agent:
            return
        text = write_inventory(structs.replace(inventory, leaving=True))
        await self._client.patch(self._path, {"metadata": {"annotations": {INVENTORY: text}}}, Node)

    def _take(self, node: Node) -> None:
        """Either of the watch and our own writes may be behind the other."""
        if self._node is None or not _is_older(node, self._node):
            self._node = node

    def _taken_over(self, node: Node, inventory: Inventory) -> bool:
        """Whether another agent has written since we did, and not long ago."""
        author = _author(node)
        if author is None or author == inventory.agent or not self._wrote:
            self._yielded_to = ""
            return False
        if author != self._yielded_to:
            _log.info("agent %s has taken over this node's inventory", author)
            self._yielded_to, self._yielded_at = author, self._clock()
        return self._clock() - self._yielded_at < YIELD_SECONDS


def _author(node: Node) -> str | None:
    """Which agent wrote the annotation that stands now."""
    text = node.annotation(INVENTORY)
    try:
        return (read_inventory(text).agent or None) if text is not None else None
    except BadInput:
        return None


def _is_older(node: Node, known: Node) -> bool:
    if node.metadata.uid != known.metadata.uid:
        return False
    return 0 < int(node.metadata.resourceVersion or 0) < int(known.metadata.resourceVersion or 0)


def differing(node: Node, wanted: Mapping[str, int]) -> dict[str, str]:
    """The amounts that the node's status does not show as they should be."""
    capacity = (node.status.capacity if node.status else None) or {}
    allocatable = (node.status.allocatable if node.status else None) or {}
    texts = {name: quantity(amount) for name, amount in wanted.items()}
    return {
        name: text
        for name, text in texts.items()
        if capacity.get(name) != text or allocatable.get(name) != text
    }


def quantity(amount: int) -> str:
    """As the API server writes it, which keeps 128000 as 128k: any other form would differ for ever."""
    suffixes = iter(("", "k", "M", "G", "T", "P", "E"))
    suffix = next(suffixes)
    while amount and amount % 1000 == 0 and suffix != "E":
        amount, suffix = amount // 1000, next(suffixes)
    return f"{amount}{suffix}"
