"""The load generator's clock: the one place that reads time and sleeps, so that tests can bring their own."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Clock(Protocol):
    """Monotonic nanoseconds, and a wait until an absolute one."""

    def now_ns(self) -> int:
        """The current time in nanoseconds."""
        ...

    async def wait_until(self, when_ns: int) -> None:
        """Returns once ``now_ns() >= when_ns``; at once if that has passed."""
        ...


class MonotonicClock:
    """The real clock.

    asyncio's own timers sleep in epoll, whose timeout is whole milliseconds: arrivals at 1,000 a second would
    leave in clumps. A thread that sleeps in clock_nanosleep is late by some tens of microseconds instead.
    """

    def __init__(self) -> None:
        self._sleeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arrivals")

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    async def wait_until(self, when_ns: int) -> None:
        """Sleeps until ``when_ns`` without holding up the event loop."""
        remaining = when_ns - time.monotonic_ns()
        if remaining > 0:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._sleeper, time.sleep, remaining / 1e9)
