"""Every golden case, in both directions."""

from collections import Counter
from typing import cast

import msgspec
import pytest
from msgspec import UNSET, structs

from accelshare.core.errors import BadInput
from accelshare.core.grant import charges
from accelshare.core.ledger import Ledger
from accelshare.core.objects import Meta, Pod, PodSpec
from accelshare.core.placement import Rejection, place
from accelshare.core.request import peak
from accelshare.dialects import DIALECTS, Dialects
from accelshare.dialects.interface import CountsNodes, Dialect, Inspects, MarksStart
from tests.dialects.cases import HERE, NODE, Case, ExpectedGrant, Part, load, parse

CASES = load()


def that_expect(field: str) -> pytest.MarkDecorator:
    """The cases that say something about it; there is at least one."""
    found = [row for row in CASES if getattr(row[2].expect, field) is not UNSET]
    assert found, field
    return pytest.mark.parametrize(
        ("dialect", "case"), [row[1:] for row in found], ids=[row[0] for row in found]
    )


def pod_of(case: Case) -> Pod:
    assert case.pod is not None
    return case.pod


@that_expect("request")
def test_a_pod_asks_for(dialect: Dialect, case: Case) -> None:
    """Container by container, in the order in which kubelet starts them."""
    request = dialect.request(pod_of(case))
    found = request and tuple(
        Part(container.name, container.ask.memory.count, container.ask.role)
        for container in request.containers
    )
    assert found == case.expect.request


@that_expect("takes")
def test_a_pod_takes_of_its_card(dialect: Dialect, case: Case) -> None:
    """In the unit of its node, the most that its containers use at any one time."""
    request = dialect.request(pod_of(case))
    assert request is not None
    sizes = [
        (each.ask.role, each.ask.memory.bytes_on(case.cards[0].memory, case.unit(dialect)))
        for each in request.containers
    ]
    assert peak(sizes) == case.expect.takes


@that_expect("error")
def test_nonsense_is_refused(dialect: Dialect, case: Case) -> None:
    """With the field, the value and what is allowed."""
    with pytest.raises(BadInput) as caught:
        dialect.request(pod_of(case))

    assert str(caught.value) == case.expect.error


@that_expect("verdict")
def test_an_empty_node_says_no(dialect: Dialect, case: Case) -> None:
    """In the words of the document."""
    ledger = Ledger.fold(Dialects(), [case.node_object(dialect)], [])
    request = dialect.request(pod_of(case))
    assert request is not None

    found = place(request.shape(), ledger.nodes[NODE])
    assert isinstance(found, Rejection)
    assert dialect.refusal(found.reason, NODE) == case.expect.verdict


@that_expect("annotations")
def test_a_grant_is_written(dialect: Dialect, case: Case) -> None:
    """As the system's own tools read it."""
    grant = case.given_grant(dialect)
    assert dialect.write(case.given_pod(), grant, case.cards) == case.expect.annotations


@that_expect("annotations")
def test_a_written_grant_is_read(dialect: Dialect, case: Case) -> None:
    """The same annotations the other way: the same cards, and as much of each."""
    notes = cast(dict[str, str], case.expect.annotations)
    pod = Pod(Meta(name="p", uid="uid", annotations=notes), PodSpec(nodeName=NODE))
    read, given = dialect.read(pod, case.inventory(dialect)), case.given_grant(dialect)

    assert read is not None
    assert charges(read) == charges(given)
    assert (read.dialect, read.uid, read.node, read.unit) == (dialect.name, "uid", NODE, given.unit)


@that_expect("env")
def test_a_container_reads_its_grant(dialect: Dialect, case: Case) -> None:
    """Its own part, in this system's words."""
    grant = case.given_grant(dialect)
    card = case.cards[case.grant.card if case.grant else 0]

    pod = case.given_pod()
    found = {each.name: dict(dialect.edits(pod, each, grant, [card]).env) for each in grant.containers}
    assert found == case.expect.env


@that_expect("read")
def test_another_schedulers_grant_is_read(dialect: Dialect, case: Case) -> None:
    """From the annotations that stand on a running pod."""
    pod = pod_of(case)
    noted = case.expect.annotations
    if noted is not UNSET:
        pod = structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=noted))
    grant = dialect.read(pod, case.inventory(dialect))
    found = grant and [
        ExpectedGrant(charge.index, sum(part.units for part in grant.containers), charge.memory, grant.unit)
        for charge in charges(grant)
    ]
    assert found == (case.expect.read and [case.expect.read])


@that_expect("read_error")
def test_an_unreadable_grant_is_bad_input(dialect: Dialect, case: Case) -> None:
    """With the annotation, its value and what is allowed."""
    with pytest.raises(BadInput) as caught:
        dialect.read(pod_of(case), case.inventory(dialect))

    assert str(caught.value) == case.expect.read_error


@that_expect("started")
def test_the_start_is_marked(dialect: Dialect, case: Case) -> None:
    """Once, after the fact."""
    assert isinstance(dialect, MarksStart)
    assert dialect.started(pod_of(case)) == case.expect.started


@that_expect("ids")
def test_the_ids_of_cards(dialect: Dialect, case: Case) -> None:
    """As the system's own plugin forms them: kubelet's checkpoint may hold some."""
    ids = [each for card in case.cards for each in dialect.ids(card, case.unit(dialect))]
    expected = case.expect.ids
    assert expected is not UNSET

    assert len(ids) == expected.count
    assert set(expected.among) <= set(ids)


@that_expect("capacity")
def test_what_a_node_shows(dialect: Dialect, case: Case) -> None:
    """One id a unit, and what is only counted."""
    shown: Counter[str] = Counter()
    shown[dialect.primary] = sum(dialect.capacity(card, case.unit(dialect)) for card in case.cards)
    if isinstance(dialect, CountsNodes):
        shown.update({each.resource: each.amount for each in dialect.counted(case.cards)})

    assert shown == case.expect.capacity


@that_expect("inspect")
def test_what_people_see(dialect: Dialect, case: Case) -> None:
    """The document's own answer, with the pods of its own scheduler bound."""
    assert isinstance(dialect, Inspects)
    ledger = Ledger.fold(Dialects(), [case.node_object(dialect)], case.bound)

    assert dialect.inspect(ledger, [NODE]) == case.expect.inspect


def test_every_dialect_has_cases() -> None:
    """Nobody can forget them, nor leave the cases of a dialect that is gone."""
    assert {path.parent.name for path in HERE.glob("*/cases")} == set(DIALECTS)


@pytest.mark.parametrize("name", [row[0] for row in CASES])
def test_a_case_says_where_it_is_from_and_expects_something(name: str) -> None:
    """An empty case tests nothing."""
    (case,) = [row[2] for row in CASES if row[0] == name]

    assert case.origin
    assert msgspec.to_builtins(case.expect) != {}


@pytest.mark.parametrize(
    "text",
    [
        "{origin: o, expect: {}, pods: []}",
        "{origin: o, expect: {requests: null}}",
        "{origin: o, expect: {}, node: {memory: 4}}",
        "{origin: o, expect: {ids: {count: 1, among: [], all: []}}}",
        "{expect: {}}",
    ],
)
def test_a_case_with_an_unknown_key_is_refused(text: str) -> None:
    """A misspelt expectation would pass for ever."""
    with pytest.raises(msgspec.ValidationError):
        parse(text)
