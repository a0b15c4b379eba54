"""All that an operator can set of the scheduler service, with its defaults and its limits."""

from msgspec import Struct

from accelshare.core.errors import BadInput
from accelshare.dialects import DIALECTS

FEWEST, MOST = 16, 64  # names that filter hands on, where it hands on few


class Settings(Struct, frozen=True, kw_only=True):
    """Raises BadInput for values that cannot be meant."""

    host: str = "0.0.0.0"  # noqa: S104 - inspection is for everybody; verbs that act are for loopback and TLS
    port: int = 32766
    tls_port: int = 32767
    tls_cert: str = ""  # PEM files; without them nobody listens on tls_port
    tls_key: str = ""

    best: int | None = 32  # how many of the nodes that fit filter hands on; None or 0 for all of them

    elect: bool = True  # lead by a Lease; off only where there is one replica
    lease_namespace: str = "accelshare"
    lease_name: str = "accelshare-scheduler"
    identity: str = ""  # who this replica is in the Lease; "" takes the pod's name, or the host's

    pod_namespace: str = ""
    pod_name: str = ""  # "" leaves the leader label alone
    app_label: str = "app.kubernetes.io/name=accelshare-scheduler"  # which all replicas carry

    counted: frozenset[str] = frozenset()  # dialects whose containers are given a slot at admission
    service_account: str = "system:serviceaccount:accelshare:accelshare-scheduler"  # who may write grants

    def __post_init__(self) -> None:
        for field, port in (("port", self.port), ("tls_port", self.tls_port)):
            if not 0 <= port <= 65535:
                raise BadInput(field, port, "0 to 65535")
        if self.best and not FEWEST <= self.best <= MOST:
            raise BadInput("--best", self.best, f"{FEWEST} to {MOST}, or 0 for all nodes that fit")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise BadInput("--tls-cert and --tls-key", (self.tls_cert, self.tls_key), "two files, or neither")
        unknown = self.counted - DIALECTS.keys()
        if unknown:
            raise BadInput("--counted", ", ".join(sorted(unknown)), ", ".join(DIALECTS))
        key, equals, value = self.app_label.partition("=")
        if not (key and equals and value):
            raise BadInput("--app-label", self.app_label, "a label and its value, as in app=accelshare")
        if self.pod_name and not self.pod_namespace:
            raise BadInput(
                "--pod-namespace", self.pod_namespace, "the namespace of the pod that --pod-name names"
            )
