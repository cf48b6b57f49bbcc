"""What the conformance suite starts as the client of its server: the real binary, with that server as its MCP server.

bridge.py BINARY URL; the suite names the scenario, and what the client is to know, in the environment.
"""

import json
import os
import sys
import urllib.parse
import urllib.request

# What scenarios want called; others look at the handshake.
CALLS = {
    "tools_call": ["add_numbers", "a=5", "b=3"],
    "sse-retry": ["test_reconnection"],
    "elicitation-sep1034-client-defaults": ["test_client_elicitation_defaults"],
}


def fetched(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def token_url(url):
    """What an operator reads in the server's documentation, and writes into the configuration."""
    parts = urllib.parse.urlsplit(url)
    resource = fetched(f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}")
    issuer = resource["authorization_servers"][0].rstrip("/")
    return fetched(f"{issuer}/.well-known/oauth-authorization-server")["token_endpoint"]


binary, url = sys.argv[1:]
scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
server = {"url": url}
if "client_secret" in context and scenario.startswith("auth/client-credentials"):
    server |= {
        "auth.type": "client_credentials",
        "auth.token_url": token_url(url),
        "auth.client_id": context["client_id"],
        "auth.client_secret": context["client_secret"],
    }
arguments = ["call", *CALLS[scenario]] if scenario in CALLS else ["mcp", "test", "suite"]
for key, value in server.items():
    arguments += ["--set", f"mcp.servers.suite.{key}={value}"]
os.execv(binary, [binary, *arguments])
