"""Errors: one tree, and each text says who has to do what."""

import pytest

from accelshare.core.errors import AccelshareError, BadInput, DriverError, GrantRefused, NotReady


@pytest.mark.parametrize("error", [BadInput, NotReady, GrantRefused, DriverError])
def test_every_error_is_ours(error: type[Exception]) -> None:
    """A shell catches one class."""
    assert issubclass(error, AccelshareError)


def test_bad_input_names_field_value_and_what_is_allowed() -> None:
    """In one sentence, and as facts for whoever wants to write another one."""
    error = BadInput("memory", -1, "a number that is not negative")

    assert str(error) == "memory is -1; allowed is a number that is not negative"
    assert (error.field, error.value, error.allowed) == ("memory", -1, "a number that is not negative")


def test_a_long_value_is_cut() -> None:
    """A text goes into an event and a log line: nobody can flood either."""
    text = str(BadInput("x", "y" * 100_000, "less"))

    assert len(text) < 150
    assert "yyy...; allowed is less" in text


def test_a_value_cannot_break_a_line() -> None:
    """What a user wrote is shown as Python would write it."""
    assert str(BadInput("x", "a\nb\x1b", "less")) == r"x is 'a\nb\x1b'; allowed is less"
