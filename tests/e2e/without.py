"""Runs a service with one mechanism switched off, to see that its test on the real cluster fails then.

    ACCELSHARE_WITHOUT=nudge ONLY=e2e.freed_room make figures
    ACCELSHARE_WITHOUT=nonce ONLY=e2e.wrong_grants make figures
    ACCELSHARE_WITHOUT=scores .venv/bin/pytest --e2e tests/e2e/test_placement.py

A mechanism counts as done when its test has failed once this way. Nothing of this is in the product: the
switch is a function replaced in a process of its own.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from accelshare.cli.main import main


def no_nudge() -> None:
    """Freed room is offered to nobody: kube-scheduler asks again when it pleases."""
    from accelshare.services.scheduler.nudge import Nudger

    async def nothing(self: Nudger) -> None:
        self._looking.clear()
        self._again.clear()
        self._woken.clear()

    Nudger.tick = nothing  # type: ignore[method-assign]


def no_nonce() -> None:
    """The name in Allocate is made of the ids, as one would at first: used again by later pods."""
    import hashlib

    from accelshare.services.agent import allocations

    give = allocations.Allocations.give

    async def by_ids(self: Any, resource: str, ids: Any, *words: Any, **named: Any) -> str:
        ids = list(ids)
        name = hashlib.sha256(",".join(sorted(ids)).encode()).hexdigest()[:32]
        self.forget(name)
        self._draw = lambda: name
        return await give(self, resource, ids, *words, **named)

    allocations.Allocations.give = by_ids  # type: ignore[method-assign]


def no_nonce_but_fresh_files() -> None:
    """The same, but a name is given new content each time: what the runtime still knows then decides."""
    from accelshare.core.container import Edits, cdi_file
    from accelshare.services.agent import injection
    from accelshare.services.agent.files import write_synced

    async def put(self: injection.Cdi, nonce: str, edits: Edits) -> None:
        write_synced(self._path(nonce), cdi_file(nonce, edits), mode=0o644)

    injection.Cdi.put = put  # type: ignore[method-assign]
    no_nonce()


def no_signature() -> None:
    """Any grant is believed."""
    from accelshare.services import keys

    keys.verifier = lambda paths: lambda payload, signature: True


def no_overfill_check() -> None:
    from accelshare.services.agent import book

    book.refuse_overfill = lambda *_: None


def no_hold() -> None:
    """Room is taken when the binding is seen, and not when it is decided."""
    from accelshare.core.ledger import Ledger

    Ledger.hold = lambda self, pod, grant: None  # type: ignore[method-assign]


def no_scores() -> None:
    """prioritize has no opinion."""
    from accelshare.services.scheduler import state

    state.score = lambda rank: 0


def deaf() -> None:
    """PreStartContainer never finds a grant: what was allocated waits for an agent that does."""
    from accelshare.core.errors import NotReady
    from accelshare.services.agent.serving import Serving

    async def refuse(self: Serving, ids: frozenset[str]) -> None:
        raise NotReady("this agent does not listen")

    Serving.pre_start = refuse  # type: ignore[method-assign]


def no_fence() -> None:
    """Whoever led once goes on as if for ever."""
    from accelshare.kube.api.lease import Election

    Election.is_leader = property(lambda self: self._renewed_at is not None)  # type: ignore[assignment]


def shuffled_blocks() -> None:
    """No mechanism less, but bad luck: the same ids come again and again, each time for another card."""
    import random

    from accelshare.services.agent.serving import Serving

    async def prefer(self: Serving, available: list[str], must: list[str], size: int) -> list[str]:
        blocks: dict[str, list[str]] = {}
        for number in available:
            card, _, place = number.rpartition("-")
            blocks.setdefault(f"{card}:{int(place) // size}", []).append(number)
        whole = [sorted(block) for block in blocks.values() if len(block) == size]
        return random.choice(whole) if whole else sorted(available)[:size]

    Serving.prefer = prefer  # type: ignore[assignment]


SWITCHES: Mapping[str, Callable[[], None]] = {
    "nudge": no_nudge,
    "nonce": no_nonce,
    "nonce-fresh-files": no_nonce_but_fresh_files,
    "signature": no_signature,
    "overfill": no_overfill_check,
    "hold": no_hold,
    "scores": no_scores,
    "fence": no_fence,
    "deaf": deaf,
    "shuffled-blocks": shuffled_blocks,
}

if __name__ == "__main__":
    switch, _, *words = sys.argv[1:]
    for name in switch.split("+"):
        SWITCHES[name]()
    sys.exit(main(words))
