"""An MCP server with one tool, over its standard input and output; Python's standard library is all that it needs."""

import json
import sys

TOOL = {
    "name": "count_words",
    "description": "Counts the words of a text",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}


def initialize(params):
    server = {"name": "words", "version": "1.0"}
    return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}


def call(params):
    count = len(params["arguments"]["text"].split())
    return {"content": [{"type": "text", "text": f"{count} words"}]}


METHODS = {
    "initialize": initialize,
    "ping": lambda params: {},
    "tools/list": lambda params: {"tools": [TOOL]},
    "tools/call": call,
}

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue  # a notification
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    method = METHODS.get(request["method"])
    if method is None:
        answer["error"] = {"code": -32601, "message": "no such method"}
    else:
        answer["result"] = method(request.get("params", {}))
    print(json.dumps(answer), flush=True)
