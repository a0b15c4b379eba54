"""Small files that outlive the agent: written whole, synced, and only then under their name.

Root alone reads and writes them. A file that cannot be read is reported and passed over, since one broken
file must not keep the others from being served.
"""

import os
from pathlib import Path


def write_synced(path: Path, data: bytes, *, mode: int = 0o600, exclusive: bool = False) -> None:
    """Either the whole file stands there afterwards, or what stood there before.

    The temporary file is in the same folder: container runtimes miss a rename from outside of it.
    exclusive: the name must be new.
    """
    if exclusive and path.exists():
        raise FileExistsError(path)
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
