"""How a grant gets under its name: written once, in one step, never changed."""

import asyncio
import json
from pathlib import Path

import pytest

from accelshare.core.container import DeviceNode, Edits
from accelshare.core.errors import GrantRefused, NotReady
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.injection import Cdi, Direct, Injector
from tests.builders import MEMORY

FIRST = Edits(env=(("A", "1"),), devices=(DeviceNode("/dev/gcu0"),))
SECOND = Edits(env=(("A", "2"),))


def put(injector: Injector, nonce: str = "n1", edits: Edits = FIRST) -> None:
    asyncio.run(injector.put(nonce, edits))


def test_the_file_is_the_device_that_allocate_named(tmp_path: Path) -> None:
    """What the runtime looks up by the name is in the file."""
    injector = Cdi(tmp_path)
    put(injector)

    specification = json.loads((tmp_path / "accelshare.io-n1.json").read_text())
    (device,) = specification["devices"]
    assert injector.names("n1") == (f"{specification['kind']}={device['name']}",)
    assert device["containerEdits"]["env"] == ["A=1"]


def test_a_file_is_never_changed(tmp_path: Path) -> None:
    """Runtimes keep what they read: the same name with other content would be another pod's grant."""
    injector = Cdi(tmp_path)
    put(injector)
    path = tmp_path / "accelshare.io-n1.json"
    before = (path.stat().st_ino, path.read_bytes())
    put(injector, edits=SECOND)

    assert (path.stat().st_ino, path.read_bytes()) == before


def test_a_file_of_the_agent_before_is_not_changed_either(tmp_path: Path) -> None:
    """A container that starts again after a restart of the agent gets what it had."""
    put(Cdi(tmp_path))
    before = (tmp_path / "accelshare.io-n1.json").read_bytes()
    put(Cdi(tmp_path), edits=SECOND)

    assert (tmp_path / "accelshare.io-n1.json").read_bytes() == before


def test_two_at_once_write_one_file(tmp_path: Path) -> None:
    """kubelet may ask a second time while the first answer is on its way."""

    async def scenario() -> None:
        injector = Cdi(tmp_path)
        await asyncio.gather(*[injector.put("n1", FIRST) for _ in range(8)])

    asyncio.run(scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["accelshare.io-n1.json"]


def test_the_temporary_file_is_in_the_same_folder(tmp_path: Path) -> None:
    """A rename from outside is missed by older runtimes; a folder on a disk of its own would not allow it."""
    folder = tmp_path / "cdi"
    injector = Cdi(folder)
    folder.rmdir()

    with pytest.raises(NotReady, match=str(folder)):
        put(injector)
    assert list(tmp_path.iterdir()) == []


def test_the_runtime_may_read_the_file(tmp_path: Path) -> None:
    """It may run as another user; the file holds no secret."""
    put(Cdi(tmp_path))

    assert (tmp_path / "accelshare.io-n1.json").stat().st_mode & 0o444 == 0o444


def test_what_is_withdrawn_is_gone(tmp_path: Path) -> None:
    """Withdrawing twice is as good as once."""
    injector = Cdi(tmp_path)
    put(injector)
    put(injector, "n2")
    injector.withdraw("n1")
    injector.withdraw("n1")

    assert injector.nonces() == ["n2"]
    assert not injector.has("n1")
    assert injector.has("n2")


def test_only_our_own_files_are_named(tmp_path: Path) -> None:
    """Other vendors' files in the same folder are none of ours to sweep."""
    (tmp_path / "nvidia.yaml").write_text("")
    (tmp_path / ".accelshare.io-n0.json.00000000.tmp").write_text("")
    put(Cdi(tmp_path))

    assert Cdi(tmp_path).nonces() == ["n1"]


def test_only_our_own_leftovers_are_tidied(tmp_path: Path) -> None:
    """The runtime's folder is shared with other vendors' tools."""
    theirs = tmp_path / ".nvidia.yaml.tmp"
    theirs.write_bytes(b"x")
    ours = tmp_path / ".accelshare.io-n1.json.00000000.tmp"
    ours.write_bytes(b"x")
    Cdi(tmp_path).tidy(ours.stat().st_mtime + 60)

    assert list(tmp_path.iterdir()) == [theirs]


def test_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    """Another plugin's answer in kubelet's checkpoint cannot make us write anywhere else."""
    with pytest.raises(GrantRefused):
        put(Cdi(tmp_path / "cdi"), "../x")
    assert list(tmp_path.rglob("*")) == [tmp_path / "cdi"]


def test_directly_there_is_no_file_and_no_name(tmp_path: Path) -> None:
    """Everything was said in Allocate; what was checked since stands beside it, also for the next agent."""
    allocations = Allocations(tmp_path, lambda: "n1")
    asyncio.run(allocations.give(MEMORY, ["a"], 1.0))
    injector = Direct(allocations)
    assert not injector.has("n1")
    put(injector)

    assert injector.names("n1") == ()
    assert injector.has("n1")
    assert Direct(Allocations(tmp_path)).has("n1")
    assert injector.nonces() == []


def test_directly_nothing_stands_for_what_nobody_gave(tmp_path: Path) -> None:
    """There is no answer that could have been found right."""
    injector = Direct(Allocations(tmp_path))
    put(injector)

    assert not injector.has("n1")
    assert list(tmp_path.iterdir()) == []


def test_only_names_that_we_can_have_given_are_ours(tmp_path: Path) -> None:
    """A file that somebody called as ours are called is not swept, and does not end the agent."""
    (tmp_path / "accelshare.io-a-b.json").write_text("{}")

    assert Cdi(tmp_path).nonces() == []
