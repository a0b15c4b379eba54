"""The few fields of Kubernetes' objects that we read.

Only what is declared here is decoded: a full Pod of 4 kB becomes a few hundred bytes.
Field names are Kubernetes' own, so that a struct reads like a manifest.
"""

from typing import Literal

from msgspec import Struct

Role = Literal["init", "sidecar", "app"]

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


_LONGEST_VERSION = 20  # digits of the largest number in 64 bits


def version_number(text: str) -> int:
    """A resource version to be compared with another of its kind; 0 where it says nothing."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_VERSION else 0


class OwnerReference(Struct, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool = False


class Meta(Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    creationTimestamp: str | None = None  # noqa: N815
    deletionTimestamp: str | None = None  # noqa: N815
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[OwnerReference] | None = None  # noqa: N815


class Resources(Struct):
    """Quantities as they were written: a string, or a bare number where JSON had one."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class Container(Struct):
    name: str = ""
    resources: Resources | None = None
    restartPolicy: str | None = None  # noqa: N815


class SpreadConstraint(Struct, gc=False):
    whenUnsatisfiable: str = ""  # noqa: N815


class _Preferences(Struct):
    """Only whether there are any matters to us, never what they say."""

    preferredDuringSchedulingIgnoredDuringExecution: list[dict[str, object]] | None = None  # noqa: N815


class Affinity(Struct):
    nodeAffinity: _Preferences | None = None  # noqa: N815
    podAffinity: _Preferences | None = None  # noqa: N815
    podAntiAffinity: _Preferences | None = None  # noqa: N815


class PodSpec(Struct):
    containers: list[Container] | None = None
    initContainers: list[Container] | None = None  # noqa: N815
    nodeName: str | None = None  # noqa: N815
    priority: int | None = None
    affinity: Affinity | None = None
    topologySpreadConstraints: list[SpreadConstraint] | None = None  # noqa: N815


class PodStatus(Struct):
    phase: str = ""


class Pod(Struct):
    metadata: Meta
    spec: PodSpec
    status: PodStatus | None = None

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def node(self) -> str:
        return self.spec.nodeName or ""

    @property
    def finished(self) -> bool:
        """Its containers are gone for good; a deletionTimestamp does not say so: they may run for minutes."""
        return self.status is not None and self.status.phase in TERMINAL_PHASES

    def annotation(self, key: str) -> str | None:
        return (self.metadata.annotations or {}).get(key)

    def containers(self) -> list[tuple[Role, Container]]:
        """Init containers first, in the order in which kubelet starts them."""
        out: list[tuple[Role, Container]] = []
        for container in self.spec.initContainers or ():
            out.append(("sidecar" if container.restartPolicy == "Always" else "init", container))
        out.extend(("app", container) for container in self.spec.containers or ())
        return out

    def has_soft_preferences(self) -> bool:
        """Whether kube-scheduler must see every node that fits to honour what the pod would like."""
        affinity = self.spec.affinity
        if affinity is not None:
            for part in (affinity.nodeAffinity, affinity.podAffinity, affinity.podAntiAffinity):
                if part is not None and part.preferredDuringSchedulingIgnoredDuringExecution:
                    return True
        spreads = self.spec.topologySpreadConstraints or ()
        return any(spread.whenUnsatisfiable == "ScheduleAnyway" for spread in spreads)


class NodeSystemInfo(Struct, gc=False):
    containerRuntimeVersion: str = ""  # noqa: N815


class NodeStatus(Struct):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    nodeInfo: NodeSystemInfo | None = None  # noqa: N815


class Node(Struct):
    metadata: Meta
    status: NodeStatus | None = None

    @property
    def name(self) -> str:
        return self.metadata.name

    def annotation(self, key: str) -> str | None:
        return (self.metadata.annotations or {}).get(key)
