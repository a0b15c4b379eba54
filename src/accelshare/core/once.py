"""Equal values kept once: a cluster says the same few words many thousand times, each time as new objects."""

from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 4096  # values that differ, such as models, sizes and PCIe paths; beyond that they are just not shared


@lru_cache(maxsize=_MOST)
def _first(value: Any) -> Any:
    return value


def once(value: T) -> T:
    """An object equal to this one, and the same at each call. For what few values there are of."""
    shared: T = _first(value)
    return shared
