"""What adapters to models and agent frameworks share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .errors import ToolbusError, ToolError
from .messages import Result


class Caller(Protocol):
    """`Toolbus`, a `Session` of it, or what `Toolbus.mcp` makes."""

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> Result:
        """Calls a tool."""

    async def tools(self, format: str, /) -> list[dict[str, Any]]:
        """Lists tools."""


class TooManyTurns(ToolbusError):
    """The model called tools in each of its turns."""


async def call_for_model(bus: Caller, tool: str, arguments: str | Mapping[str, Any], timeout: float) -> Result:
    """Calls a tool as a model wrote it. An error of the call is a result: the model reads what to do next."""
    try:
        read = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(read, Mapping):
            raise ValueError("not an object")
    except ValueError as error:
        return Result(f"invalid_arguments: the arguments are not a JSON object: {error}", is_error=True)
    try:
        return await bus.call(tool, read, timeout=timeout)
    except ToolError as error:
        return Result(str(error), is_error=True)


async def call_all(bus: Caller, calls: Iterable[tuple[str, str | Mapping[str, Any]]], timeout: float) -> list[Result]:
    """The results of calls that a model made in one turn, in their order."""
    return await asyncio.gather(*(call_for_model(bus, tool, arguments, timeout) for tool, arguments in calls))
