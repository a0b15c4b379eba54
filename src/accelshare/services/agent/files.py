"""Small files that outlive the agent: written whole, synced, and only then under their name.

Root alone reads and writes them. A file that cannot be read is reported and passed over, since one broken
file must not keep the others from being served.
"""

import os
import secrets
from pathlib import Path

from accelshare.core.errors import AccelshareError, NotReady

_TEMPORARY = ".*.tmp"


def write_synced(path: Path, data: bytes, *, mode: int = 0o600, exclusive: bool = False) -> None:
    """Either the whole file stands there afterwards, or what stood there before; then it raises NotReady.

    The temporary file is in the same folder: container runtimes miss a rename from outside of it.
    exclusive: the name must be new.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if exclusive and path.exists():
            raise FileExistsError(f"{path} stands there already")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise NotReady(f"the agent's file {path} cannot be written: {error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    return folder(path, 0o700)


def folder(path: Path, mode: int) -> Path:
    """Made where it is missing. Raises AccelshareError where the agent could not write into it."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        raise AccelshareError(
            f"the agent's folder {path} cannot be used: {error}. The agent runs as root and needs a folder "
            "of the host that it can write"
        ) from error
    return path


def standing(folder: Path) -> list[Path]:
    """The files in the folder that were written to their end."""
    return sorted(set(folder.iterdir()) - set(folder.glob(_TEMPORARY)))


def remove_leftovers(folder: Path, before: float, of: str = _TEMPORARY) -> None:
    """Removes what a crash left of files that were never finished; a younger one may be another agent's."""
    for path in folder.glob(of):
        try:
            if path.stat().st_mtime < before:
                path.unlink()
        except FileNotFoundError:
            continue
