"""A grant: which part of which card each container of a pod got. It lives in one annotation of the pod.

The annotation is JSON with the signature as its last field; what is signed is the text before it, byte for
byte, so no canonical form has to be agreed upon. The text holds the pod's UID and node: a grant copied to
another pod, or to another node, is none.
"""

from collections.abc import Callable
from sys import intern

import msgspec
from msgspec import Struct

from accelshare.core.errors import BadInput
from accelshare.core.objects import Pod, Role
from accelshare.core.once import once
from accelshare.core.request import peak

GRANT = "accelshare.io/grant"

_SIGNATURE = ',"signature":"'

Sign = Callable[[bytes], str]


class Share(Struct, frozen=True, omit_defaults=True):
    """A part of one card."""

    card: str
    index: int
    memory: int  # bytes
    compute: int = 0
    exclusive: bool = False


class ContainerGrant(Struct, frozen=True, omit_defaults=True):
    name: str
    role: Role
    shares: tuple[Share, ...]
    units: int = 0  # of the dialect's primary resource, as the pod asked: so many ids kubelet hands out


class Grant(Struct, frozen=True, omit_defaults=True, kw_only=True):
    dialect: str
    uid: str
    node: str
    containers: tuple[ContainerGrant, ...]
    unit: str = ""
    time: int = 0  # nanoseconds since 1970, when it was decided


class Charge(Struct, frozen=True, gc=False):
    """What a pod as a whole takes of one card, for as long as it lives."""

    card: str
    index: int
    memory: int
    compute: int = 0
    exclusive: bool = False


def charges(grant: Grant) -> tuple[Charge, ...]:
    """Each card once, with the most that the pod's containers use of it at any one time."""
    cards: dict[str, list[tuple[Role, Share]]] = {}
    for container in grant.containers:
        for share in container.shares:
            cards.setdefault(share.card, []).append((container.role, share))
    return tuple(
        Charge(
            intern(card),
            parts[0][1].index,
            once(peak((role, share.memory) for role, share in parts)),
            peak((role, share.compute) for role, share in parts),
            any(share.exclusive for _, share in parts),
        )
        for card, parts in cards.items()
    )


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Grant)


def write_grant(grant: Grant, sign: Sign | None) -> str:
    payload = _encoder.encode(grant)
    if sign is None:
        return payload.decode()
    return payload[:-1].decode() + _SIGNATURE + sign(payload) + '"}'


class Signed(Struct, frozen=True):
    """A grant as it was read, with what a signature of it is over."""

    grant: Grant
    payload: bytes
    signature: str = ""


def parse_grant(text: str) -> Signed:
    """Raises BadInput on anything that write_grant cannot have written."""
    body, found, tail = text.rpartition(_SIGNATURE)
    payload = (body + "}" if found else text).encode("utf-8", "replace")
    signature = tail.removesuffix('"}') if found else ""
    if found and (signature == tail or '"' in signature):
        raise BadInput(f"annotation {GRANT}", text, "a signature as its last field")
    try:
        grant = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"annotation {GRANT}", text, f"what the scheduler service writes ({error})") from error
    if any(share.memory < 0 or share.compute < 0 for c in grant.containers for share in c.shares):
        raise BadInput(f"annotation {GRANT}", text, "amounts that are not negative")
    return Signed(grant, payload, signature)


def grant_of(pod: Pod) -> Signed | None:
    """The grant that this bound pod carries, None where it has none; BadInput where it is another's."""
    text = pod.annotation(GRANT)
    if text is None or not pod.node:
        return None
    signed = parse_grant(text)
    for field, value, own in (
        ("uid", signed.grant.uid, pod.metadata.uid),
        ("node", signed.grant.node, pod.node),
    ):
        if value != own:
            raise BadInput(f"{field} in annotation {GRANT}", value, f"the pod's own, {own!r}")
    return signed
