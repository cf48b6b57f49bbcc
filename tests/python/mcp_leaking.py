"""An MCP server for tests that repeats the token it was given wherever a server can say anything.

`LEAK_TOKEN` in the environment is the token.
"""

import json
import os
import sys
import urllib.parse

TOKEN = os.environ["LEAK_TOKEN"]
HOW = {"type": "object", "properties": {"how": {"type": "string", "default": TOKEN}}}


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def call(how, token):
    if token is not None:
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "message": f"as {TOKEN}"}})
    if how == "environment":
        return text(json.dumps(dict(os.environ)))
    if how == "encoded":
        return text(f"?token={urllib.parse.quote(TOKEN, safe='')}")
    if how == "error":
        return text(f"refused: {TOKEN}", isError=True)
    if how == "structured":
        return text("done", structuredContent={"token": TOKEN, "count": 3})
    return None


for line in sys.stdin:
    message = json.loads(line)
    method, params, number = message.get("method"), message.get("params") or {}, message.get("id")
    if method == "initialize":
        print(f"started with {TOKEN}", file=sys.stderr, flush=True)
        send({"id": number, "result": {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "instructions": f"Say {TOKEN}.",
            "serverInfo": {"name": "leaking", "version": TOKEN},
        }})
    elif method == "tools/list":
        send({"id": number, "result": {"tools": [
            {"name": "leak", "description": f"Works with {TOKEN}.", "inputSchema": HOW},
            {"name": f"leak_{TOKEN}", "description": "Named by a token.", "inputSchema": HOW},
        ]}})
    elif method == "tools/call":
        result = call(params.get("arguments", {}).get("how"), params.get("_meta", {}).get("progressToken"))
        if result is None:
            send({"id": number, "error": {"code": -32000, "message": f"no way for {TOKEN}"}})
        else:
            send({"id": number, "result": result})
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": f"no {method}"}})
