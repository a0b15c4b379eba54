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
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.builders import a_pod
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
        api.answer("GET", "/api/v1/pods", object_list([msgspec.to_builtins(pod)], "5"), watch)
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
    """Ready after both lists; leading after the Lease is taken; then it acts."""

    async def body(service: Running) -> None:
        await service.said("leads by")

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
        await service.said("leads by")
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


def test_without_lists_it_is_alive_and_not_ready() -> None:
    """And says which list it waits for."""

    async def body(service: Running) -> None:
        service.api.answer("GET", "/api/v1/pods", status(403, "Forbidden", "may not"))
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
        await service.said("leads by")
        trusting = ssl.create_default_context(cafile=cert)
        pod = msgspec.to_builtins(a_pod("p", 4))
        args = {"Pod": pod, "NodeNames": ["n1"]}
        async with service.http.post(f"{service.tls_url}/filter", json=args, ssl=trusting) as reply:
            assert (await reply.json())["NodeNames"] == ["n1"]

    run(body, cert, key)
