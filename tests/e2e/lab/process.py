"""One program that the lab started: its log, its signals, and proof that a pid is still that program.

A pid alone proves nothing, since the kernel gives it out again: what is written down is pid and start time,
and a signal goes only to a process that has both.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# Stands in the environment of everything that a lab starts and is inherited by what those start (containerd's
# shims, which outlive it), so that a later run finds what a killed one left.
MARKER = "ACCELSHARE_LAB"


class LabError(Exception):
    """The text says what did not work and shows the ends of the logs that may say why."""


def start_time(pid: int) -> str | None:
    """The kernel's start time of a living process; None for one that is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before ")" may hold anything
    return None if state in "ZX" else fields[18]


def tail(log: Path, lines: int = 15, width: int = 400) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - lines * 2048))
            last = file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return "(no log)"
    return "\n".join(line[:width] for line in last)


class Process:
    def __init__(
        self, name: str, argv: Sequence[str | Path], directory: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = directory / "log" / f"{name}.log"
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches the tests only, which then stop everything in order.
            self._popen = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env, MARKER: str(directory)},
                start_new_session=True,
            )
        self.pid = self._popen.pid
        record = directory / "pid" / f"{name}.json"
        record.write_text(json.dumps({"pid": self.pid, "start": start_time(self.pid)}))

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def stop(self, timeout: float = 10) -> int:
        """SIGTERM, and SIGKILL when that has not helped in time; the exit code (negative: the signal)."""
        if self.running:
            self._popen.terminate()
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        if self.running:
            self._popen.kill()
        return self._popen.wait()

    def pause(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def wait_line(self, text: str, timeout: float = 30) -> str:
        """The first log line of this start that contains the text."""
        deadline = time.monotonic() + timeout
        while True:
            alive = self.running  # asked before reading: what a process wrote before it ended must count
            found = next((line for line in self._lines() if text in line), None)
            if found is not None:
                return found
            if not alive:
                code = self._popen.returncode
                raise LabError(f"{self.name} ended with {code} before it said {text!r}:\n{tail(self.log)}")
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} did not say {text!r} in {timeout:g} s:\n{tail(self.log)}")
            time.sleep(0.05)

    def _lines(self) -> list[str]:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").splitlines()
