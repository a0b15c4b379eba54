"""Placement: the policy's card among those that fit, or reasons that are counted."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec import structs

from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import Card
from accelshare.core.ledger import Ledger, NodeState
from accelshare.core.objects import Node, Pod
from accelshare.core.placement import Placement, Reason, Rejection, grant, place, refusal
from accelshare.core.policy import POLICIES, CardView, Policy
from accelshare.core.request import Amount, Ask, ContainerRequest, Group, PodRequest, Selector, Shape
from accelshare.core.units import GIB
from accelshare.dialects import Dialects
from tests.builders import a_card, a_node, a_pod, an_inventory, cards

# What is in use of each card: (GiB, compute, exclusive).
Use = tuple[int, int, bool]


def a_state(of: Sequence[Card] = cards(4), used: Mapping[int, Use] | None = None) -> NodeState:
    ledger = Ledger.fold(Dialects(), [a_node("n1", an_inventory(of))], [])
    for at, (gib, compute, exclusive) in (used or {}).items():
        share = Share(of[at].id, of[at].index, gib * GIB, compute, exclusive)
        ledger.hold(a_pod(), a_grant(f"uid-{at}", share))
    return ledger.nodes["n1"]


def a_grant(uid: str, *shares: Share) -> Grant:
    return Grant(dialect="gcushare", uid=uid, node="n1", containers=(ContainerGrant("c", "app", shares),))


WHOLE = Ask("app", Amount(100, "percent"), 100, exclusive=True)


def share(gib: int) -> Ask:
    return Ask("app", Amount(gib))


def a_shape(*groups: Group, policy: str = "fullest", selector: Selector | None = None) -> Shape:
    return Shape("gcushare", groups, policy, selector or Selector())


def one(ask: Ask, count: int = 1) -> Group:
    return Group((ask,), count)


def used(**by_card: Use) -> dict[int, Use]:
    return {int(name[1:]): use for name, use in by_card.items()}


FITS: list[tuple[str, Shape, dict[int, Use], tuple[tuple[int, ...], ...]]] = [
    ("an unused node: the lowest index", a_shape(one(share(4))), {}, ((0,),)),
    ("the fullest that fits", a_shape(one(share(4))), used(c1=(4, 0, False), c2=(12, 0, False)), ((2,),)),
    (
        "not the fullest where it does not fit",
        a_shape(one(share(5))),
        used(c1=(4, 0, False), c2=(12, 0, False)),
        ((1,),),
    ),
    ("a tie: the lowest index", a_shape(one(share(1))), used(c1=(4, 0, False), c3=(4, 0, False)), ((1,),)),
    ("exactly what is left", a_shape(one(share(4))), used(c2=(12, 0, False)), ((2,),)),
    ("a whole card's memory", a_shape(one(share(16))), used(c0=(1, 0, False)), ((1,),)),
    (
        "the emptiest",
        a_shape(one(share(1)), policy="emptiest"),
        used(c0=(1, 0, False), c2=(3, 0, False)),
        ((1,),),
    ),
    ("several cards", a_shape(one(share(4), 3)), used(c2=(4, 0, False), c0=(14, 0, False)), ((2, 1, 3),)),
    ("several groups", a_shape(one(share(12)), one(share(8))), {}, ((0,), (1,))),
    ("several groups on one card", a_shape(one(share(8)), one(share(8))), {}, ((0,), (0,))),
    (
        "a group fills what the one before it left",
        a_shape(one(share(4)), one(share(4)), policy="emptiest"),
        {},
        ((0,), (1,)),
    ),
    (
        "containers that share a card need their sum",
        a_shape(Group((share(8), share(6)))),
        used(c0=(4, 0, False)),
        ((1,),),
    ),
    (
        "an init container runs before the others",
        a_shape(Group((Ask("init", Amount(12)), share(12)))),
        used(c3=(4, 0, False)),
        ((3,),),
    ),
    (
        "the whole card: an unused one",
        a_shape(one(WHOLE)),
        used(c0=(1, 0, False)),
        ((1,),),
    ),
    ("two whole cards", a_shape(one(WHOLE, 2)), used(c1=(1, 0, False)), ((0, 2),)),
    (
        "alone, also beside the pod's other containers",
        a_shape(one(share(1)), one(Ask("app", Amount(1), exclusive=True)), one(share(1))),
        {},
        ((0,), (1,), (0,)),
    ),
    (
        "an init container is over before the one that wants to be alone",
        a_shape(one(Ask("init", Amount(1), exclusive=True)), one(Ask("app", Amount(1), exclusive=True))),
        {},
        ((0,), (0,)),
    ),
    (
        "containers that share a card may be alone together",
        a_shape(Group((Ask("app", Amount(4), exclusive=True), share(4)))),
        used(c0=(1, 0, False)),
        ((1,),),
    ),
    (
        "a card that is not crowded",
        structs.replace(a_shape(one(share(1))), most=1),
        used(c0=(4, 0, False)),
        ((1,),),
    ),
    (
        "nothing beside a whole card",
        a_shape(one(share(1))),
        used(c0=(0, 0, True), c1=(8, 0, False)),
        ((1,),),
    ),
    (
        "compute that is left",
        a_shape(one(Ask("app", Amount(1), compute=50))),
        used(c0=(8, 60, False), c1=(4, 50, False)),
        ((1,),),
    ),
    (
        "best effort beside oversold compute",
        a_shape(one(share(1))),
        used(c0=(8, 130, False)),
        ((0,),),
    ),
    (
        "bytes",
        a_shape(one(Ask("app", Amount(4 * GIB, "byte")))),
        used(c1=(12, 0, False)),
        ((1,),),
    ),
    ("percent", a_shape(one(Ask("app", Amount(25, "percent")))), used(c1=(12, 0, False)), ((1,),)),
    ("an id", a_shape(one(share(1)), selector=Selector(ids=("GCU-2",))), {}, ((2,),)),
    ("not an id", a_shape(one(share(1)), selector=Selector(not_ids=("GCU-0",))), {}, ((1,),)),
]


@pytest.mark.parametrize(("shape", "use", "chosen"), [row[1:] for row in FITS], ids=[row[0] for row in FITS])
def test_the_cards_that_are_taken(
    shape: Shape, use: dict[int, Use], chosen: tuple[tuple[int, ...], ...]
) -> None:
    """For each group, in the policy's order."""
    assert place(shape, a_state(used=use)) == Placement(chosen)


SICK = (a_card(0, healthy=False), a_card(1), a_card(2, model="S60"), a_card(3))

REFUSED: list[tuple[str, Shape, Sequence[Card], dict[int, Use], dict[str, int]]] = [
    ("20 of 16, though 64 are free", a_shape(one(share(20))), cards(4), {}, {"memory": 4}),
    (
        "never over two cards",
        a_shape(one(share(9))),
        cards(2),
        used(c0=(8, 0, False), c1=(8, 0, False)),
        {"memory": 2},
    ),
    (
        "a sum over containers",
        a_shape(Group((share(10), share(10)))),
        cards(4),
        {},
        {"memory": 4},
    ),
    (
        "each card for its own reason",
        a_shape(one(Ask("app", Amount(4), compute=50)), selector=Selector(not_models=("S60",))),
        (*SICK, a_card(4), a_card(5)),
        used(c1=(0, 0, True), c3=(14, 0, False), c4=(1, 51, False), c5=(14, 80, False)),
        {"unhealthy": 1, "not wanted": 1, "held whole": 1, "memory": 2, "compute": 1},
    ),
    (
        "in use, where a whole card is asked for",
        a_shape(one(WHOLE)),
        cards(2),
        used(c0=(1, 0, False), c1=(16, 100, True)),
        {"in use": 1, "held whole": 1},
    ),
    ("three of two cards", a_shape(one(share(1), 3)), cards(2), {}, {}),
    (
        "the second group",
        a_shape(one(share(12)), one(share(12))),
        cards(1),
        {},
        {"memory": 1},
    ),
    (
        "no such model",
        a_shape(one(share(1)), selector=Selector(models=("A100", "H100"))),
        cards(3),
        {},
        {"not wanted": 3},
    ),
    ("no cards at all", a_shape(one(share(1))), (), {}, {}),
    (
        "as many pods as the request bears",
        structs.replace(a_shape(one(share(1))), most=1),
        cards(2),
        used(c0=(1, 0, False), c1=(1, 0, False)),
        {"crowded": 2},
    ),
]


@pytest.mark.parametrize(
    ("shape", "of", "use", "reasons"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_no_room_counts_its_reasons(
    shape: Shape, of: Sequence[Card], use: dict[int, Use], reasons: dict[str, int]
) -> None:
    """One reason a card; it is a value, no exception."""
    assert place(shape, a_state(of, use)) == Rejection(Reason.NO_ROOM, reasons)


def test_a_policy_may_find_no_such_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the cards fits, and no two of them are on one NUMA node: a refusal like any other."""

    def same_numa(views: Sequence[CardView], count: int) -> Sequence[int]:
        return next((pair for pair in [(0, 1)] if views[0].numa == views[1].numa), ())[:count]

    monkeypatch.setitem(POLICIES, "same numa", Policy(same_numa))
    far = [structs.replace(card, numa=card.index) for card in cards(2)]
    shape = a_shape(one(share(1), 2), policy="same numa")

    assert place(shape, a_state(cards(2))) == Placement(((0, 1),))
    assert place(shape, a_state(far)) == Rejection(Reason.NO_ROOM, {"no such set": 2})


def test_a_model_is_part_of_a_name() -> None:
    """Any of them will do, in capitals or not."""
    shape = a_shape(one(share(1)), selector=Selector(models=("A100", "s6")))

    assert place(shape, a_state(SICK)) == Placement(((2,),))


def a_pod_request(*asks: int, together: bool = False) -> PodRequest:
    containers = tuple(ContainerRequest(f"c{at}", share(ask), ask) for at, ask in enumerate(asks))
    return PodRequest("gcushare", containers, "fullest", together=together)


def granted(request: PodRequest, state: NodeState) -> tuple[ContainerGrant, ...]:
    found = place(request.shape(), state)
    assert isinstance(found, Placement)
    return grant(request, found, state, "uid-p", 7).containers


def test_a_grant_names_pod_node_and_unit() -> None:
    """All that makes it this pod's and nobody else's."""
    state, request = a_state(), a_pod_request(4)

    made = grant(request, Placement(((2,),)), state, "uid-p", 7)
    assert (made.uid, made.node, made.dialect, made.unit, made.time) == ("uid-p", "n1", "gcushare", "1GB", 7)


def test_containers_together_get_parts_of_one_card() -> None:
    """Each its own amount."""
    assert granted(a_pod_request(4, 2, 6, together=True), a_state(used=used(c2=(4, 0, False)))) == (
        ContainerGrant("c0", "app", (Share("GCU-2", 2, 4 * GIB),), 4),
        ContainerGrant("c1", "app", (Share("GCU-2", 2, 2 * GIB),), 2),
        ContainerGrant("c2", "app", (Share("GCU-2", 2, 6 * GIB),), 6),
    )


def test_containers_apart_get_their_own_cards() -> None:
    """In the order of the containers."""
    assert granted(a_pod_request(12, 8), a_state()) == (
        ContainerGrant("c0", "app", (Share("GCU-0", 0, 12 * GIB),), 12),
        ContainerGrant("c1", "app", (Share("GCU-1", 1, 8 * GIB),), 8),
    )


def test_a_whole_card_is_granted_whole() -> None:
    """All its memory and compute, and one id for it where the resource counts cards."""
    request = PodRequest("gcushare", (ContainerRequest("c", WHOLE, 1),), "fullest")

    assert granted(request, a_state()) == (
        ContainerGrant("c", "app", (Share("GCU-0", 0, 16 * GIB, 100, exclusive=True),), 1),
    )


def test_nobody_beside_is_not_all_the_memory() -> None:
    """Who wants to be alone gets what was asked for, and the rest of the card stays unused."""
    alone = Ask("app", Amount(4), exclusive=True)
    request = PodRequest("gcushare", (ContainerRequest("c", alone, 4),), "fullest")

    assert granted(request, a_state(used=used(c0=(1, 0, False)))) == (
        ContainerGrant("c", "app", (Share("GCU-1", 1, 4 * GIB, exclusive=True),), 4),
    )


def a_fold(*, label: bool = True, counted: bool = False, unit: str = "1GB", pod: Pod | None = None) -> Ledger:
    node = a_node("n1", an_inventory(unit=unit, counted=counted), label=label)
    return Ledger.fold(Dialects(), [node, a_node("bare", None)], [pod] if pod else [])


def fold_of(node: Node) -> Ledger:
    return Ledger.fold(Dialects(), [node], [])


TOO_MANY = structs.replace(an_inventory(), problem="128000 ids, of which kubelet takes fewer")

SHAPE = a_shape(one(share(1)))


@pytest.mark.parametrize(
    ("ledger", "name", "majority", "reason"),
    [
        (a_fold(), "n1", "1GB", None),
        (a_fold(), "n9", "1GB", Reason.UNKNOWN_NODE),
        (a_fold(pod=a_pod("p", 1, node="n9")), "n9", "1GB", Reason.UNKNOWN_NODE),
        (a_fold(), "bare", "1GB", Reason.NO_AGENT),
        (fold_of(a_node("n1", "rubbish")), "n1", "1GB", Reason.UNREADABLE),
        (fold_of(a_node("n1", an_inventory(unit="3GB"))), "n1", "1GB", Reason.UNREADABLE),
        (fold_of(a_node("n1", an_inventory(leaving=True))), "n1", "1GB", Reason.CLOSED),
        (fold_of(a_node("n1", TOO_MANY)), "n1", "1GB", Reason.CLOSED),
        (a_fold(label=False), "n1", "1GB", Reason.NOT_OFFERED),
        (a_fold(unit="0.1GB"), "n1", "1GB", Reason.OTHER_UNIT),
    ],
)
def test_why_a_node_takes_no_pod_at_all(
    ledger: Ledger, name: str, majority: str, reason: Reason | None
) -> None:
    """However small the pod is."""
    assert refusal(SHAPE, ledger.nodes.get(name), majority) == reason


@pytest.mark.parametrize(("slots", "reason"), [(True, None), (False, Reason.NO_SLOT)])
def test_a_counted_node_wants_a_slot(slots: bool, reason: Reason | None) -> None:
    """Its amounts carry no ids: the slot is what kubelet gives."""
    shape = Shape("gcushare", (one(share(1)),), "fullest", slots=slots)

    assert refusal(shape, a_fold(counted=True).nodes["n1"], "1GB") == reason
