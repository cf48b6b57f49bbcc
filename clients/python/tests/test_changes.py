"""A tool whose parameters change while an agent uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support import Broker
from test_calls import eventually

import toolbus
from toolbus import Toolbus, ToolsChanged

NAME = "billing.changing"


@asynccontextmanager
async def serving(broker: Broker, function: Callable[..., Any]) -> AsyncIterator[None]:
    async with Toolbus(broker.url(), agent="billing") as provider:
        provider.tool(name="changing", effect="read-only")(function)
        served = asyncio.create_task(provider.serve())
        yield
        served.cancel()
        await asyncio.wait([served])


async def number_of(bus: Toolbus) -> str:
    """Type of the tool's parameter."""
    (tool,) = await bus.tools("mcp", names=[NAME])
    return str(tool["inputSchema"]["properties"]["number"]["type"])


async def test_a_call_for_an_earlier_schema_is_refused_and_a_new_list_has_the_schema_of_now(
    broker: Broker, bus: Toolbus
) -> None:
    found: list[Any] = []
    changes: list[ToolsChanged] = []

    async def by_text(number: str) -> None:
        found.append(number)

    async def by_number(number: int) -> None:
        found.append(number)

    await bus.on_tools_changed(changes.append)
    async with serving(broker, by_text):
        await eventually(lambda: any(NAME in change.added for change in changes), 20)
        assert await number_of(bus) == "string"
        await bus.call(NAME, number="A7")
    before = changes[-1].version
    async with serving(broker, by_number):
        # A tool that changes under its name is in neither list.
        await eventually(lambda: changes[-1].version != before and not changes[-1].added + changes[-1].removed, 20)
        with pytest.raises(toolbus.InvalidArguments) as raised:
            await bus.call(NAME, number="A7")
        # The daemon's words: those of this client name the path alone.
        text = 'The arguments do not fit the tool\'s parameters: /number: value is not of type "integer"'
        assert (raised.value.message, raised.value.retryable) == (text, False)
        assert await number_of(bus) == "integer"
        await bus.call(NAME, number=7)
    assert found == ["A7", 7]
