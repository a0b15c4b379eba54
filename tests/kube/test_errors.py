"""Every answer of the API server becomes the one error that says it; only a definite one proves anything."""

import pytest

from accelshare.kube.api import errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Gone),
        (422, errors.Invalid),
        (429, errors.TooManyRequests),
        (500, errors.ServerError),
        (504, errors.ServerError),
        (418, errors.ApiError),
        (302, errors.ApiError),
    ],
)
def test_each_status_has_its_class(status: int, kind: type[errors.ApiError]) -> None:
    """The class follows from the status alone."""
    assert type(errors.from_answer(status, b"")) is kind


def test_the_text_is_a_sentence_with_call_and_reason() -> None:
    """Whoever reads the log sees what was called and what the server said."""
    body = b'{"kind":"Status","reason":"Conflict","message":"pod p is assigned already","code":409}'
    error = errors.from_answer(409, body, verb="POST", path="/api/v1/namespaces/ns/pods/p/binding")
    assert str(error) == (
        "POST /api/v1/namespaces/ns/pods/p/binding was answered 409 Conflict: pod p is assigned already"
    )
    assert (error.reason, error.message) == ("Conflict", "pod p is assigned already")


def test_a_proxy_s_page_becomes_the_message() -> None:
    """What answers in place of the API server may send no Status."""
    error = errors.from_answer(502, b"<html>\n  bad gateway</html>", verb="GET", path="/version")
    assert str(error) == "GET /version was answered 502: <html> bad gateway</html>"


def test_a_long_page_is_cut() -> None:
    """A megabyte of HTML does not go into the log."""
    assert len(errors.from_answer(502, b"x" * 10**6).message) == 1_000


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422])
def test_a_refusal_is_definite(status: int) -> None:
    """A 4xx says that nothing was written."""
    assert errors.from_answer(status, b"").definite


@pytest.mark.parametrize("status", [302, 408, 429, 500, 503, 504])
def test_the_rest_is_not_definite(status: int) -> None:
    """A time-out, a throttle or a failing server may have written, or may yet."""
    assert not errors.from_answer(status, b"").definite


def test_no_answer_is_not_definite() -> None:
    """After a lost connection the outcome is unknown."""
    error = errors.Unreachable("connection reset", verb="POST", path="/x")
    assert not error.definite
    assert str(error) == "POST /x got no answer: connection reset"
