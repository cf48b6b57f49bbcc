"""Calls with keys, while the broker and the daemon are killed, connections are cut, confirms are lost, and replies come
late or twice.

Prints what became of them, and fails if a call was lost or had two effects. `python tests/faults.py`; TOOLBUS_FAULTS is
the number of faults (one of each kind), TOOLBUS_SEED decides which, TOOLBUS_BIN names the daemon's binary.
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
from collections.abc import Callable
from pathlib import Path

from aio_pika.abc import AbstractIncomingMessage

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import Backend, Broker, Daemon, Proxy

from toolbus import OutcomeUnknown, Toolbus, ToolbusError

KINDS = (
    *("broker killed", "connection cut", "connections closed", "confirm lost", "daemon killed"),
    *("replies late", "replies twice"),
)
FAULTS = int(os.environ.get("TOOLBUS_FAULTS", len(KINDS)))
SEED = int(os.environ.get("TOOLBUS_SEED", "17"))
WORKERS = 8
TIMEOUT = 120.0
# Seconds after which the client gets a reply, for each time that it does; one of them is chosen for each reply.
IN_TIME = ((0.0,),)
LATE = ((0.3,),)
TWICE = ((0.0, 0.0), (0.0, 0.5), (0.3, 0.3))


class Storm:
    """Workers that call, and faults that happen meanwhile."""

    def __init__(self) -> None:
        self.chance = random.Random(SEED)
        self.broker, self.backend = Broker(), Backend()
        self.proxy, self.daemon = Proxy(self.broker), Daemon(self.broker.url(), self.backend)
        self.outcomes: dict[str, str] = {}
        self.stopped = False
        self.arrivals: tuple[tuple[float, ...], ...] = IN_TIME

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
                await self.break_something(kind, bus)
                print(f"{kind}: {time.monotonic() - began:.1f} s, {len(self.outcomes)} calls so far", flush=True)
            await asyncio.sleep(1)
            self.stopped = True
            await asyncio.gather(*workers)
            print(f"{bus._link and bus._link.reconnects} reconnects, {bus.strays} replies that no call waited for")
        return Counter(kinds)

    async def flowing(self) -> None:
        """Waits until calls end again, so that each fault finds some under way."""
        before = len(self.outcomes)
        await until(lambda: len(self.outcomes) >= before + WORKERS)

    async def work(self, bus: Toolbus) -> None:
        while not self.stopped:
            await self.call(bus, uuid.uuid4().hex)

    async def call(self, bus: Toolbus, name: str) -> None:
        try:
            self.outcomes[name] = (await bus.call("effect", id=name, key=name)).content
        except OutcomeUnknown:
            self.outcomes[name] = "unknown"
        except ToolbusError as error:
            self.outcomes[name] = repr(error)

    async def break_something(self, kind: str, bus: Toolbus) -> None:
        match kind:
            case "broker killed":
                await asyncio.to_thread(self.broker.kill)
                await asyncio.to_thread(self.broker.start)
            case "connection cut":
                self.proxy.cut()
            case "connections closed":
                await asyncio.to_thread(self.broker.ctl, "close_all_connections", "a fault")
            case "confirm lost":
                await self.lose_confirm()
            case "daemon killed":
                await asyncio.to_thread(self.daemon.kill)
                await asyncio.to_thread(self.daemon.start)
            case "replies late":
                await self.deliver(LATE)
            case "replies twice":
                before = bus.strays
                await self.deliver(TWICE)
                assert bus.strays > before
            case _:
                raise AssertionError(f"no kind of fault: {kind}")

    async def lose_confirm(self) -> None:
        """Cuts connections when a request has reached the broker, and its confirm has not reached its client."""
        name = uuid.uuid4().hex
        async with Toolbus(self.proxy.url(), agent="ana", timeout=TIMEOUT) as alone:
            assert alone._link
            session = alone._link._session
            self.proxy.silence()
            call = asyncio.create_task(self.call(alone, name))
            await until(lambda: self.backend.effects[name])
            assert session and session.unconfirmed == 1
            self.proxy.cut()
            await call

    async def deliver(self, arrivals: tuple[tuple[float, ...], ...]) -> None:
        """Has replies arrive otherwise for a while."""
        self.arrivals = arrivals
        await asyncio.sleep(1)
        self.arrivals = IN_TIME

    def trouble_replies(self, bus: Toolbus) -> None:
        assert bus._link
        receive, loop = bus._receive, asyncio.get_running_loop()

        def troubled(message: AbstractIncomingMessage) -> None:
            for pause in self.chance.choice(self.arrivals):
                loop.call_later(pause, receive, message) if pause else receive(message)

        bus._link._receive = troubled

    def end(self) -> None:
        self.daemon.end()
        self.proxy.end()
        self.backend.end()
        self.broker.end()


async def until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds, for as long as calls may take."""
    ends = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < ends, "calls do not end"
        await asyncio.sleep(0.02)


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
