"""Kubelet's calls: whose ids they are, what is put under their name, and which sentence refuses it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import structs

from accelshare.core.container import nonce_of
from accelshare.core.errors import DriverError, GrantRefused, NotReady
from accelshare.core.grant import Share
from accelshare.core.inventory import Card
from accelshare.core.objects import Container, Pod, Resources
from accelshare.core.ownership import NONCE_ANNOTATION
from accelshare.core.units import GIB
from accelshare.dialects import SLOT
from accelshare.kube.api.errors import Unreachable
from accelshare.kube.kubelet.plugin import AllocateAnswer
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.book import GrantBook
from accelshare.services.agent.injection import Cdi, Direct
from accelshare.services.agent.record import KubeletRecord
from accelshare.services.agent.serving import Serving
from tests.builders import MEMORY, a_card, a_container, a_pod, bound, cards
from tests.services.agent.world import (
    FakeDriver,
    FakeView,
    Keys,
    a_grant,
    entry,
    granted,
    ids,
    in_loop,
    write_checkpoint,
)

KEYS = Keys()


class Reported:
    """What the agent would have been told."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.mismatches: list[str] = []
        self.done: list[str] = []

    def refused(self, pod: Pod, why: str) -> None:
        self.refusals.append((pod.metadata.name, why))

    def mismatched(self, pod: Pod, why: str) -> None:
        self.mismatches.append(pod.metadata.name)

    def served(self, pod: Pod) -> None:
        self.done.append(pod.metadata.name)


class World:
    """One resource's handlers with everything around them: a folder each for state, CDI files and kubelet."""

    def __init__(
        self,
        folder: Path,
        *pods: Pod,
        resource: str = MEMORY,
        direct: bool = False,
        of: Sequence[Card] = cards(2),
        keys: Keys = KEYS,
        counted: frozenset[str] = frozenset({"gcushare"}),
    ) -> None:
        self.folder = folder
        self.kubelet = folder / "kubelet"
        self.kubelet.mkdir(exist_ok=True)
        self.entries: list[dict[str, object]] = []
        self.reports = Reported()
        self.view = FakeView(*pods, of=of)
        self.driver = FakeDriver(of)
        self.book = GrantBook(folder / "grants", keys.verify)
        self.allocations = Allocations(folder / "allocations")
        self.injector = Direct(self.allocations) if direct else Cdi(folder / "cdi")
        self.serving = Serving(
            resource,
            view=self.view,
            driver=self.driver,
            book=self.book,
            allocations=self.allocations,
            injector=self.injector,
            reports=self.reports,
            record=KubeletRecord(self.kubelet),
            counted=counted if resource == SLOT else frozenset(),
            now=lambda: 1000.0,
            patience=0.2,
        )
        self._resource = resource
        self._direct = direct

    def record(self, *entries: dict[str, object]) -> None:
        """kubelet has written down who has what."""
        self.entries += entries
        write_checkpoint(self.kubelet, *self.entries)

    async def allocate(self, pod: Pod, held: Sequence[str], container: str = "c0") -> str:
        """As kubelet does it for one container: asks, and writes down the answer. The nonce."""
        answer = await self.serving.allocate(held)
        nonce = nonce_of_answer(answer)
        self.record(
            entry(
                pod.metadata.uid,
                held,
                nonce,
                container=container,
                resource=self._resource,
                direct=self._direct,
            )
        )
        return nonce

    async def start(self, pod: Pod, held: Sequence[str], container: str = "c0") -> str:
        """A container from its allocation to the moment before its start."""
        nonce = await self.allocate(pod, held, container)
        await self.serving.pre_start(frozenset(held))
        return nonce

    def env(self, nonce: str) -> dict[str, str]:
        """What is put into the container that has this nonce."""
        file = json.loads((self.folder / "cdi" / f"accelshare.io-{nonce}.json").read_text())
        (device,) = file["devices"]
        return dict(line.split("=", 1) for line in device["containerEdits"]["env"])

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "cdi").glob("*"))


def nonce_of_answer(answer: AllocateAnswer) -> str:
    if not answer.cdi:
        return answer.annotations[NONCE_ANNOTATION]
    (name,) = answer.cdi
    nonce = nonce_of(name)
    assert nonce is not None
    return nonce


def serving(scenario: Callable[[World], Awaitable[None]], *pods: Pod, **options: Any) -> None:
    async def whole() -> None:
        with folder() as path:
            await scenario(World(path, *pods, **options))

    in_loop(whole)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        yield Path(path)


@contextlib.asynccontextmanager
async def refused(sentence: str) -> AsyncIterator[None]:
    with pytest.raises(GrantRefused, match=sentence):
        yield


A = granted("a", 4, keys=KEYS)
B = granted("b", 4, card=a_card(1), keys=KEYS)

# Whose


def test_a_container_gets_the_grant_of_its_pod() -> None:
    """Two pods ask for the same amount, and each gets its own card."""

    async def scenario(world: World) -> None:
        first, second = await world.start(A, ids(0, 4)), await world.start(B, ids(4, 4))
        assert world.env(first)["ACCELSHARE_CARDS"] == "GCU-0"
        assert world.env(second)["ACCELSHARE_CARDS"] == "GCU-1"

    serving(scenario, A, B)


def test_the_order_of_starts_does_not_matter() -> None:
    """Both are allocated before either starts, and the later one starts first."""

    async def scenario(world: World) -> None:
        first, second = await world.allocate(A, ids(0, 4)), await world.allocate(B, ids(4, 4))
        await world.serving.pre_start(frozenset(ids(4, 4)))
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert [world.env(nonce)["ACCELSHARE_CARDS"] for nonce in (first, second)] == ["GCU-0", "GCU-1"]

    serving(scenario, A, B)


def test_allocate_says_a_name_and_nothing_else() -> None:
    """What will be injected is not known yet, and nothing stands under the name."""

    async def scenario(world: World) -> None:
        answer = await world.serving.allocate(ids(0, 4))
        assert answer == AllocateAnswer(cdi=answer.cdi)
        assert world.files() == []

    serving(scenario, A)


def test_the_container_reads_what_it_was_granted() -> None:
    """In the dialect's words and in ours."""

    async def scenario(world: World) -> None:
        assert world.env(await world.start(A, ids(0, 4))) == {
            "ACCELSHARE_POD_UID": "uid-a",
            "ACCELSHARE_CARDS": "GCU-0",
            "ACCELSHARE_MEMORY_BYTES": str(4 * GIB),
            "ACCELSHARE_COMPUTE_PERCENT": "0",
            "ENFLAME_VISIBLE_DEVICES": "0",
            "ENFLAME_GCU_MEMORY": "4",
            "ENFLAME_GCU_MEMORY_UNIT": "1GB",
        }

    serving(scenario, A)


def test_ids_used_again_are_another_name() -> None:
    """The pod before has ended, and its file is not touched."""

    async def scenario(world: World) -> None:
        first = await world.start(A, ids(0, 4))
        before = world.env(first)
        world.entries.clear()
        second = await world.start(B, ids(0, 4))
        assert first != second
        assert (world.env(first), world.env(second)["ACCELSHARE_CARDS"]) == (before, "GCU-1")

    serving(scenario, A, B)


def test_a_pod_that_was_made_anew_under_its_name_gets_its_own_grant() -> None:
    """kubelet's record names the UID, and so does the grant."""
    anew = a_pod("a", 4, uid="uid-anew")
    anew = bound(anew, a_grant(anew, 4, card=a_card(1)), phase="Pending", sign=KEYS.sign)

    async def scenario(world: World) -> None:
        first = await world.start(A, ids(0, 4))
        world.view.apply("DELETED", A)
        world.view.apply("ADDED", anew)
        world.entries.clear()
        second = await world.start(anew, ids(0, 4))
        assert world.env(first)["ACCELSHARE_POD_UID"] == "uid-a"
        assert world.env(second)["ACCELSHARE_POD_UID"] == "uid-anew"
        assert world.env(second)["ACCELSHARE_CARDS"] == "GCU-1"

    serving(scenario, A)


def test_an_init_container_and_an_app_container_with_the_same_ids_both_get_theirs() -> None:
    """kubelet lends an init container's ids on, and asked us twice: each has a name of its own."""
    pod = a_pod("a", 4, init=[a_container("i0", 4)])
    pod = bound(pod, a_grant(pod, 4, 4, names=["i0", "c0"], roles=["init", "app"]), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        nonces = [await world.allocate(pod, ids(0, 4), container) for container in ("i0", "c0")]
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert [world.env(nonce)["ACCELSHARE_CARDS"] for nonce in nonces] == ["GCU-0", "GCU-0"]
        assert world.reports.done == ["a"]

    serving(scenario, pod)


def test_a_pod_is_done_when_all_its_containers_are() -> None:
    """Two containers that were granted something start one after the other."""
    pod = a_pod("a", 4, 2)
    pod = bound(pod, a_grant(pod, 4, 2), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        await world.allocate(pod, ids(0, 4), "c0")
        await world.allocate(pod, ids(4, 2), "c1")
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert world.reports.done == []
        await world.serving.pre_start(frozenset(ids(4, 2)))
        assert world.reports.done == ["a"]

    serving(scenario, pod)


def test_a_pod_is_done_also_where_the_agent_was_restarted_in_between() -> None:
    """What the agent before has put there counts."""
    pod = a_pod("a", 4, 2)
    pod = bound(pod, a_grant(pod, 4, 2), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        await world.allocate(pod, ids(0, 4), "c0")
        await world.allocate(pod, ids(4, 2), "c1")
        await world.serving.pre_start(frozenset(ids(0, 4)))
        again = World(world.folder, pod)
        await again.serving.pre_start(frozenset(ids(4, 2)))
        assert again.reports.done == ["a"]

    serving(scenario, pod)


# Not yet


def test_without_a_grant_the_container_waits_and_is_served_later() -> None:
    """The error heals by itself: kubelet asks again, and by then the annotation is there."""
    bare = a_pod("a", 4, node="n1")

    async def scenario(world: World) -> None:
        nonce = await world.allocate(A, ids(0, 4))
        async with refused("no annotation accelshare.io/grant"):
            await world.serving.pre_start(frozenset(ids(0, 4)))
        assert world.files() == []
        assert [name for name, _ in world.reports.refusals] == ["a"]
        world.view.apply("MODIFIED", A)
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert world.env(nonce)["ACCELSHARE_CARDS"] == "GCU-0"

    serving(scenario, bare)


def test_a_pod_that_the_watch_has_not_brought_yet_is_asked_for() -> None:
    """kubelet heard of the pod before we did; one list settles it."""

    async def scenario(world: World) -> None:
        world.view.server = [A]
        nonce = await world.start(A, ids(0, 4))
        assert world.env(nonce)["ACCELSHARE_CARDS"] == "GCU-0"
        assert world.view.refreshed == 1

    serving(scenario)


def test_a_grant_that_the_watch_has_not_brought_yet_is_asked_for() -> None:
    """The pod is known as it was before its binding."""

    async def scenario(world: World) -> None:
        world.view.server = [A]
        await world.start(A, ids(0, 4))
        assert world.reports.refusals == []

    serving(scenario, a_pod("a", 4, node="n1"))


def test_where_nobody_knows_the_pod_the_container_waits() -> None:
    """The sentence says what is missing, and names the pod."""

    async def scenario(world: World) -> None:
        with pytest.raises(NotReady, match="pod uid-a, which kubelet gave these ids to, is not known here"):
            await world.start(A, ids(0, 4))

    serving(scenario)


def test_while_the_api_server_is_away_known_pods_are_served() -> None:
    """Nothing has to be asked for."""

    async def scenario(world: World) -> None:
        world.view.error = Unreachable("away")
        await world.start(A, ids(0, 4))
        assert world.view.refreshed == 0

    serving(scenario, A)


def test_while_the_api_server_is_away_unknown_pods_wait() -> None:
    """And are served when it is back."""

    async def scenario(world: World) -> None:
        world.view.error, world.view.server = Unreachable("away"), [A]
        with pytest.raises(NotReady):
            await world.start(A, ids(0, 4))
        world.view.error = None
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert len(world.files()) == 1

    serving(scenario)


def test_ids_that_kubelet_has_not_written_down_wait() -> None:
    """Its record is the only thing that says whose they are."""

    async def scenario(world: World) -> None:
        world.record()
        await world.serving.allocate(ids(0, 4))
        with pytest.raises(NotReady, match="names no container"):
            await world.serving.pre_start(frozenset(ids(0, 4)))

    serving(scenario, A)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]"])
def test_without_kubelets_record_everybody_waits(content: bytes | None) -> None:
    """A record that is missing or broken is not one that is empty."""

    async def scenario(world: World) -> None:
        if content is not None:
            (world.kubelet / "kubelet_internal_checkpoint").write_bytes(content)
        with pytest.raises(NotReady, match="could be read"):
            await world.serving.pre_start(frozenset(ids(0, 4)))

    serving(scenario, A)


def test_a_record_that_is_replaced_is_read_anew() -> None:
    """Every question is answered by the file that stands there now."""

    async def scenario(world: World) -> None:
        first = await world.start(A, ids(0, 4))
        world.entries.clear()
        world.record(entry("uid-b", ids(0, 4), "n2"))
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert world.env("n2")["ACCELSHARE_CARDS"] == "GCU-1"
        assert world.env(first)["ACCELSHARE_CARDS"] == "GCU-0"

    serving(scenario, A, B)


def test_a_pod_that_goes_while_it_is_looked_at_waits() -> None:
    """The list that was to bring its grant says that it is gone."""

    async def scenario(world: World) -> None:
        world.view.server = []
        with pytest.raises(NotReady, match="is gone"):
            await world.start(A, ids(0, 4))

    serving(scenario, a_pod("a", 4, node="n1"))


def test_a_driver_that_fails_makes_the_container_wait() -> None:
    """Nothing stands under the name until the driver has said what a container needs."""

    class Failing(FakeDriver):
        def edits(self, cards: Sequence[Card]) -> Any:
            if self.error is not None:
                raise self.error
            return super().edits(cards)

    async def scenario(world: World) -> None:
        driver = Failing()
        driver.error = DriverError("the library is away")
        world.serving._driver = driver
        with pytest.raises(DriverError, match="the library is away"):
            await world.start(A, ids(0, 4))
        assert world.files() == []
        driver.error = None
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert len(world.files()) == 1

    serving(scenario, A)


# Refused


def test_a_forged_grant_is_refused_and_reported() -> None:
    """The pod's owner reads why in its events."""

    async def scenario(world: World) -> None:
        async with refused("no trusted key has signed"):
            await world.start(A, ids(0, 4))
        ((name, why),) = world.reports.refusals
        assert name == "a"
        assert "no trusted key has signed" in why
        assert world.files() == []

    serving(scenario, granted("a", 4, keys=Keys()))


def test_ids_that_are_not_as_many_as_were_granted_are_refused() -> None:
    """The pod asks for more than the scheduler service granted it, or its limits were changed."""

    async def scenario(world: World) -> None:
        async with refused(r"gives c0 4 units of enflame.com/gcu-memory, and kubelet 5"):
            await world.start(A, ids(0, 5))

    serving(scenario, A)


def test_a_container_without_a_part_is_refused() -> None:
    """The grant names other containers only."""
    pod = a_pod("a", 4)
    pod = bound(pod, a_grant(pod, 4, names=["other"]), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        async with refused("has no part for c0"):
            await world.start(pod, ids(0, 4))

    serving(scenario, pod)


def test_a_grant_in_an_unknown_dialect_is_refused() -> None:
    """A newer scheduler service may speak more than this agent does."""
    pod = a_pod("a", 4)
    pod = bound(pod, a_grant(pod, 4, dialect="klingon"), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        async with refused("is in dialect 'klingon', which this agent does not speak"):
            await world.start(pod, ids(0, 4))

    serving(scenario, pod)


def test_a_card_that_was_taken_out_is_a_sentence() -> None:
    """The pod was served; then the agent was restarted, and the driver does not find its card any more."""

    async def scenario(world: World) -> None:
        await world.start(B, ids(0, 4))
        again = World(world.folder, B, of=cards(1))
        async with refused("names card GCU-1, which this node does not have"):
            await again.serving.pre_start(frozenset(ids(0, 4)))
        assert [name for name, _ in again.reports.refusals] == ["b"]

    serving(scenario, B)


def test_an_overfilling_grant_is_served_once_there_is_room() -> None:
    """Its neighbour has ended, and our watch has not heard of it yet."""
    big = granted("big", 14, keys=KEYS)

    async def scenario(world: World) -> None:
        await world.start(A, ids(0, 4))
        world.view.server = [A, big]
        async with refused("would overfill card 0"):
            await world.start(big, ids(4, 14))
        ended = structs.replace(A)
        ended.status = structs.replace(A.status, phase="Succeeded") if A.status else None
        world.view.server = [ended, big]
        await world.serving.pre_start(frozenset(ids(4, 14)))
        assert len(world.files()) == 2

    serving(scenario, A, big)


# Restarts


def test_an_agent_that_was_restarted_in_between_serves_what_its_predecessor_answered() -> None:
    """The name stands in kubelet's record."""

    async def scenario(world: World) -> None:
        nonce = await world.allocate(A, ids(0, 4))
        again = World(world.folder, A)
        await again.serving.pre_start(frozenset(ids(0, 4)))
        assert again.env(nonce)["ACCELSHARE_CARDS"] == "GCU-0"

    serving(scenario, A)


def test_a_container_that_starts_again_gets_what_it_had() -> None:
    """Also under other keys, and with another annotation."""

    async def scenario(world: World) -> None:
        nonce = await world.start(A, ids(0, 4))
        before = world.env(nonce)
        again = World(world.folder, granted("a", 4, card=a_card(1), keys=KEYS), keys=Keys())
        await again.serving.pre_start(frozenset(ids(0, 4)))
        assert world.env(nonce) == before
        assert len(world.files()) == 1

    serving(scenario, A)


def test_what_another_plugin_answered_is_left_as_it_is() -> None:
    """kubelet kept what it said before we took over: there is nothing to inject."""
    pod = a_pod("a", 4, node="n1", annotations={"enflame.com/gcu-device-id": "0"})

    async def scenario(world: World) -> None:
        world.record(entry("uid-a", ids(0, 4)))
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert world.files() == []
        assert world.reports.refusals == []

    serving(scenario, pod)


def test_a_granted_pod_that_another_plugin_answered_does_not_start() -> None:
    """It would start without its card."""

    async def scenario(world: World) -> None:
        world.record(entry("uid-a", ids(0, 4)))
        with pytest.raises(NotReady, match="holds no answer of this agent"):
            await world.serving.pre_start(frozenset(ids(0, 4)))

    serving(scenario, A)


def test_two_starts_at_once_for_one_pod_are_both_served() -> None:
    """Each container has a file of its own, and the pod is counted once."""
    pod = a_pod("a", 4, 4)
    pod = bound(pod, a_grant(pod, 4, 4), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        await world.allocate(pod, ids(0, 4), "c0")
        await world.allocate(pod, ids(4, 4), "c1")
        await asyncio.gather(*[world.serving.pre_start(frozenset(ids(at, 4))) for at in (0, 4)])
        assert len(world.files()) == 2
        assert world.book.pods() == ["uid-a"]
        assert "a" in world.reports.done

    serving(scenario, pod)


def test_the_same_question_twice_at_once_is_answered_twice() -> None:
    """kubelet asks again where the first answer took too long."""

    async def scenario(world: World) -> None:
        await world.allocate(A, ids(0, 4))
        await asyncio.gather(*[world.serving.pre_start(frozenset(ids(0, 4))) for _ in range(5)])
        assert len(world.files()) == 1

    serving(scenario, A)


# Counted


def test_a_slot_carries_the_grant() -> None:
    """One slot stands for however many units: their numbers are not compared."""

    async def scenario(world: World) -> None:
        nonce = await world.start(A, ["GCU-0-slot-3"])
        assert world.env(nonce)["ENFLAME_GCU_MEMORY"] == "4"

    serving(scenario, A, resource=SLOT)


def test_a_slot_need_not_name_the_granted_card() -> None:
    """kubelet chose it before anybody knew whose it would be."""

    async def scenario(world: World) -> None:
        nonce = await world.start(B, ["GCU-0-slot-3"])
        assert world.env(nonce)["ACCELSHARE_CARDS"] == "GCU-1"

    serving(scenario, B, resource=SLOT)


# Directly


def test_directly_one_card_for_all_candidates_always_passes() -> None:
    """Whoever is answered first, the answer is right for both."""
    other = granted("other", 4, keys=KEYS)

    async def scenario(world: World) -> None:
        # kubelet asks for the younger one first.
        await world.start(other, ids(0, 4))
        await world.start(A, ids(4, 4))
        assert world.reports.mismatches == []
        assert sorted(world.reports.done) == ["a", "other"]

    serving(scenario, A, other, direct=True)


def test_directly_the_answer_holds_all_that_the_container_needs() -> None:
    """Environment and device nodes, and never whose they are: that is not certain yet."""

    async def scenario(world: World) -> None:
        answer = await world.serving.allocate(ids(0, 4))
        assert answer.cdi == ()
        assert answer.env["ACCELSHARE_CARDS"] == "GCU-0"
        assert [node.path for node in answer.devices] == ["/dev/gcu0"]
        assert "ACCELSHARE_POD_UID" not in answer.env
        assert list(answer.annotations) == [NONCE_ANNOTATION]

    serving(scenario, A, direct=True)


def test_directly_the_oldest_grant_is_answered_first() -> None:
    """Pods start in the order in which they were bound, as far as one can tell."""
    young = granted("young", 4, card=a_card(0), keys=KEYS, time=2)
    old = granted("old", 4, card=a_card(1), keys=KEYS, time=1)

    async def scenario(world: World) -> None:
        answer = await world.serving.allocate(ids(0, 4))
        assert answer.env["ACCELSHARE_CARDS"] == "GCU-1"

    serving(scenario, young, old, direct=True)


def test_directly_another_card_is_refused_and_the_pod_deleted() -> None:
    """kubelet gave the container what was answered for another pod."""
    old = granted("old", 4, card=a_card(1), keys=KEYS, time=1)
    young = granted("young", 4, card=a_card(0), keys=KEYS, time=2)

    async def scenario(world: World) -> None:
        async with refused("what was answered for another pod"):
            await world.start(young, ids(0, 4))
        assert world.reports.mismatches == ["young"]
        assert world.reports.refusals == []

    serving(scenario, young, old, direct=True)


def test_directly_a_refused_start_leaves_the_other_pod_its_grant() -> None:
    """The older pod's grant was answered by mistake; when kubelet asks for it, it is still to be had."""
    old = granted("old", 4, card=a_card(1), keys=KEYS, time=1)
    young = granted("young", 4, card=a_card(0), keys=KEYS, time=2)

    async def scenario(world: World) -> None:
        async with refused("what was answered for another pod"):
            await world.start(young, ids(0, 4))
        await world.start(old, ids(4, 4))
        assert world.reports.done == ["old"]

    serving(scenario, young, old, direct=True)


def test_directly_swapped_pods_with_equal_shares_pass_also_when_one_is_gone() -> None:
    """What was answered is written down, so it is not asked of a pod that has ended."""
    old = granted("old", 4, keys=KEYS, time=1)
    young = granted("young", 4, keys=KEYS, time=2)

    async def scenario(world: World) -> None:
        await world.allocate(young, ids(0, 4))
        world.view.apply("DELETED", old)
        await world.serving.pre_start(frozenset(ids(0, 4)))
        assert world.reports.done == ["young"]

    serving(scenario, young, old, direct=True)


def test_directly_two_questions_at_once_are_two_candidates() -> None:
    """Nobody is answered the same grant twice."""

    async def scenario(world: World) -> None:
        answers = await asyncio.gather(*[world.serving.allocate(ids(at, 4)) for at in (0, 4)])
        assert sorted(answer.env["ACCELSHARE_CARDS"] for answer in answers) == ["GCU-0", "GCU-1"]

    serving(scenario, A, B, direct=True)


def test_directly_allocate_waits_for_the_watch() -> None:
    """kubelet may hear of the pod a moment before we do."""

    async def scenario(world: World) -> None:
        asking = asyncio.create_task(world.serving.allocate(ids(0, 4)))
        await asyncio.sleep(0)
        world.view.apply("ADDED", A)
        await world.view.tell()
        assert (await asking).env["ACCELSHARE_CARDS"] == "GCU-0"

    serving(scenario, direct=True)


def test_directly_nobody_waiting_is_an_error() -> None:
    """A pod that another scheduler bound has no grant; the sentence asks about it."""

    async def scenario(world: World) -> None:
        with pytest.raises(NotReady, match="was it bound by another scheduler"):
            await world.serving.allocate(ids(0, 3))

    serving(scenario, A, direct=True)


def test_directly_a_container_that_was_served_by_cdi_is_no_candidate() -> None:
    """The way was changed while pods run."""

    async def scenario(world: World) -> None:
        await world.start(A, ids(0, 4))
        changed = World(world.folder, A, B, direct=True)
        answer = await changed.serving.allocate(ids(4, 4))
        assert answer.env["ACCELSHARE_CARDS"] == "GCU-1"

    serving(scenario, A, B)


def test_directly_an_answer_of_the_agent_before_is_known() -> None:
    """PreStartContainer comes to the agent that was started in between."""

    async def scenario(world: World) -> None:
        await world.allocate(A, ids(0, 4))
        again = World(world.folder, A, direct=True)
        await again.serving.pre_start(frozenset(ids(0, 4)))
        assert again.reports.done == ["a"]

    serving(scenario, A, direct=True)


def test_directly_the_share_is_what_is_compared() -> None:
    """As many units of the same card, but fewer bytes, are not the same."""
    pod = a_pod("less", 4)
    grant = a_grant(pod, 4)
    (part,) = grant.containers
    less = structs.replace(part, shares=(Share("GCU-0", 0, GIB),))
    pod = bound(pod, structs.replace(grant, containers=(less,), time=9), sign=KEYS.sign)

    async def scenario(world: World) -> None:
        async with refused("what was answered for another pod"):
            await world.start(pod, ids(0, 4))

    serving(scenario, A, pod, direct=True)


# Directly, by slots


def slotted(name: str, units: int, card: Card | None = None, time: int = 0) -> Pod:
    """A bound pod whose container was given a slot at admission."""
    pod = granted(name, units, card=card, keys=KEYS, time=time)
    pod.spec.containers = [Container("c0", Resources(limits={MEMORY: units, SLOT: "1"}))]
    return pod


def test_directly_a_slot_is_answered_with_the_oldest_grant_of_any_amount() -> None:
    """A slot does not tell the amount, so the grant that waits longest is taken."""
    old, young = slotted("old", 4, a_card(1), time=1), slotted("young", 2, time=2)

    async def scenario(world: World) -> None:
        first = await world.serving.allocate(["GCU-0-slot-0"])
        second = await world.serving.allocate(["GCU-0-slot-1"])
        assert [answer.env["ACCELSHARE_CARDS"] for answer in (first, second)] == ["GCU-1", "GCU-0"]
        assert [answer.env["ENFLAME_GCU_MEMORY"] for answer in (first, second)] == ["4", "2"]

    serving(scenario, young, old, resource=SLOT, direct=True)


def test_directly_a_slot_answered_for_another_pod_is_refused() -> None:
    """What was answered is compared as it is with units, and a mismatch is reported."""
    old, young = slotted("old", 4, time=1), slotted("young", 2, time=2)

    async def scenario(world: World) -> None:
        async with refused("what was answered for another pod"):
            await world.start(young, ["GCU-0-slot-0"])
        assert world.reports.mismatches == ["young"]
        await world.start(old, ["GCU-0-slot-1"])
        assert world.reports.done == ["old"]

    serving(scenario, young, old, resource=SLOT, direct=True)


def test_directly_a_slot_is_not_for_a_dialect_that_is_enumerated_here() -> None:
    """Its containers are asked for by their own resource."""

    async def scenario(world: World) -> None:
        with pytest.raises(NotReady, match="unserved grant"):
            await world.serving.allocate(["GCU-0-slot-0"])

    serving(scenario, slotted("a", 4), resource=SLOT, direct=True, counted=frozenset())


def test_directly_a_slot_is_not_for_a_container_that_has_none() -> None:
    """It was served when the units were enumerated, and runs on."""

    async def scenario(world: World) -> None:
        answer = await world.serving.allocate(["GCU-0-slot-0"])
        assert answer.env["ACCELSHARE_CARDS"] == "GCU-1"

    serving(scenario, A, slotted("new", 4, a_card(1), time=9), resource=SLOT, direct=True)
