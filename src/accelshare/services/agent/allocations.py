"""The answers that we gave to Allocate: one file for each, named by its nonce.

Rule: a nonce is drawn in Allocate, its file is on the disk before Allocate answers, and it is never used
again. So whatever kubelet kept of an answer, we know it too, also after a crash in between.
"""

import logging
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from accelshare.services.agent.files import private_folder, write_synced

_log = logging.getLogger(__name__)


class Given(Struct, frozen=True, omit_defaults=True):
    """One answer to Allocate."""

    nonce: str
    resource: str
    ids: tuple[str, ...]
    time: float  # seconds since 1970
    # Direct injection only: whose grant was answered, so that PreStartContainer can tell a mismatch.
    pod_uid: str = ""
    container: str = ""


_decoder = msgspec.json.Decoder(Given)


class Allocations:
    def __init__(self, folder: Path, draw: Callable[[], str] = lambda: secrets.token_hex(16)) -> None:
        self._folder = private_folder(folder)
        self._draw = draw
        self.given: dict[str, Given] = dict(self._read())

    def give(
        self, resource: str, ids: Iterable[str], now: float, pod_uid: str = "", container: str = ""
    ) -> str:
        """Draws a nonce and writes down what it stands for."""
        nonce = self._draw()
        given = Given(nonce, resource, tuple(sorted(ids)), now, pod_uid, container)
        write_synced(self._folder / nonce, msgspec.json.encode(given), exclusive=True)
        self.given[nonce] = given
        return nonce

    def forget(self, nonce: str) -> None:
        self.given.pop(nonce, None)
        (self._folder / nonce).unlink(missing_ok=True)

    def _read(self) -> Iterable[tuple[str, Given]]:
        for path in sorted(self._folder.iterdir()):
            try:
                given = _decoder.decode(path.read_bytes())
            except (OSError, msgspec.DecodeError) as error:
                # A crash before the rename leaves a temporary file, which kubelet was never told about.
                _log.warning("allocation file %s is passed over: %s", path, error)
                continue
            yield given.nonce, given
