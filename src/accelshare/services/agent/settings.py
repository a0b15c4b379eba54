"""What an operator can set of the agent, with the defaults."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from accelshare.core.errors import BadInput
from accelshare.core.inventory import FrontEnd, Injection
from accelshare.dialects import DIALECTS, unit_named


class AgentSettings(Struct, frozen=True, kw_only=True):
    node: str
    driver: str
    driver_config: Path | None = None
    dialects: Mapping[str, FrontEnd] = {}
    injection: Injection | None = None  # None: find out
    cdi_folder: Path | None = None  # None: what the runtime says it reads
    runtime_socket: Path = Path("/run/containerd/containerd.sock")
    plugin_folder: Path = Path("/var/lib/kubelet/device-plugins")
    state_folder: Path = Path("/var/lib/accelshare")
    trusted_keys: tuple[Path, ...] = ()
    unsigned: bool = False
    poll_seconds: float = 5.0  # how often the cards are looked at
    sweep_seconds: float = 30.0  # how often files of allocations that are over are removed; 0 is never
    driver_seconds: float = 30.0  # a driver that says nothing for so long counts as one that has failed
    spread_seconds: float = 1.0  # the first list waits up to so long: all agents of a cluster start together


def front_ends(units: Mapping[str, str], counted: frozenset[str]) -> dict[str, FrontEnd]:
    """Every dialect, with the unit that was set for it or its first, enumerated unless told otherwise."""
    for field, names in (("--unit", units), ("--counted", counted)):
        for name in names:
            if name not in DIALECTS:
                raise BadInput(field, name, f"one of {', '.join(DIALECTS)}")
    ends = {}
    for name, dialect in DIALECTS.items():
        unit = unit_named(dialect, units[name]) if name in units else next(iter(dialect.units.values()), None)
        ends[name] = FrontEnd(unit.name if unit else "", "counted" if name in counted else "enumerated")
    return ends
