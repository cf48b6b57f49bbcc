"""Runs an MCP server, and notes every line that it is sent: mcp_tee.py FILE COMMAND [ARGUMENT…]"""

import subprocess
import sys

with open(sys.argv[1], "ab", buffering=0) as notes, subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE) as server:
    for line in sys.stdin.buffer:
        notes.write(line)
        server.stdin.write(line)
        server.stdin.flush()
