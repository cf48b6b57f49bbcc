"""One broker, one daemon and one backend for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from support import Backend, Broker, Daemon, Proxy

from toolbus import Toolbus


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.end()


@pytest.fixture(scope="session")
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.end()


@pytest.fixture(scope="session")
def daemon(broker: Broker, backend: Backend) -> Iterator[Daemon]:
    daemon = Daemon(broker.url(), backend)
    yield daemon
    daemon.end()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    proxy = Proxy(broker)
    yield proxy
    proxy.end()


@pytest_asyncio.fixture
async def bus(broker: Broker, daemon: Daemon) -> AsyncIterator[Toolbus]:
    async with Toolbus(broker.url(), agent="ana", timeout=20) as bus:
        yield bus
