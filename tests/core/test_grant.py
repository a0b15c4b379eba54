"""Grants: the annotation says exactly what was decided, for this pod on this node only."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.errors import BadInput
from accelshare.core.grant import (
    GRANT,
    Charge,
    ContainerGrant,
    Grant,
    Share,
    charges,
    grant_of,
    parse_grant,
    write_grant,
)
from accelshare.core.objects import Pod
from tests.builders import a_pod

ONE = ContainerGrant("main", "app", (Share("GCU-1", 1, 100),), 4)
SPLIT = (
    ContainerGrant("setup", "init", (Share("GCU-1", 1, 900),), 9),
    ContainerGrant("log", "sidecar", (Share("GCU-1", 1, 200, 10),), 2),
    ContainerGrant("main", "app", (Share("GCU-1", 1, 300, 20), Share("GCU-2", 2, 300, 20)), 3),
    ContainerGrant("side", "app", (Share("GCU-2", 2, 500, 100, exclusive=True),), 5),
)


def a_grant(*containers: ContainerGrant, uid: str = "uid-p", node: str = "n1") -> Grant:
    return Grant(dialect="gcushare", uid=uid, node=node, containers=containers or (ONE,), unit="1GB", time=7)


CASES = [
    (
        "one container",
        a_grant(),
        '{"containers":[{"name":"main","role":"app","shares":[{"card":"GCU-1","index":1,"memory":100}],"units":4}],'
        '"dialect":"gcushare","node":"n1","time":7,"uid":"uid-p","unit":"1GB"}',
    ),
    (
        "what is default is left out",
        Grant(dialect="d", uid="u", node="n", containers=()),
        '{"containers":[],"dialect":"d","node":"n","uid":"u"}',
    ),
    (
        "a whole card",
        Grant(
            dialect="d",
            uid="u",
            node="n",
            containers=(ContainerGrant("c", "init", (Share("x", 0, 5, 100, exclusive=True),)),),
        ),
        '{"containers":[{"name":"c","role":"init","shares":[{"card":"x","compute":100,"exclusive":true,'
        '"index":0,"memory":5}]}],"dialect":"d","node":"n","uid":"u"}',
    ),
]
EACH = pytest.mark.parametrize(("grant", "text"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])


@EACH
def test_a_grant_is_written(grant: Grant, text: str) -> None:
    """Unsigned it is the JSON of its fields, each key in its place."""
    assert json.loads(write_grant(grant, None)) == json.loads(text)


@EACH
def test_a_written_grant_is_read(grant: Grant, text: str) -> None:
    """The same table the other way."""
    assert parse_grant(text).grant == grant


@EACH
def test_a_signed_grant_is_read(grant: Grant, text: str) -> None:
    """The signature stands beside the grant and changes nothing of it."""
    signed = parse_grant(write_grant(grant, lambda payload: "c2ln"))

    assert (signed.grant, signed.signature) == (grant, "c2ln")


@EACH
def test_what_is_signed_is_the_text_without_its_signature(grant: Grant, text: str) -> None:
    """Byte for byte: the reader checks the same bytes as the writer signed."""
    seen = []
    written = write_grant(grant, lambda payload: seen.append(payload) or "c2ln")  # type: ignore[func-returns-value]

    assert seen == [parse_grant(written).payload]
    assert written.encode() == seen[0][:-1] + b',"signature":"c2ln"}'


def test_a_signed_grant_is_json() -> None:
    """People read it with their usual tools."""
    assert json.loads(write_grant(a_grant(), lambda payload: "c2ln"))["signature"] == "c2ln"


def test_a_changed_grant_is_not_what_was_signed() -> None:
    """One more byte of memory is another text."""
    written = write_grant(a_grant(), lambda payload: "c2ln")

    changed = parse_grant(written.replace('"memory":100', '"memory":101'))
    assert changed.payload != parse_grant(written).payload


RUBBISH = [
    "",
    "null",
    "[]",
    "{}",
    "rubbish",
    '{"dialect":"d"}',
    '{"containers":[],"dialect":"d","node":"n","uid":1}',
    '{"containers":[],"dialect":"d","node":"n","uid":"u","signature":"abc","more":"x"}',
    '{"containers":[],"dialect":"d","node":"n","uid":"u","signature":"abc"',
    '{"containers":[{"name":"c","role":"boss","shares":[]}],"dialect":"d","node":"n","uid":"u"}',
    '{"containers":[{"name":"c","role":"app","shares":[{"card":"x","index":0,"memory":-1}]}],'
    '"dialect":"d","node":"n","uid":"u"}',
    '{"containers":[{"name":"c","role":"app","shares":[{"card":"x","index":0,"memory":1,"compute":-1}]}],'
    '"dialect":"d","node":"n","uid":"u"}',
    '{"containers":[{"name":"c","role":"app","shares":[{"card":"x","index":0,"memory":1.5}]}],'
    '"dialect":"d","node":"n","uid":"u"}',
    '{"time":' + "9" * 5000 + "}",
    '{"x":' + "[" * 100_000,
    "\ud800",
]


@pytest.mark.parametrize("text", RUBBISH, ids=range(len(RUBBISH)))
def test_rubbish_is_bad_input(text: str) -> None:
    """The error names the annotation."""
    with pytest.raises(BadInput, match=GRANT):
        parse_grant(text)


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    """Whatever a user writes there."""
    with pytest.raises(BadInput):
        parse_grant(text)


NAMES = st.text(max_size=8)
SHARES = st.builds(
    Share, NAMES, st.integers(0, 16), st.integers(0, 1 << 40), st.integers(0, 100), st.booleans()
)
GRANTS = st.builds(
    Grant,
    dialect=NAMES,
    uid=NAMES,
    node=NAMES,
    unit=NAMES,
    time=st.integers(0, 1 << 60),
    containers=st.lists(
        st.builds(
            ContainerGrant,
            NAMES,
            st.sampled_from(["init", "sidecar", "app"]),
            st.lists(SHARES, max_size=2).map(tuple),
            st.integers(0, 1 << 40),
        ),
        max_size=3,
    ).map(tuple),
)


@given(GRANTS, st.from_regex(r"[A-Za-z0-9+/=]*", fullmatch=True))
def test_every_grant_comes_back(grant: Grant, signature: str) -> None:
    """Whatever stands in its names, quotes and braces too."""
    signed = parse_grant(write_grant(grant, lambda payload: signature))

    assert (signed.grant, signed.signature) == (grant, signature)


def test_each_card_is_charged_once() -> None:
    """With the most that the pod's containers use of it at any one time."""
    assert charges(a_grant(*SPLIT)) == (
        Charge("GCU-1", 1, 900, 30),
        Charge("GCU-2", 2, 800, 120, exclusive=True),
    )


def carrier(text: str | None, *, uid: str = "uid-p", node: str | None = "n1") -> Pod:
    return a_pod("p", 4, uid=uid, node=node, annotations={} if text is None else {GRANT: text})


def test_a_bound_pod_has_its_grant() -> None:
    """The one that names its UID and node."""
    signed = grant_of(carrier(write_grant(a_grant(), None)))

    assert signed is not None
    assert signed.grant == a_grant()


@pytest.mark.parametrize(
    "pod", [carrier(None), carrier(write_grant(a_grant(), None), node=None), carrier("{", node=None)]
)
def test_no_grant(pod: Pod) -> None:
    """An annotation of a pod that is not bound is only what its user wrote."""
    assert grant_of(pod) is None


@pytest.mark.parametrize(("grant", "field"), [(a_grant(uid="uid-q"), "uid"), (a_grant(node="n2"), "node")])
def test_a_copied_grant_is_none(grant: Grant, field: str) -> None:
    """A grant of another pod, or for another node."""
    with pytest.raises(BadInput, match=f"^{field} in annotation"):
        grant_of(carrier(write_grant(grant, None)))
