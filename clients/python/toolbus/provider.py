"""Tools of this program, which daemons call: one queue of calls, one reply to each, and no effect twice."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
)
from pamqp.commands import Basic

from . import messages
from .errors import BusError, Misuse, NotPermitted, ToolError
from .functions import Call, Tool
from .link import CONNECT_TIME, DIRECT, Link, Session, reasons, when_deleted
from .running import GRACE, MAX_BODY, Reply, Runner, failed, plain

if TYPE_CHECKING:
    from .bus import Toolbus

log = logging.getLogger(__package__)

# The queue of a provider that does not come back is deleted after 10 s.
QUEUE: dict[str, Any] = {"x-expires": 10_000}
CONSUMER = "calls"
# Lists and cancellations come to each process, and do not wait behind calls.
OWN_QUEUE: dict[str, Any] = {"x-max-length": 10_000}
CANCEL = "tool.cancel"
MAX_LIST, MAX_CANCEL = 64 * 1024, 4 * 1024
# Cancellations that are kept for calls that come later, and how long.
EARLY, EARLY_FOR = 1_000, 600.0
DEFAULT_TIME, LONGEST_TIME = 60.0, 600.0
# Replies that are kept for calls that are delivered again.
KEPT, KEPT_BYTES = 1_000, 64 * 1024 * 1024
SHORT_PAUSE, LONG_PAUSE = 0.1, 1.0
# Attempts to publish a reply that the broker rejects, because its queue is full or its node down.
ATTEMPTS = 32
# Attempts to delete the queue, while daemons still call.
CLEARINGS = 5


@dataclass(eq=False)
class Lane:
    """A channel on which calls come and replies go."""

    channel: AbstractChannel
    exchange: str
    closed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def close(self, *_: object) -> None:
        """Notes that nothing comes any more."""
        if not self.closed.done():
            self.closed.set_result(None)


class Provider:
    """Serves the tools of a client, from one `Toolbus.serve` to its end."""

    def __init__(
        self, bus: Toolbus, link: Link, tools: Mapping[str, Tool], concurrency: int, daemons: Collection[str] | None
    ) -> None:
        self._bus, self._link, self._tools = bus, link, tools
        self._concurrency, self._daemons = concurrency, daemons
        self._queue = f"provider.{bus.agent}"
        self._loop = asyncio.get_running_loop()
        self._changed, self._stop, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._served = self._stopping = False
        self._lane: Lane | None = None
        self._handling: set[asyncio.Task[None]] = set()
        self._runner = Runner(concurrency)
        self._replies: dict[tuple[str | None, ...], asyncio.Task[Reply]] = {}
        self._kept: deque[tuple[tuple[str | None, ...], int]] = deque()
        self._early: dict[tuple[str, str], float] = {}

    def change(self) -> None:
        """Announces that the tools have changed; any thread may call it."""
        self._loop.call_soon_threadsafe(self._changed.set)

    async def stop(self) -> None:
        """Ends `serve` as its cancellation does, and waits for that."""
        self._stop.set()
        await self._ended.wait()

    async def serve(self, drain: float) -> None:
        """Serves until it is cancelled or stopped, then lets running calls end."""
        listening = self._loop.create_task(self._listen())
        stop = self._loop.create_task(self._stop.wait())
        ends: tuple[asyncio.Task[Any], ...] = (listening, stop)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
        finally:
            self._stopping = True
            listening.cancel()
            stop.cancel()
            try:
                await self._drain(drain)
            finally:
                for task in (*self._handling, *self._replies.values()):
                    task.cancel()
                await self._close()
                self._ended.set()

    async def _close(self) -> None:
        if self._lane:
            with suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError), reasons():
                await asyncio.wait_for(self._lane.channel.close(), CONNECT_TIME)

    async def _listen(self) -> None:
        """Has calls come over each connection, and announces the tools."""
        said = ""
        while True:
            session = await self._link.connected(math.inf)
            pause = SHORT_PAUSE
            try:
                with reasons():
                    lane = await asyncio.wait_for(self._open(session), CONNECT_TIME)
                    self._served, said = True, ""
                    while not lane.closed.done():
                        self._changed.clear()
                        await self._announce(session)
                        change: asyncio.Task[Any] = self._loop.create_task(self._changed.wait())
                        try:
                            await asyncio.wait([lane.closed, change], return_when=asyncio.FIRST_COMPLETED)
                        finally:
                            change.cancel()
            except ChannelClosed as error:
                refusal = self._link.refusal(error)
                if isinstance(refusal, NotPermitted) and not self._served:
                    raise refusal from None
                if str(refusal) != said:
                    said = str(refusal)
                    log.warning("Tools are not offered now: %s", said)
                pause = LONG_PAUSE
            except (*CONNECTION_EXCEPTIONS, asyncio.TimeoutError):
                await self._close()  # the link connects again
            await asyncio.sleep(pause)

    async def _open(self, session: Session) -> Lane:
        channel = await session.connection.channel(on_return_raises=True)
        lane = self._lane = Lane(channel, session.exchange.name)
        channel.close_callbacks.add(lane.close)
        session.lost.add_done_callback(lane.close)
        await channel.set_qos(prefetch_count=self._concurrency)
        exchange = await channel.get_exchange(lane.exchange, ensure=False)
        queue = await channel.declare_queue(self._queue, durable=True, arguments=QUEUE)
        await queue.bind(exchange, f"tool.invoke.{self._queue}")
        own = await channel.declare_queue(exclusive=True, arguments=OWN_QUEUE)
        for topic in (f"tool.list.{self._queue}", CANCEL):
            await own.bind(exchange, topic)

        async def hear(message: AbstractIncomingMessage) -> None:
            is_cancel = message.routing_key == CANCEL
            if len(message.body) <= (MAX_CANCEL if is_cancel else MAX_LIST):
                self._handle(self._cancel(lane, message) if is_cancel else self._answer(lane, message))

        async def take(message: AbstractIncomingMessage) -> None:
            self._handle(self._take(lane, message))

        def deleted(_: object) -> None:
            if not self._stopping:
                self._handle(channel.close())

        await own.consume(hear, no_ack=True)
        await queue.consume(take, consumer_tag=CONSUMER)
        await when_deleted(channel, deleted)
        return lane

    def _handle(self, work: Awaitable[None]) -> None:
        """Does something with a message; what was not done when the connection is lost, comes again."""

        async def handle() -> None:
            with suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError), reasons():
                await work

        task = self._loop.create_task(handle())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _announce(self, session: Session) -> None:
        """Has daemons ask for the tools at once. Without the right to, they do within a minute."""
        message = self._bus._message(self._link, messages.ANNOUNCEMENT, b"{}", correlation=uuid.uuid4().hex)
        try:
            async with session.connection.channel() as channel:
                exchange = await channel.get_exchange(session.exchange.name, ensure=False)
                await exchange.publish(message, "tool.announce", mandatory=False, timeout=CONNECT_TIME)
        except (*CONNECTION_EXCEPTIONS, asyncio.TimeoutError) as error:
            log.debug("Tools are not announced: %s", error)

    async def _cancel(self, lane: Lane, message: AbstractIncomingMessage) -> None:
        if message.exchange != lane.exchange:
            self._bus.strays += 1
            return
        if message.type != messages.CANCEL_REQUEST or not self._is_of_daemon(message):
            return
        named = (_body(message) or {}).get("toolCallId")
        if not named:
            return
        agent, call_id = _source(message), plain(named)
        is_cancelled = self._runner.cancel(agent, call_id)
        if not is_cancelled:
            self._early[agent, call_id] = time.monotonic()
            if len(self._early) > EARLY:
                del self._early[next(iter(self._early))]
        if message.reply_to:
            said = {"toolCallId": call_id, "cancelled": is_cancelled}
            await self._tell(message, Reply(messages.CANCEL_RESPONSE, messages.encode(said)))

    def _is_of_daemon(self, message: AbstractIncomingMessage) -> bool:
        return self._daemons is None or message.user_id in self._daemons

    async def _take(self, lane: Lane, message: AbstractIncomingMessage) -> None:
        """Answers a call, and acknowledges it when the broker has the reply."""
        await self._answer(lane, message)
        await message.ack()

    async def _answer(self, lane: Lane, message: AbstractIncomingMessage) -> None:
        reply = await self._reply(lane, message)
        if reply is None:
            self._bus.strays += 1
            return
        try:
            with reasons():
                await self._send(lane, message, reply)
        except (*CONNECTION_EXCEPTIONS, asyncio.TimeoutError):
            if not self._stopping:
                raise
            # The call does not come again if its queue is gone.
            session = await self._link.connected(self._loop.time() + CONNECT_TIME)
            async with session.connection.channel(on_return_raises=True) as channel:
                await self._send(Lane(channel, lane.exchange), message, reply)

    async def _reply(self, lane: Lane, message: AbstractIncomingMessage) -> Reply | None:
        kinds: dict[str | None, tuple[str | None, ...]] = {
            f"tool.invoke.{self._queue}": (messages.INVOKE_REQUEST, None),
            f"tool.list.{self._queue}": (messages.LIST_REQUEST,),
        }
        is_request = message.exchange == lane.exchange and message.type in kinds.get(message.routing_key, ())
        if not message.reply_to or not is_request:
            return None
        is_list = message.type == messages.LIST_REQUEST
        body = _body(message)
        asked = {} if is_list or body is None else body
        named, own_id = asked.get("toolName"), asked.get("toolCallId")
        name = plain(named) if isinstance(named, str) else ""
        call_id = own_id or message.message_id or message.correlation_id or uuid.uuid4().hex
        call = Call(_source(message), id=plain(call_id), key=messages.header(message, "rb-idempotency-key"))
        try:
            if not self._is_of_daemon(message):
                raise _refusal("not_allowed", "This provider takes no requests of that login.")
            if body is None or not (is_list or name):
                text = "The body is no JSON object that names a tool, or is over 16 MiB."
                raise _refusal("invalid_arguments", text)
            if is_list:
                return self._list(body, call.agent)
            return await asyncio.shield(self._known(message) or self._begin(message, call, name, body))
        except ToolError as error:
            return failed(call, name, error)
        except Exception:
            log.exception("A request failed")
            text = "The provider failed: its log says why."
            return failed(call, name, _refusal("execution_failed", text, outcome="unknown"))

    def _known(self, message: AbstractIncomingMessage) -> asyncio.Task[Reply] | None:
        return self._replies.get(_identity(message)) if message.message_id else None

    def _begin(
        self, message: AbstractIncomingMessage, call: Call, name: str, body: Mapping[str, Any]
    ) -> asyncio.Task[Reply]:
        """Begins a call that this process does not know."""
        tool = self._tools.get(name)
        if message.redelivered and not (tool and tool.is_repeatable):
            text = f"Tool {name!r} may have run before."
            raise _refusal("execution_failed", text, outcome="unknown")
        if time.monotonic() - self._early.pop((call.agent, call.id), -math.inf) < EARLY_FOR:
            raise _refusal("cancelled", f"Tool {name!r} was cancelled before it began.")
        if self._stopping:
            text = f"Tool {name!r} was not called: its provider is stopping."
            raise _refusal("execution_failed", text, retryable=True)
        if tool is None:
            raise _refusal("tool_not_found", f"Tool {name!r} is not offered.")
        call.session = plain(body["sessionId"]) if body.get("sessionId") else None
        call.deadline = time.monotonic() + _allowed(messages.header(message, "rb-timeout-ms"))
        if messages.header(message, "rb-progress") == "1":
            call._send = functools.partial(self._report, message, call.id, name)
        running = self._loop.create_task(self._runner.run(tool, call, body.get("arguments"), message))
        if message.message_id:
            identity = _identity(message)
            self._replies[identity] = running
            running.add_done_callback(functools.partial(self._keep, identity))
        return running

    def _keep(self, identity: tuple[str | None, ...], task: asyncio.Task[Reply]) -> None:
        reply = None if task.cancelled() or task.exception() else task.result()
        if reply and reply.may_come_again:
            del self._replies[identity]
            return
        self._kept.append((identity, len(reply.body) if reply else 0))
        while len(self._kept) > KEPT or sum(size for _, size in self._kept) > KEPT_BYTES:
            del self._replies[self._kept.popleft()[0]]

    def _list(self, body: Mapping[str, Any], source: str) -> Reply:
        tools = [tool.definition for _, tool in sorted(self._tools.items())]
        version = hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()
        known = body.get("ifVersion") == version
        said = {"agent": source, "version": version, "tools": [] if known else tools, "notModified": known or None}
        return Reply(messages.LIST_RESPONSE, messages.encode(said))

    async def _report(
        self, message: AbstractIncomingMessage, call_id: str, name: str, progress: dict[str, Any]
    ) -> None:
        if progress["message"] is not None:
            progress["message"] = plain(progress["message"], 1000)
        body = messages.encode({"toolCallId": call_id, "toolName": name, **progress})
        await self._tell(message, Reply(messages.PROGRESS, body))

    async def _tell(self, message: AbstractIncomingMessage, reply: Reply) -> None:
        """Publishes once what may be lost."""
        out = self._out(message, reply)
        out.delivery_mode = aio_pika.DeliveryMode.NOT_PERSISTENT
        if self._lane is None:
            return
        with suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError), reasons():
            exchange = self._lane.channel.default_exchange
            await exchange.publish(out, message.reply_to or "", mandatory=False, timeout=GRACE)

    def _out(self, message: AbstractIncomingMessage, reply: Reply) -> aio_pika.Message:
        headers = {"rb-content-trust": "tool-output"}
        if reply.duration is not None:
            headers["rb-duration-ms"] = str(round(reply.duration * 1000))
        return self._bus._message(
            self._link,
            reply.kind,
            reply.body,
            correlation=message.correlation_id or "",
            request=uuid.uuid4().hex,
            headers=headers,
        )

    async def _send(self, lane: Lane, message: AbstractIncomingMessage, reply: Reply) -> None:
        """Publishes a reply until the broker confirms it."""
        address = message.reply_to or ""
        # The broker also returns what it has delivered by direct reply-to.
        mandatory = not address.startswith(DIRECT)
        for attempt in range(ATTEMPTS):
            try:
                exchange = lane.channel.default_exchange
                await exchange.publish(self._out(message, reply), address, mandatory=mandatory)
                return
            except DeliveryError as error:
                if not isinstance(error.frame, Basic.Nack):
                    break  # no queue takes it
                await asyncio.sleep(min(0.05 * 2**attempt, LONG_PAUSE))
        log.warning("No queue takes the reply to a call of %r", messages.header(message, "source"))

    async def _drain(self, patience: float) -> None:
        """Lets running calls end, and answers those in the queue, unless another process consumes it."""
        ends = self._loop.time() + patience
        with suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError), reasons():
            if self._lane:
                channel = await self._lane.channel.get_underlay_channel()
                await channel.basic_cancel(CONSUMER, timeout=CONNECT_TIME)
        await self._empty()
        if self._handling:
            await asyncio.wait(self._handling, timeout=max(ends - self._loop.time(), 0))
        self._runner.cancel_all()
        if self._handling:
            await asyncio.wait(self._handling, timeout=GRACE * 3)
        await self._empty()

    async def _empty(self) -> None:
        with suppress(BusError, Misuse, *CONNECTION_EXCEPTIONS, asyncio.TimeoutError), reasons():
            session = await self._link.connected(self._loop.time() + GRACE * 3)
            for _ in range(CLEARINGS):
                if await asyncio.wait_for(self._clear(session), CONNECT_TIME):
                    break

    async def _clear(self, session: Session) -> bool:
        """Answers what is in the queue, and deletes it, unless others serve it; False if more has come meanwhile."""
        async with session.connection.channel(on_return_raises=True) as channel:
            lane = Lane(channel, session.exchange.name)
            try:
                queue = await channel.declare_queue(self._queue, passive=True)
                if queue.declaration_result.consumer_count:
                    return True
                while message := await queue.get(fail=False):
                    known = self._known(message)
                    if known is None or known.done():
                        await self._take(lane, message)
                        continue
                    # It runs: the task of its first delivery replies when it has ended.
                    if not message.redelivered:
                        self._handle(self._answer(lane, message))
                    await message.ack()
                await queue.delete(if_unused=True, if_empty=True)
            except ChannelNotFoundEntity:
                return True
            except ChannelPreconditionFailed:
                return False
        return True


def _body(message: AbstractIncomingMessage) -> dict[str, Any] | None:
    """The JSON object of a request, if it is one."""
    try:
        read = json.loads(message.body) if len(message.body) <= MAX_BODY else None
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def _refusal(code: str, text: str, *, outcome: str = "not_started", retryable: bool = False) -> ToolError:
    return ToolError(code, text, outcome=outcome, retryable=retryable)


def _identity(message: AbstractIncomingMessage) -> tuple[str | None, ...]:
    return message.user_id, _source(message), message.message_id


def _source(message: AbstractIncomingMessage) -> str:
    return plain(messages.header(message, "source") or "unknown")


def _allowed(header: str | None) -> float:
    """The seconds that a call has."""
    ms = int(header) if header and header.isdecimal() and len(header) < 10 else 0
    return min(ms / 1000, LONGEST_TIME) if ms else DEFAULT_TIME
