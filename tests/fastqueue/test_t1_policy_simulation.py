"""The shipped former and policy under load, on a fake clock: 5 ms a batch, one stream, max batch 8."""

from __future__ import annotations

import random

import pytest
from queue_rig import MS, Rig

pytestmark = pytest.mark.t1

ENGINE_NS = 5 * MS
MAX_BATCH = 8
CAPACITY = MAX_BATCH / ENGINE_NS  # rows per ns


class Simulation:
    """Poisson arrivals; a batch runs for ENGINE_NS, one at a time, in the order of closing."""

    def __init__(self) -> None:
        self.rig = Rig(max_batch=MAX_BATCH, slots=4096, arena_mb=32)
        self.arrived: dict[int, int] = {}
        self.queued: list[int] = []
        self.depth: list[int] = []
        self.end = 0
        self.running = self.next = None

    def launch(self) -> None:
        stream = self.rig.streams[0]
        if self.running is None:
            self.running, self.next = self.next or self.rig.former.try_batch(stream), None
            self.end = self.rig.now + ENGINE_NS

    def advance(self, until: int) -> None:
        """Moves the clock through everything that happens up to `until`."""
        while True:
            wake = self.rig.step()
            self.launch()
            times = [
                t
                for t in (self.end if self.running else None, wake)
                if t is not None and self.rig.now < t <= until
            ]
            if not times:
                break
            self.rig.clock(min(times))
            if self.running and self.rig.now >= self.end:
                self.rig.compute(self.running)
                self.running = None
                self.finish()
        self.rig.clock(until)

    def finish(self) -> None:
        for slot, completion in self.rig.poll().items():
            self.queued.append(completion.queue_ns)
            self.arrived.pop(slot)

    def run(self, count: int, load: float, seed: int) -> None:
        rng, at = random.Random(seed), 0.0
        for _ in range(count):
            at += rng.expovariate(load * CAPACITY)
            self.advance(int(at))
            self.arrived[self.rig.submit()] = int(at)
            self.depth.append(len(self.arrived))
        self.advance(int(at) + 1000 * MS)


def test_at_a_quarter_of_capacity_the_queue_takes_at_most_one_engine_time() -> None:
    simulation = Simulation()
    simulation.run(8_000, 0.25, seed=1)
    waits = sorted(simulation.queued)
    assert len(waits) == 8_000
    assert waits[int(0.99 * len(waits))] <= ENGINE_NS


def test_just_under_capacity_the_queue_does_not_grow() -> None:
    simulation = Simulation()
    simulation.run(20_000, 0.95, seed=2)
    assert len(simulation.queued) == 20_000
    fifth = len(simulation.depth) // 5
    second, last = (sorted(simulation.depth[i * fifth : (i + 1) * fifth])[fifth // 2] for i in (1, 4))
    assert last <= 2 * second + 2 * MAX_BATCH
    stats = simulation.rig.former.stats()[0]
    assert stats.rows / stats.executions > 7
