"""Loops of tool calls, with the providers' own packages and a model that is a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import toolbus.anthropic
import toolbus.openai
from toolbus import Toolbus
from toolbus.loop import TooManyTurns

CALLS = [("echo", '{"text": "hello"}'), ("ecko", "{}"), ("echo", "no JSON")]


def says(seen: list[dict[str, Any]], *replies: dict[str, Any]) -> Callable[[httpx2.Request], httpx2.Response]:
    """A provider that gives these replies, the last one again and again."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        return httpx2.Response(200, json=replies[min(len(seen), len(replies)) - 1])

    return reply


def of_openai(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def of_anthropic(*content: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}


async def test_openai(bus: Toolbus) -> None:
    seen: list[dict[str, Any]] = []
    called = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(CALLS)
    ]
    provider = httpx2.MockTransport(says(seen, of_openai({"tool_calls": called}), of_openai({"content": "Done."})))
    async with AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=provider)) as client:
        conversation = await toolbus.openai.run(bus, client, [{"role": "user", "content": "Echo!"}], model="m")
    assert conversation[-1].get("content") == "Done."
    assert "echo" in [tool["function"]["name"] for tool in seen[0]["tools"]]
    results = [message for message in seen[1]["messages"] if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == ["call_0", "call_1", "call_2"]
    assert results[0]["content"] == "hello"
    assert results[1]["content"].startswith("tool_not_found: ")
    assert results[2]["content"].startswith("invalid_arguments: ")


async def test_anthropic(bus: Toolbus) -> None:
    seen: list[dict[str, Any]] = []
    called = [
        {"type": "tool_use", "id": "toolu_0", "name": "echo", "input": {"text": "hello"}},
        {"type": "tool_use", "id": "toolu_1", "name": "ecko", "input": {}},
    ]
    replies = of_anthropic(*called), of_anthropic({"type": "text", "text": "Done."})
    provider = httpx2.MockTransport(says(seen, *replies))
    async with AsyncAnthropic(api_key="k", http_client=httpx2.AsyncClient(transport=provider)) as client:
        conversation = await toolbus.anthropic.run(bus, client, [{"role": "user", "content": "Echo!"}], model="m")
    assert conversation[-1]["content"] == [{"type": "text", "text": "Done."}]
    assert "echo" in [tool["name"] for tool in seen[0]["tools"]]
    first, second = seen[1]["messages"][-1]["content"]
    assert (first["tool_use_id"], first["content"], first["is_error"]) == ("toolu_0", "hello", False)
    assert second["is_error"]


async def test_a_model_that_does_not_end_is_stopped(bus: Toolbus) -> None:
    seen: list[dict[str, Any]] = []
    call = {"id": "call_0", "type": "function", "function": {"name": "echo", "arguments": '{"text": "again"}'}}
    provider = httpx2.MockTransport(says(seen, of_openai({"tool_calls": [call]})))
    async with AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=provider)) as client:
        with pytest.raises(TooManyTurns):
            await toolbus.openai.run(bus, client, [{"role": "user", "content": "Echo!"}], model="m", turns=2)
    assert len(seen) == 2
