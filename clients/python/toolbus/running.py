"""Runs of functions: each ends in one reply."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aio_pika.abc import AbstractIncomingMessage

from . import messages
from .errors import BY_CODE, ExecutionFailed, Overloaded, ToolCancelled, ToolError, ToolTimeout
from .functions import Call, Tool, result_of

log = logging.getLogger(__package__)

MAX_BODY = 16 * 1024 * 1024
# Time for a function that is cancelled to end.
GRACE = 1.0
OUTCOMES = ("not_started", "failed", "unknown")


class Reply(NamedTuple):
    """What is replied to a call, to each delivery of it."""

    kind: str
    body: bytes
    duration: float | None = None
    """Run time of the function, in seconds."""
    may_come_again: bool = False
    """Whether the call did not begin, and may be tried again with the same message id."""


@dataclass(eq=False)
class Run:
    """A function that runs."""

    call: Call
    cancelled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def cancel(self) -> None:
        """Has the function cancelled."""
        if not self.cancelled.done():
            self.cancelled.set_result(None)


class Runner:
    """Runs functions: asynchronous ones in the event loop, others in threads."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._runs: set[Run] = set()

    def cancel(self, agent: str, call_id: str) -> bool:
        """Cancels an agent's calls with the id; whether there are any."""
        found = [run for run in self._runs if (run.call.agent, run.call.id) == (agent, call_id)]
        for run in found:
            run.cancel()
        return bool(found)

    def cancel_all(self) -> None:
        """Cancels all calls."""
        for run in self._runs:
            run.cancel()

    async def run(self, tool: Tool, call: Call, arguments: Any, message: AbstractIncomingMessage) -> Reply:
        """Runs a function until it ends, its time is over, or it is cancelled."""
        run, began = Run(call), time.monotonic()
        self._runs.add(run)
        function = asyncio.create_task(self._reply(tool, call, arguments, message))
        try:
            ends: tuple[asyncio.Future[Any], ...] = (function, run.cancelled)
            await asyncio.wait(ends, timeout=call.remaining, return_when=asyncio.FIRST_COMPLETED)
            if function.done():
                # A function can raise CancelledError by itself.
                reply = self._broken(tool, call) if function.cancelled() else function.result()
            else:
                reply = failed(call, tool.name, self._stopped(tool, is_cancelled=run.cancelled.done()))
                call._send = None
                function.cancel()
                await asyncio.wait({function}, timeout=GRACE)
                if not function.done():
                    log.warning("Tool %r does not end, although it was cancelled", tool.name)
            return reply._replace(duration=time.monotonic() - began)
        finally:
            call._send = None
            function.cancel()
            self._runs.discard(run)

    async def _reply(self, tool: Tool, call: Call, arguments: Any, message: AbstractIncomingMessage) -> Reply:
        try:
            try:
                text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
                work = functools.partial(tool.function, **tool.read(text or "{}"), **dict.fromkeys(tool.calls, call))
                with messages.traced(message):
                    result = result_of(await (work() if tool.is_async else self._in_thread(work)))
                said = {
                    "content": result.content,
                    "contentBlocks": result.blocks or None,
                    "isError": bool(result.is_error),
                }
                body = messages.encode({"toolCallId": call.id, "toolName": tool.name, **said})
                if len(body) > MAX_BODY:
                    raise ValueError(f"the result has {len(body)} bytes, and may have 16 MiB")
                return Reply(messages.INVOKE_RESPONSE, body)
            except ToolError as error:
                return failed(call, tool.name, error)
        except asyncio.CancelledError:
            raise
        except BaseException:  # also SystemExit: a function does not end the program
            return self._broken(tool, call)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self._free <= 0:
            text = "Calls that did not end in time hold all threads of this provider."
            raise Overloaded("overloaded", text, retryable=True, retry_after=1, outcome="not_started")
        self._free -= 1
        return await in_thread(work, self._freed)

    def _freed(self) -> None:
        self._free += 1

    @staticmethod
    def _broken(tool: Tool, call: Call) -> Reply:
        log.exception("Tool %r failed", tool.name)
        error = ExecutionFailed("execution_failed", f"Tool {tool.name!r} failed.", outcome=tool.outcome)
        return failed(call, tool.name, error)

    @staticmethod
    def _stopped(tool: Tool, *, is_cancelled: bool) -> ToolError:
        if is_cancelled:
            return ToolCancelled("cancelled", f"Tool {tool.name!r} was cancelled.", outcome=tool.outcome)
        text = f"Tool {tool.name!r} did not end in time."
        return ToolTimeout("timeout", text, outcome=tool.outcome, retryable=tool.is_repeatable)


def plain(text: object, limit: int = 1024) -> str:
    """A text of bounded length that UTF-8 can hold."""
    return str(text)[:limit].encode("utf-8", "replace").decode()


def failed(call: Call, name: str, error: ToolError) -> Reply:
    """The reply that says what failed, in terms that daemons know."""
    after, outcome = error.retry_after, error.outcome if error.outcome in OUTCOMES else None
    said = {
        "toolCallId": call.id,
        "toolName": name,
        "code": error.code if error.code in BY_CODE else "execution_failed",
        "message": plain(error.message, 4000),
        "isRetryable": bool(error.retryable),
        "retryAfterMs": math.ceil(after * 1000) if isinstance(after, int | float) and 0 <= after < 1e9 else None,
        "outcome": outcome,
    }
    may_come_again = bool(error.retryable) and outcome == "not_started"
    return Reply(messages.ERROR, messages.encode(said), may_come_again=may_come_again)


async def in_thread(work: Callable[[], Any], ended: Callable[[], None]) -> Any:
    """Runs a function in a thread of its own, which does not keep the program from ending.

    Nothing stops the thread: `ended` is called in the event loop when it has ended, however long that takes.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    end: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        ended()
        if not end.done():
            end.set_result((result, error))

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    try:
        threading.Thread(target=run, name="toolbus-tool", daemon=True).start()
    except RuntimeError:  # there can be no more threads
        ended()
        raise
    result, error = await end
    if error is not None:
        raise error
    return result
