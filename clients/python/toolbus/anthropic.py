"""A loop of tool calls with the package `anthropic` (`pip install toolbus-client[anthropic]`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam

from .loop import Caller, TooManyTurns, call_all


async def tools(bus: Caller) -> list[ToolParam]:
    """The agent's tools, for `messages.create`."""
    return cast(list[ToolParam], await bus.tools("anthropic"))


async def run(
    bus: Caller,
    client: AsyncAnthropic,
    messages: Iterable[MessageParam],
    *,
    model: str,
    max_tokens: int = 4096,
    turns: int = 10,
    timeout: float = 60.0,
    **options: Any,
) -> list[MessageParam]:
    """Has a model work with the agent's tools until it calls none; returns the whole conversation.

    `timeout` is for each call of a tool; other options go to `messages.create`.
    """
    conversation, offered = list(messages), await tools(bus)
    for _ in range(turns):
        message = await client.messages.create(
            model=model, max_tokens=max_tokens, messages=conversation, tools=offered, **options
        )
        content = [block.model_dump(exclude_none=True) for block in message.content]
        conversation.append(cast(MessageParam, {"role": "assistant", "content": content}))
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return conversation
        results = await call_all(bus, ((call.name, call.input) for call in calls), timeout)
        replies: list[ToolResultBlockParam] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result.content, "is_error": result.is_error}
            for call, result in zip(calls, results, strict=True)
        ]
        conversation.append({"role": "user", "content": replies})
    raise TooManyTurns(f"the model still called tools after {turns} turns")
