"""A loop of tool calls with the package `openai` (`pip install toolbus-client[openai]`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from openai import AsyncOpenAI, Omit, omit
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from .loop import Caller, TooManyTurns, call_all


async def tools(bus: Caller) -> list[ChatCompletionFunctionToolParam]:
    """The agent's tools, for `chat.completions.create`."""
    return cast(list[ChatCompletionFunctionToolParam], await bus.tools("openai"))


async def run(
    bus: Caller,
    client: AsyncOpenAI,
    messages: Iterable[ChatCompletionMessageParam],
    *,
    model: str,
    turns: int = 10,
    timeout: float = 60.0,
    **options: Any,
) -> list[ChatCompletionMessageParam]:
    """Has a model work with the agent's tools until it calls none; returns the whole conversation.

    `timeout` is for each call of a tool; other options go to `chat.completions.create`.
    """
    conversation, offered = list(messages), await tools(bus)
    for _ in range(turns):
        params: list[ChatCompletionFunctionToolParam] | Omit = offered or omit
        completion = await client.chat.completions.create(model=model, messages=conversation, tools=params, **options)
        message = completion.choices[0].message
        conversation.append(cast(ChatCompletionMessageParam, message.model_dump(exclude_none=True)))
        calls = [call for call in message.tool_calls or [] if call.type == "function"]
        if not calls:
            return conversation
        results = await call_all(bus, ((call.function.name, call.function.arguments) for call in calls), timeout)
        for call, result in zip(calls, results, strict=True):
            conversation.append({"role": "tool", "tool_call_id": call.id, "content": result.content})
    raise TooManyTurns(f"the model still called tools after {turns} turns")
