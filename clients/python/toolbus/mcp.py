"""The client over the daemon's MCP server, with the official package (`pip install toolbus-client[mcp]`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from .bus import retrying
from .errors import BrokerUnreachable, BusError, LoginRefused, Misuse, ToolError, ToolNotFound, ToolTimeout
from .messages import Result, trace

try:
    import httpx2 as httpx
    from mcp import Client, MCPError
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import CallToolResult, Tool
except ImportError as error:
    raise ImportError("Toolbus.mcp needs the package `mcp`: pip install 'toolbus-client[mcp]'") from error

INVALID_PARAMS = -32602


class McpToolbus:
    """Made by `Toolbus.mcp`. `call` and `tools` are as those of `Toolbus`."""

    def __init__(self, url: str, token: str | None, *, timeout: float, retries: int) -> None:
        self.timeout = timeout
        self.retries = retries
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._stack = AsyncExitStack()
        self._client: Client | None = None

    async def __aenter__(self) -> McpToolbus:
        statuses: list[int] = []

        async def note(response: httpx.Response) -> None:
            statuses.append(response.status_code)

        # The deadline of a call is its own; the stream of its reply may be silent meanwhile.
        web = httpx.AsyncClient(
            headers=self._headers, timeout=httpx.Timeout(10.0, read=None), event_hooks={"response": [note]}
        )
        try:
            await self._stack.enter_async_context(web)
            transport = streamable_http_client(self._url, http_client=web)
            self._client = await self._stack.enter_async_context(Client(transport, cache=None))
        except Exception as error:
            await self._stack.aclose()
            raise self._explained(error, statuses) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client = None
        await self._stack.aclose()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | None = None,
        key: str | None = None,
        retries: int | None = None,
        **more: Any,
    ) -> Result:
        """As `Toolbus.call`. The daemon grants the tool's own time, and a call that is over `timeout` is cancelled."""
        client = self._opened()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.timeout if timeout is None else timeout)
        meta: dict[str, Any] = {name.removeprefix("rb-"): value for name, value in trace().items()}
        if key is not None:
            meta["rb-idempotency-key"] = key

        async def attempt() -> Result:
            work = client.call_tool(tool, {**(arguments or {}), **more}, meta=meta or None)  # type: ignore[arg-type]
            try:
                return _result(tool, await asyncio.wait_for(work, max(deadline - loop.time(), 0.001)))
            except asyncio.TimeoutError:
                raise ToolTimeout("timeout", "no reply in time", outcome="unknown") from None
            except MCPError as error:
                kind, code = (ToolNotFound, "tool_not_found") if error.code == INVALID_PARAMS else (ToolError, "mcp")
                raise kind(code, error.message, outcome="not_started" if kind is ToolNotFound else None) from None

        return await retrying(attempt, deadline, self.retries if retries is None else retries, key)

    async def tools(
        self, format: str = "mcp", *, names: Sequence[str] | None = None, timeout: float = 10.0
    ) -> list[dict[str, Any]]:
        """Lists the agent's tools in the format `mcp`, `openai` or `anthropic`.

        The schemas are the tools' own: a list over the bus leaves out what providers refuse.
        """
        if format not in FORMATS:
            raise ValueError(f"formats over MCP are {', '.join(FORMATS)}, not {format!r}")
        client, found, cursor = self._opened(), list[Tool](), None
        while True:
            page = await asyncio.wait_for(client.list_tools(cursor=cursor), timeout)
            found += [tool for tool in page.tools if not names or tool.name in names]
            if not (cursor := page.next_cursor):
                return [FORMATS[format](tool) for tool in found]

    def _opened(self) -> Client:
        if not self._client:
            raise Misuse("the client is not open: use `async with Toolbus.mcp(…) as bus`")
        return self._client

    def _explained(self, error: Exception, statuses: list[int]) -> BusError:
        if 401 in statuses:
            return LoginRefused(f"the MCP server at {self._url} refuses the token")
        if 404 in statuses:
            return BrokerUnreachable(f"no MCP server at {self._url}: no `http.tokens` there, or the path is wrong")
        cause: BaseException = error
        while inner := getattr(cause, "exceptions", None):
            cause = inner[0]
        return BrokerUnreachable(f"no MCP server at {self._url}: {cause}")


def _result(tool: str, read: CallToolResult) -> Result:
    failure = (read.meta or {}).get("toolbus/error")
    text = "\n".join(part.text for part in read.content if part.type == "text")
    if isinstance(failure, dict):
        raise ToolError.from_reply({"message": text, **failure})
    others = (part for part in read.content if part.type != "text")
    blocks = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in others]
    return Result(text or json.dumps(read.structured_content or ""), bool(read.is_error), blocks, tool)


def _openai(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": (tool.description or "")[:1024], "parameters": tool.input_schema}
    return {"type": "function", "function": function}


FORMATS: dict[str, Callable[[Tool], dict[str, Any]]] = {
    "mcp": lambda tool: tool.model_dump(mode="json", by_alias=True, exclude_none=True),
    "openai": _openai,
    "anthropic": lambda tool: {
        "name": tool.name,
        "description": tool.description or "",
        "input_schema": tool.input_schema,
    },
}
