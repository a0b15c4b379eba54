"""What a vendor's driver must be able to say. One file a vendor; no driver imports another.

A driver answers questions about the cards of this machine. It holds no policy and writes nothing.
All calls block: the agent calls them from a thread.
"""

from collections.abc import Sequence
from typing import Protocol

from accelshare.core.container import Edits
from accelshare.core.inventory import Card


class Driver(Protocol):
    name: str

    def discover(self) -> tuple[Card, ...]:
        """All cards with their present health, in the order of their index.

        Raises DriverError, with a sentence that says what to do, when the vendor's library cannot be asked.
        A library or kernel driver that was replaced since the last call is opened again here.
        """
        ...

    def edits(self, cards: Sequence[Card]) -> Edits:
        """What a container needs to open these cards: device nodes, tools and libraries that the host has."""
        ...

    def close(self) -> None: ...
