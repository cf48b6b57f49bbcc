"""Offers two functions as tools until it is stopped: a daemon with a tool set for the provider "billing" calls them."""

import asyncio
import os
import signal
from typing import Annotated

from pydantic import Field

from toolbus import Call, Toolbus

bus = Toolbus(os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2f"), agent="billing")


@bus.tool(effect="read-only")
async def find_invoice(number: Annotated[str, Field(description="As printed on it")], year: int = 2026) -> dict:
    """Finds an invoice."""
    return {"number": number, "year": year, "total": 17.5}


@bus.tool(effect="effectful")
async def send_reminders(customers: list[str], call: Call) -> str:
    """Reminds customers of what they owe."""
    for done, _customer in enumerate(customers, 1):
        await asyncio.sleep(0.1)  # here a mail goes out
        await call.report(done, len(customers))
    return f"{len(customers)} reminded for {call.agent}"


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with bus:
        await bus.serve()  # until it is cancelled: calls that run then have 30 seconds to end


try:
    asyncio.run(main())
except (asyncio.CancelledError, KeyboardInterrupt):
    print("stopped")
