"""What a pod asks for, in neutral words that carry all dialects.

A dialect reads a pod into a PodRequest; nothing after it knows which language the pod spoke.
Amounts stay as they were asked (units, bytes or percent) until a card is looked at, since a unit is the
node's and a percentage is the card's.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from accelshare.core.objects import Role
from accelshare.core.units import Unit


class Amount(Struct, frozen=True, gc=False):
    count: int
    per: Literal["unit", "byte", "percent"] = "unit"

    def bytes_on(self, card_memory: int, unit: Unit) -> int:
        if self.per == "unit":
            return unit.bytes(self.count)
        if self.per == "percent":
            return card_memory * self.count // 100
        return self.count


NOTHING = Amount(0, "byte")


class Ask(Struct, frozen=True):
    """What one container asks of each of its cards."""

    role: Role
    memory: Amount = NOTHING
    compute: int = 0  # percent of a card; 0 is best effort
    exclusive: bool = False  # nobody else's container beside; a whole card is asked for as 100 percent


class ContainerRequest(Struct, frozen=True):
    name: str
    ask: Ask
    ids: int  # device ids of the dialect's primary resource that kubelet hands out for it
    cards: int = 1
    policy: str = ""  # where it is another than the pod's; of containers together the first's


class Selector(Struct, frozen=True):
    """Which cards a pod will have at all. An empty one takes every card."""

    models: tuple[str, ...] = ()  # part of a model's name, any of them, in capitals or not
    not_models: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    not_ids: tuple[str, ...] = ()


ANY_CARD = Selector()


class Group(Struct, frozen=True):
    """Containers that share the same cards."""

    asks: tuple[Ask, ...]
    cards: int = 1
    policy: str = ""  # where it is another than the shape's


class Shape(Struct, frozen=True, cache_hash=True):
    """All that placement needs to know. Pods that ask alike have equal shapes, whatever they are called."""

    dialect: str
    groups: tuple[Group, ...]
    policy: str
    selector: Selector = ANY_CARD
    slots: bool = True
    most: int = 0


class PodRequest(Struct, frozen=True):
    dialect: str
    containers: tuple[ContainerRequest, ...]  # in the order in which kubelet starts them
    policy: str
    together: bool = False  # all containers on the same cards
    selector: Selector = ANY_CARD
    slots: bool = True  # every asking container has the slot that a counted resource needs
    node_policy: Literal["fullest", "emptiest"] = "fullest"  # which nodes come first
    most: int = 0  # pods that its cards bear, itself included; 0: as many as there is room for

    def shape(self) -> Shape:
        return Shape(self.dialect, self.groups(), self.policy, self.selector, self.slots, self.most)

    def groups(self) -> tuple[Group, ...]:
        if self.together:
            cards = max(container.cards for container in self.containers)
            policy = self.containers[0].policy
            return (Group(tuple(container.ask for container in self.containers), cards, policy),)
        return tuple(Group((each.ask,), each.cards, each.policy) for each in self.containers)


def peak(amounts: Iterable[tuple[Role, int]]) -> int:
    """The most that is in use at any one time, given each container's amount in the order of their start.

    Plain init containers run alone, beside the sidecars that started before them; app containers and
    sidecars run together.
    """
    running = highest = 0
    for role, amount in amounts:
        if role == "init":
            highest = max(highest, running + amount)
        else:
            running += amount
    return max(highest, running)
