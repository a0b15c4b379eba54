"""Reading whole amounts of an extended resource, strictly and with a sentence for whoever wrote it."""

from decimal import Decimal, InvalidOperation

from accelshare.core.errors import BadInput
from accelshare.core.objects import Container

MOST = 2**53  # more units than any machine has bytes; JSON's numbers are exact up to here

_SUFFIXES = {
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "m": Decimal(10) ** -3,
}


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
    number = text.rstrip("kMGTKim")
    factor = _SUFFIXES.get(text[len(number) :])
    try:
        exact = Decimal(number) * factor if factor is not None and len(number) < 40 else None
    except InvalidOperation:
        exact = None
    if exact is None or not exact.is_finite() or exact != exact.to_integral_value() or exact < 0:
        raise BadInput(where, value, allowed)
    if exact > MOST:
        raise BadInput(where, value, f"{allowed} and at most {MOST}")
    return int(exact)
