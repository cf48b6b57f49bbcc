"""Calls, their errors, deadlines, cancellation, progress and retries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from aio_pika.abc import AbstractIncomingMessage
from support import Backend, Broker, Daemon

import toolbus
from toolbus import Progress, Result, Toolbus


async def eventually(condition: Callable[[], object], time: float = 10) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), time)


async def test_a_call_returns_what_the_tool_says(bus: Toolbus) -> None:
    result = await bus.call("echo", text="hello", timeout=5)
    assert (result.content, str(result), result.is_error, result.tool) == ("hello", "hello", False, "echo")
    assert result.provider == "local"
    assert result.duration is not None
    many = await asyncio.gather(*(bus.call("echo", {"text": str(number)}) for number in range(50)))
    assert [result.content for result in many] == [str(number) for number in range(50)]


@pytest.mark.parametrize(
    ("tool", "arguments", "error", "code"),
    [
        ("ecko", {}, toolbus.ToolNotFound, "tool_not_found"),
        ("effect", {}, toolbus.InvalidArguments, "invalid_arguments"),
        ("write_to", {"id": "somebody"}, toolbus.NotAllowed, "not_allowed"),
        ("private", {"id": "x"}, toolbus.AuthRequired, "auth_required"),
    ],
)
async def test_each_code_is_an_error_of_its_own(
    bus: Toolbus, tool: str, arguments: dict[str, Any], error: type[toolbus.ToolError], code: str
) -> None:
    with pytest.raises(error) as raised:
        await bus.call(tool, arguments)
    assert (raised.value.code, raised.value.retryable) == (code, False)
    assert raised.value.message


async def test_a_rate_limit_says_when_to_come_again(bus: Toolbus) -> None:
    await bus.call("limited", id="first")
    with pytest.raises(toolbus.RateLimited) as raised:
        await bus.call("limited", id="second", retries=0)
    assert raised.value.retryable
    assert raised.value.retry_after is not None
    assert 0 < raised.value.retry_after <= 1


async def test_retries_wait_until_the_rate_limit_allows_them(bus: Toolbus, backend: Backend) -> None:
    names = [uuid.uuid4().hex for _ in range(3)]
    await asyncio.gather(*(bus.call("limited", id=name, retries=20) for name in names))
    assert [backend.effects[name] for name in names] == [1, 1, 1]


async def test_too_many_calls_are_overloaded(broker: Broker, daemon: Daemon) -> None:
    async with Toolbus(broker.url(), agent="busy", retries=0) as bus:
        calls = (bus.call("slow", id=f"busy-{number}", seconds=0.5) for number in range(6))
        results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, toolbus.Overloaded)]
    assert refused
    assert all(error.retryable and error.outcome == "not_started" for error in refused)
    assert any(isinstance(result, Result) for result in results)


async def test_the_deadline_goes_out_with_the_call(bus: Toolbus) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(toolbus.ToolTimeout) as raised:
        await bus.call("slow", id="late", seconds=3, timeout=0.5)
    assert asyncio.get_running_loop().time() - began < 2.5
    assert (raised.value.outcome, raised.value.retryable) == ("unknown", False)
    assert "Tool 'slow'" in raised.value.message  # the daemon's own words
    with pytest.raises(ValueError, match="more than 0"):
        await bus.call("echo", timeout=0)


async def test_a_call_is_cancelled_by_its_id(bus: Toolbus) -> None:
    call = asyncio.create_task(bus.call("slow", id="cancelled", seconds=5, call_id="mine"))
    await asyncio.sleep(0.2)
    assert await bus.cancel("mine", wait=5)
    with pytest.raises(toolbus.ToolCancelled):
        await call
    assert not await bus.cancel("nobody's", wait=0.3)


async def test_cancelling_the_task_cancels_the_call(bus: Toolbus) -> None:
    call = asyncio.create_task(bus.call("slow", id="task", seconds=5, call_id="of-a-task"))
    await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # The client dropped the reply to the cancelled call, and no other.
    await eventually(lambda: bus.strays >= 1, 3)
    assert not bus._waiting


async def test_progress_is_streamed_before_the_result(bus: Toolbus) -> None:
    await eventually_listed(bus, "count")
    *reports, last = [event async for event in bus.stream("count", timeout=10)]
    assert reports
    assert all(isinstance(report, Progress) and report.total == 3 for report in reports)
    assert isinstance(last, Result)
    assert last.content == "counted"
    with pytest.raises(toolbus.ToolNotFound):
        async for _ in bus.stream("ecko"):
            pass


async def test_a_key_has_one_effect(bus: Toolbus, backend: Backend) -> None:
    name, key = uuid.uuid4().hex, uuid.uuid4().hex
    results = await asyncio.gather(*(bus.call("effect", id=name, key=key) for _ in range(5)))
    assert {result.content for result in results} == {"done"}
    assert backend.effects[name] == 1
    with pytest.raises(toolbus.InvalidArguments):
        await bus.call("effect", id="another", key=key)


async def test_what_may_help_is_tried_again_and_nothing_else(bus: Toolbus, backend: Backend) -> None:
    name = uuid.uuid4().hex
    backend.failures = 2
    assert (await bus.call("flaky", id=name)).content == "done"
    assert backend.effects[name] == 3
    backend.failures = 9
    with pytest.raises(toolbus.ExecutionFailed) as raised:
        await bus.call("flaky", id=name, retries=1)
    assert raised.value.retryable
    assert backend.effects[name] == 5
    # With a key the daemon would only repeat its reply.
    with pytest.raises(toolbus.ExecutionFailed):
        await bus.call("flaky", id=name, key=uuid.uuid4().hex)
    assert backend.effects[name] == 6
    backend.failures = 0


async def test_tools_are_listed_as_models_take_them(bus: Toolbus) -> None:
    tools = {tool["name"]: tool for tool in await bus.tools()}
    assert {"echo", "effect", "slow"} <= tools.keys()
    (echo,) = await bus.tools("openai", names=["echo"])
    assert (echo["type"], echo["function"]["name"]) == ("function", "echo")
    (echo,) = await bus.tools("anthropic", names=["echo"])
    assert echo["input_schema"]["type"] == "object"
    with pytest.raises(toolbus.InvalidArguments):
        await bus.tools("nonsense")


async def test_a_session_ends(bus: Toolbus) -> None:
    async with bus.session() as session:
        assert (await session.call("echo", text="in a session")).content == "in a session"
        assert await session.tools("openai")


async def test_the_trace_goes_out_with_the_call(bus: Toolbus, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace

    span = trace.NonRecordingSpan(
        trace.SpanContext(1 << 100, 1 << 50, is_remote=False, trace_flags=trace.TraceFlags(1))
    )
    seen: list[dict[str, Any]] = []

    def receive(message: AbstractIncomingMessage) -> None:
        seen.append(dict(message.headers))
        bus._receive(message)

    monkeypatch.setattr(bus._link, "_receive", receive)
    with trace.use_span(span):
        await bus.call("echo", text="traced")
    (headers,) = seen
    assert f"{1 << 100:032x}" in str(headers["traceparent"])


async def eventually_listed(bus: Toolbus, tool: str) -> None:
    for _ in range(100):
        if await bus.tools(names=[tool]):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{tool} is not listed")
