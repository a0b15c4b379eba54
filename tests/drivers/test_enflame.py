"""The enflame driver against a stand-in for libefml with the same ABI (fake_efml.c) and a sysfs of files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelshare.core.container import DeviceNode, Mount
from accelshare.core.errors import BadInput, DriverError
from accelshare.core.inventory import Card
from accelshare.drivers.enflame import EnflameDriver, open_here
from tests.drivers.gcu_machine import REAL, Machine

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def second(driver: EnflameDriver) -> Card:
    return driver.discover()[1]


# What a card is.


def test_a_card_is_what_library_and_sysfs_say(tmp_path: Path) -> None:
    """Id, memory, model and NUMA node come from the library, minor and bridges from sysfs."""
    cards = Machine(tmp_path, 8).driver().discover()
    assert cards[3] == Card(
        id="GCU-U53000080103",
        index=3,
        memory=16 * GIB,
        minor=3,
        model="T10",
        vendor="enflame",
        numa=0,
        pcie=("0000:17:10.0", "0000:16:00.0", "0000:0e:08.0", "0000:0d:00.0", "0000:0c:02.0"),
    )


def test_all_cards_are_listed_in_order(tmp_path: Path) -> None:
    """Eight cards come in the order of their index."""
    cards = Machine(tmp_path, 8).driver().discover()
    assert [card.index for card in cards] == list(range(8))


def test_an_id_gets_its_prefix_once(machine: Machine) -> None:
    """A library that writes GCU- itself is taken at its word."""
    machine.tell(uuid__1="GCU-U53000080199")
    assert second(machine.driver()).id == "GCU-U53000080199"


def test_bytes_that_are_no_text_stay_visible(machine: Machine) -> None:
    """An id that is no UTF-8 is shown with its bytes, and not mixed up with another one."""
    machine.tell(uuid__0=b"U\xff1".decode("utf-8", "surrogateescape"))
    assert machine.driver().discover()[0].id == r"GCU-U\xff1"


def test_minor_is_what_sysfs_says(machine: Machine) -> None:
    """The minor of /dev/gcuN is read, since it need not be the library's number."""
    machine.tell(logic__1=5)
    machine.write("sys/bus/pci/devices/0000:12:00.0/enflame/gcu5/dev", "238:7\n")
    assert second(machine.driver()).minor == 7


def test_minor_of_the_older_module(machine: Machine) -> None:
    """The kernel module was once called zixiao, and so was its folder."""
    machine.tell(logic__1=5)
    machine.write("sys/bus/pci/devices/0000:12:00.0/zixiao/gcu5/dev", "238:6\n")
    assert second(machine.driver()).minor == 6


def test_minor_under_the_access_point(machine: Machine) -> None:
    """Where the card's own folder is silent, the one that the library names is read."""
    machine.tell(logic__1=5)
    machine.write("sys/bus/pci/drivers/enflame/0000:12:00.0/enflame/gcu5/dev", "238:9\n")
    assert second(machine.driver()).minor == 9


def test_minor_without_sysfs_is_the_library_s_number(machine: Machine) -> None:
    """With nothing in sysfs the library's number has to do."""
    machine.tell(logic__1=5)
    assert second(machine.driver()).minor == 5


@pytest.mark.parametrize(("said", "numa"), [(1, 1), (0, 0), (-1, None)])
def test_numa_node(machine: Machine, said: int, numa: int | None) -> None:
    """-1 means that there is no such thing."""
    machine.tell(numa=said)
    assert second(machine.driver()).numa == numa


def test_numa_node_from_sysfs(machine: Machine) -> None:
    """A library that does not know the NUMA node leaves it to sysfs."""
    machine.tell(code__EfmlGetNumaNode=3)
    assert second(machine.driver()).numa == 1


def test_model_is_the_name_where_there_is_no_sku(machine: Machine) -> None:
    """An old library without SKU has a name still."""
    machine.tell(code__EfmlGetDevSKU=9, name="Enflame T10")
    assert second(machine.driver()).model == "Enflame T10"


def test_links_are_counted_per_card(machine: Machine) -> None:
    """Two ports between two cards make the link twice as good."""
    machine.tell(ports=2, linked__0="12:00.0", linked__1="11:00.0")
    links = [card.links for card in machine.driver().discover()]
    assert links == [{"GCU-U53000080101": 2}, {"GCU-U53000080100": 2}]


def test_links_that_cannot_be_asked_are_no_sickness(machine: Machine) -> None:
    """A card whose links are unknown can be used all the same."""
    machine.tell(ports=2, linked="12:00.0", code__EfmlGetGcuLarePortInfo=254)
    card = machine.driver().discover()[0]
    assert (card.healthy, card.links) == (True, {})


# Health.


def test_a_card_falls_sick_and_recovers(machine: Machine) -> None:
    """Health is what the library says now; nothing is restarted."""
    driver = machine.driver()
    well = driver.discover()
    machine.tell(sick__1=1)
    ill = second(driver)
    machine.tell(sick__1=0)
    assert (ill.healthy, ill.reason) == (False, "EfmlGetDevIsHealth says that the card is not healthy")
    assert driver.discover() == well


def test_only_the_sick_card_is_sick(machine: Machine) -> None:
    """One bad card says nothing of the others."""
    machine.tell(sick__1=1)
    assert [card.healthy for card in machine.driver().discover()] == [True, False]


@pytest.mark.parametrize(("code", "word"), [(253, "timeout"), (254, "failed"), (77, "without a name")])
def test_a_health_question_that_fails_is_sickness(machine: Machine, code: int, word: str) -> None:
    """A card that cannot say how it is, is not offered."""
    machine.tell(code__EfmlGetDevIsHealth__1=code)
    card = second(machine.driver())
    assert not card.healthy
    assert word in card.reason


@pytest.mark.parametrize("code", [3, 9, 13])
def test_what_is_not_supported_is_no_sickness(machine: Machine, code: int) -> None:
    """Cards that do not support health questions would otherwise never be used."""
    machine.tell(code__EfmlGetDevIsHealth=code, code__EfmlGetDevHealth=code, code__EfmlGetDevRmaStatus=code)
    assert second(machine.driver()).healthy


def test_the_other_health_function_is_asked(machine: Machine) -> None:
    """Where the first is not supported the second decides."""
    machine.tell(code__EfmlGetDevIsHealth=3, sick__1=1)
    assert second(machine.driver()).reason == "EfmlGetDevHealth says that the card is not healthy"


def test_a_library_without_health_functions(tmp_path: Path) -> None:
    """A function that is not there is not asked."""
    assert second(Machine(tmp_path, 2, "-DWITHOUT_HEALTH").driver()).healthy


def test_a_card_to_be_returned_is_sick(machine: Machine) -> None:
    """The vendor's own advice to return a card takes it out."""
    machine.tell(rma__1=1)
    assert "returned to the vendor" in second(machine.driver()).reason


def test_a_card_that_leaves_the_bus_is_kept_as_sick(machine: Machine) -> None:
    """It keeps all that is known of it, the minor and the bridges too, and says why."""
    driver = machine.driver()
    before = second(driver)
    machine.pull(1)
    after = second(driver)
    assert "has left the PCI bus" in after.reason
    assert (after.id, after.minor, after.pcie, after.healthy) == (before.id, before.minor, before.pcie, False)


def test_a_card_that_comes_back_is_well_again(machine: Machine) -> None:
    """Nobody has to restart anything."""
    driver = machine.driver()
    before = driver.discover()
    machine.pull(1)
    driver.discover()
    machine.push(1)
    assert driver.discover() == before


def test_a_card_that_comes_back_is_opened_anew(machine: Machine) -> None:
    """The library holds on to the card that went, so it is initialised again: seen by letting that fail."""
    driver = machine.driver()
    machine.pull(1)
    driver.discover()
    machine.tell(code__EfmlInit=6)
    driver.discover()
    machine.push(1)
    with pytest.raises(DriverError, match="driver not loaded"):
        driver.discover()


def test_a_card_that_falls_silent_is_kept_as_sick(machine: Machine) -> None:
    """The library still lists it, so it is not dropped."""
    driver = machine.driver()
    driver.discover()
    machine.tell(code__EfmlGetDevUuid__1=253)
    card = second(driver)
    assert (card.id, card.healthy) == ("GCU-U53000080101", False)
    assert card.reason == "EfmlGetDevUuid says: timeout (253)"


def test_a_card_that_is_gone_and_silent_is_said_to_be_gone(machine: Machine) -> None:
    """Of two reasons the one that explains the other is shown."""
    driver = machine.driver()
    driver.discover()
    machine.pull(1)
    machine.tell(code__EfmlGetDevInfo__1=12)
    assert "has left the PCI bus" in second(driver).reason


def test_a_card_that_never_spoke_is_left_out_aloud(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an id it cannot be offered; the others are, and the log says so once."""
    machine.tell(code__EfmlGetDevUuid__1=253)
    driver = machine.driver()
    assert len(driver.discover()) == len(driver.discover()) == 1
    assert caplog.messages == ["card 1 is left out: EfmlGetDevUuid says: timeout (253)"]


@pytest.mark.parametrize("said", [{"uuid__1": ""}, {"memory__1": 0}])
def test_a_card_without_id_or_memory_is_left_out(machine: Machine, said: dict[str, object]) -> None:
    """Success with nothing in it is no answer."""
    machine.tell(**said)
    assert len(machine.driver().discover()) == 1


def test_a_left_out_card_comes_in_when_it_speaks(machine: Machine) -> None:
    """It is asked again at every call."""
    machine.tell(code__EfmlGetDevUuid__1=253)
    driver = machine.driver()
    driver.discover()
    machine.tell(code__EfmlGetDevUuid__1=0)
    assert second(driver).healthy


def test_another_card_in_the_slot_is_another_card(machine: Machine) -> None:
    """A new serial is a new card, whatever was known of the old one."""
    driver = machine.driver()
    driver.discover()
    machine.tell(uuid__1="U53000080777", sick__1=1)
    assert second(driver).id == "GCU-U53000080777"


def test_a_card_that_was_renumbered_is_not_listed_twice(machine: Machine) -> None:
    """What is remembered under an old number gives way to the card that answers under its new one."""
    driver = machine.driver()
    driver.discover()
    machine.tell(uuid__0="U53000080101", code__EfmlGetDevUuid__1=253)
    assert [card.id for card in driver.discover()] == ["GCU-U53000080101"]


def test_fewer_cards_than_before(tmp_path: Path) -> None:
    """A card that the library lists no more is gone, and nothing remembered is put in its place."""
    machine = Machine(tmp_path, 4)
    driver = machine.driver()
    driver.discover()
    machine.tell(count=3)
    assert [card.index for card in driver.discover()] == [0, 1, 2]


# What goes wrong.


def test_two_cards_of_one_id_are_refused(machine: Machine) -> None:
    """Grants on them could not be told apart."""
    machine.tell(uuid="U1", uuid__0="U1", uuid__1="U1")
    with pytest.raises(DriverError, match="several cards the id GCU-U1"):
        machine.driver().discover()


@pytest.mark.parametrize(
    ("code", "meaning", "remedy"),
    [
        (6, "driver not loaded", "load the enflame kernel driver"),
        (10, "driver's version cannot be read", "/sys/module/enflame/version"),
        (11, "not compatible", "of one release"),
        (12, "no device", "lspci -d 1e36:"),
        (253, "timeout", "dmesg"),
    ],
)
def test_a_library_that_does_not_start_says_why(
    machine: Machine, code: int, meaning: str, remedy: str
) -> None:
    """The code is put in words, with what to do."""
    machine.tell(code__EfmlInit=code)
    with pytest.raises(DriverError, match=f"EfmlInit says: .*{meaning}.*; .*{remedy}"):
        machine.driver().discover()


def test_no_library_names_the_paths_tried(machine: Machine) -> None:
    """Who has to install it sees where it was looked for."""
    (machine.root / "usr/lib/libefml.so").unlink()
    with pytest.raises(DriverError, match="install the Enflame driver package") as caught:
        machine.driver().discover()
    for path in (
        "/usr/lib/libefml.so,",
        "/usr/lib64/libefml.so.2.1",
        "/usr/lib/x86_64-linux-gnu/libefml.so.1.0.0",
    ):
        assert path in str(caught.value)


def test_a_file_that_is_no_library_is_named(machine: Machine) -> None:
    """What is there but cannot be loaded comes with the linker's words."""
    machine.library.write_text("not a library")
    with pytest.raises(DriverError, match=r"/usr/lib/libefml\.so \(.*(file too short|invalid ELF header)"):
        machine.driver().discover()


def test_a_link_to_itself_ends(machine: Machine) -> None:
    """A loop of links is a library that is not there."""
    machine.link("usr/lib/libefml.so", "libefml.so")
    with pytest.raises(DriverError, match="no libefml can be loaded"):
        machine.driver().discover()


def test_no_sysfs_is_said(machine: Machine) -> None:
    """Without sysfs every card would look as if it had left the bus."""
    driver = EnflameDriver(root=str(machine.root), sysfs=str(machine.root / "nowhere"))
    with pytest.raises(DriverError, match="mount the host's /sys"):
        driver.discover()


def test_no_card_is_an_error(machine: Machine) -> None:
    """A node with the driver and without a card says so."""
    machine.tell(count=0)
    with pytest.raises(DriverError, match="lists no card"):
        machine.driver().discover()


def test_cards_that_all_are_silent_are_an_error(machine: Machine) -> None:
    """An empty list would read as a machine without cards."""
    machine.tell(code__EfmlGetDevMem=254)
    with pytest.raises(DriverError, match=r"none of 2 cards says who it is: EfmlGetDevMem says: failed"):
        machine.driver().discover()


@pytest.mark.parametrize("broken", [{"code__EfmlGetDevCount": 1}, {"count": 0}, {"code__EfmlInit": 6}])
def test_it_heals_by_itself(machine: Machine, broken: dict[str, object]) -> None:
    """After any failure the next call begins anew."""
    mended = {"code__EfmlGetDevCount": 0, "count": 2, "code__EfmlInit": 0}
    driver = machine.driver()
    machine.tell(**broken)
    with pytest.raises(DriverError):
        driver.discover()
    machine.tell(**mended)
    assert len(driver.discover()) == 2


# What is replaced.


def test_a_replaced_library_is_opened_again(machine: Machine) -> None:
    """The new file is loaded under the old name, where the linker by itself would keep the old one."""
    driver = machine.driver()
    assert second(driver).model == "T10"
    machine.install('-DMODEL="T20"')
    assert second(driver).model == "T20"


def test_a_library_that_cannot_be_unloaded_is_replaced_too(machine: Machine) -> None:
    """C++ makes libraries that stay loaded for good; the new file is loaded beside it."""
    machine.install("-Wl,-z,nodelete")
    driver = machine.driver()
    driver.discover()
    machine.install("-Wl,-z,nodelete", '-DMODEL="T20"')
    assert second(driver).model == "T20"


def test_a_link_to_another_version_is_followed(machine: Machine) -> None:
    """An upgrade may leave the old file and turn the link."""
    driver = machine.driver()
    driver.discover()
    machine.install('-DMODEL="T20"')
    newer = machine.library.with_name("libefml.so.2.0")
    machine.library.rename(newer)
    machine.link("usr/lib/libefml.so", f"/{newer.relative_to(machine.root)}")
    assert second(driver).model == "T20"


def test_a_library_that_is_missing_for_a_while(machine: Machine) -> None:
    """In the middle of an upgrade there is an error, and after it there are cards."""
    driver = machine.driver()
    driver.discover()
    (machine.root / "usr/lib/libefml.so").unlink()
    with pytest.raises(DriverError, match="no libefml can be loaded"):
        driver.discover()
    machine.link("usr/lib/libefml.so", f"/{REAL}")
    assert len(driver.discover()) == 2


def test_a_replaced_kernel_driver_is_opened_again(machine: Machine) -> None:
    """The library is initialised anew when the module's version changes: seen by letting that fail."""
    driver = machine.driver()
    driver.discover()
    machine.tell(code__EfmlInit=11)
    driver.discover()
    machine.write("sys/module/enflame/version", "1.0.20240101\n")
    with pytest.raises(DriverError, match="not compatible"):
        driver.discover()


def test_a_closed_driver_opens_again(machine: Machine) -> None:
    """close() gives the library back, and a later question takes it again."""
    driver = machine.driver()
    before = driver.discover()
    driver.close()
    assert driver.discover() == before


def test_a_closed_library_is_unloaded(machine: Machine) -> None:
    """Nothing of the file stays in the process, so its package can be removed."""
    driver = machine.driver()
    driver.discover()
    maps = Path("/proc/self/maps")
    assert str(machine.library) in maps.read_text()
    driver.close()
    assert str(machine.library) not in maps.read_text()


def test_a_library_that_does_not_start_is_unloaded(machine: Machine) -> None:
    """A node whose kernel driver is missing is asked again and again, and must not fill up."""
    machine.tell(code__EfmlInit=6)
    with pytest.raises(DriverError):
        machine.driver().discover()
    assert str(machine.library) not in Path("/proc/self/maps").read_text()


# What a container gets.


def test_a_container_gets_its_cards_and_the_control_node(machine: Machine) -> None:
    """A file that is no device leaves the numbers to the runtime."""
    driver = machine.driver()
    edits = driver.edits(driver.discover())
    assert edits.devices == (DeviceNode("/dev/gcu0"), DeviceNode("/dev/gcu1"), DeviceNode("/dev/gcuctl"))


def test_a_host_without_control_node(machine: Machine) -> None:
    """Older drivers have none."""
    (machine.root / "dev/gcuctl").unlink()
    driver = machine.driver()
    assert driver.edits(driver.discover()[:1]).devices == (DeviceNode("/dev/gcu0"),)


def test_device_numbers_are_the_host_s(machine: Machine) -> None:
    """Where the node is there its numbers are told, so that the agent's own /dev does not matter."""
    node = machine.root / "dev/gcu0"
    node.unlink()
    try:
        os.mknod(node, 0o20600, os.makedev(1023, 4))
    except PermissionError:
        pytest.skip("this user may not make device nodes (needs CAP_MKNOD)")
    driver = machine.driver()
    assert driver.edits(driver.discover()[:1]).devices[0] == DeviceNode("/dev/gcu0", 1023, 4)


def test_library_and_tool_are_mounted_under_all_their_names(machine: Machine) -> None:
    """Paths are the host's, links are followed inside its root, and none leads nowhere in the container."""
    machine.link("usr/lib/libefml.so.1", "libefml.so")
    driver = machine.driver()
    real, tool = f"/{REAL}", "/usr/local/efsmi/efsmi-1.4.0/bin/efsmi"
    assert driver.edits(driver.discover()).mounts == (
        Mount(real, "/usr/lib/libefml.so"),
        Mount(real, real),
        Mount(real, "/usr/lib/libefml.so.1"),
        Mount(tool, "/usr/bin/efsmi"),
        Mount(tool, tool),
    )


def test_mounts_before_the_first_question(machine: Machine) -> None:
    """An agent that starts anew may have to serve a container before it has asked for the cards."""
    fresh = machine.driver()
    asked = machine.driver()
    asked.discover()
    assert fresh.edits(()) == asked.edits(())


def test_a_host_without_library_mounts_none(machine: Machine) -> None:
    """What is not there is not mounted."""
    (machine.root / "usr/lib/libefml.so").unlink()
    (machine.root / "usr/bin/efsmi").unlink()
    assert machine.driver().edits(()).mounts == ()


def test_a_folder_that_is_a_link(machine: Machine) -> None:
    """/usr/lib64 may be a link that only means something inside the host's root."""
    (machine.root / "usr/lib/libefml.so").unlink()
    machine.link("usr/lib64", "/opt/../usr/local/efsmi/efsmi-1.4.0/lib")
    machine.link(REAL.replace("1.0.0", "1"), "libefml.so.1.0.0")
    driver = machine.driver()
    assert Mount(f"/{REAL}", "/usr/lib64/libefml.so.1") in driver.edits(driver.discover()).mounts


# How it is opened.


def test_a_library_that_is_named(machine: Machine) -> None:
    """With a path given no other is tried, and that one is mounted."""
    driver = EnflameDriver(library=f"/{REAL}", root=str(machine.root), sysfs=str(machine.sysfs))
    assert len(driver.discover()) == 2
    assert driver.edits(()).mounts[0] == Mount(f"/{REAL}", f"/{REAL}")


def test_a_named_library_that_is_missing(machine: Machine) -> None:
    """A wrong path is an error, not a reason to take another library."""
    driver = EnflameDriver(library="/opt/libefml.so", root=str(machine.root), sysfs=str(machine.sysfs))
    with pytest.raises(DriverError, match=r"Tried: /opt/libefml\.so$"):
        driver.discover()
    assert not [mount for mount in driver.edits(()).mounts if "libefml" in mount.container]


def test_a_configuration_is_refused() -> None:
    """It has none, so a file that is given is a mistake."""
    with pytest.raises(BadInput, match="none: it asks the machine"):
        open_here(Path("node.yaml"))


def in_a_process(code: str, **environment: str) -> str:
    """What a Python process of its own prints, with these variables in its environment."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_linker_s_own_paths_come_first(machine: Machine) -> None:
    """On the host itself a library that ld.so knows is found by its bare name, and so is its path."""
    (machine.library.with_name("libefml.so")).symlink_to(machine.library.name)
    code = f"""
from accelshare.drivers.enflame import EnflameDriver
driver = EnflameDriver(sysfs={str(machine.sysfs)!r})
print(len(driver.discover()), driver.edits(()).mounts[0].host)
"""
    printed = in_a_process(code, LD_LIBRARY_PATH=str(machine.library.parent))
    assert printed == f"2 {machine.library}"


def test_the_library_s_signals_do_not_end_the_process(machine: Machine) -> None:
    """SIGUSR1 and SIGUSR2 would otherwise kill an agent whenever the library sends them."""
    code = f"""
import os, signal
from accelshare.drivers.enflame import EnflameDriver
EnflameDriver(root={str(machine.root)!r}, sysfs={str(machine.sysfs)!r}).discover()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
print("alive")
"""
    assert in_a_process(code) == "alive"


def test_the_environment_names_root_and_library(machine: Machine) -> None:
    """An agent in a container says where the host is, and an odd host where its library is."""
    code = """
from accelshare.drivers import open_driver
driver = open_driver("enflame", None)
print(driver.edits(()).mounts[0].host)
"""
    printed = in_a_process(
        code, ACCELSHARE_HOST_ROOT=str(machine.root), ACCELSHARE_EFML_LIBRARY="/usr/lib/libefml.so"
    )
    assert printed == f"/{REAL}"


@pytest.mark.parametrize("variable", ["ACCELSHARE_HOST_ROOT", "ACCELSHARE_EFML_LIBRARY"])
def test_a_relative_path_in_the_environment_is_refused(variable: str) -> None:
    """It would mean another file in another folder."""
    code = """
from accelshare.core.errors import BadInput
from accelshare.drivers import open_driver
try:
    open_driver("enflame", None)
except BadInput as error:
    print(error)
"""
    assert in_a_process(code, **{variable: "host"}) == f"{variable} is 'host'; allowed is an absolute path"
