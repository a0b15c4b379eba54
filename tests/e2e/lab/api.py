"""A small client of the API server, as the administrator: JSON in, JSON out, watches with times of arrival.

It is not the project's own client, on purpose: a test must not ask the code under test whether it is right.
"""

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .process import LabError


class ApiError(LabError):
    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"{method} {path} answered {status}: {text[:2000]}")
        self.status = status
        self.text = text


class Api:
    """Keeps its connections open for the next request: a TLS handshake costs more than most requests."""

    def __init__(self, port: int, ca: Path, token: str) -> None:
        self.port = port
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._token = token
        self._idle: list[http.client.HTTPSConnection] = []

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str | None = None,
        timeout: float = 30,
    ) -> Any:
        """The decoded answer (its text, where it is no JSON). A status of 400 and more is an ApiError."""
        if self._idle:
            try:
                return self._answer(self._idle.pop(), method, path, body, content_type, timeout)
            except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
                self.close()  # the server ended it while it was idle: once more, on a fresh one
        return self._answer(self._connect(timeout), method, path, body, content_type, timeout)

    def watch(self, path: str, **query: str) -> "Watch":
        """What happens to the objects under a collection's path; begins with those that are there."""
        return Watch(self, path, query)

    def lines(self, path: str, opened: Callable[[socket.socket], None]) -> Iterator[bytes]:
        """The lines of an answer without end. The socket is handed out, so that another thread can cut it."""
        connection = self._connect(timeout=30)
        try:
            connection.request("GET", path, headers=self._headers(None))
            connected = connection.sock
            connected.settimeout(None)
            opened(connected)
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError("GET", path, response.status, response.read().decode(errors="replace"))
            while line := response.readline():
                yield line
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._tls, timeout=timeout)
        connection.connect()
        # Headers and body go out in two writes; without this the second waits for an acknowledgement.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json, */*"}
        return headers if content_type is None else {**headers, "Content-Type": content_type}

    def _answer(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: object,
        content_type: str | None,
        timeout: float,
    ) -> Any:
        default = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers(None if body is None else content_type or default)
        try:
            connection.sock.settimeout(timeout)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        if response.status >= 400:
            raise ApiError(method, path, response.status, text)
        return json.loads(text) if "json" in response.headers.get("Content-Type", "") else text


@dataclass(frozen=True)
class Event:
    at: float
    """time.monotonic() at arrival."""
    wall: float
    """time.time() at arrival."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Any


class Watch:
    """A thread that collects events; also a context manager, which stops it."""

    def __init__(self, api: Api, path: str, query: dict[str, str]) -> None:
        self.events: list[Event] = []
        self._api = api
        self._path = f"{path}?{urlencode({**query, 'watch': '1', 'allowWatchBookmarks': 'false'})}"
        self._socket: socket.socket | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Event]:
        """All events from the first on, waiting for those to come; ends when the watch is stopped."""
        seen = 0
        while True:
            over = not self._thread.is_alive()  # asked first: what came before the end must not be lost
            with self._changed:
                if len(self.events) == seen and not over:
                    self._changed.wait(0.5)
                fresh = self.events[seen:]
            yield from fresh
            seen += len(fresh)
            if over:
                return

    def wait(self, matches: Callable[[Event], bool], what: str, timeout: float = 30) -> Event:
        """The first event, seen already or to come, that matches."""
        deadline = time.monotonic() + timeout
        seen = 0
        with self._changed:
            while True:
                for event in self.events[seen:]:
                    if matches(event):
                        return event
                seen = len(self.events)
                left = deadline - time.monotonic()
                if left <= 0 or self._error is not None:
                    why = self._error or f"not in {timeout:g} s"
                    raise LabError(f"watching {self._path} for {what}: {why}; {seen} events seen")
                self._changed.wait(min(left, 0.5))

    def stop(self) -> None:
        self._stopped = True
        if self._socket is not None:
            with suppress(OSError):  # the server may have been faster
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            for line in self._api.lines(self._path, self._opened):
                event = json.loads(line)
                with self._changed:
                    self.events.append(Event(time.monotonic(), time.time(), event["type"], event["object"]))
                    self._changed.notify_all()
        except Exception as error:  # whatever it was, the one who waits shall read it
            if not self._stopped:
                self._error = error
        if not self._stopped and self._error is None:
            self._error = LabError("the server ended the watch")

    def _opened(self, connected: socket.socket) -> None:
        self._socket = connected
