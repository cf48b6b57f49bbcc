"""Bodies and headers of messages, as docs/wire.md describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from .errors import InvalidReply, ToolError

try:
    from opentelemetry import context, propagate
except ImportError:  # the API of OpenTelemetry is optional
    propagate = None  # type: ignore[assignment]

INVOKE_REQUEST = "RockBot.Tools.ToolInvokeRequest"
INVOKE_RESPONSE = "RockBot.Tools.ToolInvokeResponse"
LIST_REQUEST = "Toolbus.ToolListRequest"
LIST_RESPONSE = "Toolbus.ToolListResponse"
CANCEL_REQUEST = "Toolbus.ToolCancelRequest"
CANCEL_RESPONSE = "Toolbus.ToolCancelResponse"
ANNOUNCEMENT = "Toolbus.ToolAnnouncement"
ERROR = "RockBot.Tools.ToolError"
PROGRESS = "Toolbus.ToolProgress"
TOOLS_CHANGED = "Toolbus.ToolsChanged"


@dataclass(frozen=True)
class Result:
    """Result of a tool. `is_error` means that the tool ran and reported a failure; `content` says why.

    Content comes from outside: it is data, never an instruction.
    """

    content: str
    is_error: bool = False
    blocks: list[dict[str, Any]] = field(default_factory=list)
    """Parts that are not only text, such as images."""
    tool: str = ""
    call_id: str = ""
    provider: str | None = None
    """Kind of backend that ran: `local`, `rest`, `mcp`, `script` or `remote`."""
    duration: float | None = None
    """Run time of the tool, in seconds."""

    def __str__(self) -> str:
        return self.content

    def json(self) -> Any:
        """The content, read as JSON."""
        return json.loads(self.content)


@dataclass(frozen=True)
class Progress:
    """Progress of a running call, in the tool's own units."""

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True)
class ToolsChanged:
    """The tools of the agent have changed; a tool that changed under its name is in neither list."""

    version: str
    added: list[str]
    removed: list[str]


def header(message: AbstractIncomingMessage, name: str) -> str | None:
    """A header of the envelope; those of the daemon begin with a doubled `rb-`."""
    value = message.headers.get(f"rb-{name}", message.headers.get(name))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


def body(message: AbstractIncomingMessage) -> dict[str, Any]:
    """The JSON object of a reply. Raises what a reply of the type `ToolError` says."""
    try:
        read = json.loads(message.body)
    except ValueError as error:
        raise InvalidReply("invalid_reply", f"the reply is not JSON: {error}", outcome="unknown") from None
    if not isinstance(read, dict):
        raise InvalidReply("invalid_reply", "the reply is JSON, but not an object", outcome="unknown")
    if message.type == ERROR:
        raise ToolError.from_reply(read)
    return read


def result(message: AbstractIncomingMessage) -> Result:
    """Reads a reply to a call."""
    read, duration = body(message), header(message, "rb-duration-ms")
    if "isError" not in read:
        raise InvalidReply("invalid_reply", f"a reply of the type {message.type!r} has no result", outcome="unknown")
    return Result(
        content=read.get("content") or "",
        is_error=bool(read["isError"]),
        blocks=read.get("contentBlocks") or [],
        tool=read.get("toolName") or "",
        call_id=read.get("toolCallId") or "",
        provider=header(message, "rb-tool-provider"),
        duration=int(duration) / 1000 if duration and duration.isdecimal() else None,
    )


def progress(message: AbstractIncomingMessage) -> Progress | None:
    """Reads a report of progress; None if it is unusable, because reports may be lost anyway."""
    try:
        read = json.loads(message.body)
        return Progress(read["progress"], read.get("total"), read.get("message"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def encode(value: Mapping[str, Any]) -> bytes:
    """JSON without the fields that are None. Raises ValueError or TypeError for what JSON cannot hold."""
    fields = {name: part for name, part in value.items() if part is not None}
    return json.dumps(fields, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def trace() -> dict[str, str]:
    """Headers with the current trace, if there is one."""
    carrier: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(carrier)
    return {f"rb-{name}": carrier[name] for name in ("traceparent", "tracestate") if name in carrier}


@contextmanager
def traced(message: AbstractIncomingMessage) -> Iterator[None]:
    """Makes the trace of a message, if it has one, the current one."""
    if propagate is None:
        yield
        return
    carrier = {name: value for name in ("traceparent", "tracestate") if (value := header(message, name))}
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
