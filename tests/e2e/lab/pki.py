"""Certificates, keys and tokens of one cluster, made by openssl in a fifth of a second.

One authority signs all serving certificates and the API server's client certificate for the kubelet.
Everybody else shows a bearer token. Keys are P-256: RSA keys would take longer than the rest of the start.
"""

import secrets
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

SERVICE_ADDRESS = "10.96.0.1"

# The extensions are named one by one in each call; the system's own openssl.cnf would add its own.
_CONFIG = "[req]\ndistinguished_name = name\n[name]\n"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_API_SERVER_NAMES = (
    *("DNS:localhost", "IP:127.0.0.1", f"IP:{SERVICE_ADDRESS}", "DNS:kubernetes", "DNS:kubernetes.default"),
    *("DNS:kubernetes.default.svc", "DNS:kubernetes.default.svc.cluster.local"),
)


class Pki:
    def __init__(self, directory: Path, node: str) -> None:
        directory.mkdir(mode=0o700)
        self._directory = directory
        (directory / "openssl.cnf").write_text(_CONFIG)
        self._authority()
        self._leaf("apiserver", "/CN=kube-apiserver", _API_SERVER_NAMES, "serverAuth")
        self._leaf("serving", "/CN=localhost", ("DNS:localhost", "IP:127.0.0.1", f"DNS:{node}"), "serverAuth")
        masters = "/O=system:masters/CN=apiserver-kubelet-client"
        self._leaf("apiserver-kubelet-client", masters, ("DNS:localhost",), "clientAuth")
        # In the older format ("EC PRIVATE KEY"): from it the API server reads the public half too.
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
        self.tokens = self._write_tokens(
            {
                "admin": "system:masters",
                "system:kube-controller-manager": "",
                "system:kube-scheduler": "",
                f"system:node:{node}": "system:nodes",
            }
        )

    def __getitem__(self, name: str) -> str:
        """The path of a file, as flags and configurations want it."""
        return str(self._directory / name)

    @property
    def authority(self) -> Path:
        return self._directory / "ca.crt"

    def leaf(self, name: str, names: Iterable[str]) -> tuple[Path, Path]:
        """Certificate and key of another server on this machine, as `DNS:…` and `IP:…` names."""
        self._leaf(name, f"/CN={name}", names, "serverAuth")
        return self._directory / f"{name}.crt", self._directory / f"{name}.key"

    def _authority(self) -> None:
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        self._certificate("ca", "/CN=accelshare-lab", (*extensions, "subjectKeyIdentifier=hash"), ())

    def _leaf(self, name: str, subject: str, names: Iterable[str], usage: str) -> None:
        extensions = (
            "basicConstraints=critical,CA:FALSE",
            "subjectKeyIdentifier=hash",
            "authorityKeyIdentifier=keyid",
            f"extendedKeyUsage={usage}",
            f"subjectAltName={','.join(names)}",
        )
        self._certificate(name, subject, extensions, ("-CA", "ca.crt", "-CAkey", "ca.key"))

    def _certificate(self, name: str, subject: str, extensions: Iterable[str], signer: Iterable[str]) -> None:
        added = [word for extension in extensions for word in ("-addext", extension)]
        out = ("-days", "3650", "-keyout", f"{name}.key", "-out", f"{name}.crt")
        self._openssl(
            "req", "-x509", "-config", "openssl.cnf", *_KEY, "-subj", subject, *added, *signer, *out
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._directory, check=True, capture_output=True)

    def _write_tokens(self, users: Mapping[str, str]) -> dict[str, str]:
        tokens = {user: secrets.token_hex(16) for user in users}
        rows = [f'{tokens[user]},{user},{user},"{group}"\n' for user, group in users.items()]
        (self._directory / "tokens.csv").write_text("".join(rows))
        return tokens


def write_kubeconfig(path: Path, server: str, authority: Path, user: Mapping[str, str]) -> Path:
    """`user` is `{"token": …}` or `{"tokenFile": …}`, as kubeconfig files have it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "lab", "user": dict(user)}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path
