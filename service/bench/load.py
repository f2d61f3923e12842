"""The two ways to load a server, as loops over an injected clock and an injected ``send``.

*Closed loop*: N callers, each sends its next request when the last one is answered. It finds the throughput
at a given number in flight, and it slows down with the server, so its latencies say nothing about a busy
hour.

*Open loop*: requests arrive at times drawn beforehand, whatever the server does, as the world's do. Latency
is counted from the moment a request *should* have left: if the generator or the server falls behind, the
waiting is in the figures and not hidden in requests that were never sent ("coordinated omission").
``late_ns`` says how much of it was the generator's own fault.

``send`` is a coroutine function that makes one request and raises ``SendFailed`` when it is not answered
well. Failures are counted by reason and stay out of the latencies.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from service.bench.clock import Clock

Send = Callable[[], Awaitable[None]]


class SendFailed(Exception):
    """One request got no good answer; the text is the reason under which it is counted."""


@dataclass
class Tally:
    """What came of a run: latencies of the good answers (ns), failures by reason, start and end (ns)."""

    latencies_ns: list[int] = field(default_factory=list)
    late_ns: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    started_ns: int = 0
    ended_ns: int = 0

    @property
    def sent(self) -> int:
        """Requests that ended, well or badly."""
        return len(self.latencies_ns) + self.failures.total()

    @property
    def seconds(self) -> float:
        """From the first send to the last answer."""
        return (self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True)
class Until:
    """When to stop sending: after a time (ns on the run's clock from its start), a number of requests, or
    whichever comes first. Requests in flight are always waited for."""

    duration_ns: int | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        if self.duration_ns is None and self.requests is None:
            raise ValueError("a run needs a duration or a number of requests")


async def closed_loop(send: Send, concurrency: int, until: Until, clock: Clock) -> Tally:
    """Keeps ``concurrency`` requests in flight until ``until``, then waits for the last of them."""
    tally = Tally(started_ns=clock.now_ns())
    tickets = _tickets(until, tally.started_ns, clock)

    async def caller() -> None:
        for _ in tickets:
            await _one(send, clock.now_ns(), tally, clock)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(caller())
    tally.ended_ns = clock.now_ns()
    return tally


async def open_loop(send: Send, gaps_ns: Iterator[int], until: Until, clock: Clock) -> Tally:
    """Sends at the times that the gaps add up to, however many are in flight; waits for the last answer."""
    tally = Tally(started_ns=clock.now_ns())
    due = tally.started_ns
    async with asyncio.TaskGroup() as group:
        for number, gap in enumerate(gaps_ns):
            due += gap
            if _over(until, number, due - tally.started_ns):
                break
            await clock.wait_until(due)
            tally.late_ns.append(max(0, clock.now_ns() - due))
            group.create_task(_one(send, due, tally, clock))
            # Being behind schedule, wait_until returns at once: let what was started be sent.
            await asyncio.sleep(0)
    tally.ended_ns = clock.now_ns()
    return tally


def poisson_gaps_ns(rate: float, seed: int) -> Iterator[int]:
    """Endless gaps between arrivals, in ns, of a Poisson process of ``rate`` requests a second."""
    source = random.Random(seed)
    while True:
        yield int(source.expovariate(rate) * 1e9)


def _over(until: Until, number: int, elapsed_ns: int) -> bool:
    if until.requests is not None and number >= until.requests:
        return True
    return until.duration_ns is not None and elapsed_ns >= until.duration_ns


def _tickets(until: Until, started_ns: int, clock: Clock) -> Iterator[int]:
    """One shared iterator for all callers: each ``next`` is the permission to send one more."""
    number = 0
    while not _over(until, number, clock.now_ns() - started_ns):
        yield number
        number += 1


async def _one(send: Send, since_ns: int, tally: Tally, clock: Clock) -> None:
    try:
        await send()
    except SendFailed as failure:
        tally.failures[str(failure)] += 1
    else:
        tally.latencies_ns.append(clock.now_ns() - since_ns)
