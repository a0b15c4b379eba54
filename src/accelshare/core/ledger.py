"""The ledger: all cards and everything that was granted of them, folded from Nodes and Pods alone.

Rule 1: the same objects give the same ledger, in whatever order, however often and however late their
        events come. fold() is the definition; set_* and remove_* are the fast way to the same place.
Rule 2: a pod's room is taken from the moment its binding is decided (hold) and free when the pod has
        finished or its object is gone, never at its deletionTimestamp.
Rule 3: nothing that a user wrote can stop it: what cannot be read is kept aside with its reason.

The counters of each node (free, tenants, best_free, rank) are kept current, so that a question touches only
the nodes that it asks about.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from accelshare.core.errors import BadInput
from accelshare.core.grant import GRANT, Charge, Grant, charges, grant_of
from accelshare.core.inventory import INVENTORY, Card, Inventory, read_inventory
from accelshare.core.objects import Node, Pod, version_number
from accelshare.core.once import once
from accelshare.core.units import Unit

REMEMBERED_ENDS = 8192  # pods and nodes that are over, kept so that a late event cannot bring one back


class Offer(Struct, frozen=True):
    """How a node takes new pods of one dialect."""

    unit: Unit
    counted: bool = False  # amounts stand in the node's status, and each container needs a slot


class Reading(Protocol):
    """What the ledger has to be told about dialects."""

    def offers(self, node: Node, inventory: Inventory) -> Mapping[str, Offer]:
        """The dialects that this node takes new pods of. Raises BadInput on what no agent writes."""
        ...

    def foreign(self, pod: Pod, inventory: Inventory) -> Grant | None:
        """The grant that another system left on a bound pod. Raises BadInput where it cannot be read."""
        ...

    def concerns(self, pod: Pod) -> bool:
        """Whether this pod asks for a card, or carries another system's grant."""
        ...


class Tenant(Struct, kw_only=True, gc=False):
    """A pod that takes room on a node."""

    uid: str
    namespace: str
    name: str
    node: str
    charges: tuple[Charge, ...]
    dialect: str = ""
    unit: str = ""
    created: str = ""
    version: int = 0  # the pod's resourceVersion when last looked at
    held: bool = False  # decided by us, not yet seen bound
    beside: int = 0  # number of a hold whose outcome is in doubt while the same pod is held elsewhere too
    foreign: Pod | None = None  # granted by another system: read anew when the inventory changes
    problem: str = ""  # why it takes no room although it is bound and asks

    @property
    def key(self) -> str:
        """What the ledger knows it by. Holds in doubt beside a pod's own tenant have keys of their own."""
        return f"{self.uid}@{self.beside}" if self.beside else self.uid


class NodeState:
    """The cards of one node and what is free of each, by position."""

    __slots__ = (
        "best_free",
        "cards",
        "compute",
        "exclusive",
        "free",
        "inventory",
        "known",
        "name",
        "offers",
        "problem",
        "rank",
        "seen",
        "tenants",
        "tenants_of",
        "uid",
        "version",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = False  # whether the Node object has been seen
        self.uid = ""
        self.version = 0  # the node's resourceVersion when last looked at
        self.seen = 0  # hash of the annotation that the inventory was read from
        self.inventory: Inventory | None = None
        self.problem = ""  # why there is no inventory
        self.offers: Mapping[str, Offer] = {}
        self.cards: tuple[Card, ...] = ()
        self.tenants: dict[str, Tenant] = {}
        self.free: list[int] = []
        self.compute: list[int] = []
        self.tenants_of: list[int] = []
        self.exclusive: list[bool] = []
        self.best_free = -1
        self.rank = 0

    def count(self) -> None:
        """Works the counters out anew from the tenants: a node has few cards and few tenants."""
        position = {card.id: at for at, card in enumerate(self.cards)}
        self.free = [card.memory for card in self.cards]
        self.compute = [100] * len(self.cards)
        self.tenants_of = [0] * len(self.cards)
        self.exclusive = [False] * len(self.cards)
        for tenant in self.tenants.values():
            for charge in tenant.charges:
                at = position.get(charge.card)
                if at is None:
                    continue  # a card that was taken out: its tenant takes no room of the others
                self.free[at] -= charge.memory
                self.compute[at] -= charge.compute
                self.tenants_of[at] += 1
                self.exclusive[at] |= charge.exclusive
        self.best_free = max(
            (
                free
                for free, card, exclusive in zip(self.free, self.cards, self.exclusive, strict=True)
                if card.healthy and not exclusive
            ),
            default=-1,
        )
        total = sum(card.memory for card in self.cards)
        used = total - sum(self.free)
        # 0 for an unused node, 1 to 1001 for one in use, the fuller the higher.
        self.rank = 1 + 1000 * used // total if any(self.tenants_of) and total else 0


class Ledger:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.nodes: dict[str, NodeState] = {}
        self.tenants: dict[str, Tenant] = {}  # by Tenant.key, which is the pod's UID but for holds beside
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._units: dict[str, Counter[str]] = {}  # dialect -> how many nodes have which unit
        self.on_change: list[Callable[[str], None]] = []  # told the name of a node whose room changed
        self.on_majority: list[Callable[[str], None]] = []  # told a dialect whose majority unit changed

    @classmethod
    def fold(cls, reading: Reading, nodes: Iterable[Node], pods: Iterable[Pod]) -> "Ledger":
        ledger = cls(reading)
        for node in nodes:
            ledger.set_node(node)
        for pod in pods:
            ledger.set_pod(pod)
        return ledger

    # Nodes

    def set_node(self, node: Node) -> None:
        uid, version = node.metadata.uid, version_number(node.metadata.resourceVersion)
        if uid in self._ended:
            return
        state = self._state(node.name)
        if state.known and state.version >= version > 0:
            return
        state.uid, state.version = uid, version
        text = node.annotation(INVENTORY)
        seen = hash(text)
        if state.known and state.seen == seen:
            inventory = state.inventory  # most events of a node do not change it
            problem = state.problem if inventory is None else ""
        else:
            inventory, problem = _inventory(text)
        offers: Mapping[str, Offer] = {}
        if inventory is not None:
            try:
                offers = self._reading.offers(node, inventory)
            except BadInput as error:
                problem = str(error)
        if state.known and (state.inventory, state.problem, state.offers) == (inventory, problem, offers):
            state.seen = seen
            return
        majorities = self._majorities(state.offers.keys() | offers.keys())
        self._count_units(state, -1)
        state.known, state.seen = True, seen
        state.inventory, state.problem, state.offers = inventory, problem, offers
        state.cards = inventory.cards if inventory else ()
        self._count_units(state, +1)
        self._read_all_foreign(state)
        self._changed(state)
        self._tell_majorities(majorities)

    def remove_node(self, name: str, uid: str = "") -> None:
        """With the uid of the node that is gone, a newer node of the same name stays."""
        state = self.nodes.get(name)
        if uid:
            self._remember_end(uid)
        if state is None or (uid and state.uid != uid):
            return
        if state.uid:
            self._remember_end(state.uid)
        majorities = self._majorities(state.offers.keys())
        self._count_units(state, -1)
        state.known = False
        state.inventory, state.problem, state.offers, state.cards = None, "", {}, ()
        self._read_all_foreign(state)
        self._changed(state)
        self._tell_majorities(majorities)

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        listed = set()
        for node in nodes:
            listed.add(node.name)
            self.set_node(node)
        self.keep_nodes(listed)

    def keep_nodes(self, listed: Collection[str]) -> None:
        """A whole list has been gone through: nodes that are not in it are gone."""
        for name in [name for name, state in self.nodes.items() if state.known and name not in listed]:
            self.remove_node(name)

    def majority_unit(self, dialect: str) -> str:
        """The unit that most nodes of this dialect have; between equals, the first by name."""
        units = self._units.get(dialect)
        return min(units, key=lambda unit: (-units[unit], unit)) if units else ""

    # Pods

    def set_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid in self._ended:
            return
        if pod.finished:
            self._end(uid)
            return
        if not pod.node:
            return  # it waits; a hold of it stays until its binding is seen or given up
        version = version_number(pod.metadata.resourceVersion)
        known = self.tenants.get(uid)
        if known is not None and not known.held and known.version >= version > 0:
            return
        tenant = self._tenant(pod, version)
        if tenant is not None:
            self._put(tenant)
        elif known is not None:
            self._drop(uid)

    def remove_pod(self, uid: str) -> None:
        self._end(uid)

    def replace_pods(self, pods: Iterable[Pod], version: int = 0) -> None:
        listed = set()
        for pod in pods:
            listed.add(pod.metadata.uid)
            self.set_pod(pod)
        self.keep_pods(listed, version)

    def keep_pods(self, listed: Collection[str], version: int = 0) -> None:
        """A whole list has been gone through: pods whose UIDs are not in it are gone.

        version is the list's. A pod that was read when it was newer is none that the list could name; 0 says
        that versions are not to be compared, as after a server came back from a backup.
        """
        gone = [
            uid
            for uid, tenant in self.tenants.items()
            if not tenant.held and uid not in listed and not tenant.version > version > 0
        ]
        for uid in gone:
            self._end(uid)

    def is_over(self, uid: str) -> bool:
        """Whether this pod or node is known to be gone for good."""
        return uid in self._ended

    def hold(self, pod: Pod, grant: Grant) -> None:
        """Takes the room of a binding that has been decided and not yet been seen.

        A pod that was meanwhile seen bound, or is over, keeps what its object says.
        """
        known = self.tenants.get(grant.uid)
        if grant.uid in self._ended or (known is not None and not known.held):
            return
        self._put(
            Tenant(
                uid=grant.uid,
                namespace=pod.metadata.namespace,
                name=pod.metadata.name,
                node=grant.node,
                charges=charges(grant),
                dialect=grant.dialect,
                unit=grant.unit,
                created=pod.metadata.creationTimestamp or "",
                held=True,
            )
        )

    def put_beside(self, uid: str) -> str:
        """Makes way for another hold of the same pod without giving this one's room back; its new key."""
        tenant = self.tenants.pop(uid)
        tenants = self.nodes[tenant.node].tenants
        del tenants[uid]
        while not tenant.beside or tenant.key in self.tenants:
            tenant.beside += 1
        self.tenants[tenant.key] = tenants[tenant.key] = tenant
        return tenant.key

    def release(self, key: str) -> None:
        """Gives a hold back. A pod that was meanwhile seen bound keeps its room."""
        tenant = self.tenants.get(key)
        if tenant is not None and tenant.held:
            self._drop(key)

    # Inside

    def _state(self, name: str) -> NodeState:
        state = self.nodes.get(name)
        if state is None:
            state = self.nodes[name] = NodeState(name)
        return state

    def _tenant(self, pod: Pod, version: int) -> Tenant | None:
        if pod.annotation(GRANT) is None and not self._reading.concerns(pod):
            return None
        tenant = Tenant(
            uid=pod.metadata.uid,
            namespace=once(pod.metadata.namespace),
            name=pod.metadata.name,
            node=self._state(pod.node).name,
            charges=(),
            created=pod.metadata.creationTimestamp or "",
            version=version,
        )
        try:
            signed = grant_of(pod)
        except BadInput as error:
            tenant.problem = str(error)
            return tenant
        if signed is not None:
            tenant.charges = charges(signed.grant)
            tenant.dialect, tenant.unit = once(signed.grant.dialect), once(signed.grant.unit)
        else:
            tenant.foreign = pod
            self._read_foreign(tenant, pod, self._state(pod.node))
        return tenant

    def _read_all_foreign(self, state: NodeState) -> None:
        for tenant in state.tenants.values():
            if tenant.foreign is not None:
                self._read_foreign(tenant, tenant.foreign, state)

    def _read_foreign(self, tenant: Tenant, pod: Pod, state: NodeState) -> None:
        tenant.charges, tenant.problem = (), "bound without a grant"
        tenant.dialect = tenant.unit = ""
        if state.inventory is None:
            return
        try:
            grant = self._reading.foreign(pod, state.inventory)
        except BadInput as error:
            tenant.problem = str(error)
            return
        if grant is not None:
            tenant.charges, tenant.problem = charges(grant), ""
            tenant.dialect, tenant.unit = grant.dialect, grant.unit

    def _put(self, tenant: Tenant) -> None:
        before = self.tenants.get(tenant.key)
        if before is not None:
            if before.node == tenant.node and before.charges == tenant.charges:
                # The usual case, a hold that is now seen bound: nothing changes for anybody.
                self.tenants[tenant.key] = self.nodes[tenant.node].tenants[tenant.key] = tenant
                return
            self._drop(tenant.key)
        state = self._state(tenant.node)
        self.tenants[tenant.key] = state.tenants[tenant.key] = tenant
        self._changed(state)

    def _drop(self, key: str) -> None:
        tenant = self.tenants.pop(key, None)
        if tenant is None:
            return
        state = self.nodes[tenant.node]
        del state.tenants[key]
        self._changed(state)

    def _end(self, uid: str) -> None:
        self._remember_end(uid)
        self._drop(uid)

    def _remember_end(self, uid: str) -> None:
        self._ended[uid] = None
        if len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)

    def _count_units(self, state: NodeState, step: int) -> None:
        for dialect, offer in state.offers.items():
            units = self._units.setdefault(dialect, Counter())
            units[offer.unit.name] += step
            if not units[offer.unit.name]:
                del units[offer.unit.name]

    def _majorities(self, dialects: Iterable[str]) -> dict[str, str]:
        return {dialect: self.majority_unit(dialect) for dialect in dialects}

    def _tell_majorities(self, before: Mapping[str, str]) -> None:
        """Nodes that did not change themselves answer otherwise now."""
        for dialect, unit in before.items():
            if self.majority_unit(dialect) != unit:
                for tell in self.on_majority:
                    tell(dialect)

    def _changed(self, state: NodeState) -> None:
        state.count()
        if not state.known and not state.tenants:
            self.nodes.pop(state.name, None)
        for tell in self.on_change:
            tell(state.name)


def _inventory(text: str | None) -> tuple[Inventory | None, str]:
    if text is None:
        return None, ""
    try:
        return read_inventory(text), ""
    except BadInput as error:
        return None, str(error)
