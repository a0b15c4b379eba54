"""Decoding a list in which one object may be broken.

One object that cannot be decoded must not hide the thousands beside it. So a list is decoded in one go, which
is fast; only where that fails, item by item, and what cannot be read is named in the log, counted and left
out.
"""

import logging
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Found(Struct, Generic[T]):
    items: list[T]
    undecodable: int = 0


class _Meta(Struct):
    name: str = "?"
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815


class _Named(Struct):
    """All that must be readable of any object, so that it can be named and passed over."""

    metadata: _Meta


_NAMED = msgspec.json.Decoder(_Named)
_ITEMS = msgspec.json.Decoder(list[Raw])


def passed_over(path: str, raw: Raw, failure: msgspec.DecodeError) -> str:
    """Say in the log that an object is passed over. Its resource version; without metadata it raises."""
    meta = _NAMED.decode(raw).metadata
    key = f"{meta.namespace}/{meta.name}".lstrip("/")
    _log.warning("%s of %s is passed over, for it cannot be decoded: %s", key, path, failure)
    return meta.resourceVersion


def decode_list(
    path: str, items: Raw, whole: msgspec.json.Decoder[Any], single: msgspec.json.Decoder[Any]
) -> Found[Any]:
    if bytes(items) == b"null":  # how Go writes an empty list
        return Found([])
    try:
        return Found(whole.decode(items))
    except msgspec.DecodeError:
        return _one_by_one(path, _ITEMS.decode(items), single)


def _one_by_one(path: str, items: list[Raw], single: msgspec.json.Decoder[Any]) -> Found[Any]:
    found: Found[Any] = Found([])
    for raw in items:
        try:
            found.items.append(single.decode(raw))
        except msgspec.DecodeError as failure:
            passed_over(path, raw, failure)
            found.undecodable += 1
    return found
