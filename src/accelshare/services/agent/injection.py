"""How a grant gets into a container: one interface, two ways, and which one is found out, never assumed.

    cdi     Allocate answers with a name (a nonce), PreStartContainer puts the grant under it. Exact always.
    direct  Allocate answers with the edits themselves, for the oldest pod that waits for that amount;
            PreStartContainer, which knows whose ids these are, refuses a mismatch.

CDI is used where the container runtime says that it is on. Its file is written once under a name that was
never used before and never changed: runtimes keep what they read, and a known name with new content may
be served stale, which would be another pod's grant.
"""

import asyncio
from pathlib import Path
from typing import Protocol

from accelshare.core.container import Edits, cdi_file, cdi_name
from accelshare.core.errors import GrantRefused
from accelshare.core.inventory import Injection
from accelshare.services.agent import files
from accelshare.services.agent.allocations import Allocations
from accelshare.services.agent.files import remove_leftovers, write_synced

PREFIX = "accelshare.io-"


class Injector(Protocol):
    way: Injection

    async def put(self, nonce: str, edits: Edits) -> None:
        """Makes the edits what the nonce stands for. Doing it again changes nothing."""
        ...

    def has(self, nonce: str) -> bool:
        """Whether the nonce stands for something."""
        ...

    def names(self, nonce: str) -> tuple[str, ...]:
        """The CDI names with which Allocate answers for this nonce."""
        ...

    def withdraw(self, nonce: str) -> None: ...

    def nonces(self) -> list[str]:
        """All under which something stands here that has to be withdrawn some day."""
        ...

    def put_at(self, nonce: str) -> float:
        """When, in seconds since 1970; 0 where nothing stands."""
        ...

    def tidy(self, before: float) -> None:
        """Removes what a crash before that time left half done."""
        ...


class Cdi:
    way: Injection = "cdi"

    def __init__(self, folder: Path) -> None:
        self._folder = files.folder(folder, 0o755)
        self._turn = asyncio.Lock()

    async def put(self, nonce: str, edits: Edits) -> None:
        async with self._turn:
            if self.has(nonce):
                return  # never changed: a container that starts again gets what it had
            # Runtimes may run as another user than root inside a user namespace: the file holds no secret.
            data = cdi_file(nonce, edits)
            await asyncio.to_thread(write_synced, self._path(nonce), data, mode=0o644)

    def has(self, nonce: str) -> bool:
        return self._path(nonce).exists()

    def names(self, nonce: str) -> tuple[str, ...]:
        return (cdi_name(nonce),)

    def withdraw(self, nonce: str) -> None:
        self._path(nonce).unlink(missing_ok=True)

    def nonces(self) -> list[str]:
        found = [path.name[len(PREFIX) : -len(".json")] for path in self._folder.glob(f"{PREFIX}*.json")]
        return [nonce for nonce in found if nonce.isalnum()]  # any other name is none that we gave

    def put_at(self, nonce: str) -> float:
        try:
            return self._path(nonce).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def tidy(self, before: float) -> None:
        remove_leftovers(self._folder, before, of=f".{PREFIX}*.tmp")

    def _path(self, nonce: str) -> Path:
        if not nonce.isalnum():
            raise GrantRefused(f"{nonce!r} is no name that this agent has given")
        return self._folder / f"{PREFIX}{nonce}.json"


class Direct:
    """Everything was said in Allocate; nothing is left to put anywhere, but that it was found right."""

    way: Injection = "direct"

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations

    async def put(self, nonce: str, edits: Edits) -> None:
        await self._allocations.confirm(nonce)

    def has(self, nonce: str) -> bool:
        given = self._allocations.find(nonce)
        return given is not None and given.confirmed

    def names(self, nonce: str) -> tuple[str, ...]:
        return ()

    def withdraw(self, nonce: str) -> None:
        pass

    def nonces(self) -> list[str]:
        return []

    def put_at(self, nonce: str) -> float:
        return 0.0

    def tidy(self, before: float) -> None:
        pass
