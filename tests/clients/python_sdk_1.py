"""Uses a server through the SDK for Python, first generation, and prints what it saw as JSON.

python_sdk_1.py URL TOKEN. After a line "watching" it waits until the list of tools changes.
"""

import asyncio
import json
import sys

import mcp.types as types
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamablehttp_client

URL, TOKEN = sys.argv[1:]
# What a tool is called with so that it fails.
NOWHERE = {"datetime": "2026-01-02T03:04", "from_timezone": "UTC", "to_timezone": "Nowhere/At_All"}


async def everything(ask, field):
    found, cursor = [], None
    while True:
        page = await ask(cursor)
        found, cursor = found + getattr(page, field), page.nextCursor
        if cursor is None:
            return found


async def refused(call):
    try:
        await call
    except McpError as error:
        return {"code": error.error.code, "message": error.error.message}


async def cancelled(session):
    """This SDK does not tell the server by itself that nobody waits any more."""
    begun, sent = asyncio.Event(), session._request_id

    async def reported(*_):
        begun.set()

    arguments = {"duration": 100, "steps": 1000}
    call = asyncio.create_task(
        session.call_tool("trigger-long-running-operation", arguments, progress_callback=reported)
    )
    await begun.wait()
    about = types.CancelledNotificationParams(requestId=sent, reason="enough")
    await session.send_notification(types.ClientNotification(types.CancelledNotification(params=about)))
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return True


async def main():
    seen, notified, progress = {}, asyncio.Event(), []

    async def message(told):
        if isinstance(told, types.ServerNotification) and isinstance(told.root, types.ToolListChangedNotification):
            notified.set()

    async def reported(done, total, _):
        progress.append([int(done), int(total)])

    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        streamablehttp_client(URL, headers=headers) as (reading, writing, _),
        ClientSession(reading, writing, message_handler=message) as session,
    ):
        begun = await session.initialize()
        seen["protocol"], seen["server"] = begun.protocolVersion, begun.serverInfo.name
        tools = await everything(session.list_tools, "tools")
        seen["tools"] = [tool.name for tool in tools]
        described = next(tool for tool in tools if tool.name == "get-structured-content")
        seen["described"] = described.model_dump(mode="json", by_alias=True, exclude_none=True)
        echoed = await session.call_tool("echo", {"message": "hello"})
        seen["echo"] = [block.text for block in echoed.content]
        asked = [await session.call_tool("desk.about", {}) for _ in range(2)]
        seen["desk"] = [json.loads(about.content[0].text)["asked"] for about in asked]
        structured = await session.call_tool("get-structured-content", {"location": "Chicago"})
        seen["structured"] = structured.structuredContent
        failed = await session.call_tool("convert_time", NOWHERE)
        seen["failed"] = failed.isError and failed.content[0].text
        seen["unknown"] = await refused(session.call_tool("no_such_tool", {}))
        arguments = {"duration": 1, "steps": 4}
        await session.call_tool("trigger-long-running-operation", arguments, progress_callback=reported)
        seen["progress"] = progress
        seen["cancelled"] = await cancelled(session)
        resources = await everything(session.list_resources, "resources")
        seen["resources"] = [str(resource.uri) for resource in resources]
        read = await session.read_resource(resources[0].uri)
        seen["read"] = read.contents[0].text[:60]
        print("watching", flush=True)
        await notified.wait()
        tools = await everything(session.list_tools, "tools")
        seen["after"] = [tool.name for tool in tools]
    print(json.dumps(seen))


asyncio.run(main())
