"""An agent in one file: a model, its tools, and the loop between them.

It needs a daemon with the tool `echo`: toolbus serve --config config/local-broker.toml

The model is a script, so that this runs without a key. In its place, `toolbus.openai.run` and `toolbus.anthropic.run`
are this loop for models of these providers.
"""

import asyncio
import json
import os
from typing import Any

from toolbus import Toolbus, ToolError

URL = os.environ.get("TOOLBUS__BUS__URL", "amqp://guest:guest@127.0.0.1:5672/%2f")
TURNS = 10


async def model(conversation: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Calls one of its tools, and one that it has not, and then says what it got."""
    assert "echo" in [tool["function"]["name"] for tool in tools]
    results = [message["content"] for message in conversation if message["role"] == "tool"]
    if results:
        return {"role": "assistant", "content": "\n".join(results)}
    calls = [("call_1", "echo", {"text": "hello"}), ("call_2", "ecko", {"text": "hello"})]
    functions = [{"id": id, "function": {"name": name, "arguments": json.dumps(given)}} for id, name, given in calls]
    return {"role": "assistant", "content": None, "tool_calls": functions}


async def call(bus: Toolbus, function: dict[str, str]) -> str:
    """The result of a call, or what the model reads to do better."""
    try:
        return (await bus.call(function["name"], json.loads(function["arguments"]), timeout=10)).content
    except ToolError as error:
        return str(error)


async def main() -> None:
    conversation: list[dict[str, Any]] = [{"role": "user", "content": "Say hello with your tools."}]
    async with Toolbus(URL, agent="ana") as bus:
        tools = await bus.tools("openai")
        for _ in range(TURNS):
            message = await model(conversation, tools)
            conversation.append(message)
            calls = message.get("tool_calls")
            if not calls:
                break
            results = await asyncio.gather(*(call(bus, one["function"]) for one in calls))
            for one, result in zip(calls, results, strict=True):
                conversation.append({"role": "tool", "tool_call_id": one["id"], "content": result})
    print(conversation[-1]["content"])


asyncio.run(main())
