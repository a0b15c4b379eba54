"""The interface of a dialect carries the systems that are not spoken yet: request, place, grant, write, read.

Numbers and texts are those of the systems' own documents and programs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from msgspec import structs

from accelshare.core.container import Mount
from accelshare.core.errors import BadInput
from accelshare.core.grant import ContainerGrant, Grant, Share, charges
from accelshare.core.inventory import Card, FrontEnd, Inventory
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Container, Meta, Node, Pod, PodSpec, Resources
from accelshare.core.placement import Placement, Reason, Rejection, grant, place, refusal
from accelshare.core.policy import POLICIES
from accelshare.core.units import GIB, MIB
from accelshare.dialects import DIALECTS, Dialects, unit_named
from accelshare.dialects.interface import Dialect
from accelshare.services.agent.offers import offer
from accelshare.services.scheduler.state import SchedulerState, Waiting
from accelshare.services.scheduler.verbs import filter_nodes
from tests.builders import a_node
from tests.dialects.conformance import BESIDE, CHECKS
from tests.dialects.others import BLOCKS, CORE, ROWS, Gcu, GpuManager, GpuShare, Hami

GCU, GPUSHARE, HAMI, GPUMANAGER = Gcu(), GpuShare(), Hami(), GpuManager()
OTHERS: tuple[Dialect, ...] = (GCU, GPUSHARE, HAMI, GPUMANAGER)


@pytest.fixture(autouse=True)
def spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are in the list, and so are their policies."""
    monkeypatch.setitem(BESIDE, "gpumanager", {BLOCKS: 4})
    for dialect in OTHERS:
        monkeypatch.setitem(cast(dict[str, Dialect], DIALECTS), dialect.name, dialect)
    for name, row in ROWS.items():
        monkeypatch.setitem(POLICIES, name, row)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("dialect", OTHERS, ids=lambda dialect: dialect.name)
def test_the_rules_can_be_kept(dialect: Dialect, check: Callable[[Dialect], None]) -> None:
    """By systems that count cards, percent or MiB as by one that counts units."""
    check(dialect)


# --- a node, and pods that come to it --------------------------------------------------------------------


def gpus(count: int, mib: int = 16384, model: str = "NVIDIA A10") -> tuple[Card, ...]:
    return tuple(
        Card(id=f"GPU-{at}", index=at, memory=mib * MIB, minor=at, model=model, vendor="nvidia")
        for at in range(count)
    )


def a_machine(dialect: Dialect, cards: Sequence[Card], unit: str = "") -> Ledger:
    inventory = Inventory(driver="simulated", cards=tuple(cards), dialects={dialect.name: FrontEnd(unit)})
    return Ledger.fold(Dialects(), [a_node("n1", inventory)], [])


Asked = Mapping[str, str | int | float]


def a_pod(
    name: str, *asked: Asked, init: Sequence[Asked] = (), notes: Mapping[str, str] | None = None
) -> Pod:
    return Pod(
        Meta(name=name, namespace="default", uid=f"uid-{name}", annotations=dict(notes or {})),
        PodSpec(
            [Container(f"c{at}", Resources(limits=dict(limits))) for at, limits in enumerate(asked)],
            initContainers=[
                Container(f"i{at}", Resources(limits=dict(limits))) for at, limits in enumerate(init)
            ],
            nodeName="n1",
        ),
    )


def bind(ledger: Ledger, dialect: Dialect, pod: Pod, time: int = 0) -> Grant:
    request, state = dialect.request(pod), ledger.nodes["n1"]
    assert request is not None
    assert refusal(request.shape(), state, ledger.majority_unit(dialect.name)) is None
    placement = place(request.shape(), state)
    assert isinstance(placement, Placement), placement
    made = grant(request, placement, state, pod.metadata.uid, time)
    ledger.hold(pod, made)
    assert read_back(ledger, dialect, pod, made) in (None, in_mib(made))
    return made


def in_mib(made: Grant) -> list[tuple[str, int, int, bool]]:
    """Cards and what is taken of them, as exactly as a system that writes whole MiB can say it."""
    return [(each.card, each.memory // MIB, each.compute, each.exclusive) for each in charges(made)]


def read_back(ledger: Ledger, dialect: Dialect, pod: Pod, made: Grant) -> object:
    """What the system's own annotations say of it."""
    state = ledger.nodes["n1"]
    assert state.inventory is not None
    notes = dialect.write(pod, made, state.cards)
    noted = structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=notes))
    found = dialect.read(noted, state.inventory)
    return None if found is None else in_mib(found)


def a_grant(share: Share) -> Grant:
    """Of another pod, one for each card."""
    part = ContainerGrant("c", "app", (share,))
    return Grant(dialect="any", uid=f"uid-{share.card}", node="n1", containers=(part,))


def refused(ledger: Ledger, dialect: Dialect, pod: Pod) -> dict[str, int]:
    request = dialect.request(pod)
    assert request is not None
    found = place(request.shape(), ledger.nodes["n1"])
    assert isinstance(found, Rejection)
    return found.cards


def indices(made: Grant, container: int = 0) -> list[int]:
    return [share.index for share in made.containers[container].shares]


# --- gcu -------------------------------------------------------------------------------------------------

CHAINS = (
    ("10:00.0", "0f:00.0", "0e:00.0", "0d:00.0", "0c:02.0"),
    ("10:10.0", "0f:00.0", "0e:00.0", "0d:00.0", "0c:02.0"),
    ("14:00.0", "13:00.0", "0e:04.0", "0d:00.0", "0c:02.0"),
    ("17:10.0", "16:00.0", "0e:08.0", "0d:00.0", "0c:02.0"),
    ("9b:00.0", "9a:00.0", "99:00.0", "98:00.0", "97:02.0"),
    ("9b:10.0", "9a:00.0", "99:00.0", "98:00.0", "97:02.0"),
    ("9f:00.0", "9e:00.0", "99:04.0", "98:00.0", "97:02.0"),
    ("a3:10.0", "a2:00.0", "99:08.0", "98:00.0", "97:02.0"),
)
EIGHT = tuple(
    Card(id=f"GCU-{at}", index=at, memory=16 * GIB, minor=at, vendor="enflame", pcie=chain)
    for at, chain in enumerate(CHAINS)
)


def test_gcu_takes_cards_under_the_same_switch() -> None:
    """The guide's machine: the first pod of two gets 0 and 1, the second 4 and 5, and not 2 and 3."""
    ledger = a_machine(GCU, EIGHT)
    two: Asked = {"enflame.com/gcu": 2}

    first, second = (bind(ledger, GCU, a_pod(name, two)) for name in ("a", "b"))
    assert (indices(first), indices(second)) == ([0, 1], [4, 5])
    assert [each.units for each in second.containers] == [2]
    assert all(charge.memory == 16 * GIB and charge.exclusive for charge in charges(second))
    edits = GCU.edits(a_pod("b", two), second.containers[0], second, EIGHT[4:6])
    assert edits.env == (("ENFLAME_VISIBLE_DEVICES", "4,5"),)
    assert refused(ledger, GCU, a_pod("c", {"enflame.com/gcu": 5})) == {"held whole": 4}


def test_gcu_offers_each_card_once() -> None:
    """A tenant, and a sick card, count for one id each."""
    ledger = a_machine(GCU, EIGHT)
    bind(ledger, GCU, a_pod("a", {"enflame.com/gcu": 2}))
    cards = [structs.replace(card, healthy=card.index > 1) for card in EIGHT]
    ends = {"gcu": FrontEnd("")}

    assert [device.id for device in offer(EIGHT, ends).devices["enflame.com/gcu"]] == [c.id for c in EIGHT]
    devices = offer(cards, ends, ledger.tenants.values()).devices["enflame.com/gcu"]
    assert sum(device.healthy for device in devices) == 8
    assert sum(device.healthy for device in offer(cards, ends).devices["enflame.com/gcu"]) == 6


# --- gpushare --------------------------------------------------------------------------------------------


def test_gpushare_takes_the_card_that_fits_best() -> None:
    """Free are 12207, 8138, 4069 and 16276 MiB: 8138 go to card 1."""
    ledger = a_machine(GPUSHARE, gpus(4, 16276), "MiB")
    for at, mib in enumerate((4069, 8138, 12207)):
        ledger.hold(a_pod("other"), a_grant(Share(f"GPU-{at}", at, mib * MIB)))
    state, pod = ledger.nodes["n1"], a_pod("p", {"aliyun.com/gpu-mem": 8138})

    made = bind(ledger, GPUSHARE, pod, time=7)
    assert GPUSHARE.write(pod, made, state.cards) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "8138",
        "ALIYUN_COM_GPU_MEM_DEV": "16276",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
    }
    assert GPUSHARE.edits(pod, made.containers[0], made, [state.cards[1]]).env == (
        ("NVIDIA_VISIBLE_DEVICES", "1"),
        ("ALIYUN_COM_GPU_MEM_IDX", "1"),
        ("ALIYUN_COM_GPU_MEM_POD", "8138"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "8138"),
        ("ALIYUN_COM_GPU_MEM_DEV", "16276"),
    )


def test_gpushare_loses_the_part_of_a_gib() -> None:
    """Eight cards of 24,258 MiB show 23 each, 184 together."""
    assert len(offer(gpus(8, 24258), {"gpushare": FrontEnd("GiB")}).devices["aliyun.com/gpu-mem"]) == 184


def filtered(dialect: Dialect, pod: Pod, *nodes: Node, names: list[str]) -> dict[str, str]:
    state = SchedulerState()
    for node in nodes:
        state.node_changed(node)
    request = dialect.request(pod)
    assert request is not None
    state.waiting[pod.metadata.uid] = Waiting(pod, request, request.shape())
    return filter_nodes(state, pod, names, None).failed


def test_gpushare_names_the_node() -> None:
    """Where its own scheduler does, and nowhere else."""
    full = Inventory(driver="s", cards=gpus(1), dialects={"gpushare": FrontEnd("MiB")})
    other = Inventory(driver="s", cards=gpus(1), dialects={"hami": FrontEnd("")})
    nodes = [a_node("full", full), a_node("other", other)]
    pod = a_pod("p", {"aliyun.com/gpu-mem": 20000})

    assert filtered(GPUSHARE, pod, *nodes, names=["full", "other", "nobody"]) == {
        "full": "Insufficient GPU Memory in one device",
        "other": "The node other is not for GPU share, need skip",
        "nobody": 'node "nobody" not found',
    }


# --- HAMi ------------------------------------------------------------------------------------------------


def gpu(count: int = 1, **more: int) -> Asked:
    return {"nvidia.com/gpu": count, **{f"nvidia.com/{key.replace('_', '-')}": n for key, n in more.items()}}


def test_hami_writes_a_slot_for_every_container() -> None:
    """Init containers first; one that asks nothing has an empty slot."""
    ledger = a_machine(HAMI, gpus(1))
    pod = a_pod("p", gpu(gpumem=3000), {}, gpu(gpumem=5000), init=[{}])

    made = bind(ledger, HAMI, pod, time=1_700_000_000_000_000_000)
    assert HAMI.write(pod, made, ledger.nodes["n1"].cards) == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/vgpu-devices-to-allocate": ";GPU-0,NVIDIA,3000,0:;;GPU-0,NVIDIA,5000,0:;",
        "hami.io/vgpu-devices-allocated": ";GPU-0,NVIDIA,3000,0:;;GPU-0,NVIDIA,5000,0:;",
    }


def test_hami_gives_so_much_of_each_of_several_cards() -> None:
    """The ids are the cards' count, not the MiB."""
    ledger = a_machine(HAMI, gpus(2))
    pod = a_pod("p", gpu(2, gpumem=3000, gpucores=30))

    (part,) = bind(ledger, HAMI, pod).containers
    assert (part.units, [share.memory for share in part.shares]) == (2, [3000 * MIB] * 2)
    edits = HAMI.edits(pod, part, bind(a_machine(HAMI, gpus(2)), HAMI, pod), gpus(2))
    assert edits.env == (
        ("NVIDIA_VISIBLE_DEVICES", "GPU-0,GPU-1"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "3000m"),
        ("CUDA_DEVICE_SM_LIMIT", "30"),
    )
    assert edits.mounts == (Mount("/usr/local/vgpu/containers/uid-p_c0", "/usr/local/vgpu", read_only=False),)


HAMI_CHOICES: list[tuple[str, Asked, dict[str, str], list[int]]] = [
    ("spread over the cards, unless told otherwise", gpu(gpumem=1000), {}, [2]),
    ("binpack", gpu(gpumem=1000), {"hami.io/gpu-scheduler-policy": "binpack"}, [0]),
    ("a type, whatever its capitals", gpu(gpumem=1000), {"nvidia.com/use-gputype": "t4,a10"}, [2]),
    ("not a type", gpu(gpumem=1000), {"nvidia.com/nouse-gputype": "a10"}, [1]),
    ("a UUID", gpu(gpumem=1000), {"nvidia.com/use-gpuuuid": "GPU-1"}, [1]),
    ("not a UUID", gpu(gpumem=1000), {"nvidia.com/nouse-gpuuuid": "GPU-2,GPU-3"}, [1]),
    ("percent of whichever card", gpu(gpumem_percentage=60), {}, [2]),
    ("bare: a whole card", gpu(2), {}, [2, 3]),
    ("all compute, and alone", gpu(gpumem=1000, gpucores=100), {}, [2]),
    ("both on one NUMA node", gpu(2, gpumem=1000), {"hami.io/gpu-scheduler-policy": "numa"}, [0, 1]),
]


@pytest.mark.parametrize(
    ("asked", "notes", "chosen"), [row[1:] for row in HAMI_CHOICES], ids=[row[0] for row in HAMI_CHOICES]
)
def test_hami_chooses_as_the_pod_wishes(asked: Asked, notes: dict[str, str], chosen: list[int]) -> None:
    """Of four cards of which 0 and 1 are in use, and 1 is of another type."""
    cards = [structs.replace(card, numa=card.index // 2) for card in gpus(4)]
    cards[1] = structs.replace(cards[1], model="NVIDIA H100")
    ledger = a_machine(HAMI, cards)
    for name, card, mib in (("a", 0, 8000), ("b", 1, 4000)):
        bind(ledger, HAMI, a_pod(name, gpu(gpumem=mib), notes={"nvidia.com/use-gpuuuid": f"GPU-{card}"}))

    assert indices(bind(ledger, HAMI, a_pod("p", asked, notes=notes))) == chosen


def test_hami_shares_a_card_among_ten() -> None:
    """The eleventh pod is refused, whatever is free; and kubelet is offered ten ids a card."""
    ledger = a_machine(HAMI, gpus(1))
    for at in range(10):
        bind(ledger, HAMI, a_pod(f"p{at}", gpu(gpumem=10)))

    assert refused(ledger, HAMI, a_pod("more", gpu(gpumem=10))) == {"crowded": 1}
    assert len(offer(gpus(3), {"hami": FrontEnd("")}).devices["nvidia.com/gpu"]) == 30


def test_hami_gives_all_compute_to_one_alone() -> None:
    """Nobody comes beside it although memory is left, and it goes to no card that is in use."""
    ledger = a_machine(HAMI, gpus(2))
    bind(ledger, HAMI, a_pod("alone", gpu(gpumem=1000, gpucores=100)))

    assert indices(bind(ledger, HAMI, a_pod("p", gpu(gpumem=1000)))) == [1]
    assert refused(ledger, HAMI, a_pod("q", gpu(gpumem=1, gpucores=100))) == {"held whole": 1, "in use": 1}


def test_hami_spreads_over_nodes_where_the_pod_says_so() -> None:
    """Else the fullest node comes first."""
    spread = HAMI.request(a_pod("p", gpu(), notes={"hami.io/node-scheduler-policy": "spread"}))
    plain = HAMI.request(a_pod("p", gpu()))

    assert spread is not None
    assert plain is not None
    assert (spread.node_policy, plain.node_policy) == ("emptiest", "fullest")


# --- gpumanager ------------------------------------------------------------------------------------------


def vcuda(core: int, blocks: int = 0) -> Asked:
    return {CORE: core, **({BLOCKS: blocks} if blocks else {})}


# {0, 1} and {2, 3} each under a switch, both under one host bridge; {4, 5} at another CPU.
SIX = tuple(
    structs.replace(card, pcie=(f"switch{card.index // 2}", f"host{card.index // 4}")) for card in gpus(6)
)


def test_gpumanager_writes_what_was_captured() -> None:
    """0.3 card and 5 GiB: 30 and 20 blocks, of which kubelet hands out 30 ids of the primary resource."""
    ledger = a_machine(GPUMANAGER, gpus(1), "256MiB")
    pod = a_pod("p", vcuda(30, 20))

    made = bind(ledger, GPUMANAGER, pod, time=1795029611166407555)
    assert GPUMANAGER.write(pod, made, ledger.nodes["n1"].cards) == {
        "tencent.com/gpu-assigned": "false",
        "tencent.com/predicate-gpu-idx-0": "0",
        "tencent.com/predicate-node": "n1",
        "tencent.com/predicate-time": "1795029611166407555",
    }
    (part,), (charge,) = made.containers, charges(made)
    assert (part.units, charge.memory, charge.compute) == (30, 5 * GIB, 30)
    assert [mount.host for mount in GPUMANAGER.edits(pod, part, made, gpus(1)).mounts] == [
        "/etc/gpu-manager/vdriver/nvidia",
        "/etc/gpu-manager/vm/uid-p",
    ]


def test_gpumanager_refuses_what_is_neither_a_share_nor_whole_cards() -> None:
    """With the field, the value and what is allowed."""
    with pytest.raises(BadInput, match="is 150; allowed is 1 to 99, or a multiple of 100"):
        GPUMANAGER.request(a_pod("p", vcuda(150)))


def test_gpumanager_takes_whole_cards_that_are_close() -> None:
    """Three from one host bridge; with card 2 in use, two under one switch. 100 ids a card."""
    ledger = a_machine(GPUMANAGER, SIX, "256MiB")
    three = bind(ledger, GPUMANAGER, a_pod("three", vcuda(300)))
    ledger.release("uid-three")
    share = Share("GPU-2", 2, GIB)
    ledger.hold(a_pod("other"), a_grant(share))
    two = bind(ledger, GPUMANAGER, a_pod("two", vcuda(200)))

    assert (indices(three), three.containers[0].units) == ([0, 1, 2], 300)
    assert (indices(two), two.containers[0].units) == ([0, 1], 200)
    unit = unit_named(GPUMANAGER, "256MiB")
    assert [GPUMANAGER.taken(charge, unit) for charge in charges(two)] == [100, 100]


def test_gpumanager_fills_shared_cards() -> None:
    """50 goes to card 0; 60 does not fit beside it and goes to card 1."""
    ledger = a_machine(GPUMANAGER, SIX, "256MiB")

    assert indices(bind(ledger, GPUMANAGER, a_pod("a", vcuda(50, 4)))) == [0]
    assert indices(bind(ledger, GPUMANAGER, a_pod("b", vcuda(60, 4)))) == [1]


def test_gpumanager_mixes_shares_and_whole_cards_in_a_pod() -> None:
    """Each container by its own policy, none on a card that another wants whole."""
    ledger = a_machine(GPUMANAGER, SIX, "256MiB")
    made = bind(ledger, GPUMANAGER, a_pod("p", vcuda(30, 4), vcuda(200), vcuda(30, 4)))

    assert [indices(made, at) for at in range(3)] == [[0], [2, 3], [0]]


def test_gpumanager_offers_percent_as_ids_and_counts_blocks() -> None:
    """Memory is offered too, and kubelet has no ids of it."""
    offered = offer(gpus(2), {"gpumanager": FrontEnd("256MiB")})

    assert len(offered.devices[CORE]) == 200
    assert offered.status == {BLOCKS: 128}


@pytest.mark.parametrize("dialect", OTHERS, ids=lambda dialect: dialect.name)
def test_every_refusal_is_one_of_few(dialect: Dialect) -> None:
    """Asked about another node the text differs by the node's name at most."""
    for reason in Reason:
        text = dialect.refusal(reason, "node-a")
        assert text.replace("node-a", "node-b") == dialect.refusal(reason, "node-b")
