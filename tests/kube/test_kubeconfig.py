"""kubeconfig files as kubectl would read them: tokens, programs, certificates, contexts, and faults."""

import asyncio
import base64
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accelshare.cli.kubeconfig import from_kubeconfig
from accelshare.core.errors import AccelshareError
from accelshare.core.objects import Pod
from accelshare.kube.api.client import Client
from accelshare.kube.api.config import ApiConfig
from tests.kube.stub_api import Answer, StubApi, pod


def write(folder: Path, user: dict[str, Any], **cluster: Any) -> str:
    """A kubeconfig is YAML, so JSON will do."""
    file = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}},
            {"name": "d", "cluster": {"server": "https://10.0.0.2:6443"}},
        ],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "there", "context": {"cluster": "d", "user": "u"}},
        ],
        "users": [{"name": "u", "user": user}],
    }
    file.write_bytes(msgspec.json.encode(config))
    return str(file)


def program(folder: Path, script: str) -> dict[str, Any]:
    file = folder / "login"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(file),
            "interactiveMode": "Never",
        }
    }


def credential(status: str) -> str:
    head = '"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"'
    return f"echo '{{{head},\"status\":{status}}}'"


def token(config: ApiConfig) -> str:
    assert config.token_source is not None
    return config.token_source()


def test_a_token_and_a_server(tmp_path: Path) -> None:
    """The common case."""
    config = from_kubeconfig(write(tmp_path, {"token": "t"}))
    assert config.server == "https://10.0.0.1:6443"
    assert token(config) == "Bearer t"
    assert not config.insecure


def test_another_context_can_be_named(tmp_path: Path) -> None:
    """As with kubectl's --context."""
    assert from_kubeconfig(write(tmp_path, {"token": "t"}), "there").server == "https://10.0.0.2:6443"


def test_trust_and_names_of_the_server_are_taken_over(tmp_path: Path) -> None:
    """The certificate authority as data, the name to ask for, and whether to check at all."""
    authority = base64.b64encode(b"-----BEGIN").decode()
    file = write(
        tmp_path,
        {"token": "t"},
        **{
            "certificate-authority-data": authority,
            "tls-server-name": "api",
            "insecure-skip-tls-verify": True,
            "proxy-url": "http://proxy:3128",
        },
    )
    config = from_kubeconfig(file)
    assert config.ca_file is not None
    assert Path(config.ca_file).read_bytes() == b"-----BEGIN"
    assert (config.tls_server_name, config.insecure, config.proxy) == ("api", True, "http://proxy:3128")


def test_a_user_with_name_and_password_keeps_his_scheme(tmp_path: Path) -> None:
    """Basic, not Bearer."""
    config = from_kubeconfig(write(tmp_path, {"username": "n", "password": "p"}))
    assert token(config) == "Basic " + base64.b64encode(b"n:p").decode()


def test_a_client_certificate_needs_no_token(tmp_path: Path) -> None:
    """Files are taken by their names."""
    (tmp_path / "crt").write_text("c")
    (tmp_path / "key").write_text("k")
    config = from_kubeconfig(write(tmp_path, {"client-certificate": "crt", "client-key": "key"}))
    assert config.client_cert_file == str(tmp_path / "crt")
    assert config.client_key_file == str(tmp_path / "key")
    assert config.token_source is None


def test_a_program_gives_the_token(tmp_path: Path) -> None:
    """An exec credential, as the clouds use them."""
    config = from_kubeconfig(write(tmp_path, program(tmp_path, credential('{"token":"made"}'))))
    assert token(config) == "Bearer made"


def test_a_token_that_has_run_out_is_made_anew(tmp_path: Path) -> None:
    """The program is asked again, as often as its token has run out."""
    count = tmp_path / "count"
    ended = f"""{{"token":"'$(wc -l < {count})'","expirationTimestamp":"2020-01-01T00:00:00Z"}}"""
    script = f"echo x >> {count}\n{credential(ended)}"
    config = from_kubeconfig(write(tmp_path, program(tmp_path, script)))
    first, second = token(config), token(config)
    assert first.startswith("Bearer ")
    assert int(first.split()[1]) < int(second.split()[1])


def test_a_program_that_fails_is_said(tmp_path: Path) -> None:
    """Without it every call would go out as nobody's."""
    with pytest.raises(AccelshareError, match="gave no credentials"):
        from_kubeconfig(write(tmp_path, program(tmp_path, "exit 3")))


def test_no_file_is_said(tmp_path: Path) -> None:
    """With where it was looked for."""
    with pytest.raises(AccelshareError, match=r"no kubeconfig at .*/none; name one, or set KUBECONFIG"):
        from_kubeconfig(str(tmp_path / "none"))


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"contexts": []}', '{"current-context": "x"}'])
def test_a_file_that_is_no_kubeconfig_is_said(tmp_path: Path, content: str) -> None:
    """Whatever is in it, the answer is a sentence that names the file."""
    file = tmp_path / "kubeconfig"
    file.write_text(content)
    with pytest.raises(AccelshareError, match=r"the kubeconfig .*/kubeconfig cannot be used: ."):
        from_kubeconfig(str(file))


def test_a_context_that_is_not_there_is_said(tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(AccelshareError, match="nowhere"):
        from_kubeconfig(write(tmp_path, {"token": "t"}), "nowhere")


def test_a_client_can_call_with_it(tmp_path: Path) -> None:
    """From the file to the header."""

    async def whole() -> None:
        async with StubApi() as api:
            api.answer("GET", "/x", Answer(200, pod("p")))
            config = from_kubeconfig(write(tmp_path, {"token": "t"}, server=api.config.server))
            async with Client(config, "cli") as client:
                await client.get("/x", Pod)
            assert api.requests[0].headers["Authorization"] == "Bearer t"

    asyncio.run(whole())
