"""The ledger as people and programs look at it: a plain structure, ready for JSON, in neutral units.

Memory is bytes, compute is percent. Nothing is left out because it is empty: whoever reads it need not ask
whether a field is there.
"""

from collections.abc import Iterable

from msgspec import Struct

from accelshare.core.grant import Charge
from accelshare.core.inventory import Card
from accelshare.core.ledger import Ledger, NodeState, Tenant


class InspectedPod(Struct, kw_only=True):
    """A pod's part of one card."""

    namespace: str
    name: str
    uid: str
    dialect: str
    created: str
    memory: int
    compute: int
    exclusive: bool
    held: bool  # decided, and not yet seen bound


class InspectedCard(Struct, kw_only=True):
    id: str
    index: int
    model: str
    numa: int | None
    healthy: bool
    reason: str
    memory: int
    used: int
    free: int
    compute_used: int
    exclusive: bool
    pods: list[InspectedPod]


class InspectedProblem(Struct, kw_only=True):
    """A bound pod that asks for a card and takes no room, or room of a card that is not there."""

    namespace: str
    name: str
    uid: str
    problem: str


class InspectedFrontEnd(Struct, kw_only=True):
    unit: str
    mode: str
    offered: bool  # whether new pods are taken


class InspectedNode(Struct, kw_only=True):
    name: str
    driver: str
    injection: str
    agent: str
    leaving: bool
    problem: str
    dialects: dict[str, InspectedFrontEnd]
    memory: int
    used: int
    cards: list[InspectedCard]
    problems: list[InspectedProblem]


class Inspection(Struct):
    nodes: list[InspectedNode]


def inspect(ledger: Ledger, names: Iterable[str]) -> Inspection:
    """These nodes, in this order; names that the ledger does not know are passed over."""
    return Inspection([_node(state) for name in names if (state := ledger.nodes.get(name)) is not None])


def with_cards(ledger: Ledger) -> list[str]:
    """The names of all nodes that there is something to say about."""
    return sorted(
        name for name, state in ledger.nodes.items() if state.inventory or state.problem or state.tenants
    )


def _node(state: NodeState) -> InspectedNode:
    inventory = state.inventory
    fronts = inventory.dialects if inventory else {}
    tenants = sorted(
        state.tenants.values(), key=lambda tenant: (tenant.created, tenant.namespace, tenant.name)
    )
    return InspectedNode(
        name=state.name,
        driver=inventory.driver if inventory else "",
        injection=(inventory.injection or "") if inventory else "",
        agent=inventory.agent if inventory else "",
        leaving=inventory.leaving if inventory else False,
        problem=state.problem or (inventory.problem if inventory else "no node agent has reported its cards"),
        dialects={
            name: InspectedFrontEnd(unit=front.unit, mode=front.mode, offered=name in state.offers)
            for name, front in fronts.items()
        },
        memory=sum(card.memory for card in state.cards),
        used=sum(card.memory for card in state.cards) - sum(state.free),
        cards=[_card(state, at, card, tenants) for at, card in enumerate(state.cards)],
        problems=_problems(state, tenants),
    )


def _card(state: NodeState, at: int, card: Card, tenants: list[Tenant]) -> InspectedCard:
    return InspectedCard(
        id=card.id,
        index=card.index,
        model=card.model,
        numa=card.numa,
        healthy=card.healthy,
        reason=card.reason,
        memory=card.memory,
        used=card.memory - state.free[at],
        free=state.free[at],
        compute_used=100 - state.compute[at],
        exclusive=state.exclusive[at],
        pods=[
            _pod(tenant, charge) for tenant in tenants for charge in tenant.charges if charge.card == card.id
        ],
    )


def _pod(tenant: Tenant, charge: Charge) -> InspectedPod:
    return InspectedPod(
        namespace=tenant.namespace,
        name=tenant.name,
        uid=tenant.uid,
        dialect=tenant.dialect,
        created=tenant.created,
        memory=charge.memory,
        compute=charge.compute,
        exclusive=charge.exclusive,
        held=tenant.held,
    )


def _problems(state: NodeState, tenants: list[Tenant]) -> list[InspectedProblem]:
    here = {card.id for card in state.cards}
    found = []
    for tenant in tenants:
        missing = sorted({charge.card for charge in tenant.charges} - here)
        problem = tenant.problem or (f"its card {', '.join(missing)} is not there" if missing else "")
        if problem:
            found.append(
                InspectedProblem(
                    namespace=tenant.namespace, name=tenant.name, uid=tenant.uid, problem=problem
                )
            )
    return found
