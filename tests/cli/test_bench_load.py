"""The load loops on a fake clock: when requests are sent, what counts as latency, when a run ends."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterator

import pytest

from service.bench.load import SendFailed, Tally, Until, closed_loop, open_loop, poisson_gaps_ns

MS = 1_000_000


class FakeClock:
    """Time moves only when everybody waits, and then to the earliest of what they wait for."""

    def __init__(self) -> None:
        self.now = 0
        self._numbers = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ns(self) -> int:
        return self.now

    async def wait_until(self, when_ns: int) -> None:
        if when_ns <= self.now:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (when_ns, next(self._numbers), future))
        await future

    async def drive(self, run: asyncio.Task[Tally]) -> Tally:
        while not run.done():
            for _ in range(20):  # let every task get to its next wait
                await asyncio.sleep(0)
            if self._sleepers:
                self.now, _, future = heapq.heappop(self._sleepers)
                future.set_result(None)
        return await run


class FakeServer:
    """Answers each request after ``service_ms``, one after another when ``serial``. Notes when they came."""

    def __init__(self, clock: FakeClock, service_ms: float, serial: bool = False) -> None:
        self.clock, self.service_ns, self.serial = clock, int(service_ms * MS), serial
        self.came_ms: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self._free_at = 0

    async def __call__(self) -> None:
        self.came_ms.append(self.clock.now / MS)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        begins = max(self._free_at, self.clock.now) if self.serial else self.clock.now
        self._free_at = begins + self.service_ns
        await self.clock.wait_until(self._free_at)
        self.in_flight -= 1


def closed(clock: FakeClock, server: object, concurrency: int, until: Until) -> Tally:
    async def go() -> Tally:
        return await clock.drive(asyncio.create_task(closed_loop(server, concurrency, until, clock)))  # type: ignore[arg-type]

    return asyncio.run(go())


def opened(clock: FakeClock, server: object, gaps_ms: list[float], until: Until) -> Tally:
    gaps = (int(gap * MS) for gap in gaps_ms)

    async def go() -> Tally:
        return await clock.drive(asyncio.create_task(open_loop(server, gaps, until, clock)))  # type: ignore[arg-type]

    return asyncio.run(go())


def test_a_closed_loop_keeps_exactly_so_many_in_flight() -> None:
    clock = FakeClock()
    server = FakeServer(clock, 10)
    tally = closed(clock, server, 3, Until(requests=12))
    assert server.most_in_flight == 3 and tally.sent == 12
    assert server.came_ms == [0] * 3 + [10] * 3 + [20] * 3 + [30] * 3
    assert set(tally.latencies_ns) == {10 * MS} and tally.seconds == 0.04


def test_a_closed_loop_ends_at_its_time_and_waits_for_what_is_in_flight() -> None:
    clock = FakeClock()
    tally = closed(clock, FakeServer(clock, 10), 2, Until(duration_ns=25 * MS))
    assert tally.sent == 6  # at 0, 10 and 20 ms
    assert tally.ended_ns == 30 * MS


def test_fewer_requests_than_callers_are_still_only_so_many() -> None:
    clock = FakeClock()
    assert closed(clock, FakeServer(clock, 1), 8, Until(requests=3)).sent == 3


def test_an_open_loop_sends_at_its_times_whatever_the_server_does() -> None:
    clock = FakeClock()
    server = FakeServer(clock, 1000)
    tally = opened(clock, server, [1, 2, 3, 4], Until(requests=4))
    assert server.came_ms == [1, 3, 6, 10] and server.most_in_flight == 4
    assert tally.late_ns == [0, 0, 0, 0]


def test_open_loop_latency_includes_the_wait_behind_others() -> None:
    clock = FakeClock()
    tally = opened(clock, FakeServer(clock, 10, serial=True), [1, 1, 1], Until(requests=3))
    assert tally.latencies_ns == [10 * MS, 19 * MS, 28 * MS]


def test_open_loop_latency_counts_from_the_time_a_request_was_due() -> None:
    class LateClock(FakeClock):
        async def wait_until(self, when_ns: int) -> None:
            await super().wait_until(when_ns + 5 * MS if self.now == 0 else when_ns)

    clock = LateClock()
    tally = opened(clock, FakeServer(clock, 1), [1], Until(requests=1))
    assert tally.late_ns == [5 * MS]
    assert tally.latencies_ns == [6 * MS]


def test_an_open_loop_ends_before_the_first_arrival_past_its_time() -> None:
    clock = FakeClock()
    server = FakeServer(clock, 1)
    opened(clock, server, [4, 4, 4], Until(duration_ns=10 * MS))
    assert server.came_ms == [4, 8]


def test_failures_are_counted_by_reason_and_are_no_latencies() -> None:
    reasons = iter(["", "busy", "busy", "gone"])

    async def send() -> None:
        if reason := next(reasons):
            raise SendFailed(reason)

    tally = closed(FakeClock(), send, 1, Until(requests=4))
    assert len(tally.latencies_ns) == 1 and tally.failures == {"busy": 2, "gone": 1} and tally.sent == 4


def test_any_other_exception_ends_the_run() -> None:
    async def send() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup, match="TaskGroup"):
        closed(FakeClock(), send, 1, Until(requests=4))


def test_a_run_needs_an_end() -> None:
    with pytest.raises(ValueError, match="duration or a number"):
        Until()


def first(gaps: Iterator[int], count: int) -> list[int]:
    return list(itertools.islice(gaps, count))


def test_poisson_arrivals_have_their_rate_and_their_spread_and_repeat_with_the_seed() -> None:
    gaps = first(poisson_gaps_ns(500, seed=7), 20_000)
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(2 * MS, rel=0.03)
    # The exponential distribution's deviation equals its mean; a fixed rhythm's would be 0.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)
    assert gaps[:50] == first(poisson_gaps_ns(500, seed=7), 50) != first(poisson_gaps_ns(500, seed=8), 50)
