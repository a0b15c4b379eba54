"""Verdicts: a remembered answer is the answer that asking anew would give."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import Card
from accelshare.core.ledger import Ledger
from accelshare.core.placement import Reason, Rejection, place, refusal
from accelshare.core.policy import POLICIES, CardView, Policy
from accelshare.core.request import Amount, Ask, Group, Selector, Shape
from accelshare.core.units import GIB
from accelshare.core.verdicts import REMEMBERED_SHAPES, Verdicts
from accelshare.dialects import Dialects
from tests.builders import a_card, a_node, a_pod, an_inventory, cards

NAMES = ["n0", "n1", "n2", "nobody"]
UNITS = ["1GB", "0.1GB", "0.01GB"]
ASKED_OFTEN = 70  # a question that is asked so often is answered in a shorter way


def a_shape(*asks: Ask, cards: int = 1, selector: Selector | None = None, slots: bool = True) -> Shape:
    return Shape("gcushare", (Group(asks, cards),), "fullest", selector or Selector(), slots)


SHAPES = [
    a_shape(Ask("app", Amount(1))),
    a_shape(Ask("app", Amount(16))),
    a_shape(Ask("app", Amount(160))),
    a_shape(Ask("app", Amount(1)), Ask("app", Amount(1)), Ask("app", Amount(1))),
    a_shape(Ask("init", Amount(8)), Ask("app", Amount(3))),
    a_shape(Ask("app", Amount(2)), cards=2),
    a_shape(Ask("app", Amount(2)), slots=False),
    a_shape(Ask("app", Amount(1), compute=30)),
    a_shape(Ask("app", Amount(100, "percent"), 100, exclusive=True)),
    a_shape(Ask("app", Amount(2), exclusive=True)),
    structs.replace(a_shape(Ask("app", Amount(1))), most=1),
    a_shape(Ask("app", Amount(25, "percent"))),
    a_shape(Ask("app", Amount(0))),
    a_shape(Ask("app", Amount(1)), selector=Selector(ids=("n1-0",))),
]


def asked_anew(ledger: Ledger, shape: Shape, name: str) -> Reason | None:
    state = ledger.nodes.get(name)
    why = refusal(shape, state, ledger.majority_unit(shape.dialect))
    if why is None and state is not None:
        found = place(shape, state)
        return found.reason if isinstance(found, Rejection) else None
    return why


def assert_current(verdicts: Verdicts, ledger: Ledger, shape: Shape) -> None:
    fits, refused = verdicts.ask(shape, NAMES)
    anew = {name: asked_anew(ledger, shape, name) for name in NAMES}
    assert fits == [name for name in NAMES if anew[name] is None]
    assert refused == {name: why for name, why in anew.items() if why is not None}
    assert all(verdicts.fits(shape, name) == (anew[name] is None) for name in NAMES)
    for _ in range(ASKED_OFTEN):
        assert verdicts.ask(shape, fits) == (fits, {})


Change = Callable[[Ledger], None]


def set_node(name: str, size: int, unit: str, healthy: bool, counted: bool, label: bool, few: int) -> Change:
    of: list[Card] = [
        a_card(at, id=f"{name}-{at}", memory=size, healthy=healthy or at > 0) for at in range(few)
    ]
    node = a_node(name, an_inventory(of, unit, counted=counted) if few else None, label=label)
    return lambda ledger: ledger.set_node(node)


def hold(number: int, name: str, card: int, memory: int, compute: int, exclusive: bool) -> Change:
    uid = f"uid-{number}"
    share = Share(f"{name}-{card}", card, memory, compute, exclusive)
    grant = Grant(
        dialect="gcushare",
        uid=uid,
        node=name,
        containers=(ContainerGrant("c", "app", (share,)),),
        time=number,
    )
    return lambda ledger: ledger.hold(a_pod(uid=uid), grant)


NODE_NAMES = st.sampled_from(NAMES[:3])
SIZES = st.sampled_from([16 * GIB, 16 * GIB - 1, 322122546, 322122547, 0])
CHANGES = st.one_of(
    st.builds(
        set_node,
        NODE_NAMES,
        SIZES,
        st.sampled_from(UNITS),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.integers(0, 3),
    ),
    st.builds(
        hold,
        st.integers(0, 9),
        NODE_NAMES,
        st.integers(0, 2),
        st.sampled_from([0, GIB, 8 * GIB, 15 * GIB, 16 * GIB - 322122546]),
        st.sampled_from([0, 60, 100]),
        st.booleans(),
    ),
    st.builds(lambda number: lambda ledger: ledger.release(f"uid-{number}"), st.integers(0, 9)),
    st.builds(lambda name: lambda ledger: ledger.remove_node(name), NODE_NAMES),
)


@given(st.lists(st.tuples(CHANGES, st.sampled_from(SHAPES)), max_size=25))
@settings(max_examples=200)
def test_answers_are_what_asking_anew_would_give(steps: list[tuple[Change, Shape]]) -> None:
    """After every change, for whatever shape is asked about next, and at the end for all of them."""
    ledger = Ledger(Dialects())
    verdicts = Verdicts(ledger)
    for change, shape in steps:
        change(ledger)
        assert_current(verdicts, ledger, shape)
    for shape in SHAPES:
        assert_current(verdicts, ledger, shape)


def test_names_keep_their_order() -> None:
    """kube-scheduler gets back what it gave."""
    ledger = Ledger.fold(Dialects(), [a_node(name) for name in NAMES[:3]], [])

    assert Verdicts(ledger).ask(SHAPES[0], ["n2", "n0", "n1"]) == (["n2", "n0", "n1"], {})


def test_an_unknown_name_is_refused_and_not_remembered() -> None:
    """It fits as soon as the node is there."""
    ledger = Ledger(Dialects())
    verdicts = Verdicts(ledger)
    assert verdicts.ask(SHAPES[0], ["n1"]) == ([], {"n1": Reason.UNKNOWN_NODE})

    ledger.set_node(a_node())
    assert verdicts.ask(SHAPES[0], ["n1"]) == (["n1"], {})


def test_a_new_majority_changes_answers_of_nodes_that_did_not_change() -> None:
    """Two nodes of another unit outvote the one that had fitted."""
    ledger = Ledger.fold(Dialects(), [a_node("n0")], [])
    verdicts = Verdicts(ledger)
    assert verdicts.fits(SHAPES[0], "n0")

    for name in ("n1", "n2"):
        ledger.set_node(a_node(name, an_inventory(unit="0.1GB")))
    assert verdicts.ask(SHAPES[0], NAMES[:3]) == (["n1", "n2"], {"n0": Reason.OTHER_UNIT})


@pytest.mark.parametrize(("slots", "fits"), [(True, ["n0"]), (False, [])])
def test_slots_are_part_of_the_question(slots: bool, fits: list[str]) -> None:
    """A pod without one does not fit a counted node."""
    ledger = Ledger.fold(Dialects(), [a_node("n0", an_inventory(cards(1), counted=True))], [])

    assert Verdicts(ledger).ask(a_shape(Ask("app", Amount(1)), slots=slots), ["n0"])[0] == fits


def test_forgotten_shapes_are_answered_all_the_same() -> None:
    """More shapes than are remembered, twice over."""
    ledger = Ledger.fold(Dialects(), [a_node("n0")], [])
    verdicts = Verdicts(ledger)
    amounts = [*range(REMEMBERED_SHAPES + 10)] * 2

    fits = [verdicts.fits(a_shape(Ask("app", Amount(amount))), "n0") for amount in amounts]
    assert fits == [amount <= 16 for amount in amounts]


def test_a_policy_that_may_refuse_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is not the whole question then: here only cards that nobody is on will do."""

    def unused(views: Sequence[CardView], count: int) -> Sequence[int]:
        return [at for at, view in enumerate(views) if not view.tenants][:count]

    monkeypatch.setitem(POLICIES, "unused", Policy(unused))
    ledger = Ledger(Dialects())
    set_node("n0", 16 * GIB, "1GB", True, False, True, 1)(ledger)
    verdicts = Verdicts(ledger)
    shape = structs.replace(a_shape(Ask("app", Amount(1))), policy="unused")

    assert verdicts.ask(shape, ["n0"]) == (["n0"], {})
    hold(1, "n0", 0, GIB, 0, False)(ledger)
    assert verdicts.ask(shape, ["n0"]) == ([], {"n0": Reason.NO_ROOM})
