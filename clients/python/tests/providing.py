"""A provider that is killed: its tools write a line to the file that the environment names, and take their time."""

import asyncio
import os
import time
from pathlib import Path

from toolbus import Toolbus

bus = Toolbus(os.environ["TOOLBUS_URL"], agent="billing")


def noted(name: str, seconds: float) -> str:
    with Path(os.environ["TOOLBUS_NOTES"]).open("a") as notes:
        notes.write(f"{name}\n")
    time.sleep(seconds)
    return "done"


@bus.tool(effect="effectful")
def pay(name: str, seconds: float = 0) -> str:
    """Pays."""
    return noted(name, seconds)


@bus.tool(effect="read-only")
def look(name: str, seconds: float = 0) -> str:
    """Looks."""
    return noted(name, seconds)


async def main() -> None:
    async with bus:
        await bus.serve()


asyncio.run(main())
