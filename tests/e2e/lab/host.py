"""What a cluster changes on the machine, and how that is undone.

Rule 1: before anything is changed, `claim` writes into the cluster's directory how the machine was (a
Snapshot) and whose run it is.
Rule 2: `clean` undoes everything from that directory and from /proc alone. It is the only way down: the end
of a `with` block, a Ctrl-C, a start that failed and the next run after a `kill -9` all take it. So it stops
nothing politely; what it ends has no future anyway.
Rule 3: only what is provably ours is touched: processes that carry the directory in their environment or
stand with pid and start time in it, control groups and folders that were not there before, lines and links
that name the directory.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .process import MARKER, LabError, start_time

KUBELET = Path("/var/lib/kubelet")
NETWORK = "accelshare-lab"
"""The name of the pods' network: CNI's cache names its files after it."""

# The kubelet sets these at its start, for machines that are nothing but nodes: a kernel that panics at an
# oops is no gift to a workstation. They are put back at once and not only at the end.
KUBELET_SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
# CNI's ptp plugin switches forwarding on and pods need it: put back at the end.
_SYSCTLS = (
    *KUBELET_SYSCTLS,
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
    *("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/route_localnet"),
)
# Folders with fixed names that containerd, CNI or the kubelet make. One that was missing before is ours.
_FOLDERS = (
    *(KUBELET, Path("/var/log/pods"), Path("/var/log/containers"), Path("/usr/libexec/kubernetes")),
    *(
        Path("/run/containerd"),
        Path("/run/runc"),
        Path("/run/netns"),
        Path("/run/cdi"),
        Path("/run/kubernetes"),
    ),
    *(Path("/var/lib/cni"), Path("/var/lib/containerd"), Path("/opt/cni"), Path("/opt/containerd")),
    *(Path("/etc/cni"), Path("/etc/cdi"), Path("/etc/containerd"), Path("/etc/kubernetes")),
)
_HOSTS = Path("/etc/hosts")
_CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "as-"
"""How the names of the directories begin. Short: a path of a unix socket has 107 bytes."""
_LOCK = Path(tempfile.gettempdir()) / ".accelshare-lab.lock"
_JOURNAL = "lab.json"


@dataclass(frozen=True)
class Snapshot:
    """Everything of the machine that a cluster could leave behind; every part is a sorted tuple of lines."""

    mounts: tuple[str, ...]
    cgroups: tuple[str, ...]
    sysctls: tuple[str, ...]
    rules: tuple[str, ...]
    links: tuple[str, ...]
    hosts: tuple[str, ...]
    folders: tuple[str, ...]
    processes: tuple[str, ...]
    """Only those whose run is over: another cluster may live beside this one."""

    @staticmethod
    def take() -> "Snapshot":
        return Snapshot(
            mounts=tuple(sorted(_mounts())),
            cgroups=tuple(sorted(str(path) for path in _top_cgroups())),
            sysctls=tuple(f"{key}={value}" for key, value in _read_sysctls().items()),
            rules=tuple(sorted(_rules())),
            links=tuple(sorted(os.listdir("/sys/class/net"))),
            hosts=tuple(_HOSTS.read_text().splitlines()),
            folders=tuple(sorted(str(path) for folder in _FOLDERS for path in _folder_and_entries(folder))),
            processes=tuple(sorted(_orphans())),
        )

    def differences(self, later: "Snapshot") -> list[str]:
        """What the machine has more, less or otherwise than it had; empty when nothing was left."""
        found = []
        for field in fields(self):
            before, after = getattr(self, field.name), getattr(later, field.name)
            found += [f"{field.name}: left {line}" for line in after if line not in before]
            found += [f"{field.name}: lost {line}" for line in before if line not in after]
        return found


def claim(directory: Path, node: str | None) -> Snapshot:
    """Opens the journal of a run. With a node's name, makes the machine ready for its kubelet."""
    if any(directory.iterdir()):
        raise LabError(f"{directory} is not empty, and a cluster takes its directory away at the end")
    before = Snapshot.take()
    if node is not None:
        _refuse_second_kubelet(before)
    owner = {"pid": os.getpid(), "start": start_time(os.getpid())}
    journal = {"owner": owner, "node": node, "before": asdict(before)}
    # By renaming, so that it is whole whenever it is there.
    (directory / "lab.new").write_text(json.dumps(journal))
    (directory / "lab.new").rename(directory / _JOURNAL)
    if node is not None:
        ended = "" if _HOSTS.read_bytes().endswith(b"\n") else "\n"
        with _HOSTS.open("a") as hosts:
            hosts.write(f"{ended}127.0.0.1 {node} {_hosts_mark(directory)}\n")
        _mount_kubelet(directory / "kubelet")
    return before


@contextmanager
def machine(directory: Path, timeout: float = 900) -> Iterator[None]:
    """One kubelet a machine: /var/lib/kubelet is a fixed path. Whoever comes second waits.

    The lock file names the directory of its last holder; one that is still named was killed, and is cleaned
    here.
    """
    with _LOCK.open("a+") as lock:
        _lock(lock.fileno(), timeout)
        lock.seek(0)
        last = lock.read().strip()
        if last:
            clean(Path(last))
        clean_dead_runs(with_node=True)
        lock.truncate(0)
        lock.write(str(directory))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def clean_dead_runs(with_node: bool) -> None:
    """Cleans the directories of runs whose process is gone; those that had a node, only under the lock of
    machine(), since what looks like theirs may belong to the one who holds it."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_JOURNAL}"):
        if not _owned(path) and (with_node or _read_journal(path.parent)["node"] is None):
            clean(path.parent)


def clean_dead_run(directory: Path) -> None:
    """Cleans one directory (of a run with a node: once nobody holds the machine), unless its run lives."""
    if not (directory / _JOURNAL).exists():
        raise LabError(f"{directory} holds no {_JOURNAL}: no cluster was started there")
    if _owned(directory / _JOURNAL):
        raise LabError(f"the cluster in {directory} belongs to a living process: end that one")
    alone = _read_journal(directory)["node"] is None
    with nullcontext() if alone else machine(directory):
        clean(directory)


def clean(directory: Path) -> None:
    """Ends all processes of a run, undoes what it did and removes its directory. Repeatable.

    A control plane alone changed nothing outside of its directory, and may run beside a cluster that did:
    what is new on the machine since then is not its own.
    """
    journal = _read_journal(directory)
    before = None
    if journal is not None and journal["node"] is not None:
        before = Snapshot(**{name: tuple(lines) for name, lines in journal["before"].items()})
    kubepods = [] if before is None else _our_cgroups(before)
    _end_processes(directory, kubepods)
    sockets = _shim_sockets(directory)
    _unmount(directory, before)
    if before is not None:
        for cgroup in kubepods:
            _remove_cgroup(cgroup)
        _remove_files(directory, sockets)
        _remove_new_folders(before)
        restore_sysctls(before, _SYSCTLS)
        _wait(lambda: not _new(before.links, os.listdir("/sys/class/net")), 5)
    if journal is not None:  # else no run began there, and what is in it is somebody's
        shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        directory.rmdir()


def restore_sysctls(before: Snapshot, keys: Iterable[str] = KUBELET_SYSCTLS) -> None:
    wanted = dict(line.split("=", 1) for line in before.sysctls)
    now = _read_sysctls()
    for key in keys:
        if key in wanted and now.get(key) != wanted[key]:
            Path("/proc/sys", key).write_text(wanted[key])


# --- what the machine is like -------------------------------------------------------------------------------


def _mounts() -> list[str]:
    # Spaces and the like are written as \040 in mountinfo.
    with open("/proc/self/mountinfo", "rb") as file:
        return [line.split()[4].decode("unicode_escape") for line in file]


def _top_cgroups() -> list[Path]:
    """The groups at the top of all hierarchies: /sys/fs/cgroup/<controller>/X (v1), /sys/fs/cgroup/X (v2)."""
    tops = (
        [_CGROUPS]
        if (_CGROUPS / "cgroup.controllers").exists()
        else [p for p in _CGROUPS.glob("*") if p.is_dir()]
    )
    return [path for top in tops for path in top.glob("*") if path.is_dir()]


def _read_sysctls() -> dict[str, str]:
    paths = {key: Path("/proc/sys", key) for key in _SYSCTLS}
    return {key: path.read_text().strip() for key, path in paths.items() if path.exists()}


def _rules() -> list[str]:
    """Firewall rules and chains without their counters."""
    if not (program := shutil.which("iptables-save", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")):
        return []
    saved = subprocess.run([program], capture_output=True, text=True, check=False).stdout
    lines = [line.split(" [")[0] for line in saved.splitlines()]
    # A built-in chain has a policy; a chain that somebody made has "-" there.
    return [line for line in lines if line.startswith("-A") or line.endswith(" -")]


def _folder_and_entries(folder: Path) -> list[Path]:
    # What is mounted on /var/lib/kubelet is the kubelet's business; that something is, stands in the mounts.
    if not folder.is_dir():
        return []
    return [folder] if folder == KUBELET else [folder, *folder.glob("*")]


def _orphans() -> list[str]:
    """The processes of runs that are over."""
    marked = _marked_processes()
    over = {run for run in {run for _, run in marked} if not _lives(Path(run))}
    return [f"{pid} {_command(pid)} (of {run})" for pid, run in marked if run in over]


def _marked_processes() -> list[tuple[int, str]]:
    """All processes of all runs with the directory of each; this process is none of them."""
    prefix = f"{MARKER}=".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone in the meantime
        found += [
            (int(entry.name), w.removeprefix(prefix).decode()) for w in environment if w.startswith(prefix)
        ]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def _lives(directory: Path) -> bool:
    return (directory / _JOURNAL).exists() and _owned(directory / _JOURNAL)


# --- up -----------------------------------------------------------------------------------------------------


def _refuse_second_kubelet(before: Snapshot) -> None:
    if str(KUBELET) in before.mounts or any(Path(path).name == "kubepods" for path in before.cgroups):
        raise LabError(
            "a kubelet runs here or left its mounts or control groups (/var/lib/kubelet, kubepods); "
            "the lab's own needs the same places: stop that one first"
        )


def _mount_kubelet(folder: Path) -> None:
    folder.mkdir()
    KUBELET.mkdir(exist_ok=True)
    # Private first: where / is shared, the new mount would otherwise share with the cluster's directory, and
    # each volume of a pod would appear in both.
    for words in (
        ("--bind", str(folder), str(KUBELET)),
        ("--make-private", str(KUBELET)),
        ("--make-rshared", str(KUBELET)),
    ):
        subprocess.run(["mount", *words], check=True, capture_output=True)


def _hosts_mark(directory: Path) -> str:
    return f"# accelshare-lab {directory}"


def _lock(descriptor: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _LOCK.read_text().strip()
            if time.monotonic() > deadline:
                raise LabError(f"the cluster in {holder} has held this machine for {timeout:g} s") from None
        if not told:
            print(f"waiting for the cluster in {holder}, which holds this machine", flush=True)
            told = True
        time.sleep(0.2)


# --- down ---------------------------------------------------------------------------------------------------


def _read_journal(directory: Path) -> Any:
    path = directory / _JOURNAL
    return json.loads(path.read_text()) if path.exists() else None


def _owned(journal: Path) -> bool:
    try:
        owner = json.loads(journal.read_text())["owner"]
    except (OSError, ValueError):
        return True  # just being removed: somebody is at it
    return bool(start_time(owner["pid"]) == owner["start"])


def _our_cgroups(before: Snapshot) -> list[Path]:
    return [path for path in _top_cgroups() if path.name == "kubepods" and str(path) not in before.cgroups]


def _end_processes(directory: Path, kubepods: list[Path]) -> None:
    """Kubelet and containerd first, so that nothing is started again; then containers; then the rest.

    Containers die before their shims, which reap them.
    """
    recorded = _recorded(directory)
    _kill(lambda: [recorded[name] for name in ("kubelet", "containerd") if name in recorded])
    _kill(lambda: [pid for cgroup in kubepods for pid in _cgroup_pids(cgroup)])
    _kill(lambda: [*recorded.values(), *(pid for pid, run in _marked_processes() if run == str(directory))])


def _recorded(directory: Path) -> dict[str, int]:
    """The processes of pid/*.json that still are what was started."""
    found = {}
    for path in (directory / "pid").glob("*.json"):
        record = json.loads(path.read_text())
        if record["start"] is not None and start_time(record["pid"]) == record["start"]:
            found[path.stem] = int(record["pid"])
    return found


def _cgroup_pids(cgroup: Path) -> list[int]:
    pids = []
    for path in cgroup.rglob("cgroup.procs"):
        try:
            pids += [int(word) for word in path.read_text().split()]
        except OSError:
            continue  # removed by its runtime in the meantime, or a v2 group with threads
    return pids


def _kill(pids: Callable[[], list[int]]) -> None:
    """SIGKILL until none is left; asked anew each round, since a dying process may just have forked."""

    def all_gone() -> bool:
        living = [pid for pid in pids() if start_time(pid) is not None]
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not living

    if not _wait(all_gone, 10):
        raise LabError(f"these processes do not end: {pids()}")


def _shim_sockets(directory: Path) -> list[Path]:
    """The sockets of containerd's shims, which lie outside its state folder and outlive a killed shim."""
    found = []
    for path in (directory / "containerd" / "state").glob("io.containerd.runtime.v2.task/*/*/bootstrap.json"):
        address = str(json.loads(path.read_text()).get("address", ""))
        found.append(Path(address.removeprefix("unix://")))
    return found


def _unmount(directory: Path, before: Snapshot | None) -> None:
    for mount in sorted(_mounts_of(directory, before), reverse=True):
        if subprocess.run(["umount", mount], capture_output=True, check=False).returncode:
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    if left := _mounts_of(directory, before):
        # What is mounted there may be somebody's folder, and the next step would empty it.
        raise LabError(f"cannot unmount {', '.join(left)}; {directory} stays")


def _mounts_of(directory: Path, before: Snapshot | None) -> list[str]:
    ours = [f"{directory}/"]
    if before is not None and str(KUBELET) not in before.mounts:
        ours.append(f"{KUBELET}/")
    return [mount for mount in _mounts() if f"{mount}/".startswith(tuple(ours))]


def _remove_cgroup(cgroup: Path) -> None:
    """From the leaves up. A group stays busy for a moment after its last process."""

    def removed() -> bool:
        for path, _, _ in os.walk(cgroup, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                continue
        return not cgroup.exists()

    _wait(removed, 10)


def _remove_files(directory: Path, sockets: list[Path]) -> None:
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for result in Path("/var/lib/cni/results").glob(f"{NETWORK}-*"):
        result.unlink(missing_ok=True)
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{directory}/"):
            link.unlink()
    lines = _HOSTS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.rstrip("\n").endswith(_hosts_mark(directory))]
    if kept != lines:
        # In place: in a container this file is a mount and cannot be replaced.
        _HOSTS.write_text("".join(kept))


def _remove_new_folders(before: Snapshot) -> None:
    for folder in _FOLDERS:
        if folder.is_dir() and str(folder) not in before.folders and not folder.is_mount():
            shutil.rmtree(folder, ignore_errors=True)


def _new(before: Iterable[str], now: Iterable[str]) -> set[str]:
    return set(now) - set(before)


def _wait(done: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
