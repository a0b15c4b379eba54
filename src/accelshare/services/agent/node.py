"""Keeps the node's own object as this agent wants it: one annotation, and the amounts in its status.

The agent is the only writer of both. Whoever else changes them finds them written again at the next event,
and at the latest after five seconds.

While an agent is replaced, two run on the node, and each would write over the other for ever. The newer one
wins: what an agent that started after us wrote is left alone for a minute, by which time one of the two is
gone. When an agent started stands in its name. Whoever says that he leaves is no successor.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from msgspec import structs

import accelshare
from accelshare.core.errors import AccelshareError, BadInput
from accelshare.core.inventory import INVENTORY, Inventory, read_inventory, write_inventory
from accelshare.core.objects import Node, version_number
from accelshare.kube.api.client import Client
from accelshare.kube.api.errors import Conflict

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
RETRY_SECONDS = 1.0
YIELD_SECONDS = 60.0
LEAVE_TRIES = 5  # kubelet writes the same object; that it does so five times in a row does not happen

_NAME = re.compile(r"[^/]+/([0-9a-f]{1,16})-[0-9a-f]+")  # version, start, and what makes it one of a kind


def agent_name(started: int, drawn: str) -> str:
    """started: in nanoseconds since 1970."""
    return f"{accelshare.__version__}/{started:x}-{drawn}"


def started(agent: str) -> int | None:
    """When the agent of that name started; None where no agent has given itself that name."""
    found = _NAME.fullmatch(agent)
    return int(found[1], 16) if found else None


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
        node = self._node
        if inventory is None:
            return
        text = write_inventory(structs.replace(inventory, leaving=True))
        for _ in range(LEAVE_TRIES):
            if node is None or (author := _written(node)) is None or author.agent != inventory.agent:
                return
            # Our watch may be behind: the version keeps us from writing over a successor not seen yet.
            meta = {"resourceVersion": node.metadata.resourceVersion, "annotations": {INVENTORY: text}}
            try:
                await self._client.patch(self._path, {"metadata": meta}, Node)
            except Conflict:
                node = await self._client.get(self._path, Node)
            else:
                return

    def _take(self, node: Node) -> None:
        """Either of the watch and our own writes may be behind the other."""
        if self._node is None or not _is_older(node, self._node):
            self._node = node

    def _taken_over(self, node: Node, inventory: Inventory) -> bool:
        """Whether an agent that started after us has written, and not long ago."""
        found = _written(node)
        if not self._wrote or found is None or found.leaving or not _later(found.agent, inventory.agent):
            self._yielded_to = ""
            return False
        if found.agent != self._yielded_to:
            _log.info("agent %s has taken over this node's inventory", found.agent)
            self._yielded_to, self._yielded_at = found.agent, self._clock()
        return self._clock() - self._yielded_at < YIELD_SECONDS


def _written(node: Node) -> Inventory | None:
    """The inventory that stands on the node now, where it can be read."""
    text = node.annotation(INVENTORY)
    try:
        return read_inventory(text) if text is not None else None
    except BadInput:
        return None


def _later(agent: str, than: str) -> bool:
    theirs, ours = started(agent), started(than)
    return theirs is not None and ours is not None and theirs > ours


def _is_older(node: Node, known: Node) -> bool:
    if node.metadata.uid != known.metadata.uid:
        return False
    ours = version_number(known.metadata.resourceVersion)
    return 0 < version_number(node.metadata.resourceVersion) < ours


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
