"""Calls that block, each in a thread of its own for which nobody waits when the process ends.

A vendor's library hangs for as long as its card does. A thread of asyncio's own pool would then keep the
agent from ending; these are daemons.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def aside(call: Callable[[], T]) -> "asyncio.Future[T]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = call()
        except Exception as error:
            _hand_over(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
        else:
            _hand_over(loop, future, lambda: future.set_result(result))

    threading.Thread(target=work, name="aside", daemon=True).start()
    return future


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]", settle: Callable[[], None]
) -> None:
    def unless_done() -> None:
        if not future.done():
            settle()

    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile, and nobody wants the answer
        loop.call_soon_threadsafe(unless_done)
