"""Random histories of a small cluster, checked after every step against what must always hold.

    python -m tests.core.histories --count 10000       # figures
    python -m tests.core.histories --seed 17           # one history again, step by step

The world has a truth (what the API server holds), a ledger that hears of it late, twice and out of order, and
a scheduler that decides by that ledger and writes by one call, whose answer may get lost. Rules checked:

Rule 1: no card is overfilled by what we granted, counted in the truth.
Rule 2: a grant stands on its pod as it was decided, container by container, or nothing is served.
Rule 3: the ledger is the fold of what it was told, and of the holds; once it was told all, of the truth.
Rule 4: room that was taken for a binding stays taken until its outcome is known.
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from msgspec import Struct, structs

from accelshare.core.errors import BadInput
from accelshare.core.grant import GRANT, Charge, Grant, charges, grant_of, write_grant
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, read_inventory
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Container, Meta, Node, Pod, PodSpec, PodStatus
from accelshare.core.placement import Placement, Rejection, grant, place, refusal
from accelshare.core.request import PodRequest
from accelshare.core.units import GIB
from accelshare.core.verdicts import Verdicts
from accelshare.dialects import DIALECTS, Dialects, request_of
from tests.builders import a_container, a_node
from tests.core.snapshots import differences, snapshot

NODES = 3
CARDS = 4
CARD_GIB = 16
LEAST_OPERATIONS = 50

GCUSHARE = DIALECTS["gcushare"]
PER_GB = {"1GB": 1, "0.1GB": 10, "0.01GB": 100}


class Violation(Exception):
    pass


class Event(Struct, frozen=True):
    """What a watch says: an object as it was then, or that it is gone."""

    object: Node | Pod
    gone: bool = False


class Binding(Struct):
    """A binding whose room is held: decided, and not yet known to be done or refused."""

    pod: Pod
    grant: Grant
    key: str  # the ledger's; a pod has several where an earlier one is in doubt beside
    in_doubt: bool = False  # the answer was lost
    under_way: bool = False  # the write may still arrive at the API server


class View:
    """What the ledger has been told so far, kept in the most obvious way."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.gone: set[str] = set()

    def hear(self, event: Event) -> None:
        thing, uid = event.object, event.object.metadata.uid
        known = self.pods.get(uid) if isinstance(thing, Pod) else self.nodes.get(thing.name)
        if event.gone:
            self.gone.add(uid)
            if isinstance(thing, Pod):
                self.pods.pop(uid, None)
            elif known is not None and known.metadata.uid == uid:
                del self.nodes[thing.name]
        elif uid not in self.gone and (known is None or version(thing) > version(known)):
            if isinstance(thing, Pod):
                self.pods[uid] = thing
            else:
                self.nodes[thing.name] = thing


def most_at_once(decided: Grant) -> int:
    """What runs together: at the start of each container whatever is not over yet, bytes of one card."""
    sizes = [(container.role, container.shares[0].memory) for container in decided.containers]
    stages = [
        size + sum(other for before, other in sizes[:at] if before == "sidecar")
        for at, (role, size) in enumerate(sizes)
        if role == "init"
    ]
    return max([*stages, sum(size for role, size in sizes if role != "init")])


def version(thing: Node | Pod) -> int:
    return int(thing.metadata.resourceVersion)


def sign(payload: bytes) -> str:
    return hashlib.sha256(b"only the scheduler knows" + payload).hexdigest()[:16]


class World:
    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.say = say
        self.operations: Counter[str] = Counter()
        self.creates = 0
        self.bound_by_us: set[str] = set()
        self.full_steps = 0

        self.clock = 0
        self.serial = 0
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.inventories: dict[str, Inventory] = {}
        self.labelled: dict[str, bool] = {}
        self.memory: dict[str, int] = {}  # of every card that there ever was
        self.decided: dict[str, Grant] = {}  # by pod UID: what was written
        self.taken: dict[str, tuple[Charge, ...]] = {}

        self.queue: list[Event] = []
        self.delivered: list[Event] = []
        self.bindings: dict[str, Binding] = {}
        for at in range(NODES):
            self._new_node(f"n{at}")
        self._start()

    # The truth

    def _tick(self) -> str:
        self.clock += 1
        return str(self.clock)

    def _fresh(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def _card(self, index: int) -> Card:
        card = Card(id=self._fresh("GCU-"), index=index, memory=CARD_GIB * GIB, minor=index, model="T10")
        self.memory[card.id] = card.memory
        return card

    def _new_node(self, name: str) -> None:
        self.inventories[name] = Inventory(
            driver="simulated",
            cards=tuple(self._card(index) for index in range(CARDS)),
            dialects={"gcushare": FrontEnd("1GB")},
        )
        self.labelled[name] = True
        self._write_node(name, self._fresh("node-"))

    def _write_node(self, name: str, uid: str = "") -> None:
        uid = uid or self.nodes[name].metadata.uid
        version = int(self._tick())
        node = a_node(name, self.inventories[name], label=self.labelled[name], version=version, uid=uid)
        self.nodes[name] = node
        self.queue.append(Event(node))

    def _write_pod(self, pod: Pod) -> None:
        pod.metadata.resourceVersion = self._tick()
        self.pods[pod.metadata.uid] = pod
        self.queue.append(Event(pod))

    def _changed(
        self,
        uid: str,
        *,
        phase: str = "",
        node: str = "",
        deleted: str = "",
        notes: dict[str, str] | None = None,
    ) -> None:
        pod = self.pods[uid]
        meta = structs.replace(
            pod.metadata,
            annotations={**(pod.metadata.annotations or {}), **(notes or {})},
            deletionTimestamp=deleted or pod.metadata.deletionTimestamp,
        )
        spec = structs.replace(pod.spec, nodeName=node) if node else pod.spec
        self._write_pod(Pod(meta, spec, PodStatus(phase) if phase else pod.status))

    def _everything(self) -> list[Node | Pod]:
        return [*self.nodes.values(), *self.pods.values()]

    def _live(self) -> Iterator[tuple[str, Pod]]:
        return ((uid, pod) for uid, pod in self.pods.items() if not pod.finished)

    # What the scheduler service does

    def _start(self) -> None:
        """A process that knows nothing lists everything."""
        self.queue.clear()
        self.delivered.clear()
        self.bindings.clear()
        self.view = View()
        for thing in self._everything():
            self.view.hear(Event(thing))
        self.ledger = Ledger.fold(Dialects(), self.nodes.values(), self.pods.values())
        self.verdicts = Verdicts(self.ledger)

    def _tell(self, event: Event) -> None:
        thing, uid = event.object, event.object.metadata.uid
        if isinstance(thing, Pod):
            if event.gone:
                self.ledger.remove_pod(uid)
            else:
                self.ledger.set_pod(thing)
        elif event.gone:
            self.ledger.remove_node(thing.name, uid)
        else:
            self.ledger.set_node(thing)
        self.view.hear(event)
        self._settle(uid)

    def _settle(self, uid: str) -> None:
        """All holds of a pod are over once it has been seen bound, finished or gone."""
        pod = self.view.pods.get(uid)
        if uid in self.view.gone or (pod is not None and (pod.node or pod.finished)):
            for binding in self._bindings_of(uid):
                self._release(binding)

    def _bindings_of(self, uid: str) -> list[Binding]:
        return [binding for binding in self.bindings.values() if binding.grant.uid == uid]

    def _release(self, binding: Binding) -> None:
        self.ledger.release(binding.key)
        self.bindings.pop(binding.key, None)

    def _write_binding(self, binding: Binding) -> bool:
        """The API server's part: all preconditions and the write, in one transaction."""
        uid = binding.grant.uid
        pod = self.pods.get(uid)
        if pod is None or pod.node or pod.finished or pod.metadata.deletionTimestamp:
            return False
        inventory = self._seen_inventory(binding.grant.node)
        cards = inventory.cards if inventory else ()
        notes = {GRANT: write_grant(binding.grant, sign)}
        if all(any(card.id == charge.card for card in cards) for charge in charges(binding.grant)):
            notes |= GCUSHARE.write(binding.pod, binding.grant, cards)
        self._changed(uid, node=binding.grant.node, notes=notes)
        self.decided[uid] = binding.grant
        self.taken[uid] = charges(binding.grant)
        self.bound_by_us.add(uid)
        self._serve(uid)
        return True

    def _seen_inventory(self, name: str) -> Inventory | None:
        state = self.ledger.nodes.get(name)
        return state.inventory if state else None

    def _request(self, pod: Pod) -> PodRequest | None:
        request = request_of(pod)
        if request is None or not (pod.metadata.labels or {}).get("whole"):
            return request
        whole = tuple(
            structs.replace(container, ask=structs.replace(container.ask, exclusive=True))
            for container in request.containers
        )
        return structs.replace(request, containers=whole)

    # Operations: each does one thing and says whether there was anything to do

    def create(self) -> bool:
        units = Counter(inventory.dialects["gcushare"].unit for inventory in self.inventories.values())
        per_gb = PER_GB[units.most_common(1)[0][0]]
        size = self.random.choice((2, 4, 4, 8, 8, 12, 16)) * per_gb
        kind = self.random.random()
        init: list[Container] = []
        if kind < 0.6:
            plain = [a_container("main", size)]
        elif kind < 0.8:
            plain = [a_container("main", size // 2), a_container("side", size - size // 2)]
        else:
            plain = [a_container("main", size // 2)]
            init = [a_container("log", size // 4, sidecar=True), a_container("setup", size - size // 4)]
        name = self.random.choice(("train-0", "train-1")) if self.random.random() < 0.3 else self._fresh("p")
        if any(pod.metadata.name == name for pod in self.pods.values()):
            return False
        self._new_pod(name, plain, init, whole=size == 16 * per_gb and self.random.random() < 0.5)
        self.creates += 1
        return True

    def _new_pod(
        self,
        name: str,
        plain: list[Container],
        init: list[Container],
        *,
        whole: bool = False,
        node: str | None = None,
        notes: dict[str, str] | None = None,
    ) -> str:
        uid = self._fresh("uid-")
        labels = {"whole": "true"} if whole else None
        meta = Meta(name, "default", uid, creationTimestamp=f"T{uid}", labels=labels, annotations=notes)
        self._write_pod(Pod(meta, PodSpec(plain, init or None, node), PodStatus("Pending")))
        return uid

    def bind(self) -> bool:
        """kube-scheduler asks about a pod; its own view may be behind, so the pod may be bound or gone."""
        luck = self.random.random()
        if luck < 0.08:
            waiting = [
                binding.pod for uid, binding in self.bindings.items() if binding.in_doubt and "@" not in uid
            ]
        elif luck < 0.12:
            seen = [event.object for event in self.delivered if isinstance(event.object, Pod)]
            waiting = [pod for pod in seen if not pod.node and pod.metadata.uid not in self.bindings]
        else:
            waiting = [pod for uid, pod in self._live() if not pod.node and uid not in self.bindings]
        if not waiting:
            return False
        pod = self.random.choice(waiting)
        request = self._request(pod)
        if request is None:
            raise Violation(f"pod {pod.key} asks for nothing")
        fits = self._filter(request)
        if not fits:
            self.operations["bind: no node fits"] += 1
            return True
        if self.random.random() < 0.7:
            name = max(fits, key=lambda each: self.ledger.nodes[each].rank)
        else:
            name = self.random.choice(fits)
        self._bind_to(pod, request, name)
        return True

    def _filter(self, request: PodRequest) -> list[str]:
        shape, names = request.shape(), [*self.nodes, "nobody"]
        fits, refused = self.verdicts.ask(shape, names)
        majority = self.ledger.majority_unit(shape.dialect)
        for name in names:
            state = self.ledger.nodes.get(name)
            why = refusal(shape, state, majority)
            if why is None and state is not None:
                found = place(shape, state)
                why = found.reason if isinstance(found, Rejection) else None
            if (name in fits) != (why is None) or refused.get(name) != why:
                raise Violation(f"verdict on {name} is {refused.get(name)}, asked anew it is {why}")
        return fits

    def _bind_to(self, pod: Pod, request: PodRequest, name: str) -> None:
        uid, state = pod.metadata.uid, self.ledger.nodes[name]
        standing = self.bindings.get(uid)
        if standing is not None and standing.grant.node == name:
            self._post_again(standing)
            return
        placement = place(request.shape(), state)
        if not isinstance(placement, Placement):
            raise Violation(f"{name} fits and has no place")
        decided = grant(request, placement, state, uid, self.clock)
        self._check_choice(pod, request, decided)
        if standing is not None:
            self.operations["bind: elsewhere while in doubt"] += 1
            del self.bindings[uid]
            standing.key = self.ledger.put_beside(uid)
            self.bindings[standing.key] = standing
        binding = Binding(pod, decided, uid)
        self.ledger.hold(pod, decided)
        tenant = self.ledger.tenants.get(uid)
        held = tenant is not None and tenant.held  # no hold is taken for a pod seen bound, or over
        if held:
            self.bindings[uid] = binding
            for chosen in placement.cards:
                if any(state.free[at] < 0 or state.compute[at] < 0 for at in chosen):
                    raise Violation(f"a card of {name} is overfilled by {uid}")
        outcome = self.random.random()
        if outcome < 0.2 and held:
            binding.in_doubt = True
            binding.under_way = outcome < 0.1
            if not binding.under_way:
                self._write_binding(binding)
            self.operations["bind: answer lost"] += 1
        elif outcome > 0.95 or not self._write_binding(binding):
            self._release(binding)
            self.operations["bind: refused by the API server"] += 1
        else:
            self.operations["bind: done"] += 1

    def _post_again(self, binding: Binding) -> None:
        """With the very same grant. A no says nothing about the earlier call, which may have been heard."""
        self.operations["bind: posted again"] += 1
        if self._write_binding(binding):
            binding.in_doubt = False

    def land(self) -> bool:
        """A write whose answer was lost arrives at last, or never will."""
        late = [binding for binding in self.bindings.values() if binding.under_way]
        if not late:
            return False
        binding = self.random.choice(late)
        binding.under_way = False
        if self.random.random() < 0.6:
            self._write_binding(binding)
        return True

    def read_back(self) -> bool:
        """The service reads a pod of which it does not know what became of it."""
        if not self.bindings:
            return False
        self._read_back(self.random.choice(list(self.bindings.values())))
        return True

    def _read_back(self, binding: Binding) -> None:
        pod = self.pods.get(binding.grant.uid)
        if pod is None:
            self._tell(Event(binding.pod, gone=True))
        elif pod.node or pod.finished:
            self._tell(Event(pod))
        elif binding.in_doubt and not binding.under_way:
            self._release(binding)  # so long after the call that it can no longer arrive

    def deliver(self) -> bool:
        """Mostly in order; now and then an event overtakes others, also those of its own object."""
        if not self.queue:
            return False
        for _ in range(min(self.random.randint(1, 4), len(self.queue))):
            late = self.random.random() < 0.25
            event = self.queue.pop(self.random.randrange(len(self.queue)) if late else 0)
            self.operations["event out of order"] += late
            self._tell(event)
            self.delivered.append(event)
        return True

    def duplicate(self) -> bool:
        """An event comes again, however old it is."""
        if not self.delivered:
            return False
        self._tell(self.random.choice(self.delivered))
        return True

    def finish(self) -> bool:
        running = [uid for uid, pod in self._live() if pod.node]
        if not running:
            return False
        self._changed(self.random.choice(running), phase=self.random.choice(("Succeeded", "Failed")))
        return True

    def delete(self) -> bool:
        living = [uid for uid, pod in self.pods.items() if not pod.metadata.deletionTimestamp]
        if not living:
            return False
        self._changed(self.random.choice(living), deleted="now")
        return True

    def gone(self) -> bool:
        deleted = [uid for uid, pod in self.pods.items() if pod.metadata.deletionTimestamp]
        if not deleted:
            return False
        self._remove(self.random.choice(deleted))
        return True

    def _remove(self, uid: str) -> None:
        self.queue.append(Event(self.pods.pop(uid), gone=True))

    def recreate(self) -> bool:
        """A pod of the same name, as a StatefulSet makes it: another pod."""
        ours = [uid for uid in self.pods if uid in self.bound_by_us]
        if not ours:
            return False
        uid = self.random.choice(ours)
        pod = self.pods[uid]
        self._remove(uid)
        # Somebody copies the whole manifest, the grant too: it is another pod's.
        notes = dict(pod.metadata.annotations or {}) if self.random.random() < 0.3 else None
        self._new_pod(
            pod.metadata.name,
            list(pod.spec.containers or ()),
            list(pod.spec.initContainers or ()),
            notes=notes,
        )
        self.creates += 1
        return True

    def restart(self) -> bool:
        """The fence: what the old process has under way arrives before the new one lists, or never."""
        for binding in self.bindings.values():
            if binding.under_way and self.random.random() < 0.5:
                self._write_binding(binding)
        self._start()
        return True

    def relist(self) -> bool:
        """The watch was lost. What was in its queue may still come late."""
        held = {tenant.uid for tenant in self.ledger.tenants.values() if tenant.held}
        self.ledger.replace_nodes(self.nodes.values())
        self.ledger.replace_pods(self.pods.values())
        for node in [node for name, node in self.view.nodes.items() if name not in self.nodes]:
            self.view.hear(Event(node, gone=True))
        for uid, pod in list(self.view.pods.items()):
            if uid not in self.pods and pod.node and uid not in held:
                self.view.hear(Event(pod, gone=True))
            elif uid not in self.pods:
                del self.view.pods[uid]
        for thing in self._everything():
            self.view.hear(Event(thing))
            self._settle(thing.metadata.uid)
        if self.random.random() < 0.5:
            self.queue.clear()
        return True

    def unit_change(self) -> bool:
        unit = self.random.choice(list(PER_GB))
        names = list(self.nodes) if self.random.random() < 0.5 else [self.random.choice(list(self.nodes))]
        for name in names:
            self._rewrite(name, dialects={"gcushare": FrontEnd(unit)})
        return True

    def _rewrite(self, name: str, **changes: object) -> None:
        self.inventories[name] = structs.replace(self.inventories[name], **changes)
        self._write_node(name)

    def _change_card(self, change: Callable[[Card], Card | None]) -> bool:
        name = self.random.choice(list(self.nodes))
        cards = list(self.inventories[name].cards)
        at = self.random.randrange(len(cards))
        changed = change(cards[at])
        if changed is None:
            return False
        cards[at] = changed
        self._rewrite(name, cards=tuple(cards))
        return True

    def card_fails(self) -> bool:
        return self._change_card(
            lambda card: structs.replace(card, healthy=False, reason="it burns") if card.healthy else None
        )

    def card_recovers(self) -> bool:
        sick = [
            (name, at)
            for name in self.nodes
            for at, card in enumerate(self.inventories[name].cards)
            if not card.healthy
        ]
        if not sick:
            return False
        name, at = self.random.choice(sick)
        cards = list(self.inventories[name].cards)
        cards[at] = structs.replace(cards[at], healthy=True, reason="")
        self._rewrite(name, cards=tuple(cards))
        return True

    def card_replaced(self) -> bool:
        return self._change_card(lambda card: self._card(card.index))

    def label(self) -> bool:
        name = self.random.choice(list(self.nodes))
        self.labelled[name] = not self.labelled[name] or self.random.random() < 0.3
        self._write_node(name)
        return True

    def node_again(self) -> bool:
        """A node is deleted and registers anew under its name: another object, the same cards and pods."""
        name = self.random.choice(list(self.nodes))
        self.queue.append(Event(self.nodes[name], gone=True))
        self._write_node(name, self._fresh("node-"))
        return True

    def foreign(self) -> bool:
        """A pod that somebody else bound: by the older system, by nodeName, or with another's grant."""
        name = self.random.choice(list(self.nodes))
        waiting = [uid for uid, pod in self._live() if not pod.node and uid not in self.decided]
        if waiting and self.random.random() < 0.3:
            self._changed(self.random.choice(waiting), node=name)
            return True
        front_end = self.inventories[name].dialects["gcushare"]
        size = 2 * PER_GB[front_end.unit]
        kind = self.random.random()
        notes = {}
        if kind < 0.6:
            notes = {
                "enflame.com/gcu-device-id": str(self.random.randrange(CARDS + 1)),
                "enflame.com/gcu-device-memory": str(CARD_GIB * PER_GB[front_end.unit]),
                "enflame.com/gcu-device-memory-request": str(size),
                "enflame.com/gcu-device-assigned": "true",
            }
        elif kind < 0.7:
            notes = {"enflame.com/gcu-device-id": "first"}
        elif kind < 0.8 and self.decided:
            notes = {GRANT: write_grant(self.random.choice(list(self.decided.values())), sign)}
        elif kind < 0.9:
            notes = {GRANT: '{"dialect":'}
        self._new_pod(self._fresh("other"), [a_container("main", size)], [], node=name, notes=notes)
        return True

    def container_restart(self) -> bool:
        ours = [uid for uid, pod in self._live() if uid in self.decided and pod.node]
        if not ours:
            return False
        uid = self.random.choice(ours)
        self._changed(uid, phase="Running", notes={"enflame.com/gcu-device-assigned": "true"})
        self._serve(uid)
        return True

    def foreign_changes(self) -> bool:
        """The older system writes its grant after the binding, or another one."""
        others = [uid for uid, pod in self._live() if pod.node and uid not in self.decided]
        if not others:
            return False
        uid = self.random.choice(others)
        index, memory = str(self.random.randrange(CARDS)), str(CARD_GIB)
        notes = {"id": index, "memory": memory, "memory-request": str(self.random.randint(1, 4))}
        self._changed(uid, notes={f"enflame.com/gcu-device-{key}": value for key, value in notes.items()})
        return True

    # What must always hold

    def _check_choice(self, pod: Pod, request: PodRequest, decided: Grant) -> None:
        """Each container gets what it asked for, of a card that is offered; worked out in another way."""
        node = self.view.nodes[decided.node]
        inventory = read_inventory(node.annotation(INVENTORY) or "")
        healthy = {card.id: card for card in inventory.cards if card.healthy}
        unit = inventory.dialects["gcushare"].unit
        if not (node.metadata.labels or {}) or unit != self.ledger.majority_unit("gcushare"):
            raise Violation(f"node {node.name} takes no pods, and {pod.key} goes there")
        for asked, given in zip(request.containers, decided.containers, strict=True):
            (share,) = given.shares
            size = asked.ask.memory.count * GIB // PER_GB[unit]
            if (given.name, share.memory) != (asked.name, size) or share.card not in healthy:
                raise Violation(f"container {asked.name} of {pod.key} gets {given}")
        if [charge.memory for charge in charges(decided)] != [most_at_once(decided)]:
            raise Violation(f"{pod.key} is charged {charges(decided)}")

    def _serve(self, uid: str) -> None:
        """The agent's part: what the pod's annotation gives to each container is what was decided for it."""
        pod, decided = self.pods[uid], self.decided[uid]
        signed = grant_of(pod)
        if signed is None or sign(signed.payload) != signed.signature:
            raise Violation(f"grant of {uid} is lost")
        served = {container.name: container.shares for container in signed.grant.containers}
        if served != {container.name: container.shares for container in decided.containers}:
            raise Violation(f"{uid} is served {served}")
        asking = {
            container.name
            for _, container in pod.containers()
            if container.resources and container.name != ""
        }
        if not set(served) <= asking:
            raise Violation(f"{uid} has no container {set(served) - asking}")

    def check(self) -> None:
        self._check_cards()
        self._check_holds()
        self._check_served()
        folded = Ledger.fold(Dialects(), self.view.nodes.values(), self.view.pods.values())
        # Those beside come first: a pod's own hold stands where nothing was put aside after it.
        for key, binding in sorted(self.bindings.items(), key=lambda item: "@" not in item[0]):
            folded.hold(binding.pod, binding.grant)
            if key != binding.grant.uid:
                folded.put_beside(binding.grant.uid)
        self._compare(folded, "what it was told")

    def _compare(self, folded: Ledger, of: str) -> None:
        found, expected = snapshot(self.ledger), snapshot(folded)
        if found != expected:
            what = "; ".join(differences(found, expected))
            raise Violation(f"the ledger is not the fold of {of}: {what}")

    def _check_cards(self) -> None:
        memory: Counter[str] = Counter()
        compute: Counter[str] = Counter()
        pods: Counter[str] = Counter()
        whole: set[str] = set()
        for uid, taken in self.taken.items():
            pod = self.pods.get(uid)
            if pod is None or pod.finished:
                continue
            for charge in taken:
                memory[charge.card] += charge.memory
                compute[charge.card] += charge.compute
                pods[charge.card] += 1
                if charge.exclusive:
                    whole.add(charge.card)
        full = False
        for card, used in memory.items():
            if used > self.memory[card] or compute[card] > 100 or (card in whole and pods[card] > 1):
                raise Violation(
                    f"card {card} is overfilled: {used} of {self.memory[card]}, {pods[card]} pods"
                )
            full = full or self.memory[card] - used < GIB // 1000
        self.full_steps += full

    def _check_holds(self) -> None:
        for key, binding in self.bindings.items():
            tenant = self.ledger.tenants.get(key)
            if tenant is None or not tenant.held or tenant.charges != charges(binding.grant):
                raise Violation(f"the room held for {key} is lost")

    def _check_served(self) -> None:
        """Whoever is bound without a grant of ours is served nothing of ours."""
        for uid, pod in self._live():
            if uid in self.decided or not pod.node or GRANT not in (pod.metadata.annotations or {}):
                continue
            try:
                signed = grant_of(pod)
            except BadInput:
                continue
            if signed is not None and sign(signed.payload) == signed.signature:
                raise Violation(f"{uid} is served a grant that was not decided for it")

    # A history

    def run(self) -> None:
        steps = LEAST_OPERATIONS + self.random.randrange(20)
        names, weights = list(OPERATIONS), list(OPERATIONS.values())
        done = 0
        while done < steps:
            name = self.random.choices(names, weights)[0]
            if not getattr(self, name)():
                continue
            done += 1
            self.operations[name] += 1
            if self.say:
                self.say(f"{done:3} {name}")
            self.check()
        self._end()

    def _end(self) -> None:
        """Everything is delivered and every outcome known: now the ledger is the fold of the truth."""
        for binding in list(self.bindings.values()):
            binding.under_way = False
        for event in self.queue:
            self._tell(event)
        self.queue.clear()
        for binding in list(self.bindings.values()):
            self._read_back(binding)
        for event in self.queue:
            self._tell(event)
        self.check()
        self._compare(Ledger.fold(Dialects(), self.nodes.values(), self.pods.values()), "the truth")
        for uid, pod in self._live():
            if uid in self.decided and pod.node:
                self._serve(uid)


# How often each is tried; what finds nothing to do is not counted.
OPERATIONS = {
    "create": 18,
    "bind": 24,
    "deliver": 24,
    "duplicate": 6,
    "land": 4,
    "read_back": 3,
    "finish": 4,
    "delete": 3,
    "gone": 3,
    "recreate": 2,
    "restart": 1.5,
    "relist": 1.5,
    "unit_change": 1,
    "card_fails": 1.5,
    "card_recovers": 2,
    "card_replaced": 0.5,
    "label": 1,
    "node_again": 0.5,
    "foreign": 2,
    "foreign_changes": 1,
    "container_restart": 3,
}


class Report(Struct):
    histories: int = 0
    operations: Counter[str] = Counter()
    creates: int = 0
    bound: int = 0
    steps: int = 0
    full_steps: int = 0  # after which some card was full to the last unit
    histories_with_full_cards: int = 0
    violations: list[str] = []
    seconds: float = 0.0

    @property
    def bound_percent(self) -> float:
        return 100 * self.bound / self.creates if self.creates else 0.0

    def lines(self) -> list[str]:
        return [
            f"histories: {self.histories} of at least {LEAST_OPERATIONS} operations,"
            f" on {NODES} nodes of {CARDS} cards, in {self.seconds:.0f} s",
            f"bound_percent: {self.bound_percent:.1f} of {self.creates} creates",
            f"full cards: after {self.full_steps} of {self.steps} operations, in"
            f" {self.histories_with_full_cards} histories",
            "operations: " + ", ".join(f"{name} {count}" for name, count in sorted(self.operations.items())),
            f"violations: {len(self.violations)}",
            *self.violations,
        ]


def run_one(seed: int, report: Report, say: Callable[[str], None] | None = None) -> None:
    world = World(seed, say)
    try:
        world.run()
    except Violation as error:
        report.violations.append(f"python -m tests.core.histories --seed {seed}  # {error}")
    except Exception as error:
        report.violations.append(
            f"python -m tests.core.histories --seed {seed}  # {type(error).__name__}: {error}"
        )
    report.histories += 1
    report.operations.update(world.operations)
    report.creates += world.creates
    report.bound += len(world.bound_by_us)
    report.steps += sum(world.operations[name] for name in OPERATIONS)
    report.full_steps += world.full_steps
    report.histories_with_full_cards += world.full_steps > 0


def run(count: int, seconds: float | None = None, seed: int = 0) -> Report:
    """That many histories, or as many as can be begun in that time."""
    report = Report()
    start = time.monotonic()
    for at in range(count):
        if seconds is not None and time.monotonic() - start > seconds:
            break
        run_one(seed + at, report)
    report.seconds = time.monotonic() - start
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.core.histories")
    parser.add_argument("--count", type=int, default=1000, help="how many histories")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--seed", type=int, help="run this one only, and say each operation")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        report = Report()
        run_one(arguments.seed, report, print)
    else:
        report = run(arguments.count, arguments.seconds, arguments.first)
    print("\n".join(report.lines()))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
