"""The agent's tools for Pydantic AI (`pip install toolbus-client[pydantic-ai]`)."""

from __future__ import annotations

from typing import Any

from pydantic_ai import FunctionToolset, Tool

from .loop import Caller, call_for_model


async def toolset(bus: Caller, *, timeout: float = 60.0) -> FunctionToolset[Any]:
    """A toolset that calls over the bus, as long as it is open. An error of a call is text for the model."""

    def tool(entry: dict[str, Any]) -> Tool[Any]:
        function = entry["function"]

        async def call(**arguments: Any) -> str:
            return (await call_for_model(bus, function["name"], arguments, timeout)).content

        return Tool.from_schema(call, function["name"], function.get("description"), function["parameters"])

    return FunctionToolset([tool(entry) for entry in await bus.tools("openai")])
