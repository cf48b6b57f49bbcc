"""An HTTP server for MCP that means harm, in the way that the path of its URL says.

Writes its port to standard output, and ends with its standard input. The argument is the port of a listener that nobody
may be led to.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ELSEWHERE = f"http://127.0.0.1:{sys.argv[1]}/mcp"
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "hostile", "version": "1"}}
ROWS = [{"id": n, "name": f"row {n}", "text": "a \u20ac " * 12} for n in range(60_000)]
LARGE = json.dumps({"content": [], "structuredContent": {"rows": ROWS}}).encode()
TOOLS = {"tools": [{"name": "strike", "inputSchema": {"type": "object"}}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, code, body=b"", kind="application/json", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self):
        """Begins an answer that has no end."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def write(self, data):
        self.wfile.write(data)
        self.wfile.flush()

    def do_GET(self):
        way = self.path.strip("/")
        if way == "sse-elsewhere":
            self.stream()
            self.write(f"event: endpoint\ndata: {ELSEWHERE}\n\n".encode())
            time.sleep(100_000)
        elif way == "sse-flood":
            self.stream()
            while True:
                self.write(b"data: " + b"x" * 65_536)
        else:
            self.strike(way, None)

    do_DELETE = do_GET

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.strike(self.path.strip("/"), message)

    def strike(self, way, message):
        method = (message or {}).get("method", "")
        if way.isdigit():
            self.send(int(way), b'{"error":"always"}')
        elif way == "redirect":
            self.send(307, Location=ELSEWHERE)
        elif way == "redirect-late" and method == "tools/call":
            self.send(307, Location=ELSEWHERE)
        elif way == "drop":
            self.close_connection = True
        elif way == "garbage":
            self.send(200, b"\xff\x00{[" * 1000)
        elif way.startswith("sse-"):
            self.send(405)
        elif message is None:
            self.send(405)
        elif method == "tools/call" and way == "huge":
            self.stream()
            self.write(b'data: {"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % message["id"])
            for _ in range(1_600):
                self.write(b"x" * 65_536)
            self.write(b'"}]}}\n\n')
        elif method == "tools/call" and way.endswith("rows"):
            whole = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], LARGE)
            if way == "rows":
                self.send(200, whole)
            else:
                self.stream()
                self.write(b"data: " + whole + b"\n\n")
        elif method == "tools/call" and way == "flood":
            self.stream()
            while True:
                self.write(b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n' * 100)
        elif method == "tools/call" and way == "cut":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.write(b'{"jsonrpc":"2.0",')
            self.close_connection = True
        elif "id" not in message:
            self.send(202)
        else:
            self.answer(way, message, method)

    def answer(self, way, message, method):
        session = {"lying": "x" * 100_000, "forgetful": f"s-{time.monotonic_ns()}"}.get(way)
        headers = {"Mcp_Session_Id": session} if session else {}
        if way == "forgetful" and method != "initialize" and "Mcp-Session-Id" in self.headers:
            self.send(404)
            return
        results = {"initialize": ABOUT, "tools/list": TOOLS, "ping": {}}
        results["tools/call"] = {"content": [{"type": "text", "text": "done"}]}
        outcome = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}
        self.send(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode(), **headers)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that go away are what this is about."""


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
