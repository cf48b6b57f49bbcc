"""The examples, run as their readers do."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from support import Broker

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
