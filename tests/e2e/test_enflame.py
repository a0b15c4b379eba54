"""The enflame driver on a real node: cards by libefml, and the tools in the container.

The library is the stand-in of tests/drivers, put where a host has the real one.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.gcu_machine import GUIDE, compiled

from .conftest import Machine
from .services import Services, gcu_pod

EFSMI = Path("/usr/local/efsmi/efsmi-stand-in")
MAJOR = 1023  # unassigned: opening such a node says that there is no such device


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """libefml, efsmi and two device nodes where the guide has them; and a sysfs with two cards."""
    library = EFSMI / "lib" / "libefml.so.1.0.0"
    tool = EFSMI / "bin" / "efsmi"
    conf = library.with_name("efml.conf")
    links = {Path("/usr/lib/libefml.so"): library, Path("/usr/bin/efsmi"): tool}
    if any(path.exists() or path.is_symlink() for path in (*links, EFSMI)):
        pytest.skip("this host has an Enflame driver of its own")
    for path in (library, tool):
        path.parent.mkdir(parents=True)
    library.write_bytes(compiled())
    tool.write_text("#!/bin/sh\necho stand-in for efsmi\n")
    tool.chmod(0o755)
    sysfs = tmp_path / "sys"
    for index in range(2):
        folder = sysfs / "bus/pci/devices" / f"0000:{GUIDE[index][0]}" / "enflame" / f"gcu{index}"
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"238:{index}\n")
    lines = ["count 2", f"memory {16 << 30}", "numa 0"]
    for index in range(2):
        lines += [f"uuid.{index} U5300008010{index}", f"place.{index} {GUIDE[index][0]}"]
    conf.write_text("\n".join(lines) + "\n")
    nodes = [Path(f"/dev/gcu{index}") for index in range(2)]
    for index, node in enumerate(nodes):
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, index))
    for link, target in links.items():
        link.symlink_to(target)
    try:
        yield sysfs
    finally:
        for path in (*links, *nodes, conf, library, tool):
            path.unlink(missing_ok=True)
        for folder in (library.parent, tool.parent, EFSMI, EFSMI.parent):
            if not any(folder.iterdir()):
                folder.rmdir()


def test_a_container_finds_its_card_the_library_and_the_tool(machine: Machine, host: Path) -> None:
    """As the whole-card guide describes it: /dev/gcuN, efsmi and libefml, read-only."""
    machine.rest()
    services = Services(machine.cluster())
    services.start_scheduler()
    services.start_agent(driver="enflame", env={"ACCELSHARE_SYSFS": str(host)})
    try:
        services.use_extender(offered=32)
        with services.cluster.namespace("enflame") as ns:
            services.create(ns, gcu_pod("first", 12), gcu_pod("second", 12))
            services.running(ns, "first", "second")
            assert services.sees(ns, "first").devices == ["gcu0"]
            second = services.sees(ns, "second")
            assert second.devices == ["gcu1"]
            assert second.env["ACCELSHARE_CARDS"] == "GCU-U53000080101"
            command = "efsmi; ls /usr/lib/libefml.so; touch /usr/bin/efsmi 2>&1; cat /dev/gcu1 2>&1; true"
            told = services.cluster.kubectl("exec", "-n", ns, "second", "--", "sh", "-c", command)
            assert "stand-in for efsmi" in told
            assert "/usr/lib/libefml.so" in told
            assert "Read-only file system" in told
            assert "No such device or address" in told
    finally:
        services.stop()
