"""Calls over the node's unix sockets, asked again while that can help.

kubelet's own sockets refuse more than 100 calls a second, 10 at once, over all who ask; they are away while
it restarts; and the Pods API refuses until kubelet has read its pods. All of that passes, so it is tried
again, after pauses that differ from one caller to the next, until the caller's deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from grpc import StatusCode, aio

from accelshare.core.errors import NotReady

PAUSE_S = 0.05
PAUSE_MOST_S = 1.0

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # a node's lists have no bound that we know
    ("grpc.use_local_subchannel_pool", 1),
    # After a failed connection gRPC would not try another for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

T = TypeVar("T")


def connect(socket: Path | str) -> aio.Channel:
    """Connects when it is first used. To be made within a running loop, and closed."""
    return aio.insecure_channel(f"unix://{socket}", options=_OPTIONS)


async def ask(
    what: str,
    call: Callable[[float], Awaitable[T]],
    *,
    deadline: float,
    jitter: Callable[[], float],
    passing: frozenset[StatusCode],
) -> T:
    """The answer of `call`, which is given the seconds that are left till the deadline, in the loop's time.

    Raises NotReady when it does not come, or fails with a status that does not pass.
    """
    clock = asyncio.get_running_loop().time
    attempt = 0
    while True:
        try:
            return await call(max(0.0, deadline - clock()))
        except aio.AioRpcError as error:
            pause = min(PAUSE_MOST_S, PAUSE_S * 2 ** min(attempt, 10)) * (0.5 + jitter())
            attempt += 1
            if error.code() not in passing or clock() + pause >= deadline:
                raise NotReady(f"{what} does not answer: {error.code().name}, {error.details()}") from error
        await asyncio.sleep(pause)
