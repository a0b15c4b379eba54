"""The HTTP application: routes, who may call what, and the one place where errors become answers.

Two listeners serve it. The plain one answers GET to everybody and POST on loopback only, since whoever may
call the acting verbs can have any card of the cluster; the TLS one answers everything. Answers always carry
Content-Length, so that kube-scheduler's connections are used again.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

import accelshare
from accelshare.core.errors import AccelshareError, BadInput
from accelshare.core.inspection import inspect, with_cards
from accelshare.dialects import DIALECTS
from accelshare.dialects.interface import Inspects
from accelshare.services.scheduler.extender import Extender
from accelshare.services.scheduler.metrics import CONTENT_TYPE as METRICS_TYPE
from accelshare.services.scheduler.webhook import mutate, read_review, validate
from accelshare.services.scheduler.wire import ErrorAnswer, encode, read_args, read_bind

_log = logging.getLogger(__name__)

BODY_SECONDS = 2.0  # for the rest of a body whose beginning has come: it holds up the end of the service
LARGEST_BODY = 32 * 1024 * 1024

_JSON = b"application/json"
_TEXT = b"text/plain; charset=utf-8"
_CLOSE = ((b"connection", b"close"),)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Answer(Struct):
    body: bytes
    status: int = 200
    kind: bytes = _JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Problem(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


Get = Callable[[], Answer]
Post = Callable[[bytes], Awaitable[Answer]]


class Routes:
    """What stands under which path. Inspection takes the rest of the path as a node's name."""

    def __init__(self, extender: Extender, problems: Callable[[], list[str]]) -> None:
        self._extender = extender
        self._problems = problems
        verbs: dict[str, Post] = {"filter": self.filter, "prioritize": self.prioritize, "bind": self.bind}
        self.posts: dict[str, Post] = {f"/{name}": verb for name, verb in verbs.items()}
        self.posts |= {"/webhook/mutate": self.mutate, "/webhook/validate": self.validate}
        self.gets: dict[str, Get] = {
            "/version": self.version,
            "/healthz": self.health,
            "/readyz": self.ready,
            "/metrics": self.metrics,
            "/inspect": lambda: self.inspect(None),
        }
        self.inspections: dict[str, Callable[[str | None], Answer]] = {"/inspect/": self.inspect}
        for dialect in DIALECTS.values():
            if isinstance(dialect, Inspects):
                self._add_dialect(dialect, verbs)

    def _add_dialect(self, dialect: Inspects, verbs: Mapping[str, Post]) -> None:
        def shown(name: str | None) -> Answer:
            return self.inspect_in(dialect, name)

        self.posts |= {f"{dialect.route}/{name}": verb for name, verb in verbs.items()}
        self.gets[f"{dialect.route}/inspect"] = lambda: shown(None)
        self.inspections[f"{dialect.route}/inspect/"] = shown

    def get(self, path: str) -> Get | None:
        found = self.gets.get(path)
        if found is not None:
            return found
        for prefix, inspection in self.inspections.items():
            name = path.removeprefix(prefix)
            if name and name != path and "/" not in name:
                return lambda: inspection(name)
        return None

    # --- verbs ------------------------------------------------------------------------------------------

    async def filter(self, body: bytes) -> Answer:
        return self._timed("filter", lambda: encode(self._extender.filter(read_args(body))))

    async def prioritize(self, body: bytes) -> Answer:
        return self._timed("prioritize", lambda: encode(self._extender.prioritize(read_args(body))))

    async def bind(self, body: bytes) -> Answer:
        self._only_the_leader()
        began = self._extender.clock()
        answer = Answer(encode(await self._extender.bind(read_bind(body))))
        self._extender.metrics.verbs.observe("bind", self._extender.clock() - began)
        return answer

    def _timed(self, verb: str, work: Callable[[], bytes]) -> Answer:
        self._only_the_leader()
        began = self._extender.clock()
        answer = Answer(work())
        self._extender.metrics.verbs.observe(verb, self._extender.clock() - began)
        return answer

    def _only_the_leader(self) -> None:
        """The connection is closed, so that the caller's next one goes to whoever leads then."""
        problems = self._problems()
        if problems:
            raise Problem(503, f"this replica is not ready: {'; '.join(problems)}", _CLOSE)
        if not self._extender.leads():
            raise Problem(503, "this replica does not lead; ask the one that does", _CLOSE)

    # --- admission --------------------------------------------------------------------------------------

    async def mutate(self, body: bytes) -> Answer:
        answer = mutate(read_review(body), self._extender.settings.counted)
        self._extender.metrics.webhooks.add("mutated" if b'"patch"' in answer else "unchanged")
        return Answer(answer)

    async def validate(self, body: bytes) -> Answer:
        answer, allowed = validate(read_review(body), self._extender.settings.service_account)
        self._extender.metrics.webhooks.add("allowed" if allowed else "refused")
        return Answer(answer)

    # --- looking ----------------------------------------------------------------------------------------

    def version(self) -> Answer:
        return Answer(f"v{accelshare.__version__}\n".encode(), kind=_TEXT)

    def health(self) -> Answer:
        return Answer(b"ok\n", kind=_TEXT)

    def ready(self) -> Answer:
        problems = self._problems()
        if problems:
            return Answer(("\n".join(problems) + "\n").encode(), 503, _TEXT)
        return Answer(b"ok\n", kind=_TEXT)

    def metrics(self) -> Answer:
        return Answer(self._extender.metrics.render(), kind=METRICS_TYPE.encode())

    def inspect(self, name: str | None) -> Answer:
        ledger = self._extender.state.ledger
        # Node by node, since a large cluster's structures would stand in memory all at once.
        nodes = [msgspec.Raw(encode(inspect(ledger, [each]).nodes[0])) for each in self._named(name)]
        return _pretty({"nodes": nodes})

    def inspect_in(self, dialect: Inspects, name: str | None) -> Answer:
        return _pretty(dialect.inspect(self._extender.state.ledger, self._named(name)))

    def _named(self, name: str | None) -> list[str]:
        ledger = self._extender.state.ledger
        if name is None:
            return with_cards(ledger)
        if name not in ledger.nodes:
            raise Problem(404, f"node {name} is not in the ledger: no Node object of that name has been seen")
        return [name]


def _pretty(value: object) -> Answer:
    return Answer(msgspec.json.format(encode(value), indent=2) + b"\n")


def make_app(
    extender: Extender, *, problems: Callable[[], list[str]], trusted: bool, largest_body: int = LARGEST_BODY
) -> App:
    """trusted: this listener answers acting verbs to everybody, as the one with TLS does."""
    routes = Routes(extender, problems)
    settings = extender.settings
    elsewhere = "acting verbs are answered here on loopback only; " + (
        f"use TLS on port {settings.tls_port}"
        if settings.tls_cert
        else "from elsewhere they need TLS, which this service was given no certificate for (--tls-cert)"
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await _answer(scope, receive)
        except Exception as error:
            answer = translated(error)
            extender.metrics.errors.add(str(answer.status))
        await send_answer(send, answer)

    async def _answer(scope: Scope, receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        post = routes.posts.get(path)
        if method == "POST" and post is not None:
            if not trusted and not _is_loopback(scope):
                raise Problem(403, elsewhere, _CLOSE)
            return await post(await read_body(scope, receive, largest_body))
        if post is not None:
            raise Problem(405, f"{path} takes POST, not {method}", ((b"allow", b"POST"),))
        get = routes.get(path)
        if get is None:
            raise Problem(404, f"there is nothing at {path}")
        if method not in ("GET", "HEAD"):
            raise Problem(405, f"{path} takes GET, not {method}", ((b"allow", b"GET, HEAD"), *_CLOSE))
        return get()

    return app


def translated(error: Exception) -> Answer:
    """The one place where an error becomes an answer. What went wrong inside is for the log alone."""
    if isinstance(error, Problem):
        status, text, headers = error.status, str(error), error.headers
    elif isinstance(error, BadInput):
        status, text, headers = 400, str(error), ()
    elif isinstance(error, AccelshareError):
        status, text, headers = 500, str(error), ()
    else:
        _log.error("a request could not be answered", exc_info=error)
        status, text, headers = 500, "this request met a mistake in accelshare; its log says more", ()
    return Answer(encode(ErrorAnswer(text)), status, headers=headers)


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


async def read_body(scope: Scope, receive: Receive, largest: int) -> bytes:
    too_large = Problem(413, f"the body is larger than {largest} bytes, which is the most", _CLOSE)
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > largest:
            raise too_large
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while message.get("more_body", False):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "the body ended early", _CLOSE)
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > largest:
                    raise too_large
    except TimeoutError:
        raise Problem(408, f"the rest of the body did not come within {BODY_SECONDS:g} s", _CLOSE) from None
    return b"".join(parts)


async def send_answer(send: Send, answer: Answer) -> None:
    headers = [
        (b"content-type", answer.kind),
        (b"content-length", str(len(answer.body)).encode()),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
