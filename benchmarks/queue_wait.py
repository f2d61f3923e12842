"""What requests wait in the queue itself: real threads, no gRPC, an engine of 5 ms a batch of at most 8.

Poisson arrivals at a quarter of the capacity, then at 95 % of it. The capacity is measured first, closed loop
with 64 in flight, because a sleep of 5 ms takes longer on a real machine: 95 % of what the sleep promises can
be more than the engine does. Each completion carries its own queue time, so nothing of the generator is in
it. Expected: at a quarter the queue's 99th percentile is within the engine's; at 95 % the last third waits no
longer than the first, but for chance.
"""

from __future__ import annotations

import random
import select
import threading
import time

import numpy as np
from results import Results, flags

from fastqueue import BatchFormer, FrontLane, InputArena

ENGINE_S = 0.005
MAX_BATCH = 8
WIDTH = 16
ROW = [(0, (1, WIDTH), np.zeros((1, WIDTH), np.float32))]


class Rig:
    """One lane, one model, one stream, with the former and the launcher as threads."""

    def __init__(self) -> None:
        self.former = BatchFormer(16)
        self.lane = FrontLane(InputArena(16), 4096)
        self.former.attach_lane(*self.lane.fds)
        self.lane.attach_worker(self.former.page_fd, self.former.output_fd)
        self.former.add_model(
            1, group=1, max_batch=MAX_BATCH, element_bytes=[4], output_row_bytes=[4 * WIDTH]
        )
        self.stream = self.former.add_stream(1)
        for target in (self.former.run, self._launch):
            threading.Thread(target=target, daemon=True).start()

    def _launch(self) -> None:
        while (batch := self.former.next_batch(self.stream)) is not None:
            if batch.check():
                batch.mark_input_done()
                batch.reserve([4 * WIDTH])
                time.sleep(ENGINE_S)  # the engine
                batch.mark_compute_done()
                batch.complete([(batch.rows, WIDTH)])

    def poller(self) -> select.poll:
        poll = select.poll()
        poll.register(self.lane.eventfd)
        return poll

    def drain(self, waits: list[int], compute: list[int]) -> None:
        while (done := self.lane.poll()) is not None:
            waits.append(done.queue_ns)
            compute.append(done.compute_ns)


def percentile(ordered: list[int], share: float) -> float:
    """In milliseconds, of nanoseconds in ascending order."""
    return ordered[int(share * (len(ordered) - 1))] / 1e6


def capacity(seconds: float) -> float:
    """Rows per second with 64 requests in flight: what this machine's engine really does."""
    rig, waits, compute = Rig(), [], []
    poll = rig.poller()
    start = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - start) < seconds:
        while sent - len(waits) < 64:
            rig.lane.submit(1, 1, ROW)
            sent += 1
        poll.poll(100)
        rig.drain(waits, compute)
    rig.former.close()
    return len(waits) / elapsed


def measure(load: float, rows_per_s: float, seconds: float, seed: int) -> dict[str, float | int]:
    rig, waits, compute = Rig(), [], []
    rng, poll = random.Random(seed), rig.poller()
    start = due = time.monotonic()
    sent = 0
    while due < start + seconds:
        while time.monotonic() < due:
            rig.drain(waits, compute)
            poll.poll(max(0.0, (due - time.monotonic()) * 1e3))
        rig.lane.submit(1, 1, ROW)
        sent += 1
        due += rng.expovariate(load * rows_per_s)
    while len(waits) < sent:
        rig.drain(waits, compute)
        poll.poll(1)
    rig.former.close()
    third = len(waits) // 3
    every, engine = sorted(waits), sorted(compute)
    return {
        "requests": sent,
        "engine_p50_ms": percentile(engine, 0.5),
        "engine_p99_ms": percentile(engine, 0.99),
        "queue_p50_ms": percentile(every, 0.5),
        "queue_p99_ms": percentile(every, 0.99),
        "first_third_p50_ms": percentile(sorted(waits[:third]), 0.5),
        "last_third_p50_ms": percentile(sorted(waits[-third:]), 0.5),
    }


def main() -> None:
    arguments = flags(__doc__).parse_args()
    results = Results("queue_wait", arguments.out)
    for number in range(1, 4):
        rows_per_s = capacity(arguments.seconds / 3)
        results.add(f"capacity, round {number}", rows_per_s=rows_per_s)
        for load in (0.25, 0.95):
            figures = measure(load, rows_per_s, arguments.seconds, number)
            results.add(f"{load:.0%} of capacity, round {number}", **figures)
    results.finish()


if __name__ == "__main__":
    main()
