"""Uses a server through the SDK for Python, second generation, and prints what it saw as JSON.

python_sdk.py SERVER TOKEN MODE: the server is a URL, or a program with its arguments, as a list in JSON. With the mode
"legacy" there are sessions, with "auto" there are none if the server can do without. After a line "watching" it waits
until the list of tools changes.
"""

import asyncio
import json
import sys

import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

SERVER, TOKEN, MODE = sys.argv[1:]
# What a tool is called with so that it fails.
NOWHERE = {"datetime": "2026-01-02T03:04", "from_timezone": "UTC", "to_timezone": "Nowhere/At_All"}


def transport():
    if SERVER.startswith("["):
        command, *arguments = json.loads(SERVER)
        return StdioServerParameters(command=command, args=arguments)
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    return streamable_http_client(SERVER, http_client=http)


async def everything(ask, field):
    found, cursor = [], None
    while True:
        page = await ask(cursor=cursor)
        found, cursor = found + getattr(page, field), page.next_cursor
        if cursor is None:
            return found


async def refused(call):
    try:
        await call
    except MCPError as error:
        return {"code": error.error.code, "message": error.error.message}


async def cancelled(client):
    begun = asyncio.Event()

    async def reported(*_):
        begun.set()

    arguments = {"duration": 100, "steps": 1000}
    call = asyncio.create_task(
        client.call_tool("trigger-long-running-operation", arguments, progress_callback=reported)
    )
    await begun.wait()
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return True


async def watched(client, notified):
    """Waits for a change as the generation of the protocol has it."""
    if MODE == "legacy":
        print("watching", flush=True)
        await notified.wait()
    else:
        async with client.listen(tools_list_changed=True) as changes:
            print("watching", flush=True)
            await anext(aiter(changes))


async def main():
    seen, notified, progress = {}, asyncio.Event(), []

    async def message(told):
        if isinstance(told, types.ToolListChangedNotification):
            notified.set()

    async def reported(done, total, _):
        progress.append([int(done), int(total)])

    async with Client(transport(), mode=MODE, message_handler=message, cache=None) as client:
        seen["protocol"] = client.protocol_version
        seen["server"] = client.server_info and client.server_info.name
        tools = await everything(client.list_tools, "tools")
        seen["tools"] = [tool.name for tool in tools]
        described = next(tool for tool in tools if tool.name == "get-structured-content")
        seen["described"] = described.model_dump(mode="json", by_alias=True, exclude_none=True)
        echoed = await client.call_tool("echo", {"message": "hello"})
        seen["echo"] = [block.text for block in echoed.content]
        asked = [await client.call_tool("desk.about", {}) for _ in range(2)]
        seen["desk"] = [json.loads(about.content[0].text)["asked"] for about in asked]
        structured = await client.call_tool("get-structured-content", {"location": "Chicago"})
        seen["structured"] = structured.structured_content
        failed = await client.call_tool("convert_time", NOWHERE)
        seen["failed"] = failed.is_error and failed.content[0].text
        seen["unknown"] = await refused(client.call_tool("no_such_tool", {}))
        arguments = {"duration": 1, "steps": 4}
        await client.call_tool("trigger-long-running-operation", arguments, progress_callback=reported)
        seen["progress"] = progress
        seen["cancelled"] = await cancelled(client)
        resources = await everything(client.list_resources, "resources")
        seen["resources"] = [str(resource.uri) for resource in resources]
        if resources:
            read = await client.read_resource(resources[0].uri)
            seen["read"] = read.contents[0].text[:60]
        await watched(client, notified)
        tools = await everything(client.list_tools, "tools")
        seen["after"] = [tool.name for tool in tools]
    print(json.dumps(seen))


asyncio.run(main())
