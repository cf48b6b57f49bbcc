"""What goes wrong with the connection, with replies, and with the use of the client."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import threading
import uuid
from collections.abc import Callable

import aio_pika
import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from support import TOKEN, Backend, Broker, Daemon, Proxy
from test_calls import eventually

import toolbus
from toolbus import Toolbus, sync


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("http://127.0.0.1", toolbus.InvalidURL, "no URL of a broker"),
        ("127.0.0.1:5672", toolbus.InvalidURL, "amqp://user"),
        ("amqp://127.0.0.1:1", toolbus.BrokerUnreachable, "no broker at 127.0.0.1:1"),
        ("amqp://nowhere.invalid", toolbus.BrokerUnreachable, "nowhere.invalid"),
    ],
)
async def test_a_wrong_url_is_told(url: str, error: type[toolbus.BusError], text: str) -> None:
    with pytest.raises(error, match=text):
        await Toolbus(url, agent="ana").open()


async def test_a_wrong_login_is_told_without_the_password(broker: Broker) -> None:
    with pytest.raises(toolbus.LoginRefused, match="'guest'") as raised:
        await Toolbus(broker.url(password="the-password"), agent="ana").open()
    assert "the-password" not in str(raised.value)
    with pytest.raises(toolbus.LoginRefused, match="'nowhere'"):
        await Toolbus(broker.url().replace("%2f", "nowhere"), agent="ana").open()


async def test_no_daemon_is_told(broker: Broker, daemon: Daemon) -> None:
    async with Toolbus(broker.url(), agent="ana", topic="tool.invoke.nobody") as bus:
        with pytest.raises(toolbus.NoDaemon, match=r"tool\.invoke\.nobody"):
            await bus.call("echo")
    async with Toolbus(broker.url(), agent="ana", exchange="nowhere") as bus:
        for _ in range(2):
            with pytest.raises(toolbus.NoDaemon, match="'nowhere'"):
                await bus.call("echo")


async def test_a_refused_request_leaves_other_calls_alone(bus: Toolbus) -> None:
    calls = [asyncio.create_task(bus.call("slow", id="beside", seconds=1)) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert bus._link
    with pytest.raises(toolbus.NotPermitted):  # the broker closes the channel of all
        message = aio_pika.Message(b"{}", user_id="somebody-else")
        await bus._link.publish("tool.invoke", message, asyncio.get_running_loop().time() + 10)
    assert [(await call).content for call in calls] == ["done"] * 3


async def test_calls_outlive_the_connection(bus: Toolbus, broker: Broker, backend: Backend) -> None:
    name = uuid.uuid4().hex
    running = [asyncio.create_task(bus.call("slow", id=f"{name}{number}", seconds=1.5)) for number in range(4)]
    await asyncio.sleep(0.3)
    await asyncio.to_thread(broker.ctl, "close_all_connections", "of a test")
    assert (await bus.call("echo", text="after")).content == "after"
    assert [(await call).content for call in running] == ["done"] * 4
    assert [backend.effects[f"{name}{number}"] for number in range(4)] == [1] * 4
    assert bus._link
    assert bus._link.reconnects >= 1


async def test_a_channel_that_ends_without_a_reason_is_a_lost_connection(bus: Toolbus) -> None:
    assert bus._link
    assert bus._link._session
    channel = await bus._link._session.queue.channel.get_underlay_channel()
    # As aiormq does when the broker ends a connection. A call that begins at once is under way then.
    ends = asyncio.create_task(channel.connection.close(None))
    call = asyncio.create_task(bus.call("echo", text="again", timeout=10))
    assert (await call).content == "again"
    await ends


async def test_a_login_without_a_queue_uses_direct_reply_to(
    broker: Broker, proxy: Proxy, daemon: Daemon, backend: Backend
) -> None:
    broker.ctl("add_user", "svc", "secret")
    broker.ctl("set_permissions", "svc", "^$", "^rockbot$", "^$")
    async with Toolbus(proxy.url("svc", "secret"), agent="ana") as bus:
        assert (await bus.call("echo", text="direct")).content == "direct"
        name = uuid.uuid4().hex
        call = asyncio.create_task(bus.call("slow", id=name, seconds=1))
        await asyncio.sleep(0.2)
        await cut(bus, proxy)
        assert (await call).content == "done"
        assert backend.effects[name] == 1
        assert bus._link
        assert bus._link._session
        bus._link._drop(bus._link._session)
        assert (await bus.call("echo", text="while there is no connection", timeout=10)).content
        with pytest.raises(toolbus.NotPermitted):
            await bus.on_tools_changed(print)


async def test_a_deleted_reply_queue_comes_back(bus: Toolbus) -> None:
    assert bus._link
    assert bus._link._session
    await bus._link._session.queue.delete(if_unused=False, if_empty=False)
    assert (await bus.call("echo", text="again", timeout=10)).content == "again"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its aiormq has no callback to hold back")
async def test_calls_outlive_the_reply_queue(broker: Broker, proxy: Proxy, daemon: Daemon, backend: Backend) -> None:
    early, late = uuid.uuid4().hex, uuid.uuid4().hex
    async with Toolbus(proxy.url(), agent="ana", timeout=20) as bus, await aio_pika.connect(broker.url()) as connection:
        calls = [asyncio.create_task(bus.call("slow", id=early, seconds=2))]
        await eventually(lambda: backend.effects[early])
        await cut(bus, proxy)
        assert bus._link
        assert bus._link._session
        queue = bus._link._session.queue
        # The client learns that the queue is deleted only after the daemon has replied.
        callbacks = (await queue.channel.get_underlay_channel()).on_consumer_cancel_callbacks
        held = callbacks.copy()
        callbacks.clear()
        await queue.delete(if_unused=False, if_empty=False)
        calls.append(asyncio.create_task(bus.call("effect", id=late)))
        await eventually(lambda: len(bus._waiting) == 2)
        undelivered, letters = set(bus._waiting), await (await connection.channel()).get_queue("toolbus.invoke.dlq")
        async with letters.iterator(timeout=10) as replies:
            while undelivered:
                undelivered.discard((await anext(replies)).correlation_id or "")
        for callback in held:
            callback(commands.Basic.Cancel())
        assert [(await call).content for call in calls] == ["done"] * 2
        assert [backend.effects[early], backend.effects[late]] == [1, 1]


async def test_replies_that_are_none(bus: Toolbus, broker: Broker) -> None:
    for body, text in [(b"\xff", "not JSON"), (b"[]", "not an object"), (b"{}", "no result")]:
        call = asyncio.create_task(bus.call("slow", id="unreadable", seconds=1))
        await eventually(lambda: bus._waiting)
        await asyncio.sleep(0.1)
        await publish(broker, bus, body, next(iter(bus._waiting)))
        with pytest.raises(toolbus.InvalidReply, match=text) as raised:
            await call
        assert raised.value.outcome == "unknown"
    await eventually(lambda: bus.strays == 3)  # the daemon's own replies
    assert (await bus.call("echo", text="fine")).content == "fine"


async def test_replies_that_no_call_waits_for_stay_bounded(bus: Toolbus, broker: Broker) -> None:
    count, chunk = 100_000, 1_000
    assert bus._link
    assert bus._link._session
    publish = commands.Basic.Publish(exchange="", routing_key=bus._link._session.queue.name)
    header = ContentHeader(body_size=2, properties=commands.Basic.Properties(correlation_id="of-no-call"))
    one = ChannelFrame.marshall(1, [publish, header, ContentBody(b"{}")]).payload
    before, tasks = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    async with await aio_pika.connect(broker.url()) as connection:
        channel = await (await connection.channel(1, publisher_confirms=False)).get_underlay_channel()
        for _ in range(count // chunk):
            flood = ChannelFrame(payload=one * chunk, should_close=False, drain_future=channel.create_future())
            await channel.write_queue.put(flood)  # type: ignore[attr-defined]
            await flood.drain_future  # type: ignore[misc]
            tasks = max(tasks, len(asyncio.all_tasks()))
        # The broker refuses what does not fit into the queue; the daemon tries again.
        assert (await bus.call("echo", text="still there")).content == "still there"
    assert 1_000 < bus.strays <= count
    assert tasks < 2_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_a_change_of_tools_is_announced(broker: Broker, proxy: Proxy, daemon: Daemon) -> None:
    changes: list[toolbus.ToolsChanged] = []
    async with Toolbus(proxy.url(), agent="ana") as bus, await aio_pika.connect(broker.url()) as connection:
        await bus.on_tools_changed(changes.append)
        await cut(bus, proxy)
        assert await bus.tools()
        exchange = await (await connection.channel()).get_exchange("rockbot", ensure=False)
        body = b'{"version": "v", "added": ["one"], "removed": []}'
        await exchange.publish(aio_pika.Message(body, type="Toolbus.ToolsChanged"), "tool.meta.tools.ana")
        await eventually(lambda: changes)
    assert changes == [toolbus.ToolsChanged("v", ["one"], [])]


async def test_misuse_is_told(broker: Broker, daemon: Daemon) -> None:
    bus = Toolbus(broker.url(), agent="ana")
    with pytest.raises(toolbus.Misuse, match="not open"):
        await bus.call("echo")
    async with bus:
        with pytest.raises(toolbus.Misuse, match="open already"):
            await bus.open()
        with pytest.raises(toolbus.Misuse, match="another event loop, of another thread"):
            await asyncio.to_thread(lambda: asyncio.run(bus.call("echo")))
        with pytest.raises((TypeError, ValueError)):
            await bus.call("echo", text=object())
        assert in_child(lambda: bus.call("echo").send(None)) == "Misuse"
        waiting = asyncio.create_task(bus.call("slow", id="closed", seconds=3))
        await asyncio.sleep(0.2)
    with pytest.raises(toolbus.Misuse, match="closed during the call"):
        await waiting
    with pytest.raises(toolbus.Misuse, match="not open"):
        await bus.call("echo")


@pytest.mark.filterwarnings("ignore")  # of the loop that ends without the client
def test_a_closed_loop_is_told(broker: Broker, daemon: Daemon) -> None:
    bus = Toolbus(broker.url(), agent="ana")
    asyncio.run(bus.open())
    with pytest.raises(toolbus.Misuse, match="which is closed"):
        asyncio.run(bus.call("echo"))
    del bus
    gc.collect()


def test_without_an_event_loop(broker: Broker, daemon: Daemon) -> None:
    with sync.Toolbus(broker.url(), agent="ana") as bus:
        assert bus.call("echo", text="sync").content == "sync"
        assert "echo" in [tool["name"] for tool in bus.tools()]
        assert [str(event) for event in bus.stream("echo", text="streamed")] == ["streamed"]
        assert not bus.cancel("nobody's", wait=0.2)
        with pytest.raises(toolbus.ToolNotFound):
            bus.call("ecko")
        results: list[str] = []
        threads = [
            threading.Thread(target=lambda: results.append(bus.call("echo", text="t").content)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == ["t"] * 8
        assert in_child(lambda: bus.call("echo")) == "Misuse"
    with pytest.raises(toolbus.Misuse, match="not open"):
        bus.call("echo")
    with pytest.raises(toolbus.LoginRefused):
        sync.Toolbus(broker.url(password="wrong"), agent="ana").open()


async def test_over_mcp(daemon: Daemon, backend: Backend) -> None:
    async with Toolbus.mcp(daemon.mcp, TOKEN) as bus:
        assert (await bus.call("echo", text="mcp")).content == "mcp"
        assert "echo" in [tool["name"] for tool in await bus.tools()]
        assert {tool["type"] for tool in await bus.tools("openai")} == {"function"}
        assert all("input_schema" in tool for tool in await bus.tools("anthropic"))
        with pytest.raises(toolbus.ToolNotFound):
            await bus.call("ecko")
        with pytest.raises(toolbus.InvalidArguments):
            await bus.call("effect")
        with pytest.raises(toolbus.ToolTimeout):
            await bus.call("slow", id="mcp", seconds=3, timeout=0.5)
        name, key = uuid.uuid4().hex, uuid.uuid4().hex
        for _ in range(2):
            assert (await bus.call("effect", id=name, key=key)).content == "done"
        assert backend.effects[name] == 1
    with pytest.raises(toolbus.LoginRefused):
        await Toolbus.mcp(daemon.mcp, "a-wrong-token-of-the-tests").__aenter__()
    with pytest.raises(toolbus.BrokerUnreachable):
        await Toolbus.mcp("http://127.0.0.1:1/mcp").__aenter__()


async def publish(broker: Broker, bus: Toolbus, body: bytes, correlation: str) -> None:
    assert bus._link
    assert bus._link._session
    async with await aio_pika.connect(broker.url()) as connection:
        channel = await connection.channel()
        queue = bus._link._session.queue.name
        await channel.default_exchange.publish(aio_pika.Message(body, correlation_id=correlation), queue)


async def cut(bus: Toolbus, proxy: Proxy) -> None:
    link = bus._link
    assert link
    before = link.reconnects
    proxy.cut()
    await eventually(lambda: link.reconnects > before)


def in_child(use: Callable[[], object]) -> str:
    """The name of the exception that a child raises."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        name = "nothing"
        try:
            use()
        except BaseException as error:
            name = type(error).__name__
        os.write(writes, name.encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as pipe:
        return pipe.read()
