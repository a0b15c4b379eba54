"""Settings that cannot be meant are refused with the field, the value and what is allowed."""

from typing import Any

import pytest

from accelshare.core.errors import BadInput
from accelshare.services.scheduler.settings import Settings


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"port": 70_000}, "port"),
        ({"tls_port": -1}, "tls_port"),
        ({"best": 8}, "best"),
        ({"best": 65}, "best"),
        ({"tls_cert": "cert.pem"}, "--tls-cert"),
        ({"counted": frozenset({"klingon"})}, "counted"),
        ({"app_label": "scheduler"}, "--app-label"),
        ({"pod_name": "p"}, "--pod-namespace"),
    ],
)
def test_what_cannot_be_meant(given: dict[str, Any], field: str) -> None:
    """One field each."""
    with pytest.raises(BadInput, match=field):
        Settings(**given)


@pytest.mark.parametrize("best", [None, 0, 16, 32, 64])
def test_how_many_filter_hands_on(best: int | None) -> None:
    """None and 0 for all."""
    assert Settings(best=best).best == best
