"""How a grant gets into a container: one interface, two ways, and which one is found out, never assumed.

    cdi     Allocate answers with a name (a nonce), PreStartContainer puts the grant under it. Exact always.
    direct  Allocate answers with the edits themselves, for the oldest pod that waits for that amount;
            PreStartContainer, which knows whose ids these are, refuses a mismatch.

CDI is used where the container runtime says that it is on. Its file is written once under a name that was
never used before and never changed: runtimes keep what they read, and a known name with new content would
be served stale, which is another pod's grant.
"""

import logging
from pathlib import Path
from typing import Protocol

from accelshare.core.container import Edits, cdi_file, cdi_name
from accelshare.core.inventory import Injection
from accelshare.services.agent.files import write_synced

_log = logging.getLogger(__name__)

PREFIX = "accelshare.io-"


class Injector(Protocol):
    way: Injection

    def put(self, nonce: str, edits: Edits) -> None:
        """Makes the edits what the nonce stands for. Doing it again changes nothing."""
        ...

    def names(self, nonce: str) -> tuple[str, ...]:
        """The CDI names with which Allocate answers for this nonce."""
        ...

    def withdraw(self, nonce: str) -> None: ...

    def nonces(self) -> list[str]:
        """All that stand for something now."""
        ...


class Cdi:
    way: Injection = "cdi"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def put(self, nonce: str, edits: Edits) -> None:
        path = self._path(nonce)
        if path.exists():
            return  # never changed: a container that starts again gets what it had
        # Runtimes may run as another user than root inside a user namespace: the file holds no secret.
        write_synced(path, cdi_file(nonce, edits), mode=0o644)

    def names(self, nonce: str) -> tuple[str, ...]:
        return (cdi_name(nonce),)

    def withdraw(self, nonce: str) -> None:
        self._path(nonce).unlink(missing_ok=True)

    def nonces(self) -> list[str]:
        return [path.name[len(PREFIX) : -len(".json")] for path in self._folder.glob(f"{PREFIX}*.json")]

    def _path(self, nonce: str) -> Path:
        return self._folder / f"{PREFIX}{nonce}.json"


class Direct:
    """Everything was said in Allocate; nothing is left to put anywhere."""

    way: Injection = "direct"

    def put(self, nonce: str, edits: Edits) -> None:
        pass

    def names(self, nonce: str) -> tuple[str, ...]:
        return ()

    def withdraw(self, nonce: str) -> None:
        pass

    def nonces(self) -> list[str]:
        return []
