"""A stub API server: a real HTTP server on loopback whose answers a test writes down beforehand.

    async with StubApi() as api:
        api.answer("GET", "/api/v1/pods", Answer(200, {...}), Answer(500))
        api.handle("POST", "/api/v1/namespaces/ns/pods/p/binding", bind)
        ... Client(api.config, "test") ...
        assert api.requests[0].json["metadata"] == ...

Answers to one (method, path) are given in turn and the last one for ever; a path without any is a 404 as the
API server words it. Whatever arrived is kept in `requests`, and `arrived(n)` waits for the n-th.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from aiohttp import web
from msgspec import Struct

from accelshare.kube.api.config import ApiConfig


class Recorded(Struct):
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Answer(Struct):
    """A body that is not bytes is sent as JSON."""

    status: int = 200
    body: object = b""
    headers: dict[str, str] = {}


class Stream(Struct):
    """A chunked answer; then it ends, stays open in silence, or its connection is dropped."""

    chunks: list[bytes]
    then: Literal["end", "hang", "drop"] = "end"


class Silence(Struct):
    """No answer at all, while the connection stays open."""


class Drop(Struct):
    """The connection is closed in place of an answer."""


Scripted = Answer | Stream | Silence | Drop
Handler = Callable[[Recorded], Awaitable[Scripted]]


def status(code: int, reason: str, message: str) -> Answer:
    """A refusal as the API server words it."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return Answer(code, {**body, "reason": reason, "message": message})


def line(kind: str, obj: object) -> bytes:
    """One line of a watch."""
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def object_list(items: list[Any], version: str, continue_: str = "") -> Answer:
    return Answer(200, {"metadata": {"resourceVersion": version, "continue": continue_}, "items": items})


def pod(name: str, version: str = "1", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": meta, "spec": spec}


class StubApi:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[Recorded] = []
        self.config = ApiConfig("http://127.0.0.1:0")
        self._scripts: dict[tuple[str, str], list[Scripted]] = {}
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        host, port = self._runner.addresses[0][:2]
        self.config = ApiConfig(f"{'https' if self._tls else 'http'}://{host}:{port}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await self._runner.cleanup()

    def answer(self, method: str, path: str, *answers: Scripted) -> None:
        self._scripts[method, path] = list(answers)

    def handle(self, method: str, path: str, handler: Handler) -> None:
        self._handlers[method, path] = handler

    async def arrived(self, count: int) -> Recorded:
        """The `count`-th request, as soon as it has come."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        recorded = Recorded(request.method, request.path, dict(request.query), request.headers, body)
        async with self._changed:
            self.requests.append(recorded)
            self._changed.notify_all()
        return await self._perform(request, await self._next(recorded))

    async def _next(self, recorded: Recorded) -> Scripted:
        key = (recorded.method, recorded.path)
        if key in self._handlers:
            return await self._handlers[key](recorded)
        script = self._scripts.get(key)
        if not script:
            return status(404, "NotFound", f"{recorded.path} not found")
        return script.pop(0) if len(script) > 1 else script[0]

    async def _perform(self, request: web.Request, scripted: Scripted) -> web.StreamResponse:
        if isinstance(scripted, Answer):
            body = scripted.body if isinstance(scripted.body, bytes) else msgspec.json.encode(scripted.body)
            return web.Response(status=scripted.status, body=body, headers=scripted.headers)
        response = web.StreamResponse()
        if isinstance(scripted, Stream):
            await response.prepare(request)
            for chunk in scripted.chunks:
                await response.write(chunk)
            if scripted.then == "end":
                return response
        if isinstance(scripted, Silence) or (isinstance(scripted, Stream) and scripted.then == "hang"):
            await self._closing.wait()
        if request.transport is not None:
            request.transport.abort()
        return response
