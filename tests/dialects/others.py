"""The four systems that are not spoken yet, as far as the interface of a dialect is concerned.

Small on purpose: each speaks its system's requests, annotations, ids and env, and nothing of its routes,
webhooks or quotas. They prove that dialects/interface.py carries all five; none of them is shipped.
"""

from collections.abc import Callable, Mapping, Sequence

from accelshare.core.container import Edits, Mount
from accelshare.core.errors import BadInput
from accelshare.core.grant import Charge, ContainerGrant, Grant, Share, charges
from accelshare.core.inventory import Card, Inventory
from accelshare.core.objects import Pod
from accelshare.core.placement import Reason
from accelshare.core.policy import CardView, Policy, by_key
from accelshare.core.request import Amount, Ask, ContainerRequest, PodRequest, Selector, peak
from accelshare.core.units import GIB, MIB, Unit
from accelshare.dialects.amounts import amount
from accelshare.dialects.interface import Advertised

WHOLE = Amount(100, "percent")


def closest(cards: Sequence[CardView], count: int) -> Sequence[int]:
    """Cards under the lowest bridge that has enough of them; between equals where fewest are free."""
    under: dict[str, tuple[int, list[int]]] = {}
    for at, card in enumerate(cards):
        for height, bridge in enumerate(card.pcie):
            under.setdefault(bridge, (height, []))[1].append(at)
    sets = [(height, len(ats), ats) for height, ats in under.values() if len(ats) >= count]
    best = min(sets, default=(0, 0, list(range(len(cards)))))[2]
    return sorted(best, key=lambda at: cards[at].index)[:count]


def same_numa(cards: Sequence[CardView], count: int) -> Sequence[int]:
    nodes: dict[int | None, list[int]] = {}
    for at, card in enumerate(cards):
        nodes.setdefault(card.numa, []).append(at)
    return next((ats[:count] for ats in nodes.values() if len(ats) >= count), ())


ROWS = {
    "closest": Policy(closest),
    "same numa": Policy(same_numa),
    "least compute": by_key(lambda card: (card.compute_free, card.free, card.index)),
}


def whole(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadInput(where, text, "a whole number")
    return int(text)


def card_where(inventory: Inventory, where: str, is_it: Callable[[Card], bool]) -> Card:
    card = next(filter(is_it, inventory.cards), None)
    if card is None:
        raise BadInput(where, "?", "a card of this node")
    return card


class Gcu:
    """Enflame's whole cards: a count of cards, under the same switch where there is a choice."""

    name = "gcu"
    vendors = frozenset({"enflame"})
    primary = "enflame.com/gcu"
    managed: tuple[str, ...] = ("enflame.com/gcu",)
    units: Mapping[str, Unit] = {}

    def request(self, pod: Pod) -> PodRequest | None:
        asking = tuple(
            ContainerRequest(each.name, Ask(role, WHOLE, 100, exclusive=True), count, cards=count)
            for role, each in pod.containers()
            if (count := amount(each, self.primary))
        )
        return PodRequest(self.name, asking, "closest") if asking else None

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        return {}

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        return None

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        return Edits(env=(("ENFLAME_VISIBLE_DEVICES", ",".join(str(card.minor) for card in cards)),))

    def capacity(self, card: Card, unit: Unit) -> int:
        return 1

    def taken(self, charge: Charge, unit: Unit) -> int:
        return 1

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        return [card.id]

    def refusal(self, reason: Reason, node: str) -> str:
        return "not enough whole GCU cards" if reason is Reason.NO_ROOM else f"no gcu: {reason}"


class GpuShare:
    """Aliyun: GiB or MiB of one card, and a refusal that names the node."""

    name = "gpushare"
    vendors = frozenset({"nvidia"})
    primary = "aliyun.com/gpu-mem"
    managed: tuple[str, ...] = ("aliyun.com/gpu-mem",)
    units: Mapping[str, Unit] = {"GiB": Unit("GiB", GIB), "MiB": Unit("MiB", MIB)}

    def request(self, pod: Pod) -> PodRequest | None:
        asking = tuple(
            ContainerRequest(each.name, Ask(role, Amount(count)), count)
            for role, each in pod.containers()
            if (count := amount(each, self.primary))
        )
        return PodRequest(self.name, asking, "fullest", together=True) if asking else None

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        (charge,) = charges(grant)
        card = next(card for card in cards if card.id == charge.card)
        return {
            "ALIYUN_COM_GPU_MEM_IDX": str(card.minor),
            "ALIYUN_COM_GPU_MEM_POD": str(peak((each.role, each.units) for each in grant.containers)),
            "ALIYUN_COM_GPU_MEM_DEV": str(self.units[grant.unit].count(card.memory)),
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(grant.time),
        }

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        index, size, total = (pod.annotation(f"ALIYUN_COM_GPU_MEM_{key}") for key in ("IDX", "POD", "DEV"))
        if index is None or size is None or total is None:
            return None
        minor, units, of = whole(index, "IDX"), whole(size, "POD"), whole(total, "DEV")
        card = card_where(inventory, "IDX", lambda card: card.minor == minor)
        unit = next((unit for unit in self.units.values() if unit.count(card.memory) == of), None)
        if unit is None:
            raise BadInput("DEV", of, "what the card has")
        share = Share(card.id, card.index, unit.bytes(units))
        return _granted(self.name, pod, (ContainerGrant("", "app", (share,), units),), unit.name)

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        (card,) = cards[:1]
        total = self.units[grant.unit].count(card.memory)
        values = {"IDX": card.minor, "POD": container.units, "CONTAINER": container.units, "DEV": total}
        env = [("NVIDIA_VISIBLE_DEVICES", str(card.minor))]
        env += [(f"ALIYUN_COM_GPU_MEM_{key}", str(value)) for key, value in values.items()]
        return Edits(env=tuple(env))

    def capacity(self, card: Card, unit: Unit) -> int:
        return unit.count(card.memory)

    def taken(self, charge: Charge, unit: Unit) -> int:
        return unit.nearest(charge.memory)

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        return [f"{card.id}-_-{n}" for n in range(unit.count(card.memory))]

    def refusal(self, reason: Reason, node: str) -> str:
        return {
            Reason.UNKNOWN_NODE: f'node "{node}" not found',
            Reason.NOT_OFFERED: f"The node {node} is not for GPU share, need skip",
            Reason.NO_ROOM: "Insufficient GPU Memory in one device",
        }.get(reason, f"The node {node} takes no such pod: {reason}")

    def started(self, pod: Pod) -> dict[str, str]:
        key = "ALIYUN_COM_GPU_MEM_ASSIGNED"
        return {key: "true"} if pod.annotation(key) == "false" else {}

    def counted(self, cards: Sequence[Card]) -> tuple[Advertised, ...]:
        return (Advertised("aliyun.com/gpu-count", len(cards)),)


class Hami:
    """HAMi: so many cards, MiB or percent and compute of each; wishes in annotations; slots in write."""

    name = "hami"
    vendors = frozenset({"nvidia"})
    primary = "nvidia.com/gpu"
    managed: tuple[str, ...] = (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
    )
    units: Mapping[str, Unit] = {}
    split = 10  # containers that share a card

    def request(self, pod: Pod) -> PodRequest | None:
        asking = []
        for role, each in pod.containers():
            count, mib, percent, cores = (amount(each, resource) for resource in self.managed)
            if not count:
                continue
            memory = Amount(mib * MIB, "byte") if mib else Amount(min(percent or 100, 100), "percent")
            compute = 100 if cores is None and memory == WHOLE else min(cores or 0, 100)
            ask = Ask(role, memory, compute, exclusive=compute == 100)
            asking.append(ContainerRequest(each.name, ask, count, cards=count))
        if not asking:
            return None
        wish = (pod.metadata.annotations or {}).get
        policy = {"binpack": "fullest", "numa": "same numa", "topology-aware": "closest"}
        return PodRequest(
            self.name,
            tuple(asking),
            policy.get(wish("hami.io/gpu-scheduler-policy", ""), "emptiest"),
            selector=Selector(
                models=_list(wish("nvidia.com/use-gputype")),
                not_models=_list(wish("nvidia.com/nouse-gputype")),
                ids=_list(wish("nvidia.com/use-gpuuuid")),
                not_ids=_list(wish("nvidia.com/nouse-gpuuuid")),
            ),
            node_policy="emptiest" if wish("hami.io/node-scheduler-policy") == "spread" else "fullest",
            most=self.split,
        )

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        shares = {each.name: each.shares for each in grant.containers}
        slots = "".join(
            "".join(f"{s.card},NVIDIA,{s.memory // MIB},{s.compute}:" for s in shares.get(each.name, ()))
            + ";"
            for _, each in pod.containers()
        )
        return {
            "hami.io/vgpu-node": grant.node,
            "hami.io/vgpu-time": str(grant.time // 10**9),
            "hami.io/vgpu-devices-to-allocate": slots,
            "hami.io/vgpu-devices-allocated": slots,
        }

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        key = "hami.io/vgpu-devices-allocated"
        slots = (pod.annotation(key) or "").split(";")
        found = [
            ContainerGrant(each.name, role, shares, len(shares))
            for (role, each), slot in zip(pod.containers(), slots, strict=False)
            if (shares := tuple(self._share(text, inventory, key) for text in slot.split(":") if text))
        ]
        return _granted(self.name, pod, tuple(found)) if found else None

    def _share(self, text: str, inventory: Inventory, key: str) -> Share:
        fields = text.split(",")
        if len(fields) != 4:
            raise BadInput(key, text, "UUID,NVIDIA,MiB,cores")
        card = card_where(inventory, key, lambda card: card.id == fields[0])
        cores = whole(fields[3], key)
        return Share(card.id, card.index, whole(fields[2], key) * MIB, cores, exclusive=cores == 100)

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        env = [("NVIDIA_VISIBLE_DEVICES", ",".join(card.id for card in cards))]
        for at, share in enumerate(container.shares):
            env.append((f"CUDA_DEVICE_MEMORY_LIMIT_{at}", f"{share.memory // MIB}m"))
        env.append(("CUDA_DEVICE_SM_LIMIT", str(container.shares[0].compute)))
        folder = f"/usr/local/vgpu/containers/{grant.uid}_{container.name}"
        return Edits(env=tuple(env), mounts=(Mount(folder, "/usr/local/vgpu", read_only=False),))

    def capacity(self, card: Card, unit: Unit) -> int:
        return self.split

    def taken(self, charge: Charge, unit: Unit) -> int:
        return 1

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        return [f"{card.id}-{n}" for n in range(self.split)]

    def refusal(self, reason: Reason, node: str) -> str:
        return {Reason.NO_ROOM: "NodeUnfitPod", Reason.UNKNOWN_NODE: "node unregistered"}.get(
            reason, f"NodeUnfitPod: {reason}"
        )


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


CORE, BLOCKS = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


class GpuManager:
    """Tencent: percent and blocks of one card, or hundreds of percent: whole cards that are close."""

    name = "gpumanager"
    vendors = frozenset({"nvidia"})
    primary = CORE
    managed: tuple[str, ...] = (CORE, BLOCKS)
    units: Mapping[str, Unit] = {"256MiB": Unit("256MiB", 256 * MIB)}

    def request(self, pod: Pod) -> PodRequest | None:
        asking = []
        for each in pod.spec.containers or ():
            core, blocks = amount(each, CORE) or 0, amount(each, BLOCKS) or 0
            if core > 100 and core % 100:
                raise BadInput(f"{CORE} of container {each.name}", core, "1 to 99, or a multiple of 100")
            if core >= 100:
                ask = Ask("app", WHOLE, 100, exclusive=True)
                asking.append(ContainerRequest(each.name, ask, core, core // 100, "closest"))
            elif core and blocks:
                asking.append(ContainerRequest(each.name, Ask("app", Amount(blocks), core), core))
        return PodRequest(self.name, tuple(asking), "least compute") if asking else None

    def write(self, pod: Pod, grant: Grant, cards: Sequence[Card]) -> dict[str, str]:
        shares = {each.name: each.shares for each in grant.containers}
        notes = {
            f"tencent.com/predicate-gpu-idx-{at}": ",".join(str(s.index) for s in shares[each.name])
            for at, each in enumerate(pod.spec.containers or ())
            if each.name in shares
        }
        return notes | {
            "tencent.com/predicate-node": grant.node,
            "tencent.com/predicate-time": str(grant.time),
            "tencent.com/gpu-assigned": "false",
        }

    def read(self, pod: Pod, inventory: Inventory) -> Grant | None:
        request = self.request(pod)
        asks = {each.name: each for each in request.containers} if request else {}
        unit = self.units["256MiB"]
        found = []
        for at, each in enumerate(pod.spec.containers or ()):
            key = f"tencent.com/predicate-gpu-idx-{at}"
            text, asked = pod.annotation(key), asks.get(each.name)
            if text is None or asked is None:
                continue
            indices = [whole(part, key) for part in text.split(",")]
            cards = [card_where(inventory, key, lambda card, n=n: card.index == n) for n in indices]  # type: ignore[misc]
            ask = asked.ask
            shares = tuple(
                Share(c.id, c.index, ask.memory.bytes_on(c.memory, unit), ask.compute, ask.exclusive)
                for c in cards
            )
            found.append(ContainerGrant(each.name, "app", shares, asked.ids))
        return _granted(self.name, pod, tuple(found), unit.name) if found else None

    def edits(self, pod: Pod, container: ContainerGrant, grant: Grant, cards: Sequence[Card]) -> Edits:
        libraries = "origin" if container.shares[0].exclusive else "nvidia"
        return Edits(
            env=(("NVIDIA_VISIBLE_DEVICES", ",".join(card.id for card in cards)),),
            mounts=(
                Mount(f"/etc/gpu-manager/vdriver/{libraries}", "/usr/local/nvidia"),
                Mount(f"/etc/gpu-manager/vm/{grant.uid}", "/etc/vcuda"),
            ),
        )

    def capacity(self, card: Card, unit: Unit) -> int:
        return 100

    def taken(self, charge: Charge, unit: Unit) -> int:
        return charge.compute

    def ids(self, card: Card, unit: Unit) -> Sequence[str]:
        return [f"{CORE}-{card.index * 100 + n}" for n in range(100)]

    def refusal(self, reason: Reason, node: str) -> str:
        return {Reason.NOT_OFFERED: "no GPU device", Reason.NO_ROOM: "no free node"}.get(
            reason, f"no GPU device for it: {reason}"
        )

    def counted(self, cards: Sequence[Card]) -> tuple[Advertised, ...]:
        return (Advertised(BLOCKS, sum(card.memory for card in cards) // (256 * MIB)),)


def _granted(name: str, pod: Pod, containers: tuple[ContainerGrant, ...], unit: str = "") -> Grant:
    return Grant(dialect=name, uid=pod.metadata.uid, node=pod.node, containers=containers, unit=unit)
