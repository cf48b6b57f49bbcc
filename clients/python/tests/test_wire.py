"""Messages of the client: their fields are those of docs/wire, when it writes them and when it reads them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from support import REPOSITORY, Broker, Daemon
from test_calls import eventually
from test_provider import LIST, ask, effects, find_invoice, listed, providing

import toolbus.provider
from toolbus import Progress, Toolbus, ToolsChanged, errors, messages, running

WIRE = REPOSITORY / "docs/wire"
SCHEMA: dict[str, Any] = json.loads((WIRE / "messages.schema.json").read_text())
TYPES: dict[str, Any] = {
    message["name"]: message
    for message in json.loads((WIRE / "asyncapi.json").read_text())["components"]["messages"].values()
}
# Login of the clients, by which the broker tells their messages from those of the daemon.
LOGIN = "wire"
# Fields of the messages that the client writes, which it leaves out: the daemon knows them otherwise, or does not ask.
UNWRITTEN = {
    messages.INVOKE_REQUEST: {"batchId"},
    messages.LIST_REQUEST: {"binding", "profile", "ifVersion"},
    messages.LIST_RESPONSE: {"notice"},
}
WRITTEN = {
    *(messages.INVOKE_REQUEST, messages.LIST_REQUEST, messages.CANCEL_REQUEST, "Toolbus.SessionEnd"),
    *(messages.INVOKE_RESPONSE, messages.LIST_RESPONSE, messages.CANCEL_RESPONSE, messages.ANNOUNCEMENT),
    *(messages.ERROR, messages.PROGRESS),
}
# Fields of the messages that the client reads, which say nothing new to it.
UNREAD = {
    messages.INVOKE_REQUEST: {"batchId"},
    messages.LIST_REQUEST: {"format", "names", "sessionId", "binding", "profile"},
    messages.CANCEL_RESPONSE: {"toolCallId"},
    messages.LIST_RESPONSE: {"agent", "version", "notice", "notModified"},
    messages.ERROR: {"toolCallId", "toolName"},
    messages.PROGRESS: {"toolCallId", "toolName"},
}
READ = {
    *(messages.INVOKE_REQUEST, messages.LIST_REQUEST, messages.CANCEL_REQUEST, messages.INVOKE_RESPONSE),
    *(messages.CANCEL_RESPONSE, messages.LIST_RESPONSE, messages.ERROR, messages.PROGRESS, messages.TOOLS_CHANGED),
}


def closed(schema: Any) -> Any:
    """A schema that allows no properties but those that it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    return {"additionalProperties": False, **parts} if isinstance(schema.get("properties"), dict) else parts


CLOSED: dict[str, Any] = closed(SCHEMA["$defs"])


def check(name: str, value: Any) -> None:
    """Raises ValidationError for what does not fit a definition of the schema, or has fields that it does not name."""
    Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": CLOSED}).validate(value)


def definition(kind: str, part: str = "payload") -> str:
    """Name of the definition of a message's body or headers."""
    return str(TYPES[kind][part]["$ref"]).removeprefix("./messages.schema.json#/$defs/")


def named(kind: str) -> set[str]:
    """Names of the fields of a message."""
    return set(SCHEMA["$defs"][definition(kind)].get("properties", {}))


def plain(value: Any) -> Any:
    """A value of AMQP as JSON has it."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value.decode() if isinstance(value, bytes | bytearray) else value


@dataclass
class Sent:
    """A message as the broker got it."""

    kind: str
    is_own: bool
    """Whether it is of a client."""
    body: bytes
    properties: dict[str, Any]
    headers: dict[str, Any]

    def check(self) -> None:
        """Compares its body, properties and headers with the schema."""
        check(definition(self.kind), json.loads(self.body))
        # The library always writes a priority.
        check("Envelope", {name: value for name, value in self.properties.items() if name != "priority"})
        which = definition(self.kind, "headers")
        check(which, self.headers if which == "ReplyHeaders" else single(self.headers))


def single(headers: dict[str, Any]) -> dict[str, Any]:
    """Headers of a request by the names that the schema has, without the `rb-` that the wire has besides."""
    besides = ("rb-rb-", "rb-traceparent", "rb-tracestate")
    return {name.removeprefix("rb-") if name.startswith(besides) else name: part for name, part in headers.items()}


@asynccontextmanager
async def tapped(broker: Broker) -> AsyncIterator[list[Sent]]:
    """All messages that are published meanwhile, whatever their exchange."""
    seen: list[Sent] = []

    async def note(message: AbstractIncomingMessage) -> None:
        properties = plain(message.headers["properties"])
        headers = properties.pop("headers", {})
        is_own = plain(message.headers["user"]) == LOGIN
        seen.append(Sent(properties.get("type", ""), is_own, message.body, properties, headers))

    async with await aio_pika.connect(broker.url()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("amq.rabbitmq.trace", "publish.#")
        await queue.consume(note, no_ack=True)
        await asyncio.to_thread(broker.ctl, "trace_on")
        try:
            yield seen
        finally:
            await asyncio.to_thread(broker.ctl, "trace_off")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, set[str]]:
    """Names of the fields that the client reads, by the bodies of the messages."""
    read: dict[bytes, set[str]] = defaultdict(set)

    def loads(text: bytes) -> Any:
        value = json.loads(text)
        if not isinstance(value, dict):
            return value

        class Noted(dict[str, Any]):
            def get(self, name: str, default: Any = None) -> Any:
                read[text].add(name)
                return super().get(name, default)

            def __getitem__(self, name: str) -> Any:
                read[text].add(name)
                return super().__getitem__(name)

            def __contains__(self, name: object) -> bool:
                read[text].add(str(name))
                return super().__contains__(name)

        return Noted(value)

    noting = SimpleNamespace(loads=loads, dumps=json.dumps)
    for module in (messages, toolbus.provider):
        monkeypatch.setattr(module, "json", noting)
    return read


async def talk(broker: Broker) -> None:
    """Has clients write and read each of their messages, with all fields that they know."""
    changes: list[ToolsChanged] = []
    url = broker.url(LOGIN, "secret")
    async with Toolbus(url, agent="ana", timeout=20) as bus, providing(url) as (provider, _):
        await listed(bus, "wait")
        await bus.on_tools_changed(changes.append)
        provider.tool(name="of_the_wire")(find_invoice)
        await eventually(lambda: changes)
        _, first = await ask(broker, b'{"format": "mcp"}', *LIST, login=LOGIN)
        known = json.dumps({"ifVersion": first["version"]}).encode()
        assert (await ask(broker, known, *LIST, login=LOGIN))[1]["notModified"]
        async with bus.session() as session:
            assert await session.tools("mcp", names=["billing.wait"])
            more = {"key": "of-the-wire", "headers": {"rb-model": "a-model"}}
            assert (await session.call("billing.give", kind="blocks", **more)).blocks
        assert [part async for part in bus.stream("billing.count", timeout=20)]
        with pytest.raises(toolbus.RateLimited):
            await bus.call("billing.fail", kind="told", retries=0)
        call = asyncio.create_task(bus.call("billing.wait", name="of-the-wire", seconds=30, call_id="of-the-wire"))
        await eventually(lambda: effects["of-the-wire"])
        assert await bus.cancel("of-the-wire", wait=5)
        with pytest.raises(toolbus.ToolCancelled):
            await call


async def test_messages_have_the_fields_of_the_schema(
    broker: Broker, daemon: Daemon, reads: dict[bytes, set[str]]
) -> None:
    broker.ctl("add_user", LOGIN, "secret")
    broker.ctl("set_permissions", LOGIN, ".*", ".*", ".*")
    written: dict[str, set[str]] = defaultdict(set)
    read: dict[str, set[str]] = defaultdict(set)
    async with tapped(broker) as seen:
        await talk(broker)
        await eventually(lambda: {sent.kind for sent in seen} >= WRITTEN | READ)
        await eventually(lambda: {sent.body for sent in seen} >= reads.keys())
    for sent in seen:
        if sent.is_own:
            sent.check()
            written[sent.kind].update(json.loads(sent.body))
        if sent.body in reads:
            check(definition(sent.kind), json.loads(sent.body))
            read[sent.kind] |= reads[sent.body]
    assert written == {kind: named(kind) - UNWRITTEN.get(kind, set()) for kind in WRITTEN}
    assert read == {kind: named(kind) - UNREAD.get(kind, set()) for kind in READ}


def test_types_of_the_client_have_the_fields_and_values_of_the_schema() -> None:
    for kind, name in ((Progress, messages.PROGRESS), (ToolsChanged, messages.TOOLS_CHANGED)):
        assert {part.name for part in fields(kind)} == named(name) - UNREAD.get(name, set())
    assert set(errors.BY_CODE) == set(SCHEMA["$defs"]["Code"]["enum"])
    assert set(running.OUTCOMES) == set(SCHEMA["$defs"]["Outcome"]["enum"])
