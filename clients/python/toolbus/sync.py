"""The client for programs without an event loop; threads may share it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from . import bus
from .errors import Misuse
from .messages import Result, ToolsChanged

T = TypeVar("T")


class Toolbus:
    """As `toolbus.Toolbus`, with methods that wait.

    with Toolbus("amqp://guest:guest@127.0.0.1:5672/%2f", agent="ana") as bus:
        print(bus.call("get_weather", city="Lima", timeout=5))
    """

    def __init__(self, url: str, agent: str, **options: Any) -> None:
        self._bus = bus.Toolbus(url, agent, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def __enter__(self) -> Toolbus:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def strays(self) -> int:
        """Number of replies that no call waited for, and that were dropped."""
        return self._bus.strays

    def open(self) -> None:
        """Connects, with an event loop in a thread of its own."""
        if self._loop:
            raise Misuse("the client is open already")
        self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toolbus", daemon=True)
        self._thread.start()
        try:
            self._run(self._bus.open())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Disconnects; calls of other threads fail."""
        if self._loop:
            self._run(self._bus.close())
            self._stop()

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> Result:
        """As `toolbus.Toolbus.call`. KeyboardInterrupt cancels the call."""
        return self._run(self._bus.call(tool, arguments, **more))

    def stream(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> Iterator[Any]:
        """As `toolbus.Toolbus.stream`."""
        events = self._bus.stream(tool, arguments, **more)

        async def following() -> Any:
            return await anext(events, None)

        async def end() -> None:
            await events.aclose()  # type: ignore[attr-defined]

        try:
            while (event := self._run(following())) is not None:
                yield event
        finally:
            self._run(end())

    def cancel(self, call_id: str, **more: Any) -> bool:
        """As `toolbus.Toolbus.cancel`."""
        return self._run(self._bus.cancel(call_id, **more))

    def tools(self, format: str = "registration", **more: Any) -> list[dict[str, Any]]:
        """As `toolbus.Toolbus.tools`."""
        return self._run(self._bus.tools(format, **more))

    def on_tools_changed(self, listener: Callable[[ToolsChanged], None]) -> None:
        """As `toolbus.Toolbus.on_tools_changed`; the listener runs in the client's thread."""
        self._run(self._bus.on_tools_changed(listener))

    @property
    def tool(self) -> Any:
        """As `toolbus.Toolbus.tool`."""
        return self._bus.tool

    def serve(self, **options: Any) -> None:
        """As `toolbus.Toolbus.serve`. It ends with an exception, such as KeyboardInterrupt; `close` then waits for
        calls to end."""
        self._run(self._bus.serve(**options))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            if not self._loop:
                raise Misuse("the client is not open: use `with Toolbus(…) as bus`")
            if self._pid != os.getpid():
                raise Misuse("the client was opened before a fork; open one in each process")
            if self._thread is threading.current_thread():
                raise Misuse("a listener runs in the client's own thread, and cannot wait there for a call")
        except Misuse:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        loop, thread, self._loop = self._loop, self._thread, None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
