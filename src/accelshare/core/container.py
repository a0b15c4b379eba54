"""What is put into a container, as values: nobody here touches a file or a runtime.

The same Edits become a CDI file, or the fields of kubelet's Allocate answer (services.agent.injection).
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

CDI_KIND = "accelshare.io/grant"
CDI_VERSION = "0.5.0"  # the oldest that has every field below: old runtimes refuse a newer number


class DeviceNode(Struct, frozen=True):
    """A character device. With major and minor given it need not exist on the host."""

    path: str
    major: int | None = None
    minor: int | None = None
    permissions: str = "rw"


class Mount(Struct, frozen=True):
    host: str
    container: str
    read_only: bool = True


class Edits(Struct, frozen=True):
    env: tuple[tuple[str, str], ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


def merge(parts: Iterable[Edits]) -> Edits:
    """All of them in order; a later value of the same variable, device or mount replaces the earlier one."""
    env: dict[str, str] = {}
    devices: dict[str, DeviceNode] = {}
    mounts: dict[str, Mount] = {}
    for part in parts:
        env.update(part.env)
        devices.update((node.path, node) for node in part.devices)
        mounts.update((mount.container, mount) for mount in part.mounts)
    return Edits(env=tuple(env.items()), devices=tuple(devices.values()), mounts=tuple(mounts.values()))


def cdi_name(nonce: str) -> str:
    return f"{CDI_KIND}={nonce}"


def nonce_of(cdi: str) -> str | None:
    """The nonce in a qualified CDI name of ours, None for anybody else's."""
    kind, _, name = cdi.partition("=")
    return name if kind == CDI_KIND and name else None


def cdi_file(nonce: str, edits: Edits) -> bytes:
    """The whole CDI specification of one allocation: one device, named by the nonce."""
    container: dict[str, object] = {}
    if edits.env:
        container["env"] = [f"{key}={value}" for key, value in edits.env]
    if edits.devices:
        container["deviceNodes"] = [_cdi_device(node) for node in edits.devices]
    if edits.mounts:
        container["mounts"] = [
            {
                "hostPath": mount.host,
                "containerPath": mount.container,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in edits.mounts
        ]
    return msgspec.json.encode(
        {
            "cdiVersion": CDI_VERSION,
            "kind": CDI_KIND,
            "devices": [{"name": nonce, "containerEdits": container}],
        }
    )


def _cdi_device(node: DeviceNode) -> dict[str, object]:
    out: dict[str, object] = {"path": node.path, "permissions": node.permissions}
    if node.major is not None and node.minor is not None:
        out |= {"type": "c", "major": node.major, "minor": node.minor}
    return out
