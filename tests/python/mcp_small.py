"""A small MCP server for tests: it says who was asked, and what it was started with.

Usage: mcp_small.py NAME TOOL,TOOL,… [ARGUMENT…]

Every tool takes a text and answers `NAME.TOOL: TEXT`, except `about`: it tells the arguments, the environment, the working
directory, the roots and the process, and how often it was asked. `LOG` in the environment names a file that gets a line for
each call, `START_DELAY` the seconds that a start takes, `LIST` a file with the tools that it lists instead, `HANGS` a file
while which is there no call is answered.
"""

import json
import os
import sys
import time

NAME, TOOLS, ARGUMENTS = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


class Server:
    def __init__(self):
        self.has_roots = False
        self.asked = 0
        self.waiting = []

    def roots(self):
        if not self.has_roots:
            return []
        send({"id": "roots", "method": "roots/list"})
        while True:
            message = read()
            if message.get("id") == "roots" and "method" not in message:
                return [root["uri"] for root in message["result"]["roots"]]
            self.waiting.append(message)

    def about(self):
        self.asked += 1
        return json.dumps({
            "arguments": ARGUMENTS,
            "environment": {key: os.environ[key] for key in sorted(os.environ) if key not in ("LOG", "TOOLBUS_TEST_RUN")},
            "cwd": os.getcwd(),
            "roots": self.roots(),
            "pid": os.getpid(),
            "asked": self.asked,
        })

    def call(self, tool, arguments):
        text = arguments.get("text", "")
        if "LOG" in os.environ:
            with open(os.environ["LOG"], "a", encoding="utf-8") as log:
                log.write(f"{NAME}.{tool}: {text}\n")
        return self.about() if tool == "about" else f"{NAME}.{tool}: {text}"

    def answer(self, method, params):
        if method == "initialize":
            self.has_roots = "roots" in params["capabilities"]
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": NAME, "version": "1"},
            }
        if method == "tools/list" and "LIST" in os.environ:
            with open(os.environ["LIST"], encoding="utf-8") as file:
                return {"tools": [{"inputSchema": SCHEMA, **tool} for tool in json.load(file)]}
        if method == "tools/list":
            return {"tools": [{"name": tool, "description": f"Tells {tool}", "inputSchema": SCHEMA} for tool in TOOLS]}
        if method == "tools/call":
            text = self.call(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
        return {} if method == "ping" else None

    def serve(self):
        while True:
            message = self.waiting.pop(0) if self.waiting else read()
            if "id" not in message or "method" not in message:
                continue
            if message["method"] == "tools/call" and os.path.exists(os.environ.get("HANGS", "")):
                continue
            result = self.answer(message["method"], message.get("params") or {})
            if result is None:
                send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
            else:
                send({"id": message["id"], "result": result})


time.sleep(float(os.environ.get("START_DELAY", "0")))
Server().serve()
