"""Calls per second of the client at 64 in flight, against bare RPC with aio-pika on the same broker and daemon.

Starts a broker and a daemon of its own; TOOLBUS_BIN names the daemon's binary, CALLS the calls of one round. The exit
code is 1 if the median ratio is below 0.8.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

sys.path.insert(0, str(Path(__file__).with_name("tests")))

from support import Backend, Broker, Daemon

from toolbus import Toolbus

IN_FLIGHT = 64
ROUNDS = 5
WANTED = 0.8
CALLS = int(os.environ.get("CALLS", "2000"))
Call = Callable[[], Awaitable[object]]


async def rate(call: Call) -> float:
    """Calls per second."""
    left = iter(range(CALLS))

    async def worker() -> None:
        for _ in left:
            await call()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return CALLS / (time.perf_counter() - began)


async def bare(connection: aio_pika.abc.AbstractConnection) -> Call:
    """The usual RPC: an exclusive queue, and a future for each correlation id."""
    channel = await connection.channel()
    exchange = await channel.get_exchange("rockbot", ensure=False)
    queue = await channel.declare_queue(exclusive=True)
    waiting: dict[str, asyncio.Future[bytes]] = {}

    async def receive(message: AbstractIncomingMessage) -> None:
        waiting.pop(message.correlation_id or "").set_result(message.body)

    await queue.consume(receive, no_ack=True)
    body = json.dumps({"toolName": "echo", "arguments": {"text": "hello"}}).encode()

    async def call() -> object:
        correlation = uuid.uuid4().hex
        reply = waiting[correlation] = asyncio.get_running_loop().create_future()
        message = aio_pika.Message(
            body,
            correlation_id=correlation,
            message_id=correlation,
            reply_to=queue.name,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers={"rb-source": "ana"},
        )
        await exchange.publish(message, "tool.invoke")
        return json.loads(await reply)["content"]

    return call


async def compare(url: str) -> float:
    async with Toolbus(url, agent="ana") as bus, await aio_pika.connect(url) as connection:
        plain = await bare(connection)
        ratios = []
        for number in range(ROUNDS + 1):
            of_bare, of_client = await rate(plain), await rate(lambda: bus.call("echo", text="hello"))
            if number:  # the first round warms up
                ratios.append(of_client / of_bare)
                print(f"bare {of_bare:.0f}/s, client {of_client:.0f}/s, ratio {ratios[-1]:.2f}", flush=True)
        return statistics.median(ratios)


if __name__ == "__main__":
    broker, backend = Broker(), Backend()
    try:
        daemon = Daemon(broker.url(), backend)
        try:
            ratio = asyncio.run(compare(broker.url()))
            print(f"median ratio at {IN_FLIGHT} in flight: {ratio:.2f}")
        finally:
            daemon.end()
    finally:
        backend.end()
        broker.end()
    sys.exit(ratio < WANTED)
