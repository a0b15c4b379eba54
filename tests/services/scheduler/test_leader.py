"""The leader label: on one pod only, and taken from whoever hangs."""

import asyncio

from accelshare.services.scheduler.leader import LEADER, LabelKeeper, drop_label, take_label
from accelshare.services.scheduler.settings import Settings
from tests.services.scheduler.memory_api import MemoryApi

APP = {"app.kubernetes.io/name": "accelshare-scheduler"}
SETTINGS = Settings(pod_namespace="accelshare", pod_name="b")


def an_api() -> MemoryApi:
    api = MemoryApi()
    api.labels = {"a": {**APP, LEADER: "true"}, "b": {**APP}, "stranger": {LEADER: "true"}}
    return api


def leaders(api: MemoryApi) -> list[str]:
    return [name for name, labels in api.labels.items() if LEADER in labels]


def test_a_new_leader_takes_the_label_from_every_other_pod() -> None:
    """Of its own application; other pods' labels are their own."""
    api = an_api()

    asyncio.run(take_label(api, SETTINGS))
    assert leaders(api) == ["b", "stranger"]


def test_who_stops_leading_takes_off_its_own() -> None:
    """If it still can; else the new leader does."""
    api = an_api()
    api.labels["b"][LEADER] = "true"

    asyncio.run(drop_label(api, SETTINGS))
    assert leaders(api) == ["a", "stranger"]


def test_the_keeper_follows_the_election() -> None:
    """One change, one move."""
    api = an_api()
    leading = True
    keeper = LabelKeeper(api, SETTINGS, lambda: leading)

    async def moves() -> None:
        nonlocal leading
        keeper.changed()
        await keeper.move()
        assert leaders(api) == ["b", "stranger"]
        leading = False
        keeper.changed()
        await keeper.move()
        assert leaders(api) == ["stranger"]

    asyncio.run(moves())
