"""Who owns these ids: exact by the checkpoint, careful by pod-resources, and never a guess."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.objects import Container, Meta, Pod, PodSpec, PodStatus
from accelshare.core.ownership import (
    Allocation,
    ContainerDevices,
    KnownPod,
    Owner,
    PodDevices,
    Unknown,
    known_pod,
    owners,
)

RESOURCE = "enflame.com/gcu-memory"
IDS = frozenset({"a", "b"})


def pod(
    uid: str = "u1", name: str = "train-0", *, finished: bool = False, deleting: bool = False
) -> KnownPod:
    return KnownPod(
        uid=uid,
        namespace="ml",
        name=name,
        containers=(("setup", "init"), ("proxy", "sidecar"), ("main", "app"), ("side", "app")),
        finished=finished,
        deleting=deleting,
    )


def held(
    uid: str = "u1", container: str = "main", nonce: str | None = "n1", ids: Iterable[str] = IDS
) -> Allocation:
    return Allocation(pod_uid=uid, container=container, resource=RESOURCE, ids=frozenset(ids), nonce=nonce)


def listed(name: str = "train-0", container: str = "main", ids: Iterable[str] = IDS) -> PodDevices:
    """As kubelet lists them: a piece for each id."""
    return PodDevices(
        "ml", name, tuple(ContainerDevices(container, RESOURCE, (each,)) for each in sorted(ids))
    )


def ask(
    checkpoint: list[Allocation] | None,
    podresources: list[PodDevices] | None,
    *pods: KnownPod,
    ids: frozenset[str] = IDS,
) -> tuple[Owner, ...] | Unknown:
    known = {each.uid: each for each in pods}
    return owners(ids, RESOURCE, checkpoint=checkpoint, podresources=podresources, pods=known)


OWNER = Owner("u1", "ml", "train-0", "main", "n1")


def test_the_checkpoint_names_pod_container_and_nonce() -> None:
    """One entry with exactly these ids is the whole answer."""
    others = [held("u2", nonce="n2", ids="a"), held("u2", "side", "n3", ids="abc")]
    assert ask([*others, held()], None, pod(), pod("u2", "other")) == (OWNER,)


def test_equal_ids_of_another_resource_are_another_matter() -> None:
    """Ids are unique within a resource only."""
    other = Allocation(pod_uid="u2", container="main", resource="nvidia.com/gpu", ids=IDS, nonce="n9")
    assert ask([other, held()], None, pod(), pod("u2", "other")) == (OWNER,)


def test_an_init_container_comes_before_the_app_container_that_has_its_ids_later() -> None:
    """Both are owners, each under its own nonce, in the order in which they start."""
    found = ask([held(nonce="n1"), held(container="setup", nonce="n0")], None, pod())
    assert found == (Owner("u1", "ml", "train-0", "setup", "n0"), OWNER)


def test_a_finished_pod_that_kubelet_has_not_forgotten_owns_nothing() -> None:
    """Its ids have gone on to a pod that lives."""
    assert ask([held("u0", nonce="n0"), held()], None, pod("u0", "old", finished=True), pod()) == (OWNER,)


def test_two_living_pods_with_the_same_ids_are_both_owners() -> None:
    """We may hear later than kubelet that one has finished; each nonce still leads to its own grant."""
    found = ask([held("u2", nonce="n2"), held()], None, pod(), pod("u2", "other"))
    assert found == (OWNER, Owner("u2", "ml", "other", "main", "n2"))


def test_an_entry_without_a_nonce_is_an_owner_without_one() -> None:
    """Another plugin answered it, before we took over."""
    assert ask([held(nonce=None)], None, pod()) == (Owner("u1", "ml", "train-0", "main", None),)


def test_without_a_checkpoint_pod_resources_tells_the_container() -> None:
    """The pieces are joined, and the UID comes from the pod known under that name."""
    found = ask(None, [listed("other", ids="c"), listed()], pod(), pod("u2", "other"))
    assert found == (Owner("u1", "ml", "train-0", "main", None),)


def test_both_records_may_agree() -> None:
    """Pod-resources lacks the init container, which is no contradiction."""
    found = ask([held(container="setup", nonce="n0"), held()], [listed()], pod())
    assert isinstance(found, tuple)
    assert [owner.nonce for owner in found] == ["n0", "n1"]


def test_a_finished_pod_in_pod_resources_contradicts_nothing() -> None:
    """Kubelets up to 1.33 list finished pods too."""
    found = ask([held()], [listed("old"), listed()], pod(), pod("u0", "old", finished=True))
    assert found == (OWNER,)


UNKNOWN: list[tuple[str, list[Allocation] | None, list[PodDevices] | None, list[KnownPod], str]] = [
    ("no record at all", None, None, [pod()], "could be read"),
    ("empty checkpoint", [], None, [pod()], "names no container"),
    ("only a part of the ids", [held(ids="a")], None, [pod()], "names no container"),
    ("more than the ids", [held(ids="abc")], None, [pod()], "names no container"),
    ("a pod not heard of", [held()], None, [], "not known here yet"),
    ("a known and an unknown pod", [held(), held("u7", nonce="n7")], None, [pod()], "not known here yet"),
    ("only finished pods", [held()], None, [pod(finished=True)], "finished"),
    ("no such container", [held(container="gone")], None, [pod()], "no container gone"),
    ("a nonce twice", [held(), held(container="setup")], None, [pod()], "stands twice"),
    (
        "the records name different pods",
        [held()],
        [listed("other")],
        [pod(), pod("u2", "other")],
        "checkpoint does not",
    ),
    ("the checkpoint holds nothing", [], [listed()], [pod()], "names no container"),
    ("empty pod-resources", None, [], [pod()], "names no container"),
    ("a name not heard of", None, [listed()], [], "not known here yet"),
    ("two pods of one name", None, [listed()], [pod(), pod("u2")], "2 pods are called ml/train-0"),
    ("two of one name, one finished", None, [listed()], [pod(), pod("u2", finished=True)], "2 pods"),
    ("a pod that is being deleted", None, [listed()], [pod(deleting=True)], "being deleted"),
    ("finished by pod-resources", None, [listed()], [pod(finished=True)], "finished"),
    ("no such container listed", None, [listed(container="gone")], [pod()], "no container gone"),
    (
        "ids listed twice",
        None,
        [listed(), listed("other")],
        [pod(), pod("u2", "other")],
        "same ids to 2 containers",
    ),
    (
        "pieces of two pods of one name",
        None,
        [listed(ids="a"), listed(ids="b")],
        [pod()],
        "names no container",
    ),
]


@pytest.mark.parametrize(
    ("checkpoint", "podresources", "pods", "reason"),
    [row[1:] for row in UNKNOWN],
    ids=[row[0] for row in UNKNOWN],
)
def test_what_is_not_certain_is_nobodys(
    checkpoint: list[Allocation] | None,
    podresources: list[PodDevices] | None,
    pods: list[KnownPod],
    reason: str,
) -> None:
    """Each doubt has its own sentence."""
    found = ask(checkpoint, podresources, *pods)
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_no_ids_belong_to_nobody() -> None:
    """An empty set would match a container that holds nothing."""
    assert isinstance(ask([held(ids=())], None, pod(), ids=frozenset()), Unknown)


def test_a_known_pod_is_what_the_object_says() -> None:
    """Containers in starting order with their roles; finished and deleting from status and metadata."""
    found = known_pod(
        Pod(
            metadata=Meta(name="p", namespace="ns", uid="u", deletionTimestamp="2026-01-01T00:00:00Z"),
            spec=PodSpec(
                containers=[Container("main")],
                initContainers=[Container("setup"), Container("proxy", restartPolicy="Always")],
            ),
            status=PodStatus("Failed"),
        )
    )
    assert found == KnownPod(
        uid="u",
        namespace="ns",
        name="p",
        containers=(("setup", "init"), ("proxy", "sidecar"), ("main", "app")),
        finished=True,
        deleting=True,
    )


POD_SETS = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.sampled_from(["p0", "p1", "p2"])), min_size=1, max_size=4
)
ID_SETS = st.frozensets(st.sampled_from("abc"), max_size=3)


@given(
    POD_SETS,
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["setup", "main"]), ID_SETS), max_size=6),
    ID_SETS,
    st.randoms(),
)
def test_an_owner_always_stands_in_the_checkpoint_with_these_ids(
    made: list[tuple[bool, bool, str]],
    entries: list[tuple[int, str, frozenset[str]]],
    ids: frozenset[str],
    random: Random,
) -> None:
    """Whatever kubelet wrote, and in which order, an owner is unfinished, known, and holds these ids."""
    pods = {
        f"u{n}": pod(f"u{n}", name, finished=done, deleting=away) for n, (done, away, name) in enumerate(made)
    }
    checkpoint = [held(f"u{uid}", box, f"n{n}", has) for n, (uid, box, has) in enumerate(entries)]
    found = owners(ids, RESOURCE, checkpoint=checkpoint, podresources=None, pods=pods)
    random.shuffle(checkpoint)
    again = owners(ids, RESOURCE, checkpoint=checkpoint, podresources=None, pods=pods)
    if isinstance(found, Unknown) or isinstance(again, Unknown):
        assert type(found) is type(again)
        return
    assert {owner.nonce for owner in found} == {owner.nonce for owner in again}
    by_nonce = {entry.nonce: entry for entry in checkpoint}
    for owner in found:
        entry = by_nonce[owner.nonce]
        assert (entry.pod_uid, entry.container, entry.ids) == (owner.pod_uid, owner.container, ids)
        assert not pods[owner.pod_uid].finished


@given(POD_SETS, st.lists(st.tuples(st.sampled_from(["p0", "p1", "p2"]), ID_SETS), max_size=4), ID_SETS)
def test_pod_resources_names_one_or_nobody(
    made: list[tuple[bool, bool, str]], entries: list[tuple[str, frozenset[str]]], ids: frozenset[str]
) -> None:
    """Without nonces two owners could not be told apart: there is one at most, and by a unique name."""
    pods = {
        f"u{n}": pod(f"u{n}", name, finished=done, deleting=away) for n, (done, away, name) in enumerate(made)
    }
    answer = [listed(name, ids=has) for name, has in entries]
    found = owners(ids, RESOURCE, checkpoint=None, podresources=answer, pods=pods)
    if isinstance(found, tuple):
        (owner,) = found
        assert [each.uid for each in pods.values() if each.name == owner.name] == [owner.pod_uid]
        assert ids
