"""The two container images, as OCI archives that `ctr images import` reads; no daemon, no registry.

    localhost/pause:1      what holds a pod's namespaces; a C program of ten lines, linked statically
    localhost/busybox:1    a shell and its applets, of Debian's static busybox (whose wget crashes)

The tags are not `latest`, so that kubelet never tries to pull them.
"""

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"

_PAUSE_SOURCE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""
_DIRECTORIES = ("bin", "dev", "etc", "lib", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var")
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"root:x:0:\nnogroup:x:65534:\n"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build(directory: Path) -> list[Path]:
    """Writes both archives into the directory."""
    directory.mkdir()
    return [_pause(directory), _busybox(directory)]


def _pause(directory: Path) -> Path:
    source, program = directory / "pause.c", directory / "pause"
    source.write_text(_PAUSE_SOURCE)
    subprocess.run(["gcc", "-static", "-O2", "-o", program, source], check=True, capture_output=True)
    return _archive(
        directory / "pause.tar", PAUSE, _layer([_file("pause", program.read_bytes(), 0o755)]), ["/pause"]
    )


def _busybox(directory: Path) -> Path:
    program = Path(shutil.which("busybox") or "/bin/busybox")
    listing = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    entries = [_directory(name) for name in _DIRECTORIES]
    entries += [_file("bin/busybox", program.read_bytes(), 0o755)]
    entries += [_link(f"bin/{applet}", "busybox") for applet in listing.stdout.split() if applet != "busybox"]
    entries += [_file("etc/passwd", _PASSWD, 0o644), _file("etc/group", _GROUP, 0o644)]
    return _archive(directory / "busybox.tar", BUSYBOX, _layer(entries), ["sh"])


_Entry = tuple[tarfile.TarInfo, bytes]


def _file(name: str, content: bytes, mode: int) -> _Entry:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def _directory(name: str) -> _Entry:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    return info, b""


def _link(name: str, target: str) -> _Entry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def _layer(entries: Sequence[_Entry]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def _archive(path: Path, name: str, layer: bytes, command: list[str]) -> Path:
    """An OCI layout of one layer: blobs by their digest, and an index that names the manifest."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, compresslevel=1, mtime=0))],
    }
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    described = {**blob("manifest.v1+json", json.dumps(manifest).encode()), "annotations": names}
    index = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    entries = [
        _file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644),
        _file("index.json", index, 0o644),
    ]
    entries += [_file(f"blobs/sha256/{digest}", content, 0o644) for digest, content in blobs.items()]
    path.write_bytes(_layer(entries))
    return path
