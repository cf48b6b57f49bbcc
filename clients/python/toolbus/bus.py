"""The client: calls tools of a daemon over RabbitMQ."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar, overload

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from . import messages
from .errors import BusError, Misuse, ToolError, ToolTimeout
from .functions import Effect, Tool, tool_of
from .link import Link
from .messages import Progress, Result, ToolsChanged
from .provider import Provider

if TYPE_CHECKING:
    from .mcp import McpToolbus

# The daemon keeps the deadline itself; its reply about that is on the way for a moment.
GRACE = 1.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
# Reports of progress that a slow reader may be behind.
MAX_REPORTS = 1000
INVOKE = "tool.invoke"
PROVIDER = re.compile(r"[A-Za-z0-9._-]{1,64}")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Waiter:
    """What waits for the reply to one request."""

    reply: asyncio.Future[AbstractIncomingMessage]
    accepts: Callable[[AbstractIncomingMessage], bool] | None = None
    progress: Callable[[Progress], None] | None = None


class Toolbus:
    """Calls tools as one agent.

    async with Toolbus("amqp://guest:guest@127.0.0.1:5672/%2f", agent="ana") as bus:
        print(await bus.call("get_weather", city="Lima", timeout=5))
    """

    def __init__(
        self,
        url: str,
        agent: str,
        *,
        timeout: float = 60.0,
        retries: int = 3,
        exchange: str = "rockbot",
        topic: str = INVOKE,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Does not connect yet: `async with`, or `open`, does.

        `headers` are of the envelope, and go with each call: `rb-tool-profile`, `rb-binding`, `rb-model`, ….
        """
        self.agent = agent
        self.timeout = timeout
        self.retries = retries
        self.strays = 0
        """Number of messages that were dropped: replies that no call waited for, because they were late, repeated or
        for another client, and requests to `serve` that cannot be replied to."""
        self._url, self._exchange, self._topic, self._headers = url, exchange, topic, dict(headers or {})
        self._waiting: dict[str, Waiter] = {}
        self._listeners: list[Callable[[ToolsChanged], None]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._tools: dict[str, Tool] = {}
        self._provider: Provider | None = None
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @staticmethod
    def mcp(url: str, token: str | None = None, *, timeout: float = 60.0, retries: int = 3) -> McpToolbus:
        """A client with the same `call` and `tools`, over the daemon's MCP server."""
        from .mcp import McpToolbus  # its package is an extra

        return McpToolbus(url, token, timeout=timeout, retries=retries)

    async def __aenter__(self) -> Toolbus:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connects; raises a `BusError` that says what is wrong."""
        if self._link:
            raise Misuse("the client is open already")
        link = Link(self._url, self._exchange, f"reply.{self.agent}.{uuid.uuid4().hex}", self._receive)
        await link.open()
        self._link, self._loop, self._pid = link, asyncio.get_running_loop(), os.getpid()

    async def close(self) -> None:
        """Lets `serve` end as its cancellation does, and disconnects; calls that still wait fail."""
        if not self._link:
            return
        link = self._opened()
        if self._provider:
            await self._provider.stop()
        if self._background:
            await asyncio.wait(self._background, timeout=GRACE)
        self._link = None
        for waiter in self._waiting.values():
            if not waiter.reply.done():
                waiter.reply.set_exception(Misuse("the client was closed during the call"))
        await link.close()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | None = None,
        key: str | None = None,
        session: str | None = None,
        call_id: str | None = None,
        retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        **more: Any,
    ) -> Result:
        """Calls a tool, and returns its result; raises a `ToolError`, or a `BusError` if no daemon got the request.

        Arguments are keywords, or a mapping if they have names of options. `timeout`, in seconds, is for all attempts
        together. `key` identifies the call for good: with the same key it has one effect, from any process. `call_id`
        is for `cancel`. Cancelling the task that awaits the call cancels the call.
        """
        link = self._opened()
        timeout = self.timeout if timeout is None else timeout
        if timeout <= 0:
            raise ValueError("timeout must be more than 0 seconds")
        request = uuid.uuid4().hex
        call_id = call_id or request
        all_arguments = {**(arguments or {}), **more}
        body = messages.encode(
            {"toolCallId": call_id, "toolName": tool, "arguments": all_arguments, "sessionId": session}
        )
        own = {**self._headers, **(headers or {})}
        if key is not None:
            own["rb-idempotency-key"] = key
        if progress is not None:
            own["rb-progress"] = "1"

        deadline = asyncio.get_running_loop().time() + timeout

        async def attempt() -> Result:
            kind = messages.INVOKE_REQUEST
            reply = await self._ask(
                link, self._topic, kind, body, deadline, request=request, headers=own, progress=progress
            )
            return messages.result(reply)

        try:
            return await retrying(attempt, deadline, self.retries if retries is None else retries, key)
        except asyncio.CancelledError:
            self._in_background(self._send_cancel(link, call_id))
            raise

    async def stream(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> AsyncIterator[Any]:
        """Calls a tool as `call` does; yields each `Progress`, then the `Result`."""
        reports: asyncio.Queue[Progress | None] = asyncio.Queue()

        def report(progress: Progress) -> None:
            if reports.qsize() < MAX_REPORTS:
                reports.put_nowait(progress)

        task = asyncio.create_task(self.call(tool, arguments, progress=report, **more))
        task.add_done_callback(lambda _: reports.put_nowait(None))
        try:
            while (progress := await reports.get()) is not None:
                yield progress
            yield await task
        finally:
            task.cancel()

    async def cancel(self, call_id: str, *, wait: float = 1.0) -> bool:
        """Cancels this agent's calls with the id. True once a daemon says that it did; False if none does in time."""
        link = self._opened()
        deadline = asyncio.get_running_loop().time() + wait

        def says_so(reply: AbstractIncomingMessage) -> bool:  # every daemon replies
            return messages.body(reply).get("cancelled") is True

        body, kind = messages.encode({"toolCallId": call_id}), messages.CANCEL_REQUEST
        try:
            await self._ask(link, "tool.cancel", kind, body, deadline, accepts=says_so, grace=0)
        except ToolTimeout:
            return False
        return True

    async def tools(
        self,
        format: str = "registration",
        *,
        names: Sequence[str] | None = None,
        session: str | None = None,
        timeout: float = 10.0,
    ) -> list[dict[str, Any]]:
        """Lists the tools of the agent, in one of the formats `openai`, `openai-responses`, `anthropic`, `gemini`,
        `bedrock`, `mcp` and `registration`."""
        link = self._opened()
        deadline = asyncio.get_running_loop().time() + timeout
        body = messages.encode({"format": format, "names": names and list(names), "sessionId": session})
        topic = "tool.list" + self._topic.removeprefix(INVOKE)
        reply = await self._ask(link, topic, messages.LIST_REQUEST, body, deadline, headers=self._headers)
        tools: list[dict[str, Any]] = messages.body(reply)["tools"]
        return tools

    @asynccontextmanager
    async def session(self, session_id: str | None = None) -> AsyncIterator[Session]:
        """A session: what the daemon starts for it ends with it."""
        session = Session(self, session_id or uuid.uuid4().hex)
        try:
            yield session
        finally:
            link, body = self._opened(), messages.encode({"sessionId": session.id})
            message = self._message(link, "Toolbus.SessionEnd", body, correlation=uuid.uuid4().hex)
            await link.publish("tool.session.end", message, asyncio.get_running_loop().time() + self.timeout)

    async def on_tools_changed(self, listener: Callable[[ToolsChanged], None]) -> None:
        """Has a function called when the tools of the agent change. List them after this, and no change is missed."""
        await self._opened().bind(f"tool.meta.tools.{self.agent}")
        self._listeners.append(listener)

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        effect: Effect | None = None,
    ) -> Callable[[Function], Function]: ...

    def tool(
        self,
        function: Function | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        effect: Effect | None = None,
    ) -> Function | Callable[[Function], Function]:
        """Offers a function as a tool, while `serve` runs: a decorator, with or without options.

        Its name, docstring and parameters are those of the tool. `effect` is what a call may do: `read-only`,
        `idempotent` (twice is as once) or `effectful`.
        """

        def offer(function: Function) -> Function:
            tool = tool_of(function, name, title, description, effect)
            if tool.name in self._tools:
                raise Misuse(f"there is a tool {tool.name!r} already")
            self._tools[tool.name] = tool
            if self._provider:
                self._provider.change()
            return function

        return offer if function is None else offer(function)

    async def serve(
        self, *, concurrency: int = 16, drain: float = 30.0, daemons: Collection[str] | None = None
    ) -> None:
        """Serves calls of the tools until it is cancelled; running calls then have `drain` seconds to end.

        `concurrency` is the number of calls at a time. `daemons` are the logins whose calls count; without it, those of
        all that may publish on `tool.invoke.provider.AGENT`.
        """
        link = self._opened()
        if self._provider:
            raise Misuse("the client serves already")
        if not PROVIDER.fullmatch(self.agent):
            raise Misuse(f"{self.agent!r} is no name of a provider: 1 to 64 letters, digits, '.', '_' and '-'")
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._provider = Provider(self, link, self._tools, concurrency, daemons)
        try:
            await self._provider.serve(drain)
        finally:
            self._provider = None

    def _opened(self) -> Link:
        """Refuses what would wait for ever, or break the connection of another process."""
        if not self._link:
            raise Misuse("the client is not open: use `async with Toolbus(…) as bus`")
        if self._pid != os.getpid():
            raise Misuse("the client was opened before a fork; open one in each process")
        if self._loop is not asyncio.get_running_loop():
            closed = self._loop is not None and self._loop.is_closed()
            why = "which is closed" if closed else "of another thread or run"
            raise Misuse(f"the client belongs to another event loop, {why}; threads may share a toolbus.sync.Toolbus")
        return self._link

    def _message(
        self,
        link: Link,
        kind: str,
        body: bytes,
        *,
        correlation: str,
        request: str | None = None,
        remaining: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> aio_pika.Message:
        own = {f"rb-{name}": value for name, value in (headers or {}).items()}
        if remaining is not None:
            own["rb-rb-timeout-ms"] = str(max(int(remaining * 1000), 1))
        return aio_pika.Message(
            body,
            type=kind,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=request or correlation,
            correlation_id=correlation,
            expiration=None if remaining is None else remaining + GRACE,
            timestamp=datetime.now(timezone.utc),
            user_id=link.login,
            headers={"rb-source": self.agent, **own, **messages.trace()},
        )

    async def _ask(
        self,
        link: Link,
        topic: str,
        kind: str,
        body: bytes,
        deadline: float,
        *,
        request: str | None = None,
        headers: Mapping[str, str] | None = None,
        accepts: Callable[[AbstractIncomingMessage], bool] | None = None,
        progress: Callable[[Progress], None] | None = None,
        grace: float = GRACE,
    ) -> AbstractIncomingMessage:
        """Publishes one request, and waits for its reply."""
        loop = asyncio.get_running_loop()
        # Each attempt has its own: the second reply to an earlier one is dropped.
        correlation = uuid.uuid4().hex
        remaining = max(deadline - loop.time(), 0.001)
        message = self._message(
            link, kind, body, correlation=correlation, request=request, remaining=remaining, headers=headers
        )
        waiter = self._waiting[correlation] = Waiter(loop.create_future(), accepts, progress)
        try:
            session = None
            while session is None or session.replies_lost.done():
                # The daemon knows a request that is published again by its id.
                session = await link.publish(topic, message, deadline, sent=session is not None)
                ends = (waiter.reply, session.replies_lost)
                left = max(deadline + grace - loop.time(), 0)
                await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if waiter.reply.done():
                    return waiter.reply.result()
            raise ToolTimeout("timeout", f"no reply within {remaining:.3g} s: is a daemon running?", outcome="unknown")
        except asyncio.TimeoutError:
            text = f"the broker did not confirm the request within {remaining:.3g} s"
            raise ToolTimeout("timeout", text, outcome="unknown") from None
        finally:
            del self._waiting[correlation]

    def _receive(self, message: AbstractIncomingMessage) -> None:
        if message.type == messages.TOOLS_CHANGED and message.routing_key == f"tool.meta.tools.{self.agent}":
            self._announce(message)
            return
        waiter = self._waiting.get(message.correlation_id or "")
        if waiter is None or waiter.reply.done():
            self.strays += 1
        elif message.type == messages.PROGRESS:
            if waiter.progress and (report := messages.progress(message)):
                waiter.progress(report)
        else:
            try:
                if waiter.accepts is None or waiter.accepts(message):
                    waiter.reply.set_result(message)
            except ToolError as error:
                waiter.reply.set_exception(error)

    def _announce(self, message: AbstractIncomingMessage) -> None:
        try:
            read = messages.body(message)
            change = ToolsChanged(read["version"], list(read["added"]), list(read["removed"]))
        except (ToolError, KeyError, TypeError):
            self.strays += 1
            return
        for listener in self._listeners:
            listener(change)

    async def _send_cancel(self, link: Link, call_id: str) -> None:
        message = self._message(
            link, messages.CANCEL_REQUEST, messages.encode({"toolCallId": call_id}), correlation=uuid.uuid4().hex
        )
        with suppress(BusError, Misuse, asyncio.TimeoutError):  # then the call ends at its deadline
            await link.publish("tool.cancel", message, asyncio.get_running_loop().time() + GRACE)

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


@dataclass(frozen=True)
class Session:
    """A session of `Toolbus.session`; the same id of two agents is two sessions."""

    bus: Toolbus
    id: str

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> Result:
        """As `Toolbus.call`, in this session."""
        return await self.bus.call(tool, arguments, session=self.id, **more)

    async def tools(self, format: str = "registration", **more: Any) -> list[dict[str, Any]]:
        """As `Toolbus.tools`, with the tools of this session."""
        return await self.bus.tools(format, session=self.id, **more)


async def retrying(attempt: Callable[[], Any], deadline: float, retries: int, key: str | None) -> Result:
    """Repeats a call as long as its error says that this may help and there is time."""
    for number in itertools.count():
        try:
            result: Result = await attempt()
            return result
        except ToolError as error:
            pause = (error.retry_after or 0) + min(FIRST_PAUSE * 2**number, LONGEST_PAUSE) * random.uniform(0.5, 1)
            # Of a call with a key that began, the daemon repeats the reply.
            useless = key is not None and error.outcome != "not_started"
            late = asyncio.get_running_loop().time() + pause >= deadline
            if not error.retryable or useless or late or number >= retries:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("unreachable: the loop returns or raises")
