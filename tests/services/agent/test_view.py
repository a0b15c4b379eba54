"""Two sources tell of the node's pods, a watch and lists beside it; neither undoes what the other knows."""

import asyncio

from accelshare.kube.api.client import Client
from accelshare.kube.api.config import ApiConfig
from accelshare.services.agent.view import NodeView, quietly_refresh
from tests.kube.stub_api import Answer, Recorded, StubApi, object_list, status
from tests.services.agent.world import NODE, granted, in_loop


def a_view() -> NodeView:
    return NodeView(Client(ApiConfig("http://127.0.0.1:0"), "test"), NODE)


def tenants(view: NodeView) -> list[str]:
    return sorted(tenant.name for tenant in view.tenants())


def test_a_list_beside_the_watch_does_not_bring_back_what_was_deleted() -> None:
    """The list was under way when the deletion came."""
    view = a_view()
    view.replace([granted("a", 1, version=5)], "5")
    view.apply("DELETED", granted("a", 1, version=8))
    view.merge([granted("a", 1, version=5)], "7")

    assert view.pods == {}
    assert tenants(view) == []


def test_a_list_beside_the_watch_does_not_drop_what_is_newer() -> None:
    """The pod was bound after the list was made, and the watch was quicker."""
    view = a_view()
    view.replace([], "5")
    view.apply("ADDED", granted("a", 1, version=9))
    view.merge([], "7")

    assert tenants(view) == ["a"]


def test_a_list_beside_the_watch_does_not_turn_a_pod_back() -> None:
    """Of two states of one pod the newer one stays."""
    view = a_view()
    view.replace([], "5")
    pod = granted("a", 1, version=9)
    pod.metadata.labels = {"state": "newer"}
    view.apply("MODIFIED", pod)
    view.merge([granted("a", 1, version=6)], "7")

    assert view.pods["uid-a"] is pod


def test_a_list_drops_what_is_gone() -> None:
    """The watch has not heard of the deletion yet; its room is free all the same."""
    view = a_view()
    view.replace([granted("a", 1, version=5)], "5")
    view.merge([], "7")

    assert view.pods == {}
    assert tenants(view) == []


def test_events_that_a_list_knew_already_change_nothing() -> None:
    """The watch, which is behind, tells of a pod that the list no longer had."""
    view = a_view()
    view.replace([], "5")
    view.merge([], "9")
    view.apply("ADDED", granted("a", 1, version=6))

    assert view.pods == {}


def test_a_server_back_from_a_backup_is_believed() -> None:
    """Its versions are lower than those known; the watch begins anew with what it lists."""
    view = a_view()
    view.replace([granted("a", 1, version=500)], "500")
    view.replace([granted("b", 1, version=20)], "30")
    view.apply("ADDED", granted("c", 1, version=31))

    assert tenants(view) == ["b", "c"]


def test_a_finished_pod_does_not_live() -> None:
    """It is still listed, and holds nothing."""
    view = a_view()
    pod = granted("a", 1)
    view.replace([pod])
    assert view.living("uid-a")
    assert pod.status is not None
    pod.status.phase = "Succeeded"

    assert not view.living("uid-a")
    assert not view.living("nobody")


def test_a_refresh_lists_this_nodes_pods() -> None:
    """Only these are asked for, and all pages are read."""

    async def scenario() -> None:
        async with StubApi() as api, Client(api.config, "test") as client:
            api.answer(
                "GET",
                "/api/v1/pods",
                object_list([granted("a", 1)], "7", "more"),
                object_list([granted("b", 1)], "7"),
            )
            view = NodeView(client, NODE)
            await view.refresh()
            assert sorted(view.pods) == ["uid-a", "uid-b"]
            assert api.requests[0].query["fieldSelector"] == f"spec.nodeName={NODE}"

    in_loop(scenario)


def test_who_asks_at_the_same_time_shares_a_list() -> None:
    """Fifty containers that start together cost two lists: the first may be too old for some."""

    async def scenario() -> None:
        async with StubApi() as api, Client(api.config, "test") as client:
            proceed = asyncio.Event()

            async def answer(_request: Recorded) -> Answer:
                await proceed.wait()
                return object_list([granted("a", 1)], "7")

            api.handle("GET", "/api/v1/pods", answer)
            view = NodeView(client, NODE)
            asking = [asyncio.create_task(view.refresh()) for _ in range(50)]
            await api.arrived(1)
            proceed.set()
            await asyncio.gather(*asking)
            assert len(api.requests) == 2

    in_loop(scenario)


def test_a_list_that_failed_answers_nobody_else() -> None:
    """Who waited behind it asks for himself."""

    async def scenario() -> None:
        async with StubApi() as api, Client(api.config, "test") as client:
            api.answer(
                "GET",
                "/api/v1/pods",
                status(500, "InternalError", "away"),
                object_list([granted("a", 1)], "7"),
            )
            view = NodeView(client, NODE)
            assert await asyncio.gather(*[quietly_refresh(view) for _ in range(3)]) == [False, True, True]
            assert list(view.pods) == ["uid-a"]

    in_loop(scenario)
