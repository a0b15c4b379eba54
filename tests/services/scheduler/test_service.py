"""The service as a process of its own, against a stub API server: how it starts, and how it stops."""

import asyncio
import signal
import socket
import ssl
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from accelshare.core.errors import BadInput
from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.units import GIB
from accelshare.services.scheduler.service import check_certificate
from accelshare.services.scheduler.settings import Settings
from tests.builders import a_pod, bound
from tests.kube.stub_api import Answer, Recorded, Stream, StubApi, object_list, status
from tests.services.scheduler.world import eight_cards

LEASES = "/apis/coordination.k8s.io/v1/namespaces/accelshare/leases"
BINDING = "/api/v1/namespaces/default/pods/p/binding"
BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}

PROGRAM = """
import asyncio, logging, sys
from accelshare.kube.api.client import Client
from accelshare.kube.api.config import ApiConfig
from accelshare.services.scheduler.service import serve
from accelshare.services.scheduler.settings import Settings

server, port, tls_port, cert, key = sys.argv[1:]
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
settings = Settings(
    host="127.0.0.1", port=int(port), tls_port=int(tls_port), tls_cert=cert, tls_key=key, identity="me"
)

async def main():
    async with Client(ApiConfig(server), "test") as client:
        await serve(settings, client)

asyncio.run(main())
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


class Lease:
    """One Lease, as the API server keeps it."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] | None = None

    async def get(self, request: Recorded) -> Answer:
        return status(404, "NotFound", "no lease") if self.spec is None else self._answer()

    async def write(self, request: Recorded) -> Answer:
        self.spec = request.json["spec"]
        return self._answer()

    def _answer(self) -> Answer:
        meta = {"name": "accelshare-scheduler", "resourceVersion": "1"}
        return Answer(200, {"metadata": meta, "spec": self.spec})


class Running(NamedTuple):
    api: StubApi
    lease: Lease
    process: Process
    http: aiohttp.ClientSession
    url: str
    tls_url: str

    async def said(self, words: str) -> None:
        """Reads the log up to a line with these words."""
        assert self.process.stdout is not None
        lines = []
        async for line in self.process.stdout:
            lines.append(line.decode())
            if words in lines[-1]:
                return
        raise AssertionError(f"it ended without saying {words!r}:\n{''.join(lines)}")

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url + path) as reply:
            return reply.status, await reply.text()

    async def bind(self) -> Any:
        async with self.http.post(f"{self.url}/bind", json=BIND) as reply:
            return await reply.json(content_type=None)


@asynccontextmanager
async def running(cert: str = "", key: str = "") -> AsyncIterator[Running]:
    lease = Lease()
    async with StubApi() as api, aiohttp.ClientSession() as http:
        pod = a_pod("p", 4, version=3)
        node = eight_cards()
        api.answer("GET", "/version", Answer(200, {"gitVersion": "v1.37.0"}))
        watch = Stream([], "hang")
        api.answer("GET", "/api/v1/nodes", object_list([msgspec.to_builtins(node)], "5"), watch)
        pods = object_list([msgspec.to_builtins(pod)], "5")

        async def list_or_watch(request: Recorded) -> Answer | Stream:
            return watch if "watch" in request.query else pods

        api.handle("GET", "/api/v1/pods", list_or_watch)
        api.handle("GET", f"{LEASES}/accelshare-scheduler", lease.get)
        api.handle("POST", LEASES, lease.write)
        api.handle("PUT", f"{LEASES}/accelshare-scheduler", lease.write)
        port, tls_port = free_port(), free_port()
        words = [api.config.server, str(port), str(tls_port), cert, key]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, *words, stdout=PIPE, stderr=STDOUT
        )
        try:
            yield Running(
                api, lease, process, http, f"http://127.0.0.1:{port}", f"https://localhost:{tls_port}"
            )
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


def run(body: Callable[[Running], Awaitable[None]], cert: str = "", key: str = "") -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), running(cert, key) as service:
            await body(service)

    asyncio.run(whole())


def test_it_starts_leads_and_binds() -> None:
    """Ready after both lists; the Lease is taken; pods are listed once more; then it acts."""

    async def body(service: Running) -> None:
        await service.said("and acts")

        assert await service.get("/readyz") == (200, "ok\n")
        assert service.lease.spec is not None
        assert service.lease.spec["holderIdentity"] == "me"
        service.api.answer("POST", BINDING, Answer(201, {}))
        assert await service.bind() == {"Error": ""}
        _, inspected = await service.get("/gcushare-scheduler/inspect/n1")
        assert msgspec.json.decode(inspected)["nodes"][0]["usedGCU"] == 4

    run(body)


def test_told_to_stop_it_finishes_what_runs_and_gives_the_lease_up() -> None:
    """A binding under way at SIGTERM is answered, and all is over within 5 s."""

    async def body(service: Running) -> None:
        arrived, go = asyncio.Event(), asyncio.Event()

        async def slow(request: Recorded) -> Answer:
            arrived.set()
            await go.wait()
            return Answer(201, {})

        service.api.handle("POST", BINDING, slow)
        await service.said("and acts")
        bind = asyncio.create_task(service.bind())
        await arrived.wait()

        service.process.send_signal(signal.SIGTERM)
        await service.said("no new binds")
        go.set()

        assert await bind == {"Error": ""}
        async with asyncio.timeout(5):
            assert await service.process.wait() == 0
        assert service.lease.spec is not None
        assert not service.lease.spec.get("holderIdentity")

    run(body)


def a_tenant(name: str, gib: int, card: int, version: int) -> Any:
    share = Share(f"n1-{card}", card, gib * GIB)
    grant = Grant(
        dialect="gcushare",
        uid=f"uid-{name}",
        node="n1",
        containers=(ContainerGrant("c0", "app", (share,), gib),),
        unit="1GB",
    )
    return msgspec.to_builtins(bound(a_pod(name, gib), grant, version=version))


def test_a_new_leader_knows_what_its_watch_has_not_brought_yet() -> None:
    """A pod that the one before it bound, and one that is gone: one more list shows both before it acts."""

    async def body(service: Running) -> None:
        older = object_list([a_tenant("gone", 8, 1, version=4)], "5")
        newer = object_list([a_tenant("new", 16, 0, version=9)], "9")
        watch = Stream([], "hang")

        async def behind(request: Recorded) -> Answer | Stream:
            if "watch" in request.query:
                return watch
            return older if service.lease.spec is None else newer

        service.api.handle("GET", "/api/v1/pods", behind)
        await service.said("and acts")
        _, inspected = await service.get("/gcushare-scheduler/inspect/n1")
        assert msgspec.json.decode(inspected)["nodes"][0]["usedGCU"] == 16

    run(body)


def test_before_it_has_caught_up_it_does_not_act() -> None:
    """The Lease is its own, and the list is refused: nobody is answered."""

    async def body(service: Running) -> None:
        watch, empty = Stream([], "hang"), object_list([], "5")

        async def refused(request: Recorded) -> Answer | Stream:
            if "watch" in request.query:
                return watch
            return empty if service.lease.spec is None else status(403, "Forbidden", "may not")

        service.api.handle("GET", "/api/v1/pods", refused)
        await service.said("could not be listed")
        assert service.lease.spec is not None
        async with service.http.post(f"{service.url}/filter", json={}) as reply:
            assert reply.status == 503

    run(body)


def test_with_a_binding_in_doubt_the_lease_is_left_to_run_out() -> None:
    """It may land after this process is gone: the next leader must not list before it."""

    async def body(service: Running) -> None:
        service.api.answer("POST", BINDING, status(500, "InternalError", "etcd is away"))
        service.api.answer("GET", "/api/v1/namespaces/default/pods/p", status(500, "InternalError", "away"))
        await service.said("and acts")
        assert "stays held" in (await service.bind())["Error"]

        service.process.send_signal(signal.SIGTERM)
        assert await service.process.wait() == 0
        assert service.lease.spec is not None
        assert service.lease.spec["holderIdentity"] == "me"

    run(body)


def test_without_lists_it_is_alive_and_not_ready() -> None:
    """And says which list it waits for."""

    async def body(service: Running) -> None:
        async def refused(request: Recorded) -> Answer:
            return status(403, "Forbidden", "may not")

        service.api.handle("GET", "/api/v1/pods", refused)
        await service.said("trying again")

        assert (await service.get("/healthz"))[0] == 200
        code, why = await service.get("/readyz")
        assert code == 503
        assert "the list of pods has not been read yet" in why
        async with service.http.post(f"{service.url}/filter", json={}) as reply:
            assert reply.status == 503

    run(body)


def certificate(folder: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(cert.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_the_tls_listener_serves_with_the_given_certificate(tmp_path: Path) -> None:
    """For kube-scheduler on another machine, and for the API server's webhook calls."""
    cert, key = certificate(tmp_path)

    async def body(service: Running) -> None:
        await service.said("and acts")
        trusting = ssl.create_default_context(cafile=cert)
        pod = msgspec.to_builtins(a_pod("p", 4))
        args = {"Pod": pod, "NodeNames": ["n1"]}
        async with service.http.post(f"{service.tls_url}/filter", json=args, ssl=trusting) as reply:
            assert (await reply.json())["NodeNames"] == ["n1"]

    run(body, cert, key)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "No such file"), (b"", "certificate in PEM"), (b"rubbish", "certificate in PEM")],
)
def test_a_certificate_that_cannot_be_served_is_a_sentence(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    """It names the files and what they should be."""
    _, key = certificate(tmp_path)
    path = tmp_path / "other.pem"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(BadInput, match=sentence) as refused:
        check_certificate(Settings(tls_cert=str(path), tls_key=key))
    assert str(path) in str(refused.value)


def test_a_key_with_a_passphrase_is_a_sentence(tmp_path: Path) -> None:
    """Nobody sits at a terminal to give it."""
    cert, key = certificate(tmp_path)
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    Path(key).write_bytes(locked)

    with pytest.raises(BadInput, match="without a passphrase"):
        check_certificate(Settings(tls_cert=cert, tls_key=key))
