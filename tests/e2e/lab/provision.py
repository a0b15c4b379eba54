"""The programs of a cluster: found where they are, or built once from pinned sources.

    python -m tests.e2e.lab.provision       builds and installs what is missing, and prints the folder

Kubernetes' and containerd's own programs come from the first of these places:

    $ACCELSHARE_K8S_BIN                     a folder; all of them must be there
    one folder of PATH                      whatever version it is
    ~/.cache/accelshare/k8s/<version>/      built by this module; about ten minutes, once

They are built with the installed go from the module sets under modules/: go.mod pins the versions and go.sum
their hashes, so that the module proxy cannot hand out anything else. What every distribution has (etcd, runc,
the CNI plugins, busybox, a C compiler, openssl) is taken from the system, and by apt-get where it is missing.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .process import LabError
from .versions import CONTAINERD, GO_MINIMUM, KUBERNETES


class ProvisionError(LabError):
    """The text says what is missing and what to do about it."""


@dataclass(frozen=True)
class Component:
    program: str
    module_set: str
    package: str
    seconds: int
    """How long it takes on two cores with nothing in go's cache, in the order below; the first program of a
    set compiles most of what the others need too."""

    @property
    def version(self) -> str:
        return KUBERNETES if self.module_set == "k8s" else CONTAINERD


_K8S = "k8s.io/kubernetes/cmd"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
COMPONENTS = (
    Component("kube-apiserver", "k8s", f"{_K8S}/kube-apiserver", 350),
    Component("kube-controller-manager", "k8s", f"{_K8S}/kube-controller-manager", 145),
    Component("kube-scheduler", "k8s", f"{_K8S}/kube-scheduler", 10),
    Component("kubelet", "k8s", f"{_K8S}/kubelet", 20),
    Component("kubectl", "k8s", f"{_K8S}/kubectl", 30),
    Component("containerd", "containerd", f"{_CONTAINERD}/containerd", 95),
    Component("containerd-shim-runc-v2", "containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", 2),
    Component("ctr", "containerd", f"{_CONTAINERD}/ctr", 5),
)
_MODULES = Path(__file__).parent / "modules"
_VERSION_VARIABLES = "k8s.io/component-base/version"

# Where one of these files or programs is, the package is not needed.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "etcd-server": ("etcd",),
    "runc": ("runc",),
    "containernetworking-plugins": ("/usr/lib/cni/ptp", "/opt/cni/bin/ptp", "/usr/libexec/cni/ptp"),
    "busybox-static": ("busybox",),
    "gcc": ("gcc",),
    "libc6-dev": tuple(f"/usr/lib{p}/libc.a" for p in ("/x86_64-linux-gnu", "/aarch64-linux-gnu", "64")),
    "openssl": ("openssl",),
    "mount": ("mount",),
}
_POLICY = Path("/usr/sbin/policy-rc.d")


def ensure() -> Path:
    """The folder with the programs; after a build, where they are nowhere yet."""
    install_packages()
    if given := os.environ.get("ACCELSHARE_K8S_BIN"):
        folder = Path(given)
        if missing := _missing(folder):
            raise ProvisionError(f"ACCELSHARE_K8S_BIN is {given}, where {', '.join(missing)} is missing")
        return folder
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        if entry and not _missing(Path(entry)):
            return Path(entry)
    return build()


def build(components: Sequence[Component] = COMPONENTS) -> Path:
    """The cache's folder, in which these programs then are as pinned. It changes as a whole or not at all."""
    folder = Path.home() / ".cache" / "accelshare" / "k8s" / KUBERNETES
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_builder(folder.parent / f".{KUBERNETES}.lock"):
        wanted = [component for component in components if not _as_pinned(folder, component)]
        if wanted:
            go = _find_go()
            for left in folder.parent.glob(".build-*"):  # of a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as scratch:
                built = Path(scratch) / "bin"
                if folder.is_dir():
                    shutil.copytree(folder, built)
                built.mkdir(exist_ok=True)
                _build_all(go, wanted, built)
                shutil.rmtree(folder, ignore_errors=True)
                built.rename(folder)
    return folder


def install_packages() -> None:
    """Installs what the system lacks, without starting any of its services."""
    missing = [package for package, traces in _PACKAGES.items() if not any(map(_on_system, traces))]
    if not missing:
        return
    if os.geteuid() or not shutil.which("apt-get"):
        names = " ".join(missing)
        raise ProvisionError(f"these packages are missing: {names}; install them, or let root do it")
    print(f"installing {' '.join(missing)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services_started():
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            _run(["apt-get", "--quiet", *words], Path("/"), environment)


def _build_all(go: str, components: Sequence[Component], folder: Path) -> None:
    total = sum(component.seconds for component in components)
    done = 0
    began = time.monotonic()
    for number, component in enumerate(components, 1):
        # Until the first is built, the table's seconds are all there is to go by; then the machine's own
        # pace.
        pace = (time.monotonic() - began) / done if done else 1.0
        minutes = round((total - done) * pace / 60)
        left = f"about {minutes} min left" if minutes else "less than a minute left"
        print(f"building {component.program} … ({number} of {len(components)}, {left})", flush=True)
        _build_one(go, component, folder)
        done += component.seconds
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)


def _build_one(go: str, component: Component, folder: Path) -> None:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    said = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    variables = [f"-X {_VERSION_VARIABLES}.{name}={value}" for name, value in said.items()]
    words = ["build", "-trimpath", "-ldflags", " ".join(["-s", "-w", *variables]), "-o", f"{folder}/"]
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",  # a workspace in a folder above would have its own say about versions
    }
    _run([go, *words, component.package], _MODULES / component.module_set, environment)
    (folder / f"{component.program}.version").write_text(component.version)


def _find_go() -> str:
    wanted = ".".join(map(str, GO_MINIMUM))
    if (go := shutil.which("go")) is None:
        raise ProvisionError(
            f"the programs of Kubernetes have to be built once, which needs go {wanted} or later in PATH; "
            "or name a folder that holds them in ACCELSHARE_K8S_BIN"
        )
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    said = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=True, cwd="/", env=environment
    ).stdout
    found = re.match(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < GO_MINIMUM:
        raise ProvisionError(f"{go} is {said.strip()}; Kubernetes {KUBERNETES} needs go {wanted} or later")
    return go


def _missing(folder: Path) -> list[str]:
    return [c.program for c in COMPONENTS if not os.access(folder / c.program, os.X_OK)]


def _as_pinned(folder: Path, component: Component) -> bool:
    note = folder / f"{component.program}.version"
    return (folder / component.program).exists() and note.exists() and note.read_text() == component.version


def _on_system(trace: str) -> bool:
    """Whether a file, or a program by its name, is there; root's PATH need not hold the sbin folders."""
    if trace.startswith("/"):
        return Path(trace).exists()
    return shutil.which(trace, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def _run(argv: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise ProvisionError(f"`{' '.join(argv)}` ended with {done.returncode}:\n{said}")


@contextmanager
def _only_builder(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process builds the programs: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _no_services_started() -> Iterator[None]:
    """Debian asks this file whether an installed service may start; 101 is "no"."""
    before = _POLICY.read_bytes() if _POLICY.exists() else None
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if before is None:
            _POLICY.unlink()
        else:
            _POLICY.write_bytes(before)


if __name__ == "__main__":
    try:
        print(ensure())
    except ProvisionError as error:
        sys.exit(str(error))
