"""The dialects that are spoken here. To add one: a module in this folder, and its line in DIALECTS.

What the ledger, the scheduler service and the agent need to know of dialects they ask this module, so that
nobody else names one.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec import structs

from accelshare.core.errors import BadInput
from accelshare.core.grant import Grant
from accelshare.core.inventory import Inventory
from accelshare.core.ledger import Offer
from accelshare.core.objects import Node, Pod
from accelshare.core.request import PodRequest
from accelshare.core.units import BYTE, Unit
from accelshare.dialects.amounts import amount
from accelshare.dialects.gcushare import GcuShare
from accelshare.dialects.interface import Dialect, SelectsNodes

_ALL: tuple[Dialect, ...] = (
    GcuShare(),
)  # fmt: skip

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in _ALL}

SLOT = "accelshare.io/slot"

_MANAGED = frozenset(resource for dialect in _ALL for resource in dialect.managed)


def speaks(pod: Pod) -> bool:
    """Whether any container names a resource of any dialect. Cheap: it is asked about every pod there is."""
    for containers in (pod.spec.containers, pod.spec.initContainers):
        for container in containers or ():
            resources = container.resources
            if resources is None:
                continue
            for amounts in (resources.limits, resources.requests):
                if amounts and not _MANAGED.isdisjoint(amounts):
                    return True
    return False


def request_of(pod: Pod, dialects: Iterable[Dialect] = _ALL) -> PodRequest | None:
    """What the pod asks for, in whichever dialect it asks. Raises BadInput, also where it mixes two."""
    found = [(dialect, request) for dialect in dialects if (request := dialect.request(pod)) is not None]
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(dialect.primary for dialect, _ in found)
        raise BadInput("resources of one pod", names, "the resources of one system only")
    request = found[0][1]
    asking = {container.name for container in request.containers}
    slots = all(amount(container, SLOT) for _, container in pod.containers() if container.name in asking)
    return request if slots else structs.replace(request, slots=False)


def unit_named(dialect: Dialect, name: str) -> Unit:
    """One that has no units counts in bytes, and its name is empty."""
    unit = dialect.units.get(name) if dialect.units or name else BYTE
    if unit is None:
        raise BadInput(f"unit of {dialect.name}", name, ", ".join(dialect.units) or "none: it has no units")
    return unit


def selected(dialect: Dialect, node: Node) -> bool:
    """Whether the node carries the label that the dialect asks for, if it asks for any."""
    if not isinstance(dialect, SelectsNodes):
        return True
    key, value = dialect.node_label
    return (node.metadata.labels or {}).get(key) == value


@lru_cache(maxsize=256)
def _mapping(offers: tuple[tuple[str, Offer], ...]) -> Mapping[str, Offer]:
    """One mapping for all the nodes that offer the same."""
    return MappingProxyType(dict(offers))


class Dialects:
    """core.ledger.Reading, over all dialects."""

    def offers(self, node: Node, inventory: Inventory) -> Mapping[str, Offer]:
        if inventory.leaving or inventory.problem:
            return {}
        offers = []
        for name, front_end in inventory.dialects.items():
            dialect = DIALECTS.get(name)
            if dialect is not None and selected(dialect, node):  # a newer agent may speak more than we do
                offer = Offer(unit_named(dialect, front_end.unit), front_end.mode == "counted")
                offers.append((name, offer))
        return _mapping(tuple(offers))

    def foreign(self, pod: Pod, inventory: Inventory) -> Grant | None:
        for dialect in _ALL:
            grant = dialect.read(pod, inventory)
            if grant is not None:
                return grant
        return None

    def concerns(self, pod: Pod) -> bool:
        if not speaks(pod):
            return False
        try:
            return request_of(pod) is not None  # who names a resource and asks for none of it takes no room
        except BadInput:
            return True
