"""The list of drivers: one name a line, each imported only when it is asked for.

A driver is chosen by name and by nothing else. The simulated one is never a fallback: a machine whose cards
cannot be asked says so, and does not offer cards that are not there.

How to add one: a file beside this one that implements interface.Driver, a line below, and a line in the
table of tests/drivers/test_conformance.py, which runs the shipped suite (accelshare.conformance.drivers)
on every name in this list.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from accelshare.core.errors import BadInput
from accelshare.drivers.interface import Driver

DRIVERS = {
    "enflame": "accelshare.drivers.enflame:open_here",
    "simulated": "accelshare.drivers.simulated:open_file",
}


def open_driver(name: str, config: Path | None) -> Driver:
    """The driver of that name. What config has to be is the driver's to say; it raises BadInput."""
    if name not in DRIVERS:
        raise BadInput("driver", name, f"one of {', '.join(DRIVERS)}")
    module, _, constructor = DRIVERS[name].partition(":")
    opened: Callable[[Path | None], Driver] = getattr(import_module(module), constructor)
    return opened(config)
