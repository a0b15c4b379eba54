"""What every dialect must keep, whatever system it speaks for. One check a rule; CHECKS is the suite."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from accelshare.core.errors import BadInput
from accelshare.core.grant import Grant, charges
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, write_inventory
from accelshare.core.ledger import Ledger, NodeState
from accelshare.core.objects import Container, Meta, Node, Pod, PodSpec, Resources
from accelshare.core.placement import Placement, Reason, grant, place
from accelshare.core.policy import POLICIES
from accelshare.core.units import BYTE, GIB, Unit
from accelshare.dialects import Dialects, unit_named
from accelshare.dialects.interface import CountsNodes, Dialect, Inspects, MarksStart, SelectsNodes
from tests.builders import a_container

CARDS = tuple(
    Card(id=f"GCU-U5300009010{at}", index=at, memory=16 * GIB, minor=at, model="T10") for at in range(4)
)

# Kubernetes' qualified name: a DNS subdomain, a slash, and up to 63 characters.
_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_KEY = re.compile(rf"({_QUALIFIED.pattern})|[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")  # or no domain
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")

# What a container of a dialect has to ask for beside its primary resource, so that it asks for a share.
BESIDE: dict[str, Mapping[str, int]] = {}


def _inventory(dialect: Dialect, unit: str) -> Inventory:
    vendor = sorted(dialect.vendors)[0]
    cards = tuple(
        Card(id=card.id, index=card.index, memory=card.memory, minor=card.minor, vendor=vendor)
        for card in CARDS
    )
    return Inventory(driver="simulated", cards=cards, dialects={dialect.name: FrontEnd(unit)})


def _state(dialect: Dialect, unit: str) -> NodeState:
    labels = dict([dialect.node_label]) if isinstance(dialect, SelectsNodes) else {}
    text = write_inventory(_inventory(dialect, unit))
    node = Node(Meta(name="n1", labels=labels, annotations={INVENTORY: text}))
    return Ledger.fold(Dialects(), [node], []).nodes["n1"]


def _pod(dialect: Dialect, *amounts: int, annotations: Mapping[str, str] | None = None) -> Pod:
    beside = BESIDE.get(dialect.name, {})
    containers = [
        Container(f"c{at}", Resources(limits={dialect.primary: count, **beside}))
        for at, count in enumerate(amounts)
    ]
    meta = Meta(name="p", namespace="default", uid="uid-p", annotations=dict(annotations or {}))
    return Pod(meta, PodSpec(containers, nodeName="n1"))


def _fits(dialect: Dialect, pod: Pod, unit: str) -> bool:
    request = dialect.request(pod)
    return request is not None and isinstance(place(request.shape(), _state(dialect, unit)), Placement)


def _granted(dialect: Dialect, pod: Pod, unit: str) -> Grant:
    request, state = dialect.request(pod), _state(dialect, unit)
    assert request is not None
    placement = place(request.shape(), state)
    assert isinstance(placement, Placement)
    return grant(request, placement, state, "uid-p", 1662453232515055293)


def _unit_names(dialect: Dialect) -> list[str]:
    return list(dialect.units) or [""]


def _in_units(grant: Grant, unit: Unit) -> dict[str, int]:
    """A system that writes a sum of units loses the bytes by which its parts were rounded, and no more."""
    return {charge.card: unit.nearest(charge.memory) for charge in charges(grant)}


def _written(dialect: Dialect, pod: Pod) -> dict[str, str]:
    return dialect.write(pod, _granted(dialect, pod, _unit_names(dialect)[0]), CARDS)


def check_names(dialect: Dialect) -> None:
    """Names are such as Kubernetes takes them, and the primary resource is one of those that are managed."""
    assert _NAME.fullmatch(dialect.name)
    assert dialect.vendors
    assert dialect.primary in dialect.managed
    assert len(set(dialect.managed)) == len(dialect.managed)
    assert all(_QUALIFIED.fullmatch(resource) for resource in dialect.managed)


def check_units(dialect: Dialect) -> None:
    """Each is called what it is found by; a dialect without any counts in bytes."""
    assert dialect.units or unit_named(dialect, "") == BYTE
    for name, unit in dialect.units.items():
        assert unit.name == name
        assert unit.numerator > 0
        assert unit.denominator > 0


def check_nothing_is_asked_for(dialect: Dialect) -> None:
    """A pod that names none of its resources asks for nothing, and neither does one that asks for zero."""
    assert dialect.request(Pod(Meta(), PodSpec())) is None
    assert dialect.request(_pod(dialect)) is None
    assert dialect.request(_pod(dialect, 0)) is None


def check_a_request(dialect: Dialect) -> None:
    """Containers keep their names and order; the dialect and its policy are known."""
    request = dialect.request(_pod(dialect, 1, 0, 2))
    assert request is not None
    assert request.dialect == dialect.name
    assert request.policy in POLICIES
    assert [container.name for container in request.containers] == ["c0", "c2"]


def check_written_grants_are_read(dialect: Dialect) -> None:
    """Whatever is granted, what is written for others says the same cards and the same amounts."""

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sampled_from(_unit_names(dialect)))
    @settings(max_examples=30)
    def body(amounts: list[int], unit: str) -> None:
        while not _fits(dialect, _pod(dialect, *amounts), unit):  # where the primary resource counts cards
            amounts = amounts[:-1]
        pod = _pod(dialect, *amounts)
        grant = _granted(dialect, pod, unit)
        notes = dialect.write(pod, grant, CARDS)
        read = dialect.read(_pod(dialect, *amounts, annotations=notes), _inventory(dialect, unit))
        if not notes:
            assert read is None  # the system's own tools write nothing on a pod
            return
        assert read is not None
        assert (read.dialect, read.uid, read.node) == (dialect.name, "uid-p", "n1")
        assert _in_units(read, unit_named(dialect, unit)) == _in_units(grant, unit_named(dialect, unit))

    body()


def check_annotations(dialect: Dialect) -> None:
    """Keys that the API server takes, since it does not look at those of a binding, and texts as values."""
    notes = _written(dialect, _pod(dialect, 1, 2))
    if isinstance(dialect, MarksStart):
        notes = {**notes, **dialect.started(_pod(dialect, 1, 2, annotations=notes))}
    assert all(_KEY.fullmatch(key) for key in notes)
    assert all(type(value) is str for value in notes.values())


def check_the_start_is_marked_once(dialect: Dialect) -> None:
    """Marked again it is as it was, and a pod without the dialect's annotations is left alone."""
    if not isinstance(dialect, MarksStart):
        return
    notes = _written(dialect, _pod(dialect, 1))
    marked = {**notes, **dialect.started(_pod(dialect, 1, annotations=notes))}
    assert dialect.started(_pod(dialect, 1, annotations=marked)) == {}
    assert dialect.started(_pod(dialect, 1)) == {}


def check_env(dialect: Dialect) -> None:
    """Every container can read its grant: names and values that a process can have."""
    for unit in _unit_names(dialect):
        pod = _pod(dialect, 1, 2)
        grant = _granted(dialect, pod, unit)
        for container in grant.containers:
            granted = [card for card in CARDS if card.id in {share.card for share in container.shares}]
            env = dict(dialect.edits(pod, container, grant, granted).env)
            assert env
            assert all(_VARIABLE.fullmatch(name) for name in env)
            assert all(type(value) is str and "\0" not in value for value in env.values())


def check_ids(dialect: Dialect) -> None:
    """As many as a card is worth, the same each time, unique on the node, short enough for any kubelet."""
    for unit in (unit_named(dialect, name) for name in _unit_names(dialect)):
        ids = [each for card in CARDS for each in dialect.ids(card, unit)]
        assert ids
        assert all(len(dialect.ids(card, unit)) == dialect.capacity(card, unit) for card in CARDS)
        assert ids == [each for card in CARDS for each in dialect.ids(card, unit)]
        assert len(set(ids)) == len(ids)
        assert all(0 < len(each) <= 63 and each.isascii() and each.isprintable() for each in ids)


def check_what_a_pod_takes(dialect: Dialect) -> None:
    """kubelet hands out what was asked for, and its parts of the cards stand for as many ids."""

    @given(st.integers(1, 4), st.sampled_from(_unit_names(dialect)))
    def body(amount: int, unit: str) -> None:
        granted = _granted(dialect, _pod(dialect, amount), unit)
        assert [container.units for container in granted.containers] == [amount]
        assert sum(dialect.taken(charge, unit_named(dialect, unit)) for charge in charges(granted)) == amount

    body()


def check_refusals(dialect: Dialect) -> None:
    """Every reason has a text of its own that a person can act upon, on one line and without gaps."""
    texts = [dialect.refusal(reason, "n1") for reason in Reason]
    assert texts == [dialect.refusal(reason, "n1") for reason in Reason]
    assert len(set(texts)) == len(texts)
    for reason, text in zip(Reason, texts, strict=True):
        assert text.strip() == text != ""
        assert text != reason.value
        assert not re.search(r"[{}<>%\n]|None|TODO", text)


def check_inputs_are_left_alone(dialect: Dialect) -> None:
    """A dialect translates: what it was given is as it was."""
    unit = _unit_names(dialect)[0]
    pod, inventory, cards = _pod(dialect, 1, 2), _inventory(dialect, unit), list(CARDS)
    before = deepcopy((pod, inventory, cards))
    grant = _granted(dialect, pod, unit)
    noted = _pod(dialect, 1, 2, annotations=dialect.write(pod, grant, cards))
    noted_before = deepcopy(noted)
    dialect.read(noted, inventory)
    dialect.edits(pod, grant.containers[0], grant, cards)
    dialect.ids(cards[0], unit_named(dialect, unit))
    if isinstance(dialect, MarksStart):
        dialect.started(noted)
    assert (pod, inventory, cards) == before
    assert noted == noted_before


def check_rubbish_annotations(dialect: Dialect) -> None:
    """Whatever stands under the dialect's keys, reading gives a grant, nothing, or BadInput."""
    unit = _unit_names(dialect)[0]
    notes = _written(dialect, _pod(dialect, 1))
    if not notes:
        return
    values = st.one_of(
        st.text(),
        st.integers().map(str),
        st.sampled_from([*notes.values(), "²", "٣", "1e9", "9" * 5000, "[" * 5000, "{}", "null", "-1"]),
    )

    @given(st.dictionaries(st.sampled_from(sorted(notes)), values))
    def body(rubbish: dict[str, str]) -> None:
        pod = _pod(dialect, 1, annotations=rubbish)
        try:
            grant = dialect.read(pod, _inventory(dialect, unit))
        except BadInput:
            return
        assert grant is None or all(charge.memory >= 0 for charge in charges(grant))

    body()


def check_rubbish_amounts(dialect: Dialect) -> None:
    """Whatever a pod asks for, it is a request, nothing, or BadInput."""
    values: st.SearchStrategy[str | int] = st.one_of(
        st.text(), st.integers(), st.sampled_from(["1e999", "½"])
    )

    @given(st.sampled_from(dialect.managed), values)
    def body(resource: str, value: str | int) -> None:
        pod = Pod(Meta(), PodSpec([a_container("c", value, resource)]))
        try:
            request = dialect.request(pod)
        except BadInput:
            return
        assert request is None or request.containers

    body()


def check_what_a_node_counts(dialect: Dialect) -> None:
    """Amounts that the node's status can hold, none of them a resource that has ids."""
    if not isinstance(dialect, CountsNodes):
        return
    for each in dialect.counted(CARDS):
        assert _QUALIFIED.fullmatch(each.resource)
        assert each.amount >= 0
        assert each.resource != dialect.primary


def check_inspection(dialect: Dialect) -> None:
    """It answers about nodes that nobody knows and clusters where nothing is, and starts at its own route."""
    if not isinstance(dialect, Inspects):
        return
    assert dialect.route.startswith("/")
    assert not dialect.route.endswith("/")
    assert dialect.inspect(Ledger(Dialects()), ["nobody"]) == dialect.inspect(Ledger(Dialects()), [])


CHECKS: tuple[Callable[[Dialect], None], ...] = (
    check_names,
    check_units,
    check_nothing_is_asked_for,
    check_a_request,
    check_written_grants_are_read,
    check_annotations,
    check_the_start_is_marked_once,
    check_env,
    check_ids,
    check_what_a_pod_takes,
    check_refusals,
    check_inputs_are_left_alone,
    check_rubbish_annotations,
    check_rubbish_amounts,
    check_what_a_node_counts,
    check_inspection,
)
