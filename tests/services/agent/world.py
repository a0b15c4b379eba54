"""What the agent's tests are made of: keys, grants, kubelet's checkpoint, a driver that obeys."""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accelshare.core.container import DeviceNode, Edits, cdi_name
from accelshare.core.errors import BadInput, DriverError
from accelshare.core.grant import ContainerGrant, Grant, Share
from accelshare.core.inventory import Card
from accelshare.core.objects import Pod, Role
from accelshare.core.ownership import NONCE_ANNOTATION
from accelshare.core.units import GIB
from accelshare.kube.api.client import Client
from accelshare.kube.api.config import ApiConfig
from accelshare.kube.kubelet.checkpoint import FILE_NAME
from accelshare.kube.kubelet.protos.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse
from accelshare.services.agent.view import NodeView
from tests.builders import MEMORY, a_card, a_pod, bound, cards

NODE = "n1"
PATIENCE_S = 20.0  # after which a test that waits has failed


def in_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(patiently())


class Keys:
    """A key pair: what the scheduler service signs with, and what agents check."""

    def __init__(self) -> None:
        self.private = Ed25519PrivateKey.generate()

    def sign(self, payload: bytes) -> str:
        return base64.b64encode(self.private.sign(payload)).decode()

    def verify(self, payload: bytes, signature: str) -> bool:
        try:
            self.private.public_key().verify(base64.b64decode(signature), payload)
        except Exception:
            return False
        return True


def a_grant(
    pod: Pod,
    *units: int,
    card: Card | None = None,
    node: str = NODE,
    time: int = 0,
    roles: Sequence[Role] = (),
    names: Sequence[str] = (),
    dialect: str = "gcushare",
) -> Grant:
    """So many GB of one card for each container of the pod."""
    card = card or a_card()
    parts = tuple(
        ContainerGrant(
            names[at] if names else f"c{at}",
            roles[at] if roles else "app",
            (Share(card.id, card.index, count * GIB),),
            count,
        )
        for at, count in enumerate(units)
    )
    return Grant(dialect=dialect, uid=pod.metadata.uid, node=node, containers=parts, unit="1GB", time=time)


def granted(
    name: str,
    *units: int,
    card: Card | None = None,
    keys: Keys | None = None,
    version: int = 0,
    time: int = 0,
) -> Pod:
    """A bound pod with a grant of that card."""
    pod = a_pod(name, *units)
    grant = a_grant(pod, *units, card=card, time=time)
    return bound(pod, grant, version=version, phase="Pending", sign=keys.sign if keys else None)


def ids(start: int, count: int, card: int = 0) -> list[str]:
    return [f"GCU-{card}-_-{n}" for n in range(start, start + count)]


def entry(
    uid: str,
    held: Sequence[str],
    nonce: str | None = None,
    *,
    container: str = "c0",
    resource: str = MEMORY,
    direct: bool = False,
) -> dict[str, object]:
    """One entry of kubelet's checkpoint; without a nonce another plugin answered."""
    answer = ContainerAllocateResponse()
    if nonce is not None and direct:
        answer.annotations[NONCE_ANNOTATION] = nonce
    elif nonce is not None:
        answer.cdi_devices.append(CDIDevice(name=cdi_name(nonce)))
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": {"-1": list(held)},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }


def write_checkpoint(folder: Path, *entries: dict[str, object]) -> None:
    """As kubelet does it: another file, renamed into place."""
    data = {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}, "Checksum": 0}
    fresh = folder / f".{FILE_NAME}"
    fresh.write_bytes(msgspec.json.encode(data))
    fresh.replace(folder / FILE_NAME)


class FakeDriver:
    """Cards as a test sets them; `error` is raised in place of them."""

    name = "fake"

    def __init__(self, of: Sequence[Card] = cards(2)) -> None:
        self.cards = tuple(of)
        self.error: DriverError | BadInput | Exception | None = None

    def discover(self) -> tuple[Card, ...]:
        if self.error is not None:
            raise self.error
        return self.cards

    def edits(self, cards: Sequence[Card]) -> Edits:
        return Edits(devices=tuple(DeviceNode(f"/dev/gcu{card.minor}") for card in cards))

    def close(self) -> None:
        pass


class FakeView(NodeView):
    """A view whose API server is a list in this test: what a refresh brings, or that it fails."""

    def __init__(self, *pods: Pod, of: Sequence[Card] = cards(2)) -> None:
        super().__init__(Client(ApiConfig("http://127.0.0.1:0"), "test"), NODE)
        self.cards = {card.id: card for card in of}
        self.server: list[Pod] = list(pods)
        self.error: Exception | None = None
        self.refreshed = 0
        self.replace(pods)

    async def refresh(self) -> None:
        self.refreshed += 1
        if self.error is not None:
            raise self.error
        self.replace(self.server)
        await self.tell()
