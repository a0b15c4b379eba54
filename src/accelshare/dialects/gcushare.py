"""GCUShare, generation A (the guide of 2022): pods ask for `enflame.com/gcu-memory` in parts of a GB.

Rules of the guide: all containers of a pod share one card; one share never spans cards; the fullest card
that fits is taken, ties go to the lowest index; only nodes labelled enflame.com/gcushare=true take part.

Zero means "not this container": a pod whose sum is zero asks for nothing.
"""

from collections.abc import Mapping, Sequence

from accelshare.core.container import Edits
from accelshare.core.errors import BadInput
from accelshare.core.grant import Charge, ContainerGrant, Grant, Share, charges
from accelshare.core.inventory import Card, Inventory
from accelshare.core.ledger import Ledger, NodeState, Tenant
from accelshare.core.objects import Pod
from accelshare.core.placement import Reason
from accelshare.core.request import Amount, Ask, ContainerRequest, PodRequest, peak
from accelshare.core.units import GIB, Unit
from accelshare.dialects.amounts import amount
from accelshare.dialects.interface import Advertised

MEMORY = "enflame.com/gcu-memory"
COUNT = "enflame.com/gcu-count"

ID = "enflame.com/gcu-device-id"
CARD_MEMORY = "enflame.com/gcu-device-memory"
REQUESTED = "enflame.com/gcu-device-memory-request"
ASSIGNED = "enflame.com/gcu-device-assigned"
TIME = "enflame.com/gcu-device-assign-time"

_REFUSALS = {
    Reason.NO_ROOM: "insufficient GCU Memory in one gcu device",
    Reason.NOT_OFFERED: "node takes no gcushare pods: label enflame.com/gcushare=true or agent is missing",
    Reason.NO_AGENT: "node has no accelshare agent that reports its cards",
    Reason.UNREADABLE: "node's accelshare.io/inventory annotation cannot be read",
    Reason.CLOSED: "node's accelshare agent takes no new pods now: see accelshare inspect",
    Reason.UNKNOWN_NODE: "node is not in accelshare's ledger yet",
    Reason.OTHER_UNIT: "node counts gcu-memory in another unit than most nodes",
    Reason.NO_SLOT: "pod lacks the accelshare.io/slot that counted nodes need: create it again",
}


class GcuShare:
    name = "gcushare"
    vendors = frozenset({"enflame"})
    primary = MEMORY
    managed: tuple[str, ...] = (MEMORY,)
    units: Mapping[str, Unit] = {
        "1GB": Unit("1GB", GIB),
        "0.1GB": Unit("0.1GB", GIB, 10),
        "0.01GB": Unit("0.01GB", GIB, 100),
        "0.001GB": Unit("0.001GB", GIB, 1000),
    }
    node_label = ("enflame.com/gcushare", "true")
    route = "/gcushare-scheduler"

    def request(self, pod: Pod) -> PodRequest | None:
        asking = [
            ContainerRequest(container.name, Ask(role, Amount(count)), count)
            for role, container in pod.containers()
            if (count := amount(container, MEMORY))
        ]
        if not asking:
            return None
        return PodRequest(self.name, tuple(asking), "fullest", together=True)

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        unit = self.units[grant.unit]
        (charge,) = charges(grant)
        card = next(card for card in cards if card.id == charge.card)
        return {
            ID: str(card.index),
            CARD_MEMORY: str(unit.count(card.memory)),
            REQUESTED: str(peak((container.role, container.units) for container in grant.containers)),
            ASSIGNED: "false",
            TIME: str(grant.time),
        }

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        if pod.annotation(ID) is None:
            return None
        index = _number(pod, ID)
        card = next((card for card in inventory.cards if card.index == index), None)
        if card is None:
            raise BadInput(f"annotation {ID}", index, "the index of a card of this node")
        unit = self._unit_of(card, _number(pod, CARD_MEMORY))
        requested = _number(pod, REQUESTED)
        share = Share(card.id, card.index, unit.bytes(requested))
        return Grant(
            dialect=self.name,
            uid=pod.metadata.uid,
            node=pod.node,
            containers=(ContainerGrant("", "app", (share,), requested),),
            unit=unit.name,
        )

    def _unit_of(self, card: Card, total: int) -> Unit:
        """The guide's annotations name no unit: it is the one in which this card has that many."""
        for unit in self.units.values():
            if unit.count(card.memory) == total:
                return unit
        allowed = ", ".join(str(unit.count(card.memory)) for unit in self.units.values())
        raise BadInput(
            f"annotation {CARD_MEMORY}", total, f"what card {card.index} has in some unit: {allowed}"
        )

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        return Edits(
            env=(
                ("ENFLAME_VISIBLE_DEVICES", ",".join(str(card.minor) for card in cards)),
                ("ENFLAME_GCU_MEMORY", str(container.units)),
                ("ENFLAME_GCU_MEMORY_UNIT", grant.unit),
            )
        )

    def capacity(self, card: Card, unit: Unit) -> int:
        return unit.count(card.memory)

    def taken(self, charge: Charge, unit: Unit) -> int:
        return unit.nearest(charge.memory)

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        return [f"{card.id}-_-{n}" for n in range(self.capacity(card, unit))]

    def refusal(self, reason: Reason, node: str) -> str:
        return _REFUSALS.get(reason, str(reason))

    def started(self, pod: Pod) -> dict[str, str]:
        return {ASSIGNED: "true"} if pod.annotation(ASSIGNED) == "false" else {}

    def counted(self, cards: Sequence[Card]) -> tuple[Advertised, ...]:
        return (Advertised(COUNT, len(cards)),)

    def inspect(self, ledger: Ledger, names: Sequence[str]) -> object:
        states = [state for name in names if (state := ledger.nodes.get(name)) and self.name in state.offers]
        return {"nodes": [self._node(state) for state in states]}

    def _node(self, state: NodeState) -> dict[str, object]:
        unit = state.offers[self.name].unit
        devices = [self._device(state, at, card, unit) for at, card in enumerate(state.cards)]
        total = sum(unit.count(card.memory) for card in state.cards)
        used = sum(unit.nearest(card.memory - state.free[at]) for at, card in enumerate(state.cards))
        return {
            "name": state.name,
            "totalGCU": total,
            "usedGCU": used,
            "availableGCU": total - used,
            "devices": devices,
        }

    def _device(self, state: NodeState, at: int, card: Card, unit: Unit) -> dict[str, object]:
        total = unit.count(card.memory)
        used = unit.nearest(card.memory - state.free[at])
        pods = [
            _pod(tenant, charge.memory, unit)
            for tenant in sorted(state.tenants.values(), key=lambda tenant: (tenant.created, tenant.name))
            for charge in tenant.charges
            if charge.card == card.id
        ]
        return {
            "id": card.index,
            "totalGCU": total,
            "usedGCU": used,
            "availableGCU": total - used,
            "pods": pods,
        }


def _pod(tenant: Tenant, memory: int, unit: Unit) -> dict[str, object]:
    return {
        "name": tenant.name,
        "namespace": tenant.namespace,
        "uid": tenant.uid,
        "createTime": tenant.created,
        "usedGCU": unit.nearest(memory),
    }


def _number(pod: Pod, key: str) -> int:
    text = pod.annotation(key)
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadInput(f"annotation {key}", text, "a whole number")
    return int(text)
