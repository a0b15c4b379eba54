"""Units of memory. Inside everything is bytes; a unit exists only where a dialect asks or shows.

Rule: a grant of n units is floor(n * unit) bytes. So any set of grants that fits a card by count fits it
by bytes, also where a unit is no whole number of bytes (0.1 GB is 107,374,182.4).
"""

from msgspec import Struct

GIB = 1 << 30
MIB = 1 << 20


class Unit(Struct, frozen=True):
    name: str  # as the node publishes it
    numerator: int  # bytes = numerator / denominator
    denominator: int = 1

    def bytes(self, count: int) -> int:
        return count * self.numerator // self.denominator

    def count(self, size: int) -> int:
        """How many whole units go into that many bytes."""
        return size * self.denominator // self.numerator

    def nearest(self, size: int) -> int:
        """The count whose bytes these are: undoes bytes() for every grant that this unit can write."""
        return -(-size * self.denominator // self.numerator)


BYTE = Unit("", 1)  # of a dialect that has no units: everywhere its name is empty
