"""A private RabbitMQ node, a daemon, and a backend that counts effects; each ends with this process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
TOKEN = "a-token-of-the-tests-of-clients"
PATIENCE = 90.0
# As crates/toolbus-testing does: `epmd` and the node are one process group, which ends when standard input closes.
GUARD = """
trap '' INT TERM HUP
setsid sh -c 'epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
    until epmd -names >/dev/null 2>&1; do sleep 0.05; done
    exec "$1/rabbitmq-server"' node "$1" </dev/null >"$2/console.log" 2>&1 &
said=$(cat)
kill -KILL "-$!"
wait
[ "$said" = keep ] || rm -rf -- "$2"
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def programs() -> Path:
    named = os.environ.get("TOOLBUS_RABBITMQ")
    if named:
        return Path(named)
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("*/sbin"))
    assert found, "install it with `apt-get install rabbitmq-server`"
    return found[-1]


class Broker:
    """A node with free ports and a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="toolbus-rabbit-"))
        self.port, dist, epmd = free_ports(3)
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 1MB\n"
        )
        (self.folder / "enabled_plugins").write_text("[].\n")
        self.environment = os.environ | {
            "HOME": str(self.folder),
            "ERL_FLAGS": "-start_epmd false",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_NODENAME": f"toolbus{dist}@localhost",
            "RABBITMQ_DIST_PORT": str(dist),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CTL_DIST_PORT_MIN": "20000",
            "RABBITMQ_CTL_DIST_PORT_MAX": "29999",
        }
        self.start()

    def url(self, user: str = "guest", password: str = "guest") -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/%2f"

    def start(self) -> None:
        command = ["sh", "-c", GUARD, "guard", str(programs()), str(self.folder)]
        self.guard = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=self.environment, cwd=self.folder, start_new_session=True
        )
        wait_until(self.takes_connections, "the broker")

    def takes_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def ctl(self, *arguments: str) -> str:
        command = [str(programs() / "rabbitmqctl"), "--quiet", *arguments]
        ends = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                command, env=self.environment, cwd=self.folder, check=False, capture_output=True, text=True
            )
            # A node takes connections before it says that it runs.
            if "requires the 'rabbit' app to be running" not in done.stderr or time.monotonic() > ends:
                assert done.returncode == 0, done.stdout + done.stderr
                return done.stdout

    def flush(self) -> None:
        """Writes to disk which quorum queues there are: a node that is killed before has queues that never reply."""
        self.ctl("eval", "[dets:sync(Table) || Table <- dets:all()].")

    def kill(self, *, keep: bool = True) -> None:
        assert self.guard.stdin
        with contextlib.suppress(BrokenPipeError):
            self.guard.stdin.write(b"keep" if keep else b"")
            self.guard.stdin.close()
        self.guard.wait()
        wait_until(lambda: not self.takes_connections(), "the end of the broker")

    def end(self) -> None:
        self.kill(keep=False)


class Proxy:
    """A way to the broker that can be cut, or made silent; `url` leads over it."""

    def __init__(self, broker: Broker) -> None:
        self.target = broker.port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open: set[socket.socket] = set()
        self.clients: set[socket.socket] = set()
        """Ends at clients."""
        self.silent: set[socket.socket] = set()
        """Those of them that get nothing."""
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, user: str = "guest", password: str = "guest") -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/%2f"

    def cut(self) -> None:
        """Ends all connections without a word; new ones are taken."""
        for end in list(self.open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Drops what the broker sends over the connections of now, until they are cut; what clients send arrives."""
        self.silent |= self.clients

    def end(self) -> None:
        self.listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target), 5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self.open |= {near, far}
                self.clients.add(near)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if target not in self.silent:
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for ends in (self.open, self.clients, self.silent):
            ends.discard(source)
        source.close()


class Backend:
    """An HTTP server: `/effect` counts its requests by their `id`, `/fail` is not available, `/slow` takes its time."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.failures = 0
        counts = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                read = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
                with lock:
                    counts.effects[str(read.get("id"))] += 1
                    fails = self.path == "/flaky" and counts.failures > 0
                    counts.failures -= fails
                if self.path == "/slow":
                    time.sleep(read.get("seconds", 1))
                text = b"done"
                self.send_response(503 if fails else 200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def endpoint(name: str, path: str, port: int, **more: str) -> str:
    lines = [f"{key} = {value}" if value.startswith("{") else f'{key} = "{value}"' for key, value in more.items()]
    schema = '{"type":"object","properties":{"id":{"type":"string"},"seconds":{"type":"number"}},"required":["id"]}'
    return (
        f'[[rest.endpoints]]\nname = "{name}"\ndescription = "Of the tests"\nmethod = "POST"\nbody = "json"\n'
        f'url = "http://127.0.0.1:{port}{path}"\ntimeout = "20s"\nparameters = \'{schema}\'\n' + "\n".join(lines) + "\n"
    )


AGENTS = """
[identity]
trust_headers = true
[toolsets.billing]
kind = "remote"
provider = "billing"
[agents.ana]
allowed_tools = ["*"]
toolsets = ["billing"]
tool_rate_limits = { limited = { rps = 2.0, burst = 1 } }
outbound_allowlist = { people = ["ana"] }
[agents.busy]
allowed_tools = ["*"]
max_in_flight = 1
max_queued = 1
[outbound.people]
tools = ["write_to"]
recipients = ["/id"]
compare = "exact"
"""


class Daemon:
    """A daemon with `echo`, REST tools of a `Backend`, and an MCP server that reports progress."""

    def __init__(self, url: str, backend: Backend) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="toolbus-daemon-"))
        (self.http,) = free_ports(1)
        reporting = Path(__file__).with_name("reporting.py")
        self.folder.joinpath("toolbus.toml").write_text(
            f'[bus]\nurl = "{url}"\n[store]\nurl = "sqlite:toolbus.db"\n[tools]\necho = true\n'
            f'[http]\nlisten = "127.0.0.1:{self.http}"\ntokens = {{ ana = "{TOKEN}" }}\n'
            '[tools.limits."*"]\ntimeout = "20s"\n[tools.limits.echo]\nmax_in_flight = 64\n'
            f'[mcp.servers.reporting]\ncommand = "{sys.executable}"\nargs = ["{reporting}"]\n'
            + endpoint("effect", "/effect", backend.port, effect="effectful")
            + endpoint("flaky", "/flaky", backend.port, effect="idempotent")
            + endpoint("slow", "/slow", backend.port, effect="effectful")
            + endpoint("limited", "/effect", backend.port, effect="effectful")
            + endpoint("write_to", "/effect", backend.port, effect="effectful")
            + endpoint(
                "private", "/effect", backend.port, auth='{ type = "bearer", per_agent = { bo = { token = "x" } } }'
            )
            + AGENTS
        )
        self.start()

    @property
    def mcp(self) -> str:
        return f"http://127.0.0.1:{self.http}/mcp"

    def start(self) -> None:
        binary = os.environ.get("TOOLBUS_BIN") or shutil.which("toolbus") or str(REPOSITORY / "target/debug/toolbus")
        with self.folder.joinpath("log").open("ab") as log:
            command = [binary, "serve", "--config", "toolbus.toml"]
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self.is_ready, "the daemon", self.text)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.text()
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=2) as reply,
        ):
            return bool(reply.status == 200)
        return False

    def text(self) -> str:
        return self.folder.joinpath("log").read_text("utf-8", "replace")[-5000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_until(condition: Any, what: str, detail: Any = str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"{what} is not there: {detail()}"
        time.sleep(0.05)
