"""The answers that we gave to Allocate: one file for each, named by its nonce.

Rule: a nonce is drawn in Allocate, its file is on the disk before Allocate answers, and it is never used
again. So whatever kubelet kept of an answer, we know it too, also after a crash in between.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from accelshare.core.errors import NotReady
from accelshare.core.grant import Share
from accelshare.services.agent.files import private_folder, remove_leftovers, standing, write_synced

_log = logging.getLogger(__name__)


class Given(Struct, frozen=True, omit_defaults=True):
    """One answer to Allocate."""

    nonce: str
    resource: str
    ids: tuple[str, ...]
    time: float  # seconds since 1970
    # Direct injection only: what was answered, and whose it was meant to be, so that PreStartContainer can
    # tell a mismatch also when that pod is gone.
    pod_uid: str = ""
    container: str = ""
    shares: tuple[Share, ...] = ()
    confirmed: bool = False  # PreStartContainer found it right for the container that got it


_decoder = msgspec.json.Decoder(Given)


class Allocations:
    def __init__(self, folder: Path, draw: Callable[[], str] = lambda: secrets.token_hex(16)) -> None:
        self._folder = private_folder(folder)
        self._draw = draw
        self.given: dict[str, Given] = {}
        for path in standing(self._folder):
            given = _read(path)
            if given is not None:
                self.given[given.nonce] = given

    async def give(
        self,
        resource: str,
        ids: Iterable[str],
        now: float,
        *,
        pod_uid: str = "",
        container: str = "",
        shares: tuple[Share, ...] = (),
    ) -> str:
        """Draws a nonce and writes down what it stands for. NotReady where the disk does not take it."""
        nonce = self._draw()
        if nonce in self.given:
            raise NotReady(f"the nonce {nonce} was drawn before")
        given = Given(nonce, resource, tuple(sorted(ids)), now, pod_uid, container, shares)
        self.given[nonce] = (
            given  # before the disk is waited for: nobody else is answered this grant meanwhile
        )
        data = msgspec.json.encode(given)
        try:
            await asyncio.to_thread(write_synced, self._folder / nonce, data, exclusive=True)
        except NotReady:
            del self.given[nonce]
            raise
        return nonce

    def find(self, nonce: str) -> Given | None:
        """Also what another agent of this node gave, which runs beside us while it is being replaced."""
        known = self.given.get(nonce)
        if known is None and nonce.isalnum() and (path := self._folder / nonce).exists():
            known = _read(path)
        return known

    async def confirm(self, nonce: str) -> None:
        """Writes down that the container which got this answer is the right one. Again changes nothing."""
        given = self.find(nonce)
        if given is None or given.confirmed:
            return
        confirmed = structs.replace(given, confirmed=True)
        await asyncio.to_thread(write_synced, self._folder / nonce, msgspec.json.encode(confirmed))
        self.given[nonce] = confirmed

    def forget(self, nonce: str) -> None:
        self.given.pop(nonce, None)
        (self._folder / nonce).unlink(missing_ok=True)

    def tidy(self, before: float) -> None:
        remove_leftovers(self._folder, before)


def _read(path: Path) -> Given | None:
    try:
        given = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("allocation file %s is passed over: %s", path, error)
        return None
    if given.nonce != path.name:
        _log.warning("allocation file %s is passed over: it speaks of %s", path, given.nonce)
        return None
    return given
