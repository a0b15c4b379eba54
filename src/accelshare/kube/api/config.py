"""Where the API server is, whom we trust it to be, and who we say we are.

A service inside the cluster has its service account's files (`in_cluster`); the command line has a
kubeconfig, which is read in the layer above. Tokens of service accounts are rotated under a running
process, so a token that stands in a file is read again when the file changes.
"""

import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accelshare.core.errors import AccelshareError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# A mounted token is swapped through symbolic links, and some file systems keep the times of the target:
# a file whose time did not change is read again all the same after this long.
_REREAD_SECONDS = 60.0


@dataclass(frozen=True)
class ApiConfig:
    """Data (PEM text) wins over files. Of the ways to a token, a source wins over a file over a fixed one.

    A token that holds a space is a whole Authorization value (`Basic ...`); any other is a bearer's.
    """

    server: str
    ca_file: str | None = None
    ca_data: str | None = field(default=None, repr=False)
    client_cert_file: str | None = None
    client_key_file: str | None = None
    client_cert_data: str | None = field(default=None, repr=False)
    client_key_data: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    token_source: Callable[[], str] | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    insecure: bool = False
    proxy: str | None = None

    def ssl_context(self) -> ssl.SSLContext | None:
        """None where the server is spoken to in plain HTTP."""
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self._ca_file(), cadata=self.ca_data)
            self._load_client_cert(context)
        except (OSError, ValueError) as failure:
            text = f"the certificates for {self.server} cannot be read ({self._files()}): {failure}"
            raise AccelshareError(text) from failure
        # Python 3.13 demands of a CA what Kubernetes' own installers have not always put into theirs, and
        # what no other client of the API server asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _ca_file(self) -> str | None:
        return None if self.ca_data else self.ca_file

    def _load_client_cert(self, context: ssl.SSLContext) -> None:
        if self.client_cert_data:
            # The ssl module takes a certificate only from a file, so a private one lives for a moment.
            with tempfile.NamedTemporaryFile("w", prefix="accelshare-") as pem:
                pem.write(self.client_cert_data + "\n" + (self.client_key_data or ""))
                pem.flush()
                context.load_cert_chain(pem.name, self.client_key_file)
        elif self.client_cert_file:
            context.load_cert_chain(self.client_cert_file, self.client_key_file)

    def _files(self) -> str:
        named = [name for name in (self._ca_file(), self.client_cert_file, self.client_key_file) if name]
        return ", ".join(named) or "given as data"


def in_cluster(root: Path = SERVICE_ACCOUNT, env: Mapping[str, str] = os.environ) -> ApiConfig:
    """The configuration that every pod with a service account has."""
    host = env.get("KUBERNETES_SERVICE_HOST", "")
    port = env.get("KUBERNETES_SERVICE_PORT", "443")
    token, ca = root / "token", root / "ca.crt"
    if not host:
        raise AccelshareError(
            "this process does not run in a cluster: KUBERNETES_SERVICE_HOST is not set;"
            " outside of one, name a kubeconfig"
        )
    for file in (token, ca):
        if not file.is_file():
            raise AccelshareError(
                f"this pod has no service account: {file} does not exist;"
                " set automountServiceAccountToken to true"
            )
    shown = f"[{host}]" if ":" in host else host
    return ApiConfig(f"https://{shown}:{port}", ca_file=str(ca), token_file=str(token))


class TokenFile:
    """The token in a file, read again when the file's time changes, and once a minute in any case."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._token = ""
        self._mtime = -1
        self._read_at = float("-inf")

    def read(self, *, afresh: bool = False) -> str:
        """Where the file cannot be read now, the token known so far, which may well be good yet."""
        try:
            mtime = self._path.stat().st_mtime_ns
            old = self._clock() - self._read_at >= _REREAD_SECONDS
            if afresh or old or mtime != self._mtime:
                self._token = self._path.read_text().strip()
                self._mtime, self._read_at = mtime, self._clock()
        except OSError as failure:
            if not self._token:
                raise AccelshareError(f"the token file {self._path} cannot be read: {failure}") from failure
        return self._token
