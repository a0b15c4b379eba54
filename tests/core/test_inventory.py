"""The inventory: one annotation carries a node's cards."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.errors import BadInput
from accelshare.core.inventory import INVENTORY, Card, FrontEnd, Inventory, read_inventory, write_inventory

CASES = [
    ("no cards", Inventory(driver="simulated"), '{"driver":"simulated"}'),
    (
        "a card",
        Inventory(
            driver="enflame",
            cards=(Card(id="GCU-U53000090104", index=0, memory=17179869184, minor=0, model="T10"),),
            dialects={"gcushare": FrontEnd("1GB")},
        ),
        '{"driver":"enflame","cards":[{"id":"GCU-U53000090104","index":0,"memory":17179869184,"minor":0,'
        '"model":"T10"}],"dialects":{"gcushare":{"unit":"1GB"}}}',
    ),
    (
        "everything",
        Inventory(
            driver="nvidia",
            cards=(
                Card(
                    id="a",
                    index=1,
                    memory=8,
                    minor=2,
                    vendor="nvidia",
                    numa=0,
                    pcie=("0000:10:00.0", "0000:0f:00.0"),
                    links={"b": 3},
                    healthy=False,
                    reason="it is hot",
                ),
            ),
            dialects={"x": FrontEnd(mode="counted")},
            injection="cdi",
            problem="none",
            agent="0.1.0",
            leaving=True,
        ),
        '{"driver":"nvidia","cards":[{"id":"a","index":1,"memory":8,"minor":2,"vendor":"nvidia","numa":0,'
        '"pcie":["0000:10:00.0","0000:0f:00.0"],"links":{"b":3},"healthy":false,"reason":"it is hot"}],'
        '"dialects":{"x":{"mode":"counted"}},"injection":"cdi","problem":"none","agent":"0.1.0","leaving":true}',
    ),
]
EACH = pytest.mark.parametrize(
    ("inventory", "text"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)


@EACH
def test_an_inventory_is_written(inventory: Inventory, text: str) -> None:
    """What is default is left out."""
    assert json.loads(write_inventory(inventory)) == json.loads(text)


@EACH
def test_a_written_inventory_is_read(inventory: Inventory, text: str) -> None:
    """The same table the other way."""
    assert read_inventory(text) == inventory


def test_equal_inventories_are_equal_texts() -> None:
    """The order in which links were found is no change of the node."""
    one, other = (
        Inventory(driver="d", cards=(Card(id="a", index=0, memory=1, minor=0, links=links),))
        for links in ({"b": 1, "c": 2}, {"c": 2, "b": 1})
    )
    assert write_inventory(one) == write_inventory(other)


RUBBISH = [
    "",
    "{}",
    "null",
    "rubbish",
    '{"driver":"d","cards":{}}',
    '{"driver":"d","cards":[{"id":"a","index":0,"memory":1}]}',
    '{"driver":"d","cards":[{"id":"a","index":0,"memory":-1,"minor":0}]}',
    '{"driver":"d","cards":[{"id":"a","index":-1,"memory":1,"minor":0}]}',
    '{"driver":"d","cards":[{"id":"a","index":0,"memory":1,"minor":0},'
    '{"id":"a","index":1,"memory":1,"minor":1}]}',
    '{"driver":"d","dialects":{"x":{"mode":"guessed"}}}',
    '{"x":' + "[" * 100_000,
    "\ud800",
]


@pytest.mark.parametrize("text", RUBBISH, ids=range(len(RUBBISH)))
def test_rubbish_is_bad_input(text: str) -> None:
    """The error names the annotation."""
    with pytest.raises(BadInput, match=INVENTORY):
        read_inventory(text)


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    """Whatever stands on the node."""
    with pytest.raises(BadInput):
        read_inventory(text)
