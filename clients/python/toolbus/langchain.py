"""The agent's tools for LangChain (`pip install toolbus-client[langchain]`)."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from .loop import Caller, call_for_model


async def tools(bus: Caller, *, timeout: float = 60.0) -> list[BaseTool]:
    """Tools that call over the bus, as long as it is open. An error of a call is text for the model."""

    def tool(entry: dict[str, Any]) -> BaseTool:
        function = entry["function"]

        async def call(**arguments: Any) -> str:
            return (await call_for_model(bus, function["name"], arguments, timeout)).content

        return StructuredTool(
            name=function["name"],
            description=function.get("description") or function["name"],
            args_schema=function["parameters"],
            coroutine=call,
        )

    return [tool(entry) for entry in await bus.tools("openai")]
