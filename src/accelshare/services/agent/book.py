"""The grants that were checked and served on this node: one file per pod, the last line of defence.

A grant is checked once, when it is first served: its signature, that it is this pod's and this node's, and
that no card is overfilled by it, whoever wrote it and whoever else holds that card. From then on the file
counts and not the annotation: a pod that runs keeps what it has when keys change, or when somebody edits its
annotation.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from accelshare.core.errors import BadInput, GrantRefused
from accelshare.core.grant import GRANT, Charge, Grant, Signed, charges, grant_of
from accelshare.core.inventory import Card
from accelshare.core.ledger import Tenant
from accelshare.core.objects import Pod
from accelshare.services.agent.files import private_folder, remove_leftovers, standing, write_synced
from accelshare.services.keys import Verify

_log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(Grant)

# The API server's UIDs, and kubelet's own for pods from files. It becomes a file's name.
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class GrantBook:
    def __init__(self, folder: Path, verify: Verify | None) -> None:
        """verify is None only where the operator said --unsigned."""
        self._folder = private_folder(folder)
        self._verify = verify
        self._turn = asyncio.Lock()
        self._served: dict[str, Grant] = {}
        for path in standing(self._folder):
            grant = _read(path)
            if grant is not None:
                self._served[grant.uid] = grant

    def get(self, uid: str) -> Grant | None:
        return self._served.get(uid)

    def pods(self) -> list[str]:
        return list(self._served)

    async def admit(self, pod: Pod, cards: Mapping[str, Card], tenants: Iterable[Tenant] = ()) -> Grant:
        """The grant by which this pod is served, checked and written down if new. Raises GrantRefused.

        tenants: of this node, as its ledger reads them; those of other systems count beside what we serve.
        """
        async with self._turn:  # or two grants, each of which fits alone, would be checked at the same time
            known = self._served.get(pod.metadata.uid)
            if known is not None:
                return known
            grant = self._checked(pod)
            refuse_overfill(grant, self._others(grant.uid, tenants), cards)
            data = msgspec.json.encode(grant)
            await asyncio.to_thread(write_synced, self._folder / grant.uid, data)
            self._served[grant.uid] = grant
            return grant

    def _others(self, uid: str, tenants: Iterable[Tenant]) -> list[Charge]:
        """What others than this pod hold: by grants that we served, and by those of other systems."""
        served = [charge for grant in self._served.values() if grant.uid != uid for charge in charges(grant)]
        foreign = [tenant for tenant in tenants if tenant.foreign and tenant.uid not in {uid, *self._served}]
        return served + [charge for tenant in foreign for charge in tenant.charges]

    def check(self, pod: Pod) -> Grant:
        """The pod's grant, if it may be believed; nothing is written. Raises GrantRefused."""
        return self._served.get(pod.metadata.uid) or self._checked(pod)

    def forget(self, uid: str) -> None:
        if self._served.pop(uid, None) is not None:
            (self._folder / uid).unlink(missing_ok=True)

    def tidy(self, before: float) -> None:
        remove_leftovers(self._folder, before)

    def _checked(self, pod: Pod) -> Grant:
        uid = pod.metadata.uid
        if not _UID.fullmatch(uid):
            raise GrantRefused(f"pod {pod.key} is not served: {uid!r} is no UID that Kubernetes gives")
        signed = _own_grant(pod)
        if self._verify is not None and not self._verify(signed.payload, signed.signature):
            raise GrantRefused(
                f"pod {pod.key} carries a grant that no trusted key has signed: it is not served. "
                "Delete the pod, or give this agent the scheduler service's public key"
            )
        return signed.grant


def _read(path: Path) -> Grant | None:
    try:
        grant = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("grant file %s is passed over: %s", path, error)
        return None
    if grant.uid != path.name:
        _log.warning("grant file %s is passed over: it speaks of pod %s", path, grant.uid)
        return None
    return grant


def _own_grant(pod: Pod) -> Signed:
    try:
        signed = grant_of(pod)
    except BadInput as error:
        raise GrantRefused(f"pod {pod.key} is not served: {error}") from error
    if signed is None:
        raise GrantRefused(
            f"pod {pod.key} has no annotation {GRANT}: it was not bound by accelshare's scheduler service, "
            "so no card is served to it. Delete it, and it will be scheduled anew"
        )
    return signed


def card_named(name: str, uid: str, cards: Mapping[str, Card]) -> Card:
    """Raises GrantRefused where this node has no such card, or has it no longer."""
    card = cards.get(name)
    if card is None:
        raise GrantRefused(f"the grant of pod {uid} names card {name}, which this node does not have")
    return card


def refuse_overfill(grant: Grant, others: Sequence[Charge], cards: Mapping[str, Card]) -> None:
    """Raises GrantRefused where a card does not exist, or would hold more than it has."""
    for charge in charges(grant):
        card = card_named(charge.card, grant.uid, cards)
        beside = [other for other in others if other.card == charge.card]
        memory = charge.memory + sum(other.memory for other in beside)
        compute = charge.compute + sum(other.compute for other in beside)
        alone = charge.exclusive or any(other.exclusive for other in beside)
        if memory > card.memory or compute > 100 or (alone and beside):
            whole = ", and one of its holders wants it whole" if alone and beside else ""
            raise GrantRefused(
                f"the grant of pod {grant.uid} would overfill card {card.index} ({card.id}): {memory} bytes "
                f"and {compute} % of compute of {card.memory} bytes and 100 %{whole}"
            )
