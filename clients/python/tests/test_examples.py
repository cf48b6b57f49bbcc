"""The examples, run as their readers do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from support import Broker
from test_provider import QUEUE, listed, queues

from toolbus import Toolbus

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


async def test_the_agent_gives_its_model_results_and_what_is_to_be_done_about_an_error(
    bus: Toolbus, broker: Broker
) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        EXAMPLES / "agents/agent.py",
        env={**os.environ, "TOOLBUS__BUS__URL": broker.url(), "PYTHONPATH": str(EXAMPLES.parent / "clients/python")},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await agent.communicate()
    lines = said.decode().splitlines()
    assert (agent.returncode, lines[0]) == (0, "hello")
    assert lines[1].startswith("tool_not_found: ")


async def test_the_provider_of_the_examples_serves_until_it_is_terminated(bus: Toolbus, broker: Broker) -> None:
    provider = await asyncio.create_subprocess_exec(
        sys.executable,
        EXAMPLES / "python/provide_tools.py",
        env={**os.environ, "AMQP_URL": broker.url(), "PYTHONPATH": str(EXAMPLES.parent / "clients/python")},
        stdout=asyncio.subprocess.PIPE,
    )
    await listed(bus, "send_reminders")
    found = await bus.call("billing.find_invoice", number="A1")
    assert found.json() == {"number": "A1", "year": 2026, "total": 17.5}
    running = bus.stream("billing.send_reminders", {"customers": ["bo", "cy", "di"]})
    assert (await anext(running)).total == 3
    provider.send_signal(signal.SIGTERM)
    assert [event async for event in running][-1].content == "3 reminded for ana"
    said, _ = await provider.communicate()
    assert (provider.returncode, said) == (0, b"stopped\n")
    assert QUEUE not in await queues(broker)
