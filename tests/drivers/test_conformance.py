"""Every driver in the list keeps what the interface promises: a new one fails until OFFERS has its line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accelshare.conformance.drivers import CHECKS, Offered
from accelshare.drivers import DRIVERS, open_driver
from accelshare.drivers.enflame import EnflameDriver
from tests.drivers.gcu_machine import Machine

NODES = Path(__file__).parents[2] / "examples" / "nodes"


def offer_enflame(folder: Path) -> Offered:
    machine = Machine(folder / "host", 4)
    bare = folder / "bare"
    (bare / "sys/bus/pci/devices").mkdir(parents=True)
    return Offered(
        name="enflame",
        open=machine.driver,
        broken=lambda: EnflameDriver(root=str(bare), sysfs=str(bare / "sys")),
        files=folder,
        root=machine.root,
    )


def offer_simulated(folder: Path) -> Offered:
    node = folder / "node.yaml"
    node.write_bytes((NODES / "gcu-8x16.yaml").read_bytes())
    (folder / "broken.yaml").write_text("cards: none\n")
    return Offered(
        name="simulated",
        open=lambda: open_driver("simulated", node),
        broken=lambda: open_driver("simulated", folder / "broken.yaml"),
        files=folder,
    )


OFFERS: dict[str, Callable[[Path], Offered]] = {"enflame": offer_enflame, "simulated": offer_simulated}


@pytest.fixture(params=DRIVERS)
def offered(request: pytest.FixtureRequest, tmp_path: Path) -> Offered:
    return OFFERS[request.param](tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_driver_keeps_what_the_interface_promises(offered: Offered, check: Callable[[Offered], None]) -> None:
    """Each check of the shipped suite holds for each driver of the list."""
    check(offered)
