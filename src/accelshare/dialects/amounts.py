"""Reading whole amounts of an extended resource, strictly and with a sentence for whoever wrote it."""

import re
from fractions import Fraction

from accelshare.core.errors import BadInput
from accelshare.core.objects import Container

MOST = 2**53  # more units than any machine has bytes; JSON's numbers are exact up to here

_SUFFIXES = {
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
}

# Kubernetes' quantity: digits, then an exponent or a suffix.
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?)([a-zA-Z]{0,2})"
)


def amount(container: Container, resource: str) -> int | None:
    """What one container asks of a resource: its limit, or its request where it has no limit.

    None where it names neither. Raises BadInput where they differ, or are no whole amount.
    """
    resources = container.resources
    if resources is None:
        return None
    limit = (resources.limits or {}).get(resource)
    request = (resources.requests or {}).get(resource)
    where = f"resources.limits[{resource}] of container {container.name}"
    if limit is None:
        if request is None:
            return None
        return _whole(request, f"resources.requests[{resource}] of container {container.name}")
    count = _whole(limit, where)
    if request is not None and _whole(request, where.replace(".limits", ".requests")) != count:
        raise BadInput(
            f"resources.requests[{resource}] of container {container.name}", request, f"its limit, {count}"
        )
    return count


def _whole(value: str | int | float, where: str) -> int:
    allowed = "a whole number that is not negative"
    text = str(value).strip()
    found = _QUANTITY.fullmatch(text)
    factor = _SUFFIXES.get(found[2], None if found[2] else Fraction(1)) if found else None
    if found is None or factor is None:
        raise BadInput(where, value, allowed)
    exact = Fraction(found[1]) * factor
    if exact.denominator != 1 or exact < 0:
        raise BadInput(where, value, allowed)
    if exact > MOST:
        raise BadInput(where, value, f"{allowed} and at most {MOST}")
    return int(exact)
