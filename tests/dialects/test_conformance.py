"""Every dialect that is registered keeps every rule."""

from collections.abc import Callable

import pytest

from accelshare.dialects import DIALECTS
from accelshare.dialects.interface import Dialect
from tests.dialects.conformance import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_dialect_keeps_the_rules(name: str, check: Callable[[Dialect], None]) -> None:
    """One rule at a time; the rule's own docstring says which."""
    check(DIALECTS[name])


def test_a_dialect_is_found_under_its_name() -> None:
    """And no resource is managed by two."""
    managed = [resource for dialect in DIALECTS.values() for resource in dialect.managed]

    assert all(dialect.name == name for name, dialect in DIALECTS.items())
    assert len(set(managed)) == len(managed)
