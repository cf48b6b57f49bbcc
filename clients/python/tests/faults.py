"""Calls with keys, while the broker and the daemon are killed, connections are cut, and replies come late or twice.

Prints what became of them, and fails if a call was lost or had two effects. `python tests/faults.py`; TOOLBUS_FAULTS is
the number of faults (5), TOOLBUS_SEED decides which, TOOLBUS_BIN names the daemon's binary.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

from aio_pika.abc import AbstractIncomingMessage

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import Backend, Broker, Daemon, Proxy

from toolbus import OutcomeUnknown, Toolbus, ToolbusError

FAULTS = int(os.environ.get("TOOLBUS_FAULTS", "5"))
SEED = int(os.environ.get("TOOLBUS_SEED", "17"))
WORKERS = 8
TIMEOUT = 120.0
KINDS = ("broker killed", "connection cut", "connections closed", "daemon killed", "replies late and twice")


class Storm:
    """Workers that call, and faults that happen meanwhile."""

    def __init__(self) -> None:
        self.chance = random.Random(SEED)
        self.broker, self.backend = Broker(), Backend()
        self.proxy, self.daemon = Proxy(self.broker), Daemon(self.broker.url(), self.backend)
        self.outcomes: dict[str, str] = {}
        self.stopped = False
        self.troubled = False

    async def run(self) -> Counter[str]:
        await asyncio.to_thread(self.broker.flush)
        async with Toolbus(self.proxy.url(), agent="ana", timeout=TIMEOUT) as bus:
            self.trouble_replies(bus)
            workers = [asyncio.create_task(self.work(bus)) for _ in range(WORKERS)]
            kinds = [KINDS[number % len(KINDS)] for number in range(FAULTS)]
            self.chance.shuffle(kinds)
            for kind in kinds:
                await self.flowing()
                await asyncio.sleep(self.chance.uniform(0, 0.5))
                began = time.monotonic()
                await self.break_something(kind)
                print(f"{kind}: {time.monotonic() - began:.1f} s, {len(self.outcomes)} calls so far", flush=True)
            await asyncio.sleep(1)
            self.stopped = True
            await asyncio.gather(*workers)
            print(f"{bus._link and bus._link.reconnects} reconnects, {bus.strays} replies for nobody")
        return Counter(kinds)

    async def flowing(self) -> None:
        """Waits until calls end again, so that each fault finds some under way."""
        before = len(self.outcomes)
        while len(self.outcomes) < before + WORKERS:
            await asyncio.sleep(0.02)

    async def work(self, bus: Toolbus) -> None:
        while not self.stopped:
            name = uuid.uuid4().hex
            try:
                self.outcomes[name] = (await bus.call("effect", id=name, key=name)).content
            except OutcomeUnknown:
                self.outcomes[name] = "unknown"
            except ToolbusError as error:
                self.outcomes[name] = repr(error)

    async def break_something(self, kind: str) -> None:
        match kind:
            case "broker killed":
                await asyncio.to_thread(self.broker.kill)
                await asyncio.to_thread(self.broker.start)
            case "connection cut":
                self.proxy.cut()
            case "connections closed":
                await asyncio.to_thread(self.broker.ctl, "close_all_connections", "a fault")
            case "daemon killed":
                await asyncio.to_thread(self.daemon.kill)
                await asyncio.to_thread(self.daemon.start)
            case _:
                self.troubled = True
                await asyncio.sleep(1)
                self.troubled = False

    def trouble_replies(self, bus: Toolbus) -> None:
        assert bus._link
        receive, loop = bus._receive, asyncio.get_running_loop()

        def troubled(message: AbstractIncomingMessage) -> None:
            receive_at = self.chance.choice(((0.0, 0.0), (0.0, 0.5), (0.3,), (0.3, 0.3))) if self.troubled else (0.0,)
            for pause in receive_at:
                loop.call_later(pause, receive, message) if pause else receive(message)

        bus._link._receive = troubled

    def end(self) -> None:
        self.daemon.end()
        self.proxy.end()
        self.backend.end()
        self.broker.end()


def main() -> int:
    logging.disable(logging.CRITICAL)  # the client's library reports each connection that is lost
    storm = Storm()
    try:
        kinds = asyncio.run(storm.run())
    finally:
        storm.end()
    effects, outcomes = storm.backend.effects, storm.outcomes
    done = [name for name, outcome in outcomes.items() if outcome == "done"]
    lost = [name for name in done if effects[name] == 0]
    doubled = [name for name, count in effects.items() if count > 1]
    unexpected = Counter(outcome for outcome in outcomes.values() if outcome not in ("done", "unknown"))
    print(f"seed {SEED}, {sum(kinds.values())} faults: {dict(kinds)}")
    print(
        f"calls {len(outcomes)}, done {len(done)}, outcome unknown {list(outcomes.values()).count('unknown')}, "
        f"lost {len(lost) + sum(unexpected.values())}, doubled {len(doubled)}"
    )
    for outcome, count in unexpected.items():
        print(f"  {count} times: {outcome}")
    return 1 if lost or doubled or unexpected or not done else 0


if __name__ == "__main__":
    sys.exit(main())
