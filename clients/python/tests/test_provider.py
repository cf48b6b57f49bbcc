"""Tools of this program: what agents see of them, what becomes of their calls, and how a provider ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from pydantic import BaseModel, Field, field_validator
from support import Backend, Broker, Daemon, Proxy
from test_calls import eventually
from test_connection import cut

import toolbus
from toolbus import Call, Progress, Result, Toolbus, sync

QUEUE = "provider.billing"
LIST = ("Toolbus.ToolListRequest", f"tool.list.{QUEUE}")
SECRET = "the-secret-of-the-database"
effects: Counter[str] = Counter()
ended: Counter[str] = Counter()
seen: list[Any] = []


class Line(BaseModel):
    text: str
    amount: float = 1

    @field_validator("text")
    @classmethod
    def is_short(cls, text: str) -> str:
        if len(text) > 20:
            raise ValueError(f"too long: {text}")
        return text


@dataclass
class Invoice:
    number: str
    due: date
    lines: list[Line]


async def find_invoice(
    number: Annotated[str, Field(description="As printed", min_length=2)], year: int = 2026
) -> dict[str, Any]:
    """Finds an invoice."""
    return {"number": number, "year": year}


async def make_invoice(lines: list[Line], due: date, schema: str = "plain") -> Invoice:
    """Makes an invoice."""
    return Invoice(schema, due, lines)


async def give(kind: str) -> Any:
    """Gives a result of a kind."""
    kinds: dict[str, Any] = {
        "text": "hellö",
        "none": None,
        "result": Result("no", is_error=True),
        "blocks": Result("a picture", blocks=[{"type": "image", "data": "aGk=", "mimeType": "image/png"}]),
        "list": [1, None, "NaN"],
        "nan": {"value": float("nan")},
        "object": object(),
        "surrogate": "\ud800",
        "huge": "x" * (16 * 1024 * 1024),
        "no content": Result(None),  # type: ignore[arg-type]
        "no blocks": Result("", blocks=["text"]),  # type: ignore[list-item]
    }
    return kinds[kind]


class OddError(BaseException):
    pass


FAILURES: dict[str, BaseException] = {
    "error": RuntimeError(SECRET),
    "cancelled": asyncio.CancelledError(),
    "exit": SystemExit(SECRET),
    "interrupt": KeyboardInterrupt(SECRET),
    "odd": OddError(SECRET),
    "told": toolbus.RateLimited("rate_limited", "Come again.", retryable=True, retry_after=1.5, outcome="not_started"),
    "unreadable": toolbus.ToolError("of_its_own", "Why.", retryable=True, retry_after=-1, outcome="perhaps"),
}


async def fail(kind: str) -> None:
    """Fails."""
    raise FAILURES[kind]


def fail_in_thread(kind: str) -> None:
    """Fails, in a thread."""
    raise FAILURES[kind]


async def refuse_once(name: str) -> str:
    """Refuses the first call."""
    effects[name] += 1
    if effects[name] == 1:
        raise toolbus.Overloaded("overloaded", "Come again.", retryable=True, outcome="not_started")
    return "done"


def pay(name: str, seconds: float = 0, note: str = "") -> str:
    """Pays, in a thread."""
    effects[name] += 1
    time.sleep(seconds)
    ended[name] += 1
    return "paid"


async def wait(name: str, seconds: float = 0) -> str:
    """Waits."""
    effects[name] += 1
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended[name] += 1
        raise
    return "waited"


async def look(name: str, seconds: float = 0) -> str:
    """Looks."""
    return await wait(name, seconds)


async def count(call: Call, steps: int = 3) -> str:
    """Counts."""
    seen.append(call)
    for step in range(1, steps + 1):
        await call.report(step, steps, "x" * 2000)
        await call.report(step, steps, "dropped")
        await asyncio.sleep(0.1)
    return f"{call.agent} {call.session} {call.remaining:.0f}"


async def trace() -> str:
    """Tells the trace."""
    from opentelemetry import trace

    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


TOOLS: dict[Callable[..., Any], Any] = {
    find_invoice: "read-only",
    make_invoice: None,
    give: "idempotent",
    fail: "effectful",
    fail_in_thread: "effectful",
    refuse_once: "effectful",
    pay: "effectful",
    wait: None,
    look: "read-only",
    count: "read-only",
    trace: "read-only",
}


@asynccontextmanager
async def providing(
    url: str, *, until_served: bool = True, **options: Any
) -> AsyncIterator[tuple[Toolbus, asyncio.Task[None]]]:
    async with Toolbus(url, agent="billing") as provider:
        for function, effect in TOOLS.items():
            provider.tool(effect=effect)(function)
        serving = asyncio.create_task(provider.serve(**options))
        await eventually(lambda: provider._provider and provider._provider._served is until_served)
        yield provider, serving
        serving.cancel()
        await asyncio.wait([serving])


async def listed(bus: Toolbus, name: str) -> dict[str, Any]:
    for _ in range(60):
        if found := [tool for tool in await bus.tools("mcp") if tool["name"] == f"billing.{name}"]:
            return found[0]
        await asyncio.sleep(0.25)
    raise AssertionError(f"billing.{name} is not listed")


async def queues(broker: Broker) -> dict[str, list[int]]:
    """Messages and consumers, by the names of queues."""
    said = await asyncio.to_thread(broker.ctl, "list_queues", "name", "messages", "consumers")
    rows = [line.split("\t") for line in said.splitlines() if "\t" in line]
    return {name: [int(messages), int(consumers)] for name, messages, consumers in rows if messages.isdecimal()}


@pytest.fixture
async def provider(broker: Broker, bus: Toolbus) -> AsyncIterator[Toolbus]:
    async with providing(broker.url()) as (provider, _):
        await listed(bus, "wait")
        yield provider


async def ask(
    broker: Broker,
    body: bytes,
    kind: str = "RockBot.Tools.ToolInvokeRequest",
    topic: str = f"tool.invoke.{QUEUE}",
    times: int = 1,
    *,
    login: str = "guest",
    **more: Any,
) -> tuple[str | None, dict[str, Any]]:
    """Type and body of the reply to a message, published several times; several replies have to be the same.

    `login` is that of the provider.
    """
    async with await aio_pika.connect(broker.url()) as connection:
        channel = await connection.channel()
        replies = await channel.declare_queue(exclusive=True)
        message = aio_pika.Message(body, type=kind, reply_to=replies.name, correlation_id="c", user_id="guest", **more)
        exchange = await channel.get_exchange("rockbot", ensure=False)
        for _ in range(times):
            await exchange.publish(message, topic)
        got: list[AbstractIncomingMessage] = []
        async with replies.iterator(no_ack=True, timeout=10) as iterator:
            while len(got) < times:
                got.append(await anext(iterator))
        assert len({reply.body for reply in got}) == 1
        assert {reply.correlation_id for reply in got} == {"c"}
        assert (got[0].headers["rb-source"], got[0].user_id) == ("billing", login)
        return got[0].type, json.loads(got[0].body)


async def publish(broker: Broker, body: bytes, kind: str, topic: str, exchange: str = "rockbot", **more: Any) -> None:
    async with await aio_pika.connect(broker.url()) as connection:
        channel = await connection.channel()
        target = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
        await target.publish(aio_pika.Message(body, type=kind, **more), topic)


async def cancel(broker: Broker, call_id: str, kind: str = "Toolbus.ToolCancelRequest", **more: Any) -> None:
    """Cancels calls of an agent that names itself in no header."""
    await publish(broker, json.dumps({"toolCallId": call_id}).encode(), kind, "tool.cancel", **more)


def paying(name: str, seconds: float = 0, call_id: str | None = None) -> bytes:
    body = {"toolName": "pay", "arguments": {"name": name, "seconds": seconds}, "toolCallId": call_id or name}
    return json.dumps(body).encode()


async def test_agents_see_functions_as_tools(broker: Broker, bus: Toolbus, provider: Toolbus) -> None:
    tool = await listed(bus, "find_invoice")
    assert tool["description"] == "Finds an invoice."
    assert tool["inputSchema"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "number": {"type": "string", "description": "As printed", "minLength": 2},
            "year": {"type": "integer", "default": 2026},
        },
        "required": ["number"],
    }
    assert tool["annotations"]["readOnlyHint"] is True
    tools = {tool["name"]: tool for tool in await bus.tools("mcp")}
    assert tools["billing.pay"]["annotations"]["destructiveHint"] is True
    assert tools["billing.give"]["annotations"]["idempotentHint"] is True
    assert not tools["billing.wait"].get("annotations", {}).get("readOnlyHint")
    assert tools["billing.make_invoice"]["inputSchema"]["required"] == ["lines", "due"]
    assert "call" not in tools["billing.count"]["inputSchema"].get("properties", {})


async def test_a_list_is_sent_once_per_version(broker: Broker, provider: Toolbus) -> None:
    async def tools(body: dict[str, str]) -> dict[str, Any]:
        kind, said = await ask(broker, json.dumps(body).encode(), *LIST)
        assert kind == "Toolbus.ToolListResponse"
        return said

    first = await tools({"format": "mcp"})
    assert [tool["name"] for tool in first["tools"]] == sorted(function.__name__ for function in TOOLS)
    again = await tools({"format": "mcp", "ifVersion": first["version"]})
    assert (again["tools"], again["notModified"], again["version"]) == ([], True, first["version"])


async def test_lists_do_not_wait_behind_calls(broker: Broker, daemon: Daemon) -> None:
    name = uuid.uuid4().hex
    async with providing(broker.url(), concurrency=1):
        call = asyncio.create_task(ask(broker, paying(name, 2)))
        await eventually(lambda: effects[name])
        assert (await ask(broker, b"{}", *LIST))[1]["tools"]
        with pytest.raises(asyncio.TimeoutError):  # it is too long
            await asyncio.wait_for(ask(broker, json.dumps({"x": "x" * 65536}).encode(), *LIST), 1)
        assert ended[name] == 0
        assert (await call)[1]["content"] == "paid"
        said = await asyncio.to_thread(broker.ctl, "list_queues", "name", "arguments")
        assert any(line.startswith("amq.gen") and "10000" in line for line in said.splitlines())


async def test_only_what_comes_over_the_topics_counts(broker: Broker, provider: Toolbus) -> None:
    name, before = uuid.uuid4().hex, provider.strays
    (own,) = [queue for queue in await queues(broker) if queue.startswith("amq.gen")]
    call = asyncio.create_task(ask(broker, paying(name, 1.5)))
    await eventually(lambda: effects[name])
    async with await aio_pika.connect(broker.url()) as connection:
        channel = await connection.channel()
        await channel.declare_exchange("another", "topic", auto_delete=True)
        await (await channel.get_queue(QUEUE)).bind("another", "#")
        request = "RockBot.Tools.ToolInvokeRequest"
        await publish(broker, paying("astray"), request, f"tool.invoke.{QUEUE}", "another", reply_to="no.such.queue")
        await publish(broker, paying("astray"), request, QUEUE, "", reply_to="no.such.queue")
        await publish(broker, json.dumps({"toolCallId": name}).encode(), "Toolbus.ToolCancelRequest", own, "")
        await eventually(lambda: provider.strays == before + 3)
        await (await channel.get_queue(QUEUE)).unbind("another", "#")
    assert (await call)[1]["content"] == "paid"
    assert effects["astray"] == 0


async def test_a_call_returns_what_the_function_does(bus: Toolbus, provider: Toolbus) -> None:
    result = await bus.call("billing.find_invoice", number="A1")
    assert (result.json(), result.is_error) == ({"number": "A1", "year": 2026}, False)
    made = await bus.call("billing.make_invoice", lines=[{"text": "a"}], due="2026-05-01", schema="S")
    assert made.json() == {"number": "S", "due": "2026-05-01", "lines": [{"text": "a", "amount": 1.0}]}
    assert (await bus.call("billing.pay", name=uuid.uuid4().hex)).content == "paid"
    given = {kind: await bus.call("billing.give", kind=kind) for kind in ("text", "none", "list", "result", "blocks")}
    assert [given[kind].content for kind in ("text", "none", "result")] == ["hellö", "", "no"]
    assert given["list"].json() == [1, None, "NaN"]
    assert given["result"].is_error
    assert given["blocks"].blocks[0]["mimeType"] == "image/png"


@pytest.mark.parametrize(
    ("tool", "arguments", "path"),
    [
        ("find_invoice", {}, "/number: "),
        ("find_invoice", {"number": "x"}, "/number: "),
        ("find_invoice", {"number": "A1", "year": SECRET}, "/year: "),
        ("find_invoice", {"number": "A1", "other": SECRET}, "/other: "),
        ("make_invoice", {"due": "2026-05-01", "lines": [{"text": SECRET}]}, "/lines/0/text: "),
        ("find_invoice", "[1]", "the arguments: "),
        ("find_invoice", '{"number": "\ud800"}', "the arguments: "),
        ("find_invoice", [1], "the arguments: "),
    ],
)
async def test_mistakes_in_arguments_are_told_by_their_paths(
    broker: Broker, provider: Toolbus, tool: str, arguments: Any, path: str
) -> None:
    body = json.dumps({"toolName": tool, "toolCallId": "1", "arguments": arguments}).encode()
    kind, said = await ask(broker, body)
    assert (kind, said["code"], said["outcome"]) == ("RockBot.Tools.ToolError", "invalid_arguments", "not_started")
    assert said["message"].startswith(path)
    assert SECRET not in said["message"]
    assert len(said["message"]) <= 1000


async def test_what_is_no_call_is_refused(broker: Broker, bus: Toolbus, provider: Toolbus) -> None:
    for body in (b"\xff", b"[]", b"{}", b'{"toolName": 1}'):
        assert (await ask(broker, body))[1]["code"] == "invalid_arguments"
    said = (await ask(broker, b'{"toolName": "nothing"}', message_id="m"))[1]
    assert (said["code"], said["toolCallId"]) == ("tool_not_found", "m")
    headers: dict[str, Any] = {"rb-source": bytearray(b"\xff"), "rb-timeout-ms": "soon"}
    said = (await ask(broker, b'{"toolName": "trace"}', headers=headers))[1]
    assert said["isError"] is False
    before = provider.strays
    for kind in ("RockBot.Tools.ToolInvokeRequest", "RockBot.Tools.ToolError"):
        await publish(broker, b"{}", kind, f"tool.invoke.{QUEUE}")
    await eventually(lambda: provider.strays == before + 2)
    assert (await bus.call("billing.give", kind="text")).content


async def test_a_failure_keeps_its_secrets(bus: Toolbus, provider: Toolbus, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("error", "cancelled"):
        with pytest.raises(toolbus.OutcomeUnknown) as raised:
            await bus.call("billing.fail", kind=kind)
        assert raised.value.message.startswith("Tool 'fail' failed. Whether it had")  # what the daemon adds
        assert not raised.value.retryable
    assert SECRET in caplog.text
    for kind in ("nan", "object", "surrogate", "huge", "no content", "no blocks"):
        with pytest.raises(toolbus.ExecutionFailed) as failed:
            await bus.call("billing.give", kind=kind)
        assert (failed.value.message, failed.value.outcome) == ("Tool 'give' failed.", "failed")


async def test_an_error_of_a_tool_is_passed_on(bus: Toolbus, provider: Toolbus) -> None:
    with pytest.raises(toolbus.RateLimited, match="Come again") as raised:
        await bus.call("billing.fail", kind="told", retries=0)
    error = raised.value
    assert (error.retryable, error.retry_after, error.outcome) == (True, 1.5, "not_started")


@pytest.mark.parametrize("tool", ["fail", "fail_in_thread"])
async def test_no_exception_ends_the_provider_or_keeps_its_slot(
    broker: Broker, daemon: Daemon, tool: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with providing(broker.url(), concurrency=1):
        for kind in ("exit", "interrupt", "odd", "cancelled"):
            caplog.clear()
            _, said = await ask(broker, json.dumps({"toolName": tool, "arguments": {"kind": kind}}).encode())
            assert (said["code"], said["message"]) == ("execution_failed", f"Tool {tool!r} failed.")
            assert (said["outcome"], said["isRetryable"]) == ("unknown", False)
            assert kind == "cancelled" or SECRET in caplog.text
        assert (await ask(broker, paying(uuid.uuid4().hex)))[1]["content"] == "paid"


async def test_what_daemons_cannot_read_of_an_error_is_left_out(broker: Broker, provider: Toolbus) -> None:
    _, said = await ask(broker, b'{"toolName": "fail", "arguments": {"kind": "unreadable"}}')
    assert (said["code"], said["message"], said["isRetryable"]) == ("execution_failed", "Why.", True)
    assert not {"outcome", "retryAfterMs"} & set(said)


async def test_an_error_of_the_provider_itself_is_told(
    broker: Broker, provider: Toolbus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    assert provider._provider
    monkeypatch.setattr(provider._provider._runner, "run", broken)
    name = uuid.uuid4().hex
    for _ in range(2):
        _, said = await ask(broker, paying(name), message_id=name)
        assert (said["code"], said["outcome"], said["isRetryable"]) == ("execution_failed", "unknown", False)
        assert SECRET not in said["message"]
    assert SECRET in caplog.text


async def test_progress_reaches_the_agent(bus: Toolbus, provider: Toolbus) -> None:
    *reports, last = [event async for event in bus.stream("billing.count", session="s", timeout=20)]
    assert [report.progress for report in reports if isinstance(report, Progress)] == [1, 2, 3]
    assert all(report.total == 3 and set(report.message) == {"x"} for report in reports)
    assert isinstance(last, Result)
    agent, session, remaining = last.content.split()
    assert (agent, session) == ("ana", "s")
    assert 15 <= float(remaining) <= 20
    await seen[-1].report(9)
    assert (await bus.call("billing.count")).content  # a call without reports of progress
    strays = bus.strays
    await asyncio.sleep(0.3)
    assert bus.strays == strays


async def test_a_cancelled_call_stops_its_function(bus: Toolbus, provider: Toolbus) -> None:
    name, paid = uuid.uuid4().hex, uuid.uuid4().hex
    calls = [
        asyncio.create_task(bus.call("billing.wait", name=name, seconds=30, call_id="c1")),
        asyncio.create_task(bus.call("billing.pay", name=paid, seconds=3, call_id="c2")),
    ]
    await eventually(lambda: effects[name] and effects[paid])
    assert await bus.cancel("c1", wait=5)
    assert await bus.cancel("c2", wait=5)
    for call in calls:
        with pytest.raises(toolbus.ToolCancelled) as raised:
            await call
        assert raised.value.outcome == "unknown"
    await eventually(lambda: ended[name])
    assert ended[paid] == 0  # a thread goes on


async def test_a_waiting_call_that_is_cancelled_never_runs(broker: Broker, daemon: Daemon) -> None:
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    async with providing(broker.url(), concurrency=1):
        running = asyncio.create_task(ask(broker, paying(first, 1.5)))
        await eventually(lambda: effects[first])
        waiting = asyncio.create_task(ask(broker, paying(second)))
        await asyncio.sleep(0.2)
        await cancel(broker, second)
        assert (await running)[1]["content"] == "paid"
        _, said = await waiting
        assert (said["code"], said["outcome"], said["isRetryable"]) == ("cancelled", "not_started", False)
        assert effects[second] == 0
        assert (await ask(broker, paying(second)))[1]["content"] == "paid"  # it is forgotten


async def test_only_daemons_cancel(broker: Broker, daemon: Daemon) -> None:
    broker.ctl("add_user", "stranger", "secret")
    broker.ctl("set_permissions", "stranger", ".*", ".*", ".*")
    name = uuid.uuid4().hex
    async with (
        providing(broker.url(), daemons=["guest"]),
        Toolbus(broker.url("stranger", "secret"), agent="unknown") as stranger,
    ):
        call = asyncio.create_task(ask(broker, paying(name, 1.5)))
        await eventually(lambda: effects[name])
        await stranger.cancel(name, wait=0.5)
        await cancel(broker, name)  # without a verified login
        await cancel(broker, name, "Toolbus.ToolListRequest", user_id="guest")
        long = json.dumps({"toolCallId": name, "more": "x" * 4096}).encode()
        await publish(broker, long, "Toolbus.ToolCancelRequest", "tool.cancel", user_id="guest")
        assert (await call)[1]["content"] == "paid"
        call = asyncio.create_task(ask(broker, paying(name, 1.5)))
        await eventually(lambda: effects[name] == 2)
        await cancel(broker, name, user_id="guest")
        assert (await call)[1]["code"] == "cancelled"


async def test_a_reply_to_a_cancellation_is_sent_once(
    broker: Broker, provider: Toolbus, caplog: pytest.LogCaptureFixture
) -> None:
    await cancel(broker, "nothing", reply_to="no.such.queue")
    async with await aio_pika.connect(broker.url()) as connection:
        replies = await (await connection.channel()).declare_queue(exclusive=True)
        await cancel(broker, "nothing", reply_to=replies.name)
        async with replies.iterator(no_ack=True, timeout=10) as iterator:
            got = [await anext(iterator), await anext(iterator)]  # the daemon also replies
        (own,) = [reply for reply in got if reply.headers["rb-source"] == "billing"]
        assert own.type == "Toolbus.ToolCancelResponse"
        assert json.loads(own.body) == {"toolCallId": "nothing", "cancelled": False}
    assert "No queue takes" not in caplog.text


async def test_a_deadline_stops_the_function(broker: Broker, bus: Toolbus, provider: Toolbus) -> None:
    for tool, outcome, retryable in (("wait", "unknown", False), ("look", "failed", True)):
        name = uuid.uuid4().hex
        body = json.dumps({"toolName": tool, "arguments": {"name": name, "seconds": 30}}).encode()
        _, said = await ask(broker, body, headers={"rb-rb-timeout-ms": "300"})
        assert (said["code"], said["outcome"], said["isRetryable"]) == ("timeout", outcome, retryable)
        assert ended[name] == 1
    with pytest.raises(toolbus.ToolTimeout):
        await bus.call("billing.wait", name=name, seconds=30, timeout=0.5)


async def test_the_trace_of_a_call_is_the_current_one(broker: Broker, provider: Toolbus) -> None:
    headers = {"rb-traceparent": f"00-{1 << 100:032x}-{1 << 50:016x}-01"}
    _, said = await ask(broker, b'{"toolName": "trace"}', headers=headers)
    assert said["content"] == f"{1 << 100:032x}"


async def test_a_call_that_comes_twice_runs_once(broker: Broker, provider: Toolbus) -> None:
    name = uuid.uuid4().hex
    body = json.dumps({"toolName": "pay", "arguments": {"name": name, "seconds": 0.3}}).encode()
    assert (await ask(broker, body, message_id=name, times=3))[1]["content"] == "paid"
    assert (await ask(broker, body, message_id=name))[1]["content"] == "paid"
    assert effects[name] == 1


async def test_a_call_that_was_refused_may_come_again(broker: Broker, provider: Toolbus) -> None:
    name = uuid.uuid4().hex
    body = json.dumps({"toolName": "refuse_once", "arguments": {"name": name}}).encode()
    assert (await ask(broker, body, message_id=name))[1]["code"] == "overloaded"
    assert [(await ask(broker, body, message_id=name))[1]["content"] for _ in range(2)] == ["done", "done"]
    assert effects[name] == 2


async def test_200_calls_at_once(bus: Toolbus, provider: Toolbus) -> None:
    names = [uuid.uuid4().hex for _ in range(200)]
    tools = ("billing.pay", "billing.look")
    calls = (bus.call(tools[number % 2], name=name, seconds=0.01) for number, name in enumerate(names))
    assert all(result.content in ("paid", "waited") for result in await asyncio.gather(*calls))
    assert [effects[name] for name in names] == [1] * 200


async def test_a_stop_lets_calls_end_and_leaves_no_queue(broker: Broker, bus: Toolbus) -> None:
    short, long = uuid.uuid4().hex, uuid.uuid4().hex
    async with providing(broker.url(), drain=1.5, concurrency=2) as (_, serving):
        await listed(bus, "wait")
        calls = [
            asyncio.create_task(bus.call("billing.wait", name=name, seconds=seconds, retries=0))
            for name, seconds in ((short, 0.8), (long, 30.0))
        ]
        await eventually(lambda: effects[short] and effects[long])
        late = asyncio.create_task(bus.call("billing.look", name="late", retries=0))
        await asyncio.sleep(0.2)
        serving.cancel()
        assert (await calls[0]).content == "waited"
        with pytest.raises(toolbus.ToolCancelled) as cancelled:
            await calls[1]
        assert (cancelled.value.outcome, ended[long]) == ("unknown", 1)
        with pytest.raises(toolbus.ToolError, match="its provider is stopping") as raised:
            await late
        assert (raised.value.code, raised.value.outcome) == ("execution_failed", "not_started")
        assert raised.value.retryable
        assert effects["late"] == 0
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert QUEUE not in await queues(broker)


async def test_calls_do_not_wait_for_the_end_of_a_stop(broker: Broker, bus: Toolbus) -> None:
    name = uuid.uuid4().hex
    async with providing(broker.url(), drain=10, concurrency=1) as (_, serving):
        await listed(bus, "wait")
        call = asyncio.create_task(bus.call("billing.pay", name=name, seconds=3))
        await eventually(lambda: effects[name])
        before = asyncio.create_task(bus.call("billing.pay", name="late", retries=0))
        await asyncio.sleep(0.2)
        serving.cancel()
        stopped = time.monotonic()
        await asyncio.sleep(0.3)
        for late in (before, bus.call("billing.pay", name="late", retries=0)):
            with pytest.raises(toolbus.ToolError) as raised:
                await late
            assert (raised.value.code, raised.value.outcome) == ("execution_failed", "not_started")
            assert raised.value.retryable
        assert time.monotonic() - stopped < 1.8
        assert ended[name] == 0
        assert (await call).content == "paid"
        await asyncio.wait([serving])
        assert effects["late"] == 0
        assert QUEUE not in await queues(broker)


async def test_a_call_that_comes_twice_gets_two_replies_during_a_stop(broker: Broker, daemon: Daemon) -> None:
    name = uuid.uuid4().hex
    async with providing(broker.url(), concurrency=1) as (_, serving):
        calls = [asyncio.create_task(ask(broker, paying(name, 1), message_id=name)) for _ in range(2)]
        await eventually(lambda: effects[name])
        await asyncio.sleep(0.2)
        serving.cancel()
        assert [(await call)[1]["content"] for call in calls] == ["paid", "paid"]
        assert effects[name] == 1


@pytest.mark.parametrize("first", ["stop", "loss"])
async def test_a_reply_survives_a_lost_connection_during_the_stop(
    broker: Broker, proxy: Proxy, bus: Toolbus, first: str
) -> None:
    name, strays = uuid.uuid4().hex, bus.strays
    async with providing(proxy.url()) as (provider, serving):
        await listed(bus, "wait")
        call = asyncio.create_task(bus.call("billing.pay", name=name, seconds=1.5))
        await eventually(lambda: effects[name])
        if first == "stop":
            serving.cancel()
            await asyncio.sleep(0.2)
            await cut(provider, proxy)
        else:
            proxy.cut()
            serving.cancel()
        assert (await call).content == "paid"
        assert effects[name] == 1
        await asyncio.wait([serving])
        assert bus.strays == strays
        assert QUEUE not in await queues(broker)


async def test_a_client_that_is_closed_lets_calls_end(broker: Broker, bus: Toolbus) -> None:
    name = uuid.uuid4().hex
    async with providing(broker.url()) as (provider, serving):
        await listed(bus, "wait")
        call = asyncio.create_task(bus.call("billing.wait", name=name, seconds=0.5))
        await eventually(lambda: effects[name])
        await provider.close()
        assert (await call).content == "waited"
        await serving
    assert QUEUE not in await queues(broker)


async def test_a_killed_provider_repeats_no_effect(broker: Broker, bus: Toolbus, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    environment = {
        **os.environ,
        "TOOLBUS_URL": broker.url(),
        "TOOLBUS_NOTES": str(notes),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }

    @asynccontextmanager
    async def started() -> AsyncIterator[asyncio.subprocess.Process]:
        program = Path(__file__).with_name("providing.py")
        process = await asyncio.create_subprocess_exec(sys.executable, program, env=environment)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async with started():
        while (await queues(broker)).get(QUEUE, [0, 0])[1] == 0:
            await asyncio.sleep(0.1)
        await listed(bus, "pay")
        calls = [asyncio.create_task(bus.call(f"billing.{tool}", name=tool, seconds=1)) for tool in ("pay", "look")]
        await eventually(lambda: len(notes.read_text().split()) == 2)
    async with started():
        with pytest.raises(toolbus.OutcomeUnknown, match="may have run before"):
            await calls[0]
        assert (await calls[1]).content == "done"
        assert Counter(notes.read_text().split()) == {"pay": 1, "look": 2}


async def test_a_lost_connection_means_one_effect_and_one_reply(broker: Broker, proxy: Proxy, bus: Toolbus) -> None:
    names = [uuid.uuid4().hex for _ in range(4)]
    async with providing(proxy.url()) as (provider, _):
        await listed(bus, "wait")
        strays = bus.strays
        tools = ("billing.pay", "billing.wait")
        calls = [
            asyncio.create_task(bus.call(tools[number % 2], name=name, seconds=1)) for number, name in enumerate(names)
        ]
        await eventually(lambda: all(effects[name] for name in names))
        await cut(provider, proxy)
        assert {(await call).content for call in calls} == {"paid", "waited"}
        assert [effects[name] for name in names] == [1] * 4
        assert bus.strays == strays
        await eventually(lambda: provider._provider and not provider._provider._handling)
        assert (await queues(broker))[QUEUE][0] == 0


async def test_a_reply_that_was_not_confirmed_is_sent_again(broker: Broker, proxy: Proxy, bus: Toolbus) -> None:
    name = uuid.uuid4().hex
    async with providing(proxy.url()) as (provider, _):
        await listed(bus, "wait")
        call = asyncio.create_task(bus.call("billing.pay", name=name, seconds=0.5))
        await eventually(lambda: effects[name])
        assert provider._provider
        lane = provider._provider._lane
        assert lane

        async def lose(*_: Any, **__: Any) -> None:
            await cut(provider, proxy)
            raise ConnectionError

        lane.channel.default_exchange.publish = lose  # type: ignore[method-assign]
        assert (await call).content == "paid"
        assert (effects[name], ended[name]) == (1, 1)


async def test_a_deleted_queue_comes_back(broker: Broker, bus: Toolbus, provider: Toolbus) -> None:
    async with await aio_pika.connect(broker.url()) as connection:
        await (await connection.channel()).queue_delete(QUEUE)

    async def again() -> str:
        while True:
            try:
                return (await bus.call("billing.give", kind="text")).content
            except toolbus.ExecutionFailed:
                await asyncio.sleep(0.2)

    assert await asyncio.wait_for(again(), 15) == "hellö"


async def test_processes_of_one_provider_share_its_calls(broker: Broker, bus: Toolbus) -> None:
    async with (
        providing(broker.url(), concurrency=2) as (one, _),
        providing(broker.url(), concurrency=2) as (other, serving),
    ):
        await listed(bus, "wait")
        names = [uuid.uuid4().hex for _ in range(20)]
        await asyncio.gather(*(bus.call("billing.look", name=name, seconds=0.1) for name in names))
        assert one._provider
        assert other._provider
        shares = [len(one._provider._replies), len(other._provider._replies)]
        assert sum(shares) == 20
        assert min(shares) >= 4
        assert [effects[name] for name in names] == [1] * 20
        # One of them stops: the other has the queue.
        serving.cancel()
        await asyncio.wait([serving])
        assert (await bus.call("billing.give", kind="text")).content == "hellö"


async def test_a_tool_that_comes_later_is_announced(broker: Broker, bus: Toolbus, daemon: Daemon) -> None:
    async with await aio_pika.connect(broker.url()) as connection, Toolbus(broker.url(), agent="billing") as provider:
        channel = await connection.channel()
        heard = await channel.declare_queue(exclusive=True)
        await heard.bind("rockbot", "tool.announce")
        serving = asyncio.create_task(provider.serve())

        async def announced() -> None:
            async with heard.iterator(no_ack=True, timeout=10) as messages:
                message = await anext(messages)
            assert (message.type, message.body) == ("Toolbus.ToolAnnouncement", b"{}")
            assert (message.headers["rb-source"], message.user_id) == ("billing", "guest")

        await announced()

        @provider.tool
        def later() -> str:
            return "at last"

        await announced()
        await listed(bus, "later")
        assert (await bus.call("billing.later")).content == "at last"
        serving.cancel()
        await asyncio.wait([serving])


async def test_a_stranger_is_refused(broker: Broker, daemon: Daemon) -> None:
    async with providing(broker.url(), daemons=["another"]):
        for kind in ((), LIST):
            _, said = await ask(broker, b'{"toolName": "give"}', *kind)
            assert (said["code"], said["outcome"]) == ("not_allowed", "not_started")
    async with providing(broker.url(), daemons=["guest"]):
        assert (await ask(broker, b'{"toolName": "trace"}'))[0] == "RockBot.Tools.ToolInvokeResponse"


async def test_a_login_without_the_right_to_the_queue_is_told(broker: Broker, daemon: Daemon) -> None:
    broker.ctl("add_user", "poor", "secret")
    broker.ctl("set_permissions", "poor", "^$", "^rockbot$", "^$")
    async with Toolbus(broker.url("poor", "secret"), agent="billing") as bus:
        with pytest.raises(toolbus.NotPermitted, match=r"provider\.billing"):
            await bus.serve()


async def test_a_provider_waits_for_its_first_daemon(backend: Backend) -> None:
    broker = await asyncio.to_thread(Broker)
    try:
        async with providing(broker.url(), until_served=False), Toolbus(broker.url(), agent="ana") as bus:
            await asyncio.sleep(1)
            daemon = await asyncio.to_thread(Daemon, broker.url(), backend)
            try:
                await listed(bus, "give")
                assert (await bus.call("billing.give", kind="text")).content == "hellö"
            finally:
                await asyncio.to_thread(daemon.end)
    finally:
        await asyncio.to_thread(broker.end)


async def test_threads_that_do_not_end_are_bounded(broker: Broker, daemon: Daemon) -> None:
    name = uuid.uuid4().hex
    body = json.dumps({"toolName": "pay", "arguments": {"name": name, "seconds": 2}}).encode()
    async with providing(broker.url(), concurrency=1):
        assert (await ask(broker, body, headers={"rb-timeout-ms": "200"}))[1]["code"] == "timeout"
        said = (await ask(broker, body))[1]
        assert (said["code"], said["isRetryable"], said["outcome"]) == ("overloaded", True, "not_started")
        await eventually(lambda: ended[name])
        await asyncio.sleep(0.1)
        assert (await ask(broker, body))[1]["content"] == "paid"


def test_what_cannot_be_a_tool_is_told(broker: Broker) -> None:
    bus = Toolbus("amqp://127.0.0.1", agent="billing")

    def good() -> None: ...
    def takes_all(*many: str) -> None: ...
    def takes_any(**more: str) -> None: ...
    def positional(one: str, /) -> None: ...
    def unresolved(one: Nothing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def no_schema(one: threading.Thread) -> None: ...
    def infinite(one: float = float("inf")) -> None: ...
    def no_json(one: Annotated[str, Field(json_schema_extra={"x-of": object()})]) -> None: ...

    assert bus.tool(good) is good
    for function in (takes_all, takes_any, positional, unresolved, no_schema, infinite, no_json):
        with pytest.raises(toolbus.Misuse, match=function.__name__):
            bus.tool(function)
    with pytest.raises(toolbus.Misuse, match="already"):
        bus.tool(name="good")(good)
    with pytest.raises(toolbus.Misuse, match="no name"):
        bus.tool(name="a.b")(good)
    for name in ("#", "a b", "a/b", "x" * 65):
        with pytest.raises(toolbus.Misuse, match="no name of a provider"):
            asyncio.run(open_and_serve(Toolbus(broker.url(), agent=name)))
    with pytest.raises(toolbus.Misuse, match="no effect"):
        bus.tool(name="other", effect="none")(good)  # type: ignore[call-overload]


async def open_and_serve(bus: Toolbus) -> None:
    async with bus:
        await bus.serve()


def test_without_pydantic_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(toolbus.Misuse, match=r"toolbus-client\[tools\]"):
        Toolbus("amqp://127.0.0.1", agent="billing").tool(give)


def test_without_an_event_loop(broker: Broker, daemon: Daemon) -> None:
    name = uuid.uuid4().hex
    with sync.Toolbus(broker.url(), agent="ana") as bus, sync.Toolbus(broker.url(), agent="billing") as provider:
        provider.tool(effect="effectful")(pay)
        serving = threading.Thread(target=provider.serve)
        serving.start()
        listed_in_thread(bus, "pay")
        assert bus.call("billing.pay", name=name).content == "paid"
        provider.close()
        serving.join(10)
        assert not serving.is_alive()


def listed_in_thread(bus: sync.Toolbus, name: str) -> None:
    while not bus.tools(names=[f"billing.{name}"]):
        time.sleep(0.2)


logging.getLogger("aio_pika").setLevel(logging.CRITICAL)
