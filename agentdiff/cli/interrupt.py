"""Ctrl-C: what is under way is cancelled, and nothing can hold up the exit."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

import anyio
from anyio.abc import TaskStatus

T = TypeVar("T")

GRACE_S = 1.0
"""Seconds that threads get to come to an end; Python cannot stop one (a tool that sleeps, say)."""


async def interruptible(work: Callable[[], Awaitable[T]], *, give_up: Callable[[], NoReturn]) -> T:
    """The outcome of `work`, or `KeyboardInterrupt` after a Ctrl-C has cancelled it.

    If the work does not end within `GRACE_S` of that, or at a second Ctrl-C, `give_up` is called.
    """
    outcome: list[T] = []
    failure: Exception | None = None
    is_interrupted = False

    async def watch(
        scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        nonlocal is_interrupted
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            await anext(signals)
            is_interrupted = True
            scope.cancel()
            with anyio.move_on_after(GRACE_S):
                await anext(signals)
            give_up()

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            with suppress(NotImplementedError):  # no signal receivers: the event loop of Windows
                await tasks.start(watch, scope)
            try:
                outcome.append(await work())
            except Exception as error:
                failure = error  # raised below, where no task group wraps it
        tasks.cancel_scope.cancel()
    if is_interrupted:
        raise KeyboardInterrupt
    if failure is not None:
        raise failure
    return outcome[0]


def leave(code: int) -> NoReturn:
    """End this process now, after `GRACE_S` at most for threads that are still at work."""
    until = time.monotonic() + GRACE_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue
    os._exit(code)
