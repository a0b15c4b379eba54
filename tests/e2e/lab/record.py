"""Proxies on loopback that write down or delay what passes, for tests and for recordings to replay.

ExtenderRecorder    between kube-scheduler and an extender: each call as one line of JSON
DelayProxy          before the API server: what the server says arrives later, as a slow watch does
"""

import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Call:
    """One request and its answer. Times are time.time(); a body that is no JSON is kept as text."""

    method: str
    path: str
    request: Any
    status: int
    response: Any
    began: float
    ended: float


def read_calls(path: Path) -> list[Call]:
    return [Call(**json.loads(line)) for line in path.read_text().splitlines()]


class ExtenderRecorder:
    """Hands each request on to the target and appends the call to a file.

    In the target's place a value may be given: then every request is answered with it.
    """

    def __init__(self, target: str | Mapping[str, Any], path: Path) -> None:
        path.touch()
        self._target = target
        self._path = path
        self._writing = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._pass_on))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _pass_on(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        began = time.time()
        if isinstance(self._target, str):
            status, answer = _ask(self._target, method, path, body)
        else:
            status, answer = 200, json.dumps(self._target).encode()
        call = Call(method, path, _decoded(body), status, _decoded(answer), began, time.time())
        with self._writing, self._path.open("a") as file:
            file.write(json.dumps(asdict(call)) + "\n")
        return status, answer


class DelayProxy:
    """Passes TCP connections on to a port; what the server sends is held back for `delay` seconds, in order.

    The delay may be changed at any time and holds for what arrives from then on. TLS goes through untouched;
    the API server's certificate names 127.0.0.1, whatever the port.
    """

    def __init__(self, address: str, port: int, delay: float = 0.0) -> None:
        self.delay = delay
        self._target = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        self.cut()

    def cut(self) -> None:
        """Ends all connections, as a restart of the API server would."""
        for connection in list(self._open):
            _end(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            for work in (
                lambda c=client, s=server: self._forward(c, s),
                lambda s=server, h=held: self._hold(s, h),
                lambda c=client, s=server, h=held: self._release(c, s, h),
            ):
                threading.Thread(target=work, daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                server.sendall(data)
        except OSError:
            pass
        _end(server)

    def _hold(self, server: socket.socket, held: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        """An empty piece stands for the end, which is held back like everything before it."""
        data = b"?"
        while data:
            try:
                data = server.recv(65536)
            except OSError:
                data = b""
            held.put((time.monotonic() + self.delay, data))

    def _release(
        self, client: socket.socket, server: socket.socket, held: "queue.SimpleQueue[tuple[float, bytes]]"
    ) -> None:
        while True:
            due, data = held.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                client.sendall(data)
            except OSError:
                data = b""
            if not data:
                break
        for connection in (client, server):
            _end(connection)
            self._open.discard(connection)


def _end(connection: socket.socket) -> None:
    """Shutdown wakes the threads that wait on it; close alone does not."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _ask(target: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    parts = urlsplit(target)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=30)
    try:
        connection.request(method, parts.path.rstrip("/") + path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except OSError as error:
        return 502, json.dumps({"error": str(error)}).encode()
    finally:
        connection.close()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


def _handler(pass_on: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # kube-scheduler keeps its connections
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = pass_on(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _serve  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """The file is the log."""

    return Handler
