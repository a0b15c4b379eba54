"""The node's own object: kept as the agent wants it, and left alone where nothing differs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec import structs

from accelshare.core.inventory import INVENTORY, Inventory, read_inventory, write_inventory
from accelshare.core.objects import Meta, Node, NodeStatus
from accelshare.kube.api.client import Client
from accelshare.services.agent.node import YIELD_SECONDS, NodeKeeper, agent_name, differing, quantity
from tests.builders import an_inventory
from tests.kube.stub_api import Answer, Recorded, StubApi, status
from tests.services.agent.world import NODE, in_loop

OURS = structs.replace(an_inventory(), agent=agent_name(200, "aa"))
THEIRS = structs.replace(an_inventory(), agent=agent_name(300, "bb"))  # they started after us
BEFORE = structs.replace(an_inventory(), agent=agent_name(100, "cc"))
PATH = f"/api/v1/nodes/{NODE}"


class ApiNode:
    """The node as the API server has it: merged with every patch, which is also kept."""

    def __init__(self, api: StubApi) -> None:
        self.patches: list[Any] = []
        self.answers: list[Answer] = []  # given in place of the next patches
        self.node: dict[str, Any] = {"metadata": {"name": NODE, "uid": "u1", "annotations": {}}, "status": {}}
        self.version = 1
        self.changed = asyncio.Condition()
        api.handle("GET", PATH, self._get)
        api.handle("PATCH", PATH, self._patch)
        api.handle("PATCH", f"{PATH}/status", self._patch)

    def read(self) -> Node:
        self.node["metadata"]["resourceVersion"] = str(self.version)
        return msgspec.convert(self.node, Node)

    def edit(self, text: str | None) -> Node:
        """As somebody else changes the annotation."""
        self.version += 1
        self.node["metadata"]["annotations"] = {} if text is None else {INVENTORY: text}
        return self.read()

    @property
    def inventory(self) -> Inventory:
        return read_inventory(self.node["metadata"]["annotations"][INVENTORY])

    async def until_patched(self, times: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.patches) >= times)

    async def _get(self, _request: Recorded) -> Answer:
        return Answer(200, self.read())

    async def _patch(self, request: Recorded) -> Answer:
        async with self.changed:
            self.patches.append(request.json)
            self.changed.notify_all()
        if self.answers:
            return self.answers.pop(0)
        asked = request.json.get("metadata", {}).get("resourceVersion", str(self.version))
        if asked != str(self.version):
            return status(409, "Conflict", "the object has been modified")
        self.version += 1
        _merge(self.node, request.json)
        return Answer(200, self.read())


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


Scenario = Callable[[ApiNode, NodeKeeper], Awaitable[None]]


def keeping(scenario: Scenario, **options: Any) -> None:
    async def whole() -> None:
        async with StubApi() as api, Client(api.config, "test") as client:
            await scenario(ApiNode(api), NodeKeeper(client, NODE, **options))

    in_loop(whole)


@contextlib.asynccontextmanager
async def running(keeper: NodeKeeper) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_inventory_is_written_into_the_annotation() -> None:
    """What stands there afterwards is what the agent wants."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        assert node.inventory == OURS

    keeping(scenario)


def test_nothing_is_written_where_nothing_differs() -> None:
    """An annotation and amounts that stand already cost no call."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {"enflame.com/gcu-count": 2})
        await keeper.write()
        before = len(node.patches)
        await keeper.write()
        keeper.seen(node.read())
        await keeper.write()
        assert len(node.patches) == before == 2

    keeping(scenario)


def test_an_edited_annotation_is_written_again() -> None:
    """Whoever else changes it finds ours the moment the watch has told of it."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        async with running(keeper):
            await node.until_patched(1)
            for count, text in enumerate(
                ("nonsense", None, write_inventory(structs.replace(OURS, cards=())))
            ):
                keeper.seen(node.edit(text))
                await node.until_patched(2 + count)
        assert node.inventory == OURS

    keeping(scenario)


def test_an_event_older_than_our_own_write_changes_nothing() -> None:
    """The watch may bring what stood there before, after we were answered."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        before = node.read()
        keeper.seen(before)
        keeper.want(OURS, {})
        await keeper.write()
        keeper.seen(before)
        await keeper.write()
        assert len(node.patches) == 1

    keeping(scenario)


def test_a_node_that_was_made_anew_is_written_anew() -> None:
    """Another object under the same name has neither annotation nor amounts."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {"x": 1})
        await keeper.write()
        keeper.gone()
        await keeper.write()
        assert len(node.patches) == 2
        node.node = {"metadata": {"name": NODE, "uid": "u2"}, "status": {}}
        node.version = 1
        keeper.seen(node.read())
        await keeper.write()
        assert node.inventory == OURS
        assert node.node["status"]["capacity"] == {"x": "1"}

    keeping(scenario)


def test_amounts_stand_in_capacity_and_in_allocatable() -> None:
    """kubelet keeps what it does not own, and kube-scheduler reads what is allocatable."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {"enflame.com/gcu-memory": 128000, "enflame.com/gcu-count": 8})
        await keeper.write()
        amounts = {"enflame.com/gcu-memory": "128k", "enflame.com/gcu-count": "8"}
        assert node.node["status"] == {"capacity": amounts, "allocatable": amounts}

    keeping(scenario)


def test_only_amounts_that_differ_are_patched() -> None:
    """Other resources of the node are not touched, nor are ours that are right."""
    node = Node(
        Meta(name=NODE),
        NodeStatus(
            capacity={"cpu": "4", "a": "1", "b": "2", "c": "3"}, allocatable={"a": "1", "b": "1", "c": "3"}
        ),
    )

    assert differing(node, {"a": 1, "b": 2, "c": 4, "d": 5}) == {"b": "2", "c": "4", "d": "5"}


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (8, "8"), (1000, "1k"), (1280, "1280"), (128000, "128k"), (640000, "640k"), (10**21, "1000E")],
)
def test_amounts_are_written_as_the_api_server_keeps_them(amount: int, text: str) -> None:
    """It stores 128000 as 128k; any other form would look like a difference for ever."""
    assert quantity(amount) == text


def test_a_write_that_fails_is_tried_again() -> None:
    """The API server may be away for a moment."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        node.answers = [status(500, "InternalError", "away"), status(409, "Conflict", "changed")]
        keeper.seen(node.read())
        keeper.want(OURS, {})
        async with running(keeper):
            await node.until_patched(3)
        assert node.inventory == OURS

    keeping(scenario, retry=0.0)


def test_before_the_node_is_known_nothing_is_written() -> None:
    """There is nothing to compare with yet."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.want(OURS, {"x": 1})
        await keeper.write()
        assert node.patches == []

    keeping(scenario)


def test_leaving_is_written_last() -> None:
    """Nobody counts on this node any more, and nothing of ours takes it back."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        await keeper.leave()
        keeper.want(structs.replace(OURS, problem="late"), {})
        keeper.seen(node.read())
        await keeper.write()
        assert node.inventory == structs.replace(OURS, leaving=True)

    keeping(scenario)


def test_a_predecessor_is_written_over_at_once() -> None:
    """What an agent left that ran before us is not waited for."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.edit(write_inventory(BEFORE)))
        keeper.want(OURS, {})
        await keeper.write()
        assert node.inventory == OURS

    keeping(scenario)


def test_a_predecessor_whose_clock_was_ahead_is_written_over_at_once() -> None:
    """What stood there before our first write is nobody's who runs beside us."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.edit(write_inventory(THEIRS)))
        keeper.want(OURS, {})
        await keeper.write()
        assert node.inventory == OURS

    keeping(scenario)


def test_a_successor_is_left_alone_and_its_word_stands_when_we_leave() -> None:
    """While an agent is replaced, the two do not write over each other for ever."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        keeper.seen(node.edit(write_inventory(THEIRS)))
        await keeper.write()
        await keeper.leave()
        assert node.inventory == THEIRS

    keeping(scenario)


def test_a_successor_that_was_none_is_written_over_after_a_minute() -> None:
    """Somebody who wrote another agent's name by hand does not take the node from us."""
    now = 0.0

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        nonlocal now
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        keeper.seen(node.edit(write_inventory(THEIRS)))
        await keeper.write()
        assert node.inventory == THEIRS
        now = YIELD_SECONDS
        await keeper.write()
        assert node.inventory == OURS

    keeping(scenario, clock=lambda: now)


def test_leaving_does_not_write_over_a_successor_that_we_have_not_seen() -> None:
    """Our watch is behind: the API server refuses the write, and what stands there is looked at anew."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        node.edit(write_inventory(THEIRS))
        await keeper.leave()
        assert node.inventory == THEIRS

    keeping(scenario)


def test_leaving_is_said_also_where_somebody_else_has_changed_the_node() -> None:
    """kubelet writes the node's status all the time; the second try rests on what it wrote."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        node.edit(write_inventory(OURS))
        await keeper.leave()
        assert node.inventory == structs.replace(OURS, leaving=True)

    keeping(scenario)


def test_nobody_yields_to_one_that_leaves() -> None:
    """Whoever says that he goes is no successor."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        keeper.seen(node.edit(write_inventory(structs.replace(THEIRS, leaving=True))))
        await keeper.write()
        assert node.inventory == OURS

    keeping(scenario)


@pytest.mark.parametrize(
    "agent", [BEFORE.agent, "somebody", "", "0.1.0/0a1b2c3d", "0.1.0/zz-aa", "0.1.0/-aa", f"{OURS.agent}x"]
)
def test_only_an_agent_that_started_later_is_a_successor(agent: str) -> None:
    """Any other author is written over at once: a predecessor, an edit by hand, an older form of name."""

    async def scenario(node: ApiNode, keeper: NodeKeeper) -> None:
        keeper.seen(node.read())
        keeper.want(OURS, {})
        await keeper.write()
        keeper.seen(node.edit(write_inventory(structs.replace(OURS, agent=agent, cards=()))))
        await keeper.write()
        assert node.inventory == OURS

    keeping(scenario)
