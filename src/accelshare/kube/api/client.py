"""Calls to the API server: read, list in pages, write, bind, and the open stream of a watch.

What every call keeps to:

    - it has a time-out, and ends in a typed value or in one error of `errors`;
    - it is sent once. Two exceptions, both harmless: a 401 where a fresh token is to be had (the server has
      done nothing), and a read that was asked to wait by a 429;
    - a redirect is an error: a token is shown to nobody but the configured server.

Answers are decoded into the msgspec types handed in, so only declared fields are ever parsed.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import GenericAlias, TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Raw, Struct
from yarl import URL

import accelshare
from accelshare.core.errors import AccelshareError, BadInput
from accelshare.kube.api.config import ApiConfig, TokenFile
from accelshare.kube.api.errors import ApiError, Unreachable, UnreadableAnswer, from_answer
from accelshare.kube.api.skipping import decode_list

T = TypeVar("T")
Params = Mapping[str, str]
PatchKind = Literal["merge", "strategic", "json"]

CALL_SECONDS = 10.0
CONNECT_SECONDS = 5.0

# An elected leader stops binding 5 s before its lease ends; a call begun in the last moment must be over by
# then.
BIND_SECONDS = 4.0

# Below the 90 s after which the API server closes an idle connection, and below the minute of common load
# balancers: a POST that meets a connection being closed ends with an unknown outcome.
_KEEPALIVE_SECONDS = 30.0

# Who is told to wait longer has a caller that should know.
_POLITE_WAIT = 5.0

# A cluster is upgraded under a running process.
_VERSION_SECONDS = 600.0

ANNOTATION_BYTES = 256 * 1024

_CONTENT_TYPES: Mapping[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}

_NAME = re.compile(r"[a-z0-9]([-a-z0-9_.]*[a-z0-9])?")
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")

_encode = msgspec.json.Encoder().encode


class Page(Struct, Generic[T]):
    """A part of a list. All pages of one list carry the same resource version."""

    items: list[T]
    resource_version: str
    undecodable: int = 0


class _ListMeta(Struct):
    resourceVersion: str = ""  # noqa: N815
    continue_: str = msgspec.field(name="continue", default="")


class _List(Struct):
    metadata: _ListMeta
    items: Raw = Raw(b"[]")


class _Version(Struct):
    major: str = ""
    minor: str = ""
    gitVersion: str = ""  # noqa: N815


class _Call(Struct):
    """One request, ready to be sent, and sent again."""

    method: str
    path: str
    limits: aiohttp.ClientTimeout
    params: Params | None = None
    data: bytes | None = None
    headers: dict[str, str] = {}


class _Answer(Struct):
    status: int
    body: bytes
    retry_after: float | None


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}


def _decoder(into: object) -> msgspec.json.Decoder[Any]:
    """A decoder is costly to make and cheap to keep: one for each type, made when it is first asked for."""
    known = _decoders.get(into)
    if known is None:
        known = _decoders[into] = msgspec.json.Decoder(into)
    return known


def check_annotations(annotations: Mapping[str, str], standing: Mapping[str, str] | None = None) -> None:
    """What the API server would check on any other write, and does not check on a binding.

    A bad key or too large a sum would be stored, and from then on every patch of that pod, kubelet's status
    included, would be refused. Upper case passes: Kubernetes folds an annotation's key before it looks.
    """
    for key in annotations:
        prefix, slash, name = key.lower().rpartition("/")
        if slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)):
            raise BadInput("the prefix of an annotation's key", key, "a DNS name of at most 253 characters")
        if not (len(name) <= 63 and _NAME.fullmatch(name)):
            allowed = "at most 63 letters, digits and '-_.', with a letter or digit at both ends"
            raise BadInput("the name of an annotation's key", key, allowed)
    together = {**(standing or {}), **annotations}
    size = sum(len(key.encode()) + len(value.encode()) for key, value in together.items())
    if size > ANNOTATION_BYTES:
        raise BadInput("the size of the pod's annotations", size, f"at most {ANNOTATION_BYTES} bytes in sum")


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


class Client:
    """One connection pool to one API server; use as `async with Client(config, "scheduler") as client`."""

    def __init__(
        self,
        config: ApiConfig,
        component: str,
        *,
        timeout: float = CALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._server = config.server.rstrip("/")
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._agent = f"accelshare/{accelshare.__version__} ({component})"
        self._token_file = TokenFile(config.token_file, clock) if config.token_file else None
        self._token_turn = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._version: _Version | None = None
        self._version_read_at = 0.0

    async def __aenter__(self) -> Self:
        tls = self._config.ssl_context()
        connector = aiohttp.TCPConnector(
            limit=100, keepalive_timeout=_KEEPALIVE_SECONDS, ssl=True if tls is None else tls
        )
        # Lists are not asked for compressed: inside a cluster the server's CPU is dearer than the wire.
        headers = {"User-Agent": self._agent, "Accept": "application/json", "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- calls -----------------------------------------------------------------------------------------

    async def get(self, path: str, into: type[T], params: Params | None = None) -> T:
        return await self.request("GET", path, into=into, params=params)

    async def list_pages(
        self, path: str, item_type: type[T], params: Params | None = None, limit: int = 250
    ) -> AsyncGenerator[Page[T], None]:
        """The list as it was at one moment. A list that takes too long to read ends in Gone: begin anew."""
        query = {**(params or {}), "limit": str(limit)}
        whole, single = _decoder(GenericAlias(list, (item_type,))), _decoder(item_type)
        while True:
            raw = await self.get(path, _List, query)
            try:
                found = decode_list(path, raw.items, whole, single)
            except msgspec.DecodeError as failure:
                raise UnreadableAnswer(200, "a list", str(failure), verb="GET", path=path) from failure
            yield Page(found.items, raw.metadata.resourceVersion, found.undecodable)
            if not raw.metadata.continue_:
                return
            query["continue"] = raw.metadata.continue_

    async def create(self, path: str, obj: object, into: type[T]) -> T:
        return await self.request("POST", path, obj, into=into)

    async def replace(self, path: str, obj: object, into: type[T], timeout: float | None = None) -> T:
        return await self.request("PUT", path, obj, into=into, timeout=timeout)

    async def patch(self, path: str, patch: object, into: type[T], kind: PatchKind = "merge") -> T:
        return await self.request("PATCH", path, patch, into=into, content_type=_CONTENT_TYPES[kind])

    async def delete(self, path: str, uid: str | None = None) -> None:
        """With a UID, only the object that was meant: another of the same name answers Conflict."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self.request("DELETE", path, body if uid else None)

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        standing: Mapping[str, str] | None = None,
        timeout: float = BIND_SECONDS,
    ) -> None:
        """Give the pod its node and its annotations in one write.

        `standing` is what is known to stand on the pod already; it counts towards the size. A server for
        which `binding_checks_uid` is false ignores the UID, and the caller reads the pod before and after.
        """
        if not uid:
            raise BadInput("the UID of a pod to bind", uid, "what its object says")
        check_annotations(annotations, standing)
        meta = {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await self.request("POST", f"{pod_path(namespace, name)}/binding", body, timeout=timeout)

    async def server_version(self) -> tuple[int, int]:
        version = await self._read_version()
        return _release(version)[:2]

    async def binding_checks_uid(self) -> bool:
        """Whether the UID in a binding is a precondition: from 1.23 on, but for 1.25.0, which lost it."""
        release = _release(await self._read_version())
        return release >= (1, 23, 0) and release != (1, 25, 0)

    async def _read_version(self) -> _Version:
        now = self._clock()
        if self._version is None or now - self._version_read_at >= _VERSION_SECONDS:
            self._version = await self.get("/version", _Version)
            self._version_read_at = now
        return self._version

    # --- one request -----------------------------------------------------------------------------------

    @overload
    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        into: type[T],
        content_type: str = ...,
        params: Params | None = ...,
        timeout: float | None = ...,
    ) -> T: ...

    @overload
    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        into: None = None,
        content_type: str = ...,
        params: Params | None = ...,
        timeout: float | None = ...,
    ) -> None: ...

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        into: type[Any] | None = None,
        content_type: str = "application/json",
        params: Params | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Bytes are sent as they are, any other body as JSON. Without a type the answer's body is ignored."""
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        headers = {} if data is None else {"Content-Type": content_type}
        total = self._timeout if timeout is None else timeout
        limits = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_SECONDS)
        answer = await self._answer(_Call(method, path, limits, params, data, headers))
        if not 200 <= answer.status < 300:
            raise from_answer(
                answer.status, answer.body, verb=method, path=path, retry_after=answer.retry_after
            )
        if into is None:
            return None
        try:
            return _decoder(into).decode(answer.body)
        except msgspec.DecodeError as failure:
            name = into.__name__
            raise UnreadableAnswer(answer.status, name, str(failure), verb=method, path=path) from failure

    async def _answer(self, call: _Call) -> _Answer:
        """Sent once, and once more where that is harmless."""
        answer = await self._exchange(call)
        if answer.status == 401 and (self._token_file or self._config.token_source):
            return await self._exchange(call, fresh_token=True)
        wait = answer.retry_after
        if answer.status == 429 and call.method == "GET" and wait is not None and wait < _POLITE_WAIT:
            await self._sleep(wait)
            return await self._exchange(call)
        return answer

    async def _exchange(self, call: _Call, *, fresh_token: bool = False) -> _Answer:
        response = await self._open(call, fresh_token=fresh_token)
        try:
            body = await response.read()
        except (aiohttp.ClientError, OSError) as failure:
            raise _unreachable(failure, call) from failure
        finally:
            response.release()
        return _Answer(response.status, body, _retry_after(response))

    async def _open(self, call: _Call, *, fresh_token: bool = False) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("a Client is used inside its `async with`")
        authorization = await self._authorization(fresh=fresh_token)
        headers = {**call.headers, "Authorization": authorization} if authorization else call.headers
        # The path is quoted where it is built; quoting it again would change it.
        url = URL(self._server + call.path, encoded=True)
        try:
            return await self._session.request(
                call.method,
                url,
                params=call.params,
                data=call.data,
                headers=headers,
                timeout=call.limits,
                allow_redirects=False,
                proxy=self._config.proxy,
                server_hostname=self._config.tls_server_name,
            )
        except (aiohttp.ClientError, OSError) as failure:
            raise _unreachable(failure, call) from failure

    async def _authorization(self, *, fresh: bool) -> str:
        config = self._config
        if config.token_source is not None:
            # A source may run a program; one at a time, and not on the loop.
            async with self._token_turn:
                token = await asyncio.to_thread(config.token_source)
        elif self._token_file is not None:
            token = self._token_file.read(afresh=fresh)
        else:
            token = config.token or ""
        return token if not token or " " in token else f"Bearer {token}"

    # --- the stream of a watch -------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(self, path: str, params: Params, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """An open answer, chunk by chunk as they come; Unreachable after `silence` seconds without any."""
        limits = aiohttp.ClientTimeout(connect=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=silence)
        call = _Call("GET", path, limits, params)
        response = await self._open(call)
        try:
            if response.status != 200:
                raise await self._refusal(response, call)
            async with aclosing(self._chunks(response, call)) as chunks:
                yield chunks
        finally:
            # The rest of a watch is never read, so its connection cannot be used again.
            response.close()

    async def _refusal(self, response: aiohttp.ClientResponse, call: _Call) -> ApiError:
        """A watch is opened again by its reflector; with a token that is read afresh after a 401."""
        if response.status == 401 and self._token_file is not None:
            self._token_file.read(afresh=True)
        try:
            body = await response.read()
        except (aiohttp.ClientError, OSError) as failure:
            return _unreachable(failure, call)
        wait = _retry_after(response)
        return from_answer(response.status, body, verb=call.method, path=call.path, retry_after=wait)

    async def _chunks(self, response: aiohttp.ClientResponse, call: _Call) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                chunk = await response.content.readany()
            except (aiohttp.ClientError, OSError) as failure:
                raise _unreachable(failure, call) from failure
            if not chunk:
                return
            yield chunk


def _unreachable(failure: Exception, call: _Call) -> Unreachable:
    text = "the time was up" if isinstance(failure, TimeoutError) else str(failure)
    return Unreachable(text or type(failure).__name__, verb=call.method, path=call.path)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Seconds only: the API server never sends a date."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _release(version: _Version) -> tuple[int, int, int]:
    """Providers add to it: minor "37+", gitVersion "v1.37.2-gke.100"."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version.gitVersion)
    if match is not None:
        return int(match[1]), int(match[2]), int(match[3])
    major, minor = re.match(r"\d+", version.major), re.match(r"\d+", version.minor)
    if major is None or minor is None:
        raise AccelshareError(f"the API server's version cannot be read: {msgspec.structs.asdict(version)}")
    return int(major[0]), int(minor[0]), 0
