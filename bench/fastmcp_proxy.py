"""FastMCP as a proxy: listens on $PORT, in front of the server that $SERVER starts."""

import os
import shlex

from fastmcp.server import create_proxy

command, *args = shlex.split(os.environ["SERVER"])
proxy = create_proxy({"mcpServers": {"server": {"command": command, "args": args}}}, name="proxy")
proxy.run(transport="http", host="127.0.0.1", port=int(os.environ["PORT"]), show_banner=False, log_level="warning")
