"""An MCP server over standard input and output, with one tool that reports its progress."""

import json
import sys
import time

TOOL = {
    "name": "count",
    "description": "Counts",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    params, result = request.get("params", {}), {}
    if request["method"] == "initialize":
        server = {"name": "reporting", "version": "1.0"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    elif request["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif request["method"] == "tools/call":
        for step in (1, 2, 3):
            report = {"progressToken": params.get("_meta", {}).get("progressToken"), "progress": step, "total": 3}
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": report}), flush=True)
            time.sleep(0.1)
        result = {"content": [{"type": "text", "text": "counted"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
