"""Whether the container runtime reads CDI files, found out and never assumed.

The runtime's own word is the answer of CRI's Status with verbose set, whose info["config"] is JSON:

    containerd 1.6           knows no CDI, and names neither of the two keys below
    containerd 1.7           enableCDI is false where nobody set it; CDI names are then ignored in silence
    containerd 2.0 to 2.3    enableCDI is true where nobody set it
    containerd 2.4           the switch is gone, also from the answer, and a file that sets it off is ignored:
                             CDI is always on, and cdiSpecDirs says where it looks
    CRI-O                    its info has other keys, and none on CDI; it is on since 1.24

Where that socket cannot be reached, the version in the Node's status tells the generation (cdi_by_version).
"""

import re
from pathlib import Path

import msgspec
from grpc import aio
from msgspec import Struct

from accelshare.kube.kubelet.protos import cri_pb2 as pb
from accelshare.kube.kubelet.protos.cri_pb2_grpc import RuntimeServiceStub
from accelshare.kube.kubelet.sockets import connect

# Where CDI's own library looks unless told otherwise.
DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")

_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class CdiState(Struct, frozen=True):
    enabled: bool | None  # None: it cannot be told
    dirs: tuple[str, ...] = ()  # which it reads, where it said so or has a fixed default
    runtime: str = ""  # as in Node status: "containerd://2.4.2"
    detail: str = ""  # how it was found out, in a sentence


class _Config(Struct, rename="camel"):
    enable_cdi: bool | None = msgspec.field(name="enableCDI", default=None)
    cdi_spec_dirs: list[str] | None = None


async def runtime_cdi(socket: Path | str, timeout: float = 5.0) -> CdiState:
    """Asks the runtime itself. A socket that does not answer is no error here, but a state that says so."""
    async with connect(socket) as channel:
        stub = RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            version: pb.VersionResponse = await stub.Version(pb.VersionRequest(version="v1"), timeout=timeout)
            status: pb.StatusResponse = await stub.Status(pb.StatusRequest(verbose=True), timeout=timeout)
        except aio.AioRpcError as error:
            why = f"the runtime's socket {socket} does not answer: {error.code().name}, {error.details()}"
            return CdiState(None, detail=why)
    return read_status(f"{version.runtime_name}://{version.runtime_version}", dict(status.info))


def read_status(runtime: str, info: dict[str, str]) -> CdiState:
    """What a runtime's Status says, given as what Node status would call the runtime."""
    if _name(runtime) != "containerd":
        return _from_version(runtime, "its Status does not speak of CDI")
    text = info.get("config")
    if text is None:
        return _from_version(runtime, "its Status carries no configuration")
    try:
        config = msgspec.json.decode(text, type=_Config)
    except msgspec.DecodeError as error:
        return _from_version(runtime, f"its Status carries a configuration that cannot be read ({error})")
    dirs = tuple(config.cdi_spec_dirs or ())
    if config.enable_cdi is not None:
        word = "on" if config.enable_cdi else "off"
        return CdiState(config.enable_cdi, dirs, runtime, f"{runtime} says that CDI is {word}")
    if dirs:
        return CdiState(True, dirs, runtime, f"{runtime} reads CDI files and has no switch to turn that off")
    return CdiState(False, dirs, runtime, f"{runtime} has neither a switch nor a directory for CDI")


def cdi_by_version(runtime: str) -> bool | None:
    """By a Node's containerRuntimeVersion alone; None for a runtime that is not known.

    containerd 1.7 has CDI, but off unless somebody set it on, which the version does not tell: False.
    Docker reads CDI names given to it, but not those that come by CRI.
    """
    found = _VERSION.match(runtime.partition("://")[2])
    version = (int(found[1]), int(found[2])) if found else None
    match _name(runtime):
        case "containerd":
            return version >= (2, 0) if version else None
        case "cri-o":
            return version >= (1, 24) if version else None
        case "docker":
            return False
    return None


def _from_version(runtime: str, why: str) -> CdiState:
    enabled = cdi_by_version(runtime)
    word = {True: "on", False: "off", None: "unknown"}[enabled]
    return CdiState(
        enabled, DEFAULT_DIRS if enabled else (), runtime, f"{runtime}: {why}; by its version CDI is {word}"
    )


def _name(runtime: str) -> str:
    return runtime.partition("://")[0].lower()
