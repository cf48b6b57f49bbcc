"""The MCP server whose tools the scenarios of the conformance suite call, on the SDK for Python."""

import asyncio

import mcp.server.stdio
import mcp_types as types
from mcp.server import Server

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
# Between two reports, in seconds: more than the daemon lets pass between two that it tells.
PAUSE = 0.4


def text(content):
    return {"type": "text", "text": content}


def resource(uri, mime_type, content):
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": content}}


IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
# What tools without arguments answer.
ANSWERS = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
    "test_reconnection": [text("Reconnection test completed successfully")],
}
ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
NAMES = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


async def with_progress(context, _):
    for done in (0, 50, 100):
        await context.session.report_progress(done, total=100)
        await asyncio.sleep(PAUSE)
    return "done"


async def with_logging(context, _):
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", said, related_request_id=context.request_id)
        await asyncio.sleep(PAUSE)
    return "done"


async def with_error(*_):
    raise ValueError("This tool intentionally returns an error for testing")


async def with_sampling(context, arguments):
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=arguments["prompt"]))
    return f"LLM response: {await context.session.create_message([message], max_tokens=100)}"


async def with_elicitation(context, arguments):
    wanted = {"type": "object", "properties": {"username": {"type": "string"}}, "required": ["username"]}
    return f"User response: {await context.session.elicit_form(arguments.get('message', 'Who are you?'), wanted)}"


TOOLS = {
    "test_tool_with_progress": with_progress,
    "test_tool_with_logging": with_logging,
    "test_error_handling": with_error,
    "test_sampling": with_sampling,
    "test_elicitation": with_elicitation,
    "test_elicitation_sep1034_defaults": with_elicitation,
    "test_elicitation_sep1330_enums": with_elicitation,
}


async def list_tools(*_):
    plain = {"type": "object"}
    schemas = dict.fromkeys([*ANSWERS, *TOOLS], plain) | {"json_schema_2020_12_tool": NAMES}
    listed = [types.Tool(name=name, description=name, input_schema=schema) for name, schema in schemas.items()]
    return types.ListToolsResult(tools=listed)


async def call_tool(context, params):
    try:
        if params.name in TOOLS:
            content, is_error = [text(await TOOLS[params.name](context, params.arguments or {}))], False
        else:
            content, is_error = ANSWERS.get(params.name, []), False
    except Exception as error:
        content, is_error = [text(str(error))], True
    return types.CallToolResult.model_validate({"content": content, "isError": is_error})


async def main():
    server = Server("conformance", on_list_tools=list_tools, on_call_tool=call_tool)
    async with mcp.server.stdio.stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


asyncio.run(main())
