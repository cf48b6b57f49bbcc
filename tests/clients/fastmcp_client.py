"""Uses a server through FastMCP's client, and prints what it saw as JSON.

fastmcp_client.py CONFIGURATION MODE: the configuration is a text as users write it into mcp.json. With the mode "legacy"
there are sessions, with "auto" there are none if the server can do without. After a line "watching" it waits until the list of tools changes.
"""

import asyncio
import json
import sys

import mcp_types as types
from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp import MCPError
from mcp.client.subscriptions import listen

CONFIGURATION, MODE = json.loads(sys.argv[1]), sys.argv[2]
# What a tool is called with so that it fails.
NOWHERE = {"datetime": "2026-01-02T03:04", "from_timezone": "UTC", "to_timezone": "Nowhere/At_All"}


async def refused(call):
    try:
        await call
    except MCPError as error:
        return {"code": error.error.code, "message": error.error.message}
    except ToolError as error:
        return str(error)


async def cancelled(client):
    begun = asyncio.Event()

    async def reported(*_):
        begun.set()

    arguments = {"duration": 100, "steps": 1000}
    call = asyncio.create_task(
        client.call_tool("trigger-long-running-operation", arguments, progress_handler=reported)
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
        async with listen(client.session, tools_list_changed=True) as changes:
            print("watching", flush=True)
            await anext(aiter(changes))


async def main():
    seen, notified, progress = {}, asyncio.Event(), []

    async def message(told):
        if isinstance(told, types.ToolListChangedNotification):
            notified.set()

    async def reported(done, total, _):
        progress.append([int(done), int(total)])

    async with Client(CONFIGURATION, mode=MODE, message_handler=message, cache=False) as client:
        seen["protocol"] = client.protocol_version
        seen["server"] = client.server_info and client.server_info.name
        tools = await client.list_tools()
        seen["tools"] = [tool.name for tool in tools]
        described = next(tool for tool in tools if tool.name == "get-structured-content")
        seen["described"] = described.model_dump(mode="json", by_alias=True, exclude_none=True)
        echoed = await client.call_tool("echo", {"message": "hello"})
        seen["echo"] = [block.text for block in echoed.content]
        asked = [await client.call_tool("desk.about", {}) for _ in range(2)]
        seen["desk"] = [json.loads(about.content[0].text)["asked"] for about in asked]
        structured = await client.call_tool("get-structured-content", {"location": "Chicago"})
        seen["structured"] = structured.structured_content
        seen["failed"] = await refused(client.call_tool("convert_time", NOWHERE))
        seen["unknown"] = await refused(client.call_tool("no_such_tool", {}))
        arguments = {"duration": 1, "steps": 4}
        await client.call_tool("trigger-long-running-operation", arguments, progress_handler=reported)
        seen["progress"] = progress
        seen["cancelled"] = await cancelled(client)
        resources = await client.list_resources()
        seen["resources"] = [str(resource.uri) for resource in resources]
        if resources:
            read = await client.read_resource(resources[0].uri)
            seen["read"] = read[0].text[:60]
        await watched(client, notified)
        seen["after"] = [tool.name for tool in await client.list_tools()]
    print(json.dumps(seen))


asyncio.run(main())
