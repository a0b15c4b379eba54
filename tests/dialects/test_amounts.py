"""Amounts: whole numbers as Kubernetes writes them, and a sentence for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelshare.core.errors import BadInput
from accelshare.core.objects import Container, Resources
from accelshare.dialects.amounts import MOST, amount

Value = str | int | float


def asking(limit: Value | None, request: Value | None = None) -> Container:
    return Container(
        "main",
        Resources(
            limits=None if limit is None else {"x/y": limit},
            requests=None if request is None else {"x/y": request},
        ),
    )


WHOLE: list[tuple[Value, int]] = [
    (4, 4),
    (4.0, 4),
    ("4", 4),
    (" 4 ", 4),
    ("+4", 4),
    ("0", 0),
    ("-0", 0),
    ("4.0", 4),
    ("4.", 4),
    ("1e3", 1000),
    ("1E3", 1000),
    ("1.5e1", 15),
    ("2k", 2000),
    ("0.5k", 500),
    ("1M", 10**6),
    ("1G", 10**9),
    ("1T", 10**12),
    ("1P", 10**15),
    ("2Ki", 2048),
    ("1.5Ki", 1536),
    ("1Mi", 1 << 20),
    ("1Gi", 1 << 30),
    ("1Ti", 1 << 40),
    ("1Pi", 1 << 50),
    ("4000m", 4),
    (str(MOST), MOST),
]


@pytest.mark.parametrize(("value", "count"), WHOLE)
def test_a_whole_amount(value: Value, count: int) -> None:
    """In all the ways in which a manifest may write it."""
    assert amount(asking(value), "x/y") == count


RUBBISH: list[Value] = [
    "",
    "four",
    "-1",
    -1,
    0.5,
    "0.5",
    "1500m",
    "1.0001Ki",
    "4GB",
    "4gi",
    "4KiB",
    "k",
    "Ki",
    "4 k",
    "4kk",
    "1_000",
    "４",
    "٤",
    "0x10",
    "1e",
    "1e3.5",
    "NaN",
    "sNaN",
    "inf",
    "Infinity",
    "1e99",
    "1e999999999",
    "1e-999999999",
    1e300,
    str(MOST + 1),
    "9007199254740993",
    "9" * 5000,
    "9007199254740992.00000000000000000001",
    "1e-30",
]


@pytest.mark.parametrize("value", RUBBISH)
def test_rubbish_is_bad_input(value: Value) -> None:
    """With the container, the resource and the value as it was written."""
    with pytest.raises(BadInput, match=r"^resources.limits\[x/y\] of container main is ") as caught:
        amount(asking(value), "x/y")

    assert caught.value.value == value


@given(st.one_of(st.text(), st.floats(), st.integers(-(10**50), 10**50)))
def test_no_value_raises_anything_else(value: Value) -> None:
    """Whatever a manifest holds."""
    try:
        count = amount(asking(value), "x/y")
    except BadInput:
        return
    assert count is not None
    assert 0 <= count <= MOST


@pytest.mark.parametrize(
    ("container", "count"),
    [
        (Container("main"), None),
        (asking(None), None),
        (asking(4), 4),
        (asking(None, 4), 4),
        (asking(4, 4), 4),
        (asking("1k", "1000"), 1000),
        (asking("0", 0), 0),
    ],
)
def test_limits_and_requests(container: Container, count: int | None) -> None:
    """The limit; the request where there is no limit; None where there is neither."""
    assert amount(container, "x/y") == count


@pytest.mark.parametrize(
    ("container", "text"),
    [
        (asking(4, 2), "resources.requests[x/y] of container main is 2; allowed is its limit, 4"),
        (asking(4, "x"), "resources.requests[x/y] of container main is 'x'; allowed is a whole number"),
        (asking(None, "-1"), "resources.requests[x/y] of container main is '-1'; allowed is a whole number"),
    ],
)
def test_requests_are_named_as_requests(container: Container, text: str) -> None:
    """The sentence points at the line that is wrong."""
    with pytest.raises(BadInput) as caught:
        amount(container, "x/y")

    assert str(caught.value).startswith(text)
