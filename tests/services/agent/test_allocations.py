"""Nonces: on the disk before the answer, given out once, known again after a crash."""

import asyncio
from pathlib import Path

import pytest

from accelshare.core.errors import NotReady
from accelshare.core.grant import Share
from accelshare.core.units import GIB
from accelshare.services.agent.allocations import Allocations
from tests.builders import MEMORY


def give(allocations: Allocations, *ids: str, now: float = 1.0) -> str:
    return asyncio.run(allocations.give(MEMORY, ids, now))


def test_a_nonce_is_on_the_disk_when_it_is_answered(tmp_path: Path) -> None:
    """Another reader of the folder knows at once what the nonce stands for."""
    nonce = give(Allocations(tmp_path), "b", "a", now=7.0)

    given = Allocations(tmp_path).given[nonce]
    assert (given.resource, given.ids, given.time) == (MEMORY, ("a", "b"), 7.0)


def test_nonces_differ(tmp_path: Path) -> None:
    """The same ids asked for again are another allocation."""
    allocations = Allocations(tmp_path)

    assert len({give(allocations, "a") for _ in range(20)}) == 20


def test_a_nonce_that_was_drawn_before_is_never_given_again(tmp_path: Path) -> None:
    """A generator that repeats itself gives an error, also after a restart, and the first stays as it was."""
    give(Allocations(tmp_path, lambda: "n1"), "a")

    for _ in range(2):
        with pytest.raises(NotReady):
            give(Allocations(tmp_path, lambda: "n1"), "b")
    assert Allocations(tmp_path).given["n1"].ids == ("a",)


def test_a_nonce_of_another_agent_beside_us_is_not_given_again(tmp_path: Path) -> None:
    """Two agents run for a while when one replaces the other; the disk decides."""
    ours, theirs = Allocations(tmp_path, lambda: "n1"), Allocations(tmp_path, lambda: "n1")
    give(theirs, "a")

    with pytest.raises(NotReady):
        give(ours, "b")
    assert "n1" not in ours.given


def test_what_another_agent_gave_is_found(tmp_path: Path) -> None:
    """PreStartContainer may come to the new agent for what the old one answered."""
    ours, theirs = Allocations(tmp_path), Allocations(tmp_path)
    nonce = give(theirs, "a")

    found = ours.find(nonce)
    assert found is not None
    assert found.ids == ("a",)


@pytest.mark.parametrize("nonce", ["", "nowhere", "../grants/x", "."])
def test_what_nobody_gave_is_not_found(tmp_path: Path, nonce: str) -> None:
    """Also where it is no name of a file in the folder."""
    assert Allocations(tmp_path).find(nonce) is None


def test_direct_answers_remember_whose_and_what(tmp_path: Path) -> None:
    """A mismatch can be told after a restart, and when the pod that was meant is gone."""
    shares = (Share("GCU-0", 0, GIB),)
    asyncio.run(
        Allocations(tmp_path, lambda: "n1").give(
            MEMORY, ["a"], 1.0, pod_uid="u", container="c", shares=shares
        )
    )

    given = Allocations(tmp_path).given["n1"]
    assert (given.pod_uid, given.container, given.shares) == ("u", "c", shares)


def test_what_is_forgotten_is_gone_from_the_disk(tmp_path: Path) -> None:
    """No file is left over."""
    allocations = Allocations(tmp_path)
    allocations.forget(give(allocations, "a"))

    assert list(tmp_path.iterdir()) == []
    assert allocations.given == {}


def test_a_file_that_a_crash_left_unfinished_is_no_allocation(tmp_path: Path) -> None:
    """kubelet was never told about it; it goes when it is old, for a young one may be another agent's."""
    unfinished = tmp_path / ".n1.0a0b0c0d.tmp"
    unfinished.write_bytes(b'{"nonce":"n1"')
    allocations = Allocations(tmp_path)

    assert allocations.given == {}
    allocations.tidy(unfinished.stat().st_mtime - 1)
    assert unfinished.exists()
    allocations.tidy(unfinished.stat().st_mtime + 1)
    assert not unfinished.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"nonce":"other","resource":"r","ids":[],"time":1}'])
def test_a_broken_file_does_not_hide_the_others(tmp_path: Path, content: bytes) -> None:
    """It is passed over, with a line in the log."""
    nonce = give(Allocations(tmp_path), "a")
    (tmp_path / "broken").write_bytes(content)

    assert list(Allocations(tmp_path).given) == [nonce]


def test_a_disk_that_takes_nothing_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    """kubelet is told why, and nothing is remembered that is not on the disk."""
    folder = tmp_path / "state"
    allocations = Allocations(folder)
    folder.rmdir()

    with pytest.raises(NotReady, match="cannot be written"):
        give(allocations, "a")
    assert allocations.given == {}


def test_only_root_reads_the_files(tmp_path: Path) -> None:
    """Neither the folder nor its files are open to others."""
    folder = tmp_path / "state"
    nonce = give(Allocations(folder), "a")

    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / nonce).stat().st_mode & 0o077 == 0


def test_what_was_found_right_stays_so(tmp_path: Path) -> None:
    """The next agent knows it; that nobody gave it, or said it twice, changes nothing."""
    allocations = Allocations(tmp_path)
    nonce = give(allocations, "a")
    for told in (nonce, nonce, "nowhere"):
        asyncio.run(allocations.confirm(told))

    again = Allocations(tmp_path)
    assert {name: given.confirmed for name, given in again.given.items()} == {nonce: True}
    assert again.given[nonce].ids == ("a",)
