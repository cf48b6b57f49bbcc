"""The connection to the broker: one channel, on which requests go out and replies come in."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import yarl
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelClosed,
    ChannelNotFoundEntity,
    DeliveryError,
    ProbableAuthenticationError,
)
from aiormq.exceptions import ChannelAccessRefused, ConnectionInternalError, ConnectionNotAllowed
from pamqp.commands import Basic

from .errors import BrokerUnreachable, BusError, InvalidURL, LoginRefused, Misuse, NoDaemon, NotPermitted

DIRECT = "amq.rabbitmq.reply-to"
# Replies that the broker sends before it waits for acknowledgements.
PREFETCH = 512
ACKNOWLEDGE_AFTER = 0.02
LOOKS = "it looks like amqp://user:password@host:5672/%2f"
HEARTBEAT = "10"
CONNECT_TIME = 10.0
LONGEST_PAUSE = 2.0
# Where the consumers of a channel have to be looked at.
WATCH_EVERY = 0.5
# The broker drops a reply queue without a consumer after 10 minutes. It refuses replies beyond 10 000: the daemon tries
# again, and others that flood the queue do not drive out what is waited for.
QUEUE_LIMITS: dict[str, Any] = {"x-expires": 600_000, "x-max-length": 10_000, "x-overflow": "reject-publish"}


@dataclass(eq=False)
class Session:
    """One connection, until it is lost."""

    connection: AbstractConnection
    channel: Any
    """The channel of aiormq below the one of aio-pika."""
    exchange: AbstractExchange
    queue: AbstractQueue
    durable: bool
    """Whether replies wait in a queue while there is no connection."""
    deleted: asyncio.Future[None]
    """Done when the queue is deleted, also after this connection."""
    consumer: str = ""
    lost: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    newest: AbstractIncomingMessage | None = None
    acknowledging: asyncio.Task[None] | None = None
    unconfirmed: int = 0
    was_alone: bool = False
    """Whether one request was unconfirmed when the connection was lost."""

    @property
    def replies_lost(self) -> asyncio.Future[None]:
        """Done when replies to what was published no longer come: those by direct reply-to end with the connection."""
        return self.deleted if self.durable else self.lost

    async def publish(self, message: aio_pika.Message, topic: str, timeout: float) -> None:
        """Publishes once, and waits for the broker's confirm."""
        self.unconfirmed += 1
        try:
            with reasons():
                # aio-pika holds a lock until the socket is written, before it waits for the confirm: that
                # costs a sixth of all calls.
                await self.channel.basic_publish(
                    message.body,
                    exchange=self.exchange.name,
                    routing_key=topic,
                    properties=message.properties,
                    mandatory=True,
                    timeout=timeout,
                    wait=False,
                )
        except (DeliveryError, asyncio.TimeoutError, asyncio.CancelledError):
            self.unconfirmed -= 1
            raise
        self.unconfirmed -= 1

    def acknowledge(self, message: AbstractIncomingMessage) -> None:
        """Acknowledges replies together: one at a time costs a third of all calls."""
        if self.newest is None:
            self.acknowledging = asyncio.create_task(self._acknowledge())
        self.newest = message

    async def _acknowledge(self) -> None:
        await asyncio.sleep(ACKNOWLEDGE_AFTER)
        newest, self.newest = self.newest, None
        if newest:
            with contextlib.suppress(*CONNECTION_EXCEPTIONS), reasons():  # then they come again, and are dropped
                await newest.ack(multiple=True)


class Link:
    """Keeps a connection for as long as it is open."""

    def __init__(self, url: str, exchange: str, queue: str, receive: Callable[[AbstractIncomingMessage], None]) -> None:
        self._url = _parsed(url)
        self._exchange = exchange
        self._queue = queue
        self._receive = receive
        self._topics: set[str] = set()
        self._deleted = asyncio.get_running_loop().create_future()
        self._session: Session | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._trouble: BusError | None = None
        self._closed = False
        self._alone = asyncio.Lock()
        self.reconnects = 0

    @property
    def login(self) -> str:
        """The user that the broker verifies."""
        return self._url.user or "guest"

    async def open(self) -> None:
        """Connects for the first time; raises BusError if that fails."""
        self._use(await self._connect())

    async def close(self) -> None:
        """Deletes the reply queue, and disconnects."""
        self._closed = True
        self._up.set()  # what waits for a connection finds that there will be none
        session, self._session = self._session, None
        if self._keeper:
            self._keeper.cancel()
        if session:
            if session.acknowledging:
                session.acknowledging.cancel()
            with contextlib.suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError), reasons():
                if session.durable:
                    await session.queue.cancel(session.consumer, timeout=CONNECT_TIME)
                    await session.queue.delete(if_unused=False, if_empty=False, timeout=CONNECT_TIME)
            with contextlib.suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError):
                await session.connection.close()

    async def publish(self, topic: str, message: aio_pika.Message, deadline: float, *, sent: bool = False) -> Session:
        """Publishes until the broker confirms: over a new connection again, if the old one is lost.

        Raises TimeoutError if a request that may have gone out, now or before (`sent`), is not confirmed in time.
        """
        refused = False
        loop = asyncio.get_running_loop()
        while True:
            async with self._turn(deadline) if refused else contextlib.nullcontext():
                try:
                    session = await self.connected(deadline)
                except BrokerUnreachable:
                    if sent:
                        raise asyncio.TimeoutError from None
                    raise
                try:
                    # Each connection may have another address: a login can gain or lose the right to declare a queue.
                    message.reply_to = session.queue.name
                    remaining = max(deadline - loop.time(), 0.001)
                    await session.publish(message, topic, remaining)
                    return session
                except DeliveryError as error:
                    if not isinstance(error.frame, Basic.Nack):
                        raise NoDaemon(
                            f"no queue takes requests on topic {topic!r} of exchange {self._exchange!r}: no daemon "
                            "has listened there yet"
                        ) from None
                    await asyncio.sleep(min(0.2, remaining))  # the queue is full, or its node is down
                except ChannelClosed as error:
                    # The broker closes a channel for one request that it refuses, and does not say which: those that
                    # were on it are tried again one after the other, until one was alone.
                    self._drop(session)
                    if refused and session.was_alone:
                        raise self.refusal(error) from None
                    refused = True
                except asyncio.TimeoutError:
                    raise
                except CONNECTION_EXCEPTIONS:
                    self._drop(session)
                    sent = True

    @contextlib.asynccontextmanager
    async def _turn(self, deadline: float) -> AsyncIterator[None]:
        await asyncio.wait_for(self._alone.acquire(), max(deadline - asyncio.get_running_loop().time(), 0))
        try:
            yield
        finally:
            self._alone.release()

    async def bind(self, topic: str) -> None:
        """Has messages of a topic come to the reply queue, also after a reconnect."""
        session = await self.connected(asyncio.get_running_loop().time() + CONNECT_TIME)
        if not session.durable:
            raise NotPermitted(f"announcements need a queue, and the broker lets {self.login!r} declare none")
        self._topics.add(topic)
        try:
            with reasons():
                await session.queue.bind(session.exchange, topic)
        except ChannelClosed as error:
            self._topics.discard(topic)
            self._drop(session)
            raise self.refusal(error) from None
        except CONNECTION_EXCEPTIONS:
            self._drop(session)
            # The next connection binds it before it is used.
            await self.connected(asyncio.get_running_loop().time() + CONNECT_TIME)

    async def connected(self, deadline: float) -> Session:
        """The connection, or the next one; raises BrokerUnreachable if there is none until the deadline."""
        while (session := self._session) is None:
            if self._closed:
                raise Misuse("the client is closed")
            remaining = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._up.wait(), max(remaining, 0))
            except asyncio.TimeoutError:
                raise BrokerUnreachable(f"no connection in time: {self._trouble or 'it was just lost'}") from None
        return session

    def _use(self, session: Session) -> None:
        self._session = session
        if session.connection.is_closed or session.lost.done():
            self._drop(session)
        else:
            self._up.set()

    def _drop(self, session: Session) -> None:
        if not session.lost.done():
            session.was_alone = session.unconfirmed == 1
            session.lost.set_result(None)
        if self._session is session:
            self._session = None
            self._up.clear()
            self._keeper = asyncio.get_running_loop().create_task(self._reconnect(session))

    async def _reconnect(self, old: Session) -> None:
        with contextlib.suppress(*CONNECTION_EXCEPTIONS, asyncio.TimeoutError):
            await asyncio.wait_for(old.connection.close(), CONNECT_TIME)
        pause = 0.05
        while True:
            try:
                session = await self._connect()
                break
            except BusError as error:
                self._trouble = error
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, LONGEST_PAUSE)
        self.reconnects += 1
        self._use(session)

    async def _connect(self) -> Session:
        at = f"{self._url.host}:{self._url.port or (5671 if self._url.scheme == 'amqps' else 5672)}"
        try:
            connection = await aio_pika.connect(
                self._url, timeout=CONNECT_TIME, client_properties={"connection_name": self._queue}
            )
        except (AuthenticationError, ProbableAuthenticationError):
            raise LoginRefused(f"the broker at {at} refuses the login {self.login!r}: wrong user or password") from None
        except (ConnectionNotAllowed, ConnectionInternalError) as error:
            raise LoginRefused(f"the broker at {at} refuses the login {self.login!r}: {error}") from None
        except (*CONNECTION_EXCEPTIONS, asyncio.TimeoutError) as error:
            if "Connection.OpenOk" in str(error):  # what the broker says instead is not passed on
                vhost = self._url.path.removeprefix("/") or "/"
                text = f"the login {self.login!r} may not use the virtual host {vhost!r} at {at}, or there is none"
                raise LoginRefused(text) from None
            raise BrokerUnreachable(f"no broker at {at}: {str(error) or type(error).__name__}") from None
        try:
            with reasons():
                return await asyncio.wait_for(self._prepare(connection), CONNECT_TIME)
        except ChannelClosed as error:
            await connection.close()
            raise self.refusal(error) from None
        except (*CONNECTION_EXCEPTIONS, asyncio.TimeoutError) as error:
            await connection.close()
            raise BrokerUnreachable(f"the broker at {at} closed the connection: {error}") from None
        except asyncio.CancelledError:
            await connection.close()
            raise

    async def _prepare(self, connection: AbstractConnection) -> Session:
        """Declares the reply queue. A login that may not declare one uses direct reply-to."""
        try:
            channel = await connection.channel(on_return_raises=True)
            queue = await channel.declare_queue(self._queue, durable=True, arguments=QUEUE_LIMITS)
            durable = True
        except ChannelAccessRefused:
            channel = await connection.channel(on_return_raises=True)
            queue = await channel.get_queue(DIRECT, ensure=False)
            durable = False
        await channel.set_qos(prefetch_count=PREFETCH)
        exchange = await channel.get_exchange(self._exchange, ensure=False)
        underlay: Any = await channel.get_underlay_channel()
        session = Session(connection, underlay, exchange, queue, durable, self._deleted)
        for topic in self._topics:
            await queue.bind(exchange, topic)

        async def receive(message: AbstractIncomingMessage) -> None:
            self._receive(message)
            if durable:
                session.acknowledge(message)

        def lost(*_: object) -> None:
            self._drop(session)

        def deleted(_: object) -> None:
            if not session.deleted.done():
                session.deleted.set_result(None)
                self._deleted = asyncio.get_running_loop().create_future()
            self._drop(session)

        channel.close_callbacks.add(lost)
        connection.close_callbacks.add(lost)
        session.consumer = await queue.consume(receive, no_ack=not durable)
        await when_deleted(channel, deleted)
        return session

    def refusal(self, error: ChannelClosed) -> BusError:
        """What it means that the broker closed a channel."""
        if isinstance(error, ChannelNotFoundEntity):
            return NoDaemon(f"the broker has no exchange {self._exchange!r}: no daemon has been started on it yet")
        return NotPermitted(f"the broker refuses it to the login {self.login!r}: {error}")


async def when_deleted(channel: AbstractChannel, callback: Callable[[object], None]) -> None:
    """Has a function called when a queue is deleted that the channel consumes already."""
    underlay: Any = await channel.get_underlay_channel()
    callbacks = getattr(underlay, "on_consumer_cancel_callbacks", None)
    if callbacks is not None:
        callbacks.add(callback)
        return

    # aiormq before 7, which Python 3.10 has, only forgets the consumer.
    consumers = set(underlay.consumers)

    async def watch() -> None:
        while consumers <= underlay.consumers.keys():
            await asyncio.sleep(WATCH_EVERY)
        callback(None)

    watching = asyncio.get_running_loop().create_task(watch())
    channel.close_callbacks.add(lambda *_: watching.cancel())


@contextlib.contextmanager
def reasons() -> Iterator[None]:
    """Raises ConnectionError for the bare Exception that aiormq raises on a channel which ended without a reason."""
    try:
        yield
    except Exception as error:
        if type(error) is Exception:
            raise ConnectionError("the connection ended without a reason") from error
        raise


def _parsed(url: str) -> yarl.URL:
    try:
        parsed = yarl.URL(url)
    except (ValueError, TypeError):
        raise InvalidURL(f"the URL of the broker cannot be read; {LOOKS}") from None
    if parsed.scheme not in ("amqp", "amqps") or not parsed.host:
        raise InvalidURL(f"{parsed.scheme or 'no scheme'}://… is no URL of a broker; {LOOKS}")
    return parsed if "heartbeat" in parsed.query else parsed.update_query(heartbeat=HEARTBEAT)
