"""Small objects with plausible values: a test names only what it is about."""

from collections.abc import Mapping, Sequence

from accelshare.core.grant import GRANT, Grant, Sign, write_grant
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, write_inventory
from accelshare.core.objects import Container, Meta, Node, Pod, PodSpec, PodStatus, Resources
from accelshare.core.units import GIB

MEMORY = "enflame.com/gcu-memory"
LABEL = "enflame.com/gcushare"


def a_card(
    index: int = 0,
    *,
    id: str = "",  # noqa: A002
    gib: int = 16,
    memory: int | None = None,
    model: str = "T10",
    healthy: bool = True,
) -> Card:
    return Card(
        id=id or f"GCU-{index}",
        index=index,
        memory=gib * GIB if memory is None else memory,
        minor=index,
        model=model,
        vendor="enflame",
        healthy=healthy,
    )


def cards(count: int, gib: int = 16, prefix: str = "GCU-") -> tuple[Card, ...]:
    return tuple(a_card(index, id=f"{prefix}{index}", gib=gib) for index in range(count))


def an_inventory(
    of: Sequence[Card] = cards(2), unit: str = "1GB", *, counted: bool = False, leaving: bool = False
) -> Inventory:
    front_end = FrontEnd(unit, "counted" if counted else "enumerated")
    return Inventory(driver="simulated", cards=tuple(of), dialects={"gcushare": front_end}, leaving=leaving)


def a_node(
    name: str = "n1",
    inventory: Inventory | str | None = an_inventory(),  # noqa: B008  # a frozen value
    *,
    label: bool = True,
    version: int = 0,
    uid: str = "",
) -> Node:
    text = write_inventory(inventory) if isinstance(inventory, Inventory) else inventory
    return Node(
        metadata=Meta(
            name=name,
            uid=uid,
            resourceVersion=str(version) if version else "",
            labels={LABEL: "true"} if label else {},
            annotations={} if text is None else {INVENTORY: text},
        )
    )


def a_container(
    name: str = "main", amount: int | str | None = None, resource: str = MEMORY, *, sidecar: bool = False
) -> Container:
    resources = None if amount is None else Resources(limits={resource: amount}, requests={resource: amount})
    return Container(name, resources, "Always" if sidecar else None)


def a_pod(
    name: str = "p",
    *asks: int,
    uid: str = "",
    node: str | None = None,
    phase: str = "Pending",
    version: int = 0,
    init: Sequence[Container] = (),
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
) -> Pod:
    """A pod with a container for each amount that it asks for."""
    return Pod(
        metadata=Meta(
            name=name,
            namespace="default",
            uid=uid or f"uid-{name}",
            resourceVersion=str(version) if version else "",
            creationTimestamp="2026-01-01T00:00:00Z",
            deletionTimestamp="2026-01-02T00:00:00Z" if deleting else None,
            annotations=dict(annotations or {}),
        ),
        spec=PodSpec(
            containers=[a_container(f"c{at}", ask) for at, ask in enumerate(asks)],
            initContainers=list(init) or None,
            nodeName=node,
        ),
        status=PodStatus(phase),
    )


def bound(
    pod: Pod, grant: Grant, *, version: int = 0, phase: str = "Running", sign: Sign | None = None
) -> Pod:
    """The same pod as the API server shows it after its binding."""
    meta = pod.metadata
    return Pod(
        metadata=Meta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resourceVersion=str(version) if version else "",
            creationTimestamp=meta.creationTimestamp,
            deletionTimestamp=meta.deletionTimestamp,
            annotations={**(meta.annotations or {}), GRANT: write_grant(grant, sign)},
        ),
        spec=PodSpec(
            containers=pod.spec.containers, initContainers=pod.spec.initContainers, nodeName=grant.node
        ),
        status=PodStatus(phase),
    )
