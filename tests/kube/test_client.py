"""The client against a real HTTP server: what it sends, what it makes of answers, what it refuses to send."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from accelshare import __version__
from accelshare.core.errors import AccelshareError, BadInput
from accelshare.core.objects import Pod
from accelshare.kube.api import errors
from accelshare.kube.api.client import ANNOTATION_BYTES, Client, Page, check_annotations
from accelshare.kube.api.config import ApiConfig, TokenFile, in_cluster
from tests.kube.stub_api import Answer, Drop, Silence, StubApi, object_list, pod, status

PODS = "/api/v1/namespaces/ns/pods"
BINDING = f"{PODS}/p/binding"


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[StubApi, Client]]:
    config = settings.pop("config", lambda stub: stub.config)
    async with StubApi() as api, Client(config(api), "test", **settings) as client:
        yield api, client


def run(body: Callable[[StubApi, Client], Awaitable[None]], **settings: Any) -> None:
    async def whole() -> None:
        async with served(**settings) as (api, client):
            await body(api, client)

    asyncio.run(whole())


async def pages(client: Client, limit: int = 500) -> list[Page[Pod]]:
    return [page async for page in client.list_pages(PODS, Pod, limit=limit)]


# --- reading -------------------------------------------------------------------------------------------


def test_get_decodes_into_the_type() -> None:
    """What is asked for as a Pod is one."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", f"{PODS}/p", Answer(200, pod("p", nodeName="n")))
        assert (await client.get(f"{PODS}/p", Pod)).node == "n"

    run(body)


def test_requests_say_who_asks() -> None:
    """The audit log of the cluster names program, version and component."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", f"{PODS}/p", Answer(200, pod("p")))
        await client.get(f"{PODS}/p", Pod)
        assert api.requests[0].headers["User-Agent"] == f"accelshare/{__version__} (test)"

    run(body)


def test_an_answer_that_is_not_the_type_is_an_error_that_says_so() -> None:
    """A success that cannot be read is told apart from a refusal."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", f"{PODS}/p", Answer(200, {"metadata": 7}))
        with pytest.raises(errors.UnreadableAnswer, match=r"GET .*/p was answered 200 .* as Pod: ") as caught:
            await client.get(f"{PODS}/p", Pod)
        assert not caught.value.definite

    run(body)


def test_a_list_comes_in_pages() -> None:
    """The continue token is carried on, and every page knows the version of the whole."""

    async def body(api: StubApi, client: Client) -> None:
        first, last = object_list([pod("a"), pod("b")], "7", "more"), object_list([pod("c")], "7")
        api.answer("GET", PODS, first, last)
        found = await pages(client, limit=2)
        assert [item.metadata.name for page in found for item in page.items] == ["a", "b", "c"]
        assert [page.resource_version for page in found] == ["7", "7"]
        assert [request.query for request in api.requests] == [
            {"limit": "2"},
            {"limit": "2", "continue": "more"},
        ]

    run(body)


def test_a_continue_token_that_has_run_out_is_gone() -> None:
    """The caller begins anew: half an old list and half a new one would be no list."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", PODS, object_list([pod("a")], "7", "more"), status(410, "Expired", "too old"))
        with pytest.raises(errors.Gone):
            await pages(client)

    run(body)


def test_an_item_that_cannot_be_decoded_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """It is named in the log, counted and passed over."""

    async def body(api: StubApi, client: Client) -> None:
        broken = pod("bad", containers="none")
        api.answer("GET", PODS, object_list([pod("a"), broken, pod("c")], "7"))
        (page,) = await pages(client)
        assert [item.metadata.name for item in page.items] == ["a", "c"]
        assert page.undecodable == 1

    run(body)
    assert f"ns/bad of {PODS} is passed over" in caplog.text


def test_an_empty_list_may_be_null() -> None:
    """Go writes an empty list so."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", PODS, Answer(200, {"metadata": {"resourceVersion": "7"}, "items": None}))
        (page,) = await pages(client)
        assert page.items == []

    run(body)


# --- writing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("json", "application/json-patch+json"),
    ],
)
def test_a_patch_says_what_kind_it_is(kind: Any, content_type: str) -> None:
    """The API server tells the kinds apart by the content type alone."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("PATCH", f"{PODS}/p", Answer(200, pod("p")))
        await client.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, Pod, kind)
        assert api.requests[0].headers["Content-Type"] == content_type
        assert api.requests[0].json == {"metadata": {"labels": {"a": "b"}}}

    run(body)


def test_delete_can_mean_one_object_only() -> None:
    """With a UID, another object of the same name is left alone."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("DELETE", f"{PODS}/p", Answer(200, {}))
        await client.delete(f"{PODS}/p", uid="u")
        await client.delete(f"{PODS}/p")
        assert api.requests[0].json["preconditions"] == {"uid": "u"}
        assert api.requests[1].body == b""

    run(body)


def test_create_and_replace_return_what_stands_now() -> None:
    """The answer carries what the server added."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("POST", PODS, Answer(201, pod("p", "8")))
        api.answer("PUT", f"{PODS}/p", Answer(200, pod("p", "9")))
        assert (await client.create(PODS, pod("p"), Pod)).metadata.resourceVersion == "8"
        assert (await client.replace(f"{PODS}/p", pod("p"), Pod)).metadata.resourceVersion == "9"

    run(body)


def test_bind_is_one_write_with_node_uid_and_annotations() -> None:
    """Node and grant arrive together or not at all."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("POST", BINDING, Answer(201, {"kind": "Status", "status": "Success"}))
        await client.bind("ns", "p", "u", "node-1", {"accelshare.io/grant": "g"})
        (request,) = api.requests
        assert request.json == {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": "p",
                "namespace": "ns",
                "uid": "u",
                "annotations": {"accelshare.io/grant": "g"},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
        }

    run(body)


def test_a_pod_that_is_bound_already_is_a_definite_conflict() -> None:
    """Then the room that was held for it can be given back."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("POST", BINDING, status(409, "Conflict", "pod p is already assigned to node x"))
        with pytest.raises(errors.Conflict, match="already assigned") as caught:
            await client.bind("ns", "p", "u", "n", {})
        assert caught.value.definite

    run(body)


@pytest.mark.parametrize("answer", [Drop(), Silence(), Answer(500)])
def test_a_bind_without_an_answer_is_not_repeated_and_not_definite(answer: Any) -> None:
    """The pod may be bound: the caller reads it back."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("POST", BINDING, answer)
        with pytest.raises(errors.ApiError) as caught:
            await client.bind("ns", "p", "u", "n", {}, timeout=0.2)
        assert not caught.value.definite
        assert len(api.requests) == 1

    run(body)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/x",
        "-a",
        "a-",
        "a b",
        "a/b/c",
        "exa_mple.io/x",
        ".io/x",
        "a..b/x",
        "x" * 64,
        f"{'a' * 254}/x",
        "a/",
    ],
)
def test_a_key_the_api_server_would_refuse_elsewhere_is_not_sent(key: str) -> None:
    """A binding with such a key would be stored, and every later patch of the pod refused."""

    async def body(api: StubApi, client: Client) -> None:
        with pytest.raises(BadInput, match="annotation's key"):
            await client.bind("ns", "p", "u", "n", {key: "v"})
        assert api.requests == []

    run(body)


@pytest.mark.parametrize(
    "key",
    ["a", "A_b.C-9", "x" * 63, "accelshare.io/grant", "ENFLAME.com/GCU", f"{'a' * 63}.b/x"],
)
def test_good_keys_pass(key: str) -> None:
    """Upper case too: Kubernetes folds an annotation's key before it looks."""
    check_annotations({key: "v"})


def test_annotations_are_counted_in_bytes_with_what_stands() -> None:
    """The limit is on the sum of all keys and values, and what is overwritten counts once."""
    room = ANNOTATION_BYTES - len("standing") - len("new") - len("v")
    check_annotations({"new": "v"}, {"standing": "x" * room})
    check_annotations({"standing": "v"}, {"standing": "x" * ANNOTATION_BYTES})
    with pytest.raises(BadInput, match="262145"):
        check_annotations({"new": "v"}, {"standing": "x" * (room + 1)})
    with pytest.raises(BadInput, match="size"):
        check_annotations({"new": "卡" * (ANNOTATION_BYTES // 3)})


def test_a_bind_without_uid_is_refused() -> None:
    """An empty UID is no precondition at all."""

    async def body(api: StubApi, client: Client) -> None:
        with pytest.raises(BadInput, match="UID"):
            await client.bind("ns", "p", "", "n", {})

    run(body)


# --- the server's version ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("git", "minor", "expected", "checks"),
    [
        ("v1.22.17", "22", (1, 22), False),
        ("v1.23.0", "23", (1, 23), True),
        ("v1.25.0", "25", (1, 25), False),
        ("v1.25.0-gke.100", "25+", (1, 25), False),
        ("v1.25.1", "25", (1, 25), True),
        ("v1.37.0-eks-1", "37+", (1, 37), True),
        ("", "37+", (1, 37), True),
    ],
)
def test_the_version_tells_whether_a_binding_s_uid_is_checked(
    git: str, minor: str, expected: tuple[int, int], checks: bool
) -> None:
    """It is from 1.23 on, but for 1.25.0; asked once."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", "/version", Answer(200, {"major": "1", "minor": minor, "gitVersion": git}))
        assert await client.server_version() == expected
        assert await client.binding_checks_uid() is checks
        assert len(api.requests) == 1

    run(body)


def test_the_version_is_asked_again_after_a_while() -> None:
    """A cluster is upgraded under a running process."""
    now = [0.0]

    async def body(api: StubApi, client: Client) -> None:
        old, new = ({"major": "1", "minor": minor} for minor in ("36", "37"))
        api.answer("GET", "/version", Answer(200, old), Answer(200, new))
        assert await client.server_version() == (1, 36)
        now[0] = 601.0
        assert await client.server_version() == (1, 37)

    run(body, clock=lambda: now[0])


# --- transport -----------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_unreachable() -> None:
    """No connection is no answer."""

    async def body(api: StubApi, client: Client) -> None:
        with pytest.raises(errors.Unreachable, match=r"GET /x got no answer: "):
            await client.get("/x", Pod)

    run(body, config=lambda api: ApiConfig("http://127.0.0.1:1"))


def test_a_server_that_does_not_answer_is_unreachable_when_the_time_is_up() -> None:
    """No call waits for ever."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", "/x", Silence())
        with pytest.raises(errors.Unreachable, match="the time was up"):
            await client.get("/x", Pod)

    run(body, timeout=0.2)


def test_a_redirect_is_not_followed() -> None:
    """The token is shown to nobody but the configured server."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", "/x", Answer(302, b"", {"Location": "/y"}))
        with pytest.raises(errors.ApiError, match="302"):
            await client.get("/x", Pod)
        assert len(api.requests) == 1

    run(body)


def test_a_throttled_read_waits_as_long_as_it_is_told_and_asks_once_more() -> None:
    """Once: a second throttle is the caller's matter."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", "/x", Answer(429, b"", {"Retry-After": "2"}))
        with pytest.raises(errors.TooManyRequests) as caught:
            await client.get("/x", Pod)
        assert caught.value.retry_after == 2.0
        assert len(api.requests) == 2

    run(body, sleep=sleep)
    assert waited == [2.0]


def test_a_throttled_write_is_not_repeated() -> None:
    """Only its caller knows whether it still wants it."""

    async def body(api: StubApi, client: Client) -> None:
        api.answer("POST", PODS, Answer(429, b"", {"Retry-After": "0"}))
        with pytest.raises(errors.TooManyRequests):
            await client.create(PODS, {}, Pod)
        assert len(api.requests) == 1

    run(body)


# --- who we are ----------------------------------------------------------------------------------------


def test_a_token_file_is_read_again_after_a_401(tmp_path: Path) -> None:
    """A token that was rotated a moment ago costs one more request, not an error."""
    token = tmp_path / "token"
    token.write_text("old\n")

    async def body(api: StubApi, client: Client) -> None:
        async def check(request: Any) -> Answer:
            good = request.headers["Authorization"] == "Bearer new"
            token.write_text("new\n")
            return Answer(200, pod("p")) if good else status(401, "Unauthorized", "expired")

        api.handle("GET", "/x", check)
        assert (await client.get("/x", Pod)).key == "ns/p"
        assert len(api.requests) == 2

    run(body, config=lambda api: replace(api.config, token_file=str(token)))


def test_a_token_source_is_asked_for_every_call() -> None:
    """It knows by itself when a token has run out; a value with a space is a whole Authorization."""
    tokens = iter(["one", "Basic abc"])

    async def body(api: StubApi, client: Client) -> None:
        api.answer("GET", "/x", Answer(200, pod("p")))
        await client.get("/x", Pod)
        await client.get("/x", Pod)
        assert [request.headers["Authorization"] for request in api.requests] == ["Bearer one", "Basic abc"]

    run(body, config=lambda api: replace(api.config, token_source=lambda: next(tokens)))


def test_a_token_file_is_read_when_its_time_changes_or_a_minute_has_passed(tmp_path: Path) -> None:
    """Some file systems keep the time of a file that was swapped."""
    now = [0.0]
    file = tmp_path / "token"
    file.write_text("a")
    os.utime(file, ns=(1, 1))
    token = TokenFile(str(file), lambda: now[0])
    assert token.read() == "a"
    file.write_text("b")
    os.utime(file, ns=(1, 1))
    assert token.read() == "a"
    now[0] = 60.0
    assert token.read() == "b"
    file.write_text("c")
    os.utime(file, ns=(2, 2))
    assert token.read() == "c"
    file.unlink()
    assert token.read() == "c"


def test_no_token_file_at_all_is_said(tmp_path: Path) -> None:
    """The sentence names the file."""
    with pytest.raises(AccelshareError, match=r"token file .*/none cannot be read"):
        TokenFile(str(tmp_path / "none")).read()


def test_in_a_cluster_the_service_account_is_used(tmp_path: Path) -> None:
    """Address from the environment, trust and token from the mounted files; IPv6 gets its brackets."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("c")
    config = in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert config.server == "https://[fd00::1]:6443"
    assert config.token_file == str(tmp_path / "token")
    assert config.ca_file == str(tmp_path / "ca.crt")


def test_outside_a_cluster_it_is_said(tmp_path: Path) -> None:
    """And what to do about it."""
    with pytest.raises(AccelshareError, match="does not run in a cluster"):
        in_cluster(tmp_path, {})
    with pytest.raises(AccelshareError, match="automountServiceAccountToken"):
        in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """The sentence names server and file."""
    with pytest.raises(AccelshareError, match=r"certificates for https://x .*none\.crt"):
        ApiConfig("https://x", ca_file=str(tmp_path / "none.crt")).ssl_context()


def test_secrets_are_not_shown() -> None:
    """A configuration that ends up in a log says nothing of them."""
    assert "secret" not in repr(ApiConfig("https://x", token="secret", client_key_data="secret"))


# --- TLS -----------------------------------------------------------------------------------------------


def self_signed(name: str) -> tuple[str, str]:
    """Certificate and key as PEM; without what strict checkers ask for, as some have it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), pem.decode()


def server_tls(folder: Path, certificate: str, key: str, clients: str) -> ssl.SSLContext:
    (folder / "pem").write_text(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=clients)
    context.load_cert_chain(folder / "pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_server_and_client_know_each_other_by_certificate(tmp_path: Path) -> None:
    """Under the name that the configuration gives to the server, and under no other."""
    (ca, key), (mine, my_key) = self_signed("kubernetes"), self_signed("me")
    tls = server_tls(tmp_path, ca, key, mine)

    async def whole() -> None:
        async with StubApi(tls) as api:
            api.answer("GET", "/x", Answer(200, pod("p")))
            known = replace(api.config, ca_data=ca, client_cert_data=mine, client_key_data=my_key)
            async with Client(replace(known, tls_server_name="kubernetes"), "test") as client:
                assert (await client.get("/x", Pod)).key == "ns/p"
            async with Client(replace(known, insecure=True), "test") as client:
                assert (await client.get("/x", Pod)).key == "ns/p"
            async with Client(replace(known, tls_server_name="other"), "test") as client:
                with pytest.raises(errors.Unreachable, match="certificate"):
                    await client.get("/x", Pod)

    asyncio.run(whole())
