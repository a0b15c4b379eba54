"""Whether a runtime reads CDI files: what real ones answered, and what their versions tell."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from accelshare.kube.kubelet.cri import CdiState, cdi_by_version, read_status, runtime_cdi
from accelshare.kube.kubelet.protos import cri_pb2 as pb
from accelshare.kube.kubelet.protos.cri_pb2_grpc import (
    RuntimeServiceServicer,
    add_RuntimeServiceServicer_to_server,
)
from tests.kube.kubelet.fake_kubelet import short_directory

RECORDINGS = Path(__file__).parent / "recordings"


class Runtime(RuntimeServiceServicer):
    """Gives recorded answers."""

    def __init__(self, recording: str) -> None:
        self.recorded: dict[str, Any] = json.loads((RECORDINGS / recording).read_text())

    async def Version(self, request: Any, context: Any) -> pb.VersionResponse:  # noqa: N802
        return pb.VersionResponse(**self.recorded["version"])

    async def Status(self, request: Any, context: Any) -> pb.StatusResponse:  # noqa: N802
        return pb.StatusResponse(info=self.recorded["info"] if request.verbose else {})


def asked(recording: str) -> CdiState:
    async def whole() -> CdiState:
        server = aio.server()
        add_RuntimeServiceServicer_to_server(Runtime(recording), server)  # type: ignore[no-untyped-call]
        with short_directory() as directory:
            server.add_insecure_port(f"unix://{directory}/c.sock")
            await server.start()
            try:
                return await runtime_cdi(directory / "c.sock")
            finally:
                await server.stop(0)

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("recording", "enabled", "dirs"),
    [
        ("cri-containerd-1.7.35.json", False, ("/etc/cdi", "/var/run/cdi")),
        ("cri-containerd-1.7.35-set-on.json", True, ("/etc/cdi", "/var/run/cdi")),
        ("cri-containerd-2.4.2.json", True, ("/etc/cdi", "/var/run/cdi")),
        ("cri-containerd-2.4.2-set-off.json", True, ("/etc/cdi", "/var/run/cdi")),
        ("cri-containerd-2.4.2-other-dirs.json", True, ("/etc/cdi", "/run/cdi")),
    ],
)
def test_a_real_runtimes_answer_says_whether_and_where(
    recording: str, enabled: bool, dirs: tuple[str, ...]
) -> None:
    """Each recording is named after the runtime and its setting."""
    state = asked(recording)
    assert (state.enabled, state.dirs) == (enabled, dirs)
    assert state.runtime in state.detail


def test_every_recording_says_where_it_is_from() -> None:
    """A recording that nobody can make again proves little."""
    for path in RECORDINGS.glob("cri-*.json"):
        assert json.loads(path.read_text())["origin"]


@pytest.mark.parametrize(
    ("runtime", "config", "enabled"),
    [
        ("containerd://1.6.20", {"cniConfig": {}}, False),
        ("containerd://1.7.29", {"enableCDI": False, "cdiSpecDirs": ["/etc/cdi"]}, False),
        ("containerd://1.7.29", {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]}, True),
        ("containerd://2.3.0", {"enableCDI": None, "cdiSpecDirs": ["/etc/cdi"]}, True),
        ("containerd://2.3.0", {"enableCDI": False, "cdiSpecDirs": ["/etc/cdi"]}, False),
        ("containerd://2.4.2", {"cdiSpecDirs": []}, False),
        ("containerd://2.4.2", {"enableCDI": "yes"}, True),  # cannot be read, so its version decides
    ],
)
def test_containerd_is_taken_at_its_word(runtime: str, config: dict[str, object], enabled: bool) -> None:
    """The switch where there is one, else the directories, else the version."""
    state = read_status(runtime, {"config": json.dumps(config)})
    assert state.enabled is enabled
    assert runtime in state.detail


@pytest.mark.parametrize("info", [{}, {"config": "{"}, {"config": "[]"}, {"config": "7"}])
def test_a_status_without_a_configuration_leaves_the_version(info: dict[str, str]) -> None:
    """And the detail says that it was the version."""
    state = read_status("containerd://2.1.0", info)
    assert state.enabled is True
    assert "by its version" in state.detail


def test_cri_o_is_known_by_its_version() -> None:
    """Its Status does not speak of CDI."""
    state = read_status("cri-o://1.30.4", {"config": "{}"})
    assert (state.enabled, state.dirs) == (True, ("/etc/cdi", "/var/run/cdi"))


def test_a_socket_that_does_not_answer_is_a_state() -> None:
    """It is not known then, and the detail names the socket."""

    async def whole() -> CdiState:
        return await runtime_cdi(Path("/nonexistent/c.sock"), timeout=1)

    state = asyncio.run(whole())
    assert state.enabled is None
    assert "/nonexistent/c.sock" in state.detail


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("containerd://2.4.2", True),
        ("containerd://2.0.0-rc.1", True),
        ("containerd://v2.1.0", True),
        ("containerd://1.7.29", False),
        ("containerd://1.6.20~ds1", False),
        ("cri-o://1.30.4", True),
        ("cri-o://1.24", True),
        ("cri-o://1.23.5", False),
        ("docker://27.1.1", False),
        ("containerd://unknown", None),
        ("rkt://1.30", None),
        ("", None),
    ],
)
def test_a_nodes_runtime_version_tells_its_generation(version: str, expected: bool | None) -> None:
    """As Node status writes it; None where nothing can be told."""
    assert cdi_by_version(version) is expected
