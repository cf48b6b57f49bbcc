"""The agent's tools for the OpenAI Agents SDK (`pip install toolbus-client[openai-agents]`)."""

from __future__ import annotations

from typing import Any

from agents import FunctionTool, Tool
from agents.tool_context import ToolContext

from .loop import Caller, call_for_model


async def tools(bus: Caller, *, timeout: float = 60.0) -> list[Tool]:
    """Tools that call over the bus, as long as it is open. An error of a call is text for the model."""

    def tool(entry: dict[str, Any]) -> Tool:
        function = entry["function"]

        async def call(_: ToolContext[Any], arguments: str) -> str:
            return (await call_for_model(bus, function["name"], arguments, timeout)).content

        return FunctionTool(
            name=function["name"],
            description=function.get("description") or "",
            params_json_schema=function["parameters"],
            on_invoke_tool=call,
            strict_json_schema=False,
        )

    return [tool(entry) for entry in await bus.tools("openai")]
