"""Kubelet's record of who holds which ids, as the agent reads it."""

import logging
from pathlib import Path

from accelshare.core.errors import BadInput
from accelshare.core.ownership import Allocation
from accelshare.kube.kubelet.checkpoint import FILE_NAME, Checkpoint, read_checkpoint

_log = logging.getLogger(__name__)


class KubeletRecord:
    def __init__(self, plugin_folder: Path) -> None:
        self._path = plugin_folder / FILE_NAME
        self._stamp: tuple[int, ...] | None = None
        self._latest = Checkpoint(())

    def read(self) -> tuple[Allocation, ...] | None:
        """As it stands now; None where it cannot be read, which is not the same as that it is empty."""
        found = self._read()
        return None if found is None else found.allocations

    def latest(self) -> tuple[Allocation, ...]:
        """As it was when it could last be read; parsed only where the file is another than before."""
        return self._current().allocations

    def registered(self) -> frozenset[str]:
        """The resources that kubelet hands out by device ids, those of plugins that are gone among them."""
        return self._current().registered

    def _read(self) -> Checkpoint | None:
        try:
            # Kubelet renames a new file into place: what is opened is one whole state, whatever comes after.
            return read_checkpoint(self._path.read_bytes())
        except (OSError, BadInput) as error:
            _log.warning("kubelet's checkpoint cannot be read: %s", error)
            return None

    def _current(self) -> Checkpoint:
        stamp = self._identity()
        if stamp is not None and stamp != self._stamp:
            found = self._read()
            if found is not None:
                # The stamp was taken first: what was written in between is read at the next call.
                self._latest, self._stamp = found, stamp
        return self._latest

    def _identity(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size
