"""What requests wait in the queue itself: real threads, no gRPC, an engine of 5 ms a batch of at most 8.

Poisson arrivals at a quarter of the capacity, then at 95 %. Each completion carries its own queue time, so
nothing of the generator is in it. Expected: at a quarter the 99th percentile is within one engine time; at
95 % the last third waits no longer than the first.
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

    def drain(self, waits: list[int], compute: list[int]) -> None:
        while (done := self.lane.poll()) is not None:
            waits.append(done.queue_ns)
            compute.append(done.compute_ns)


def measure(load: float, seconds: float, seed: int) -> dict[str, float | int]:
    rig, waits, compute = Rig(), [], []
    rng, row = random.Random(seed), [(0, (1, WIDTH), np.zeros((1, WIDTH), np.float32))]
    poll = select.poll()
    poll.register(rig.lane.eventfd)
    start = due = time.monotonic()
    sent = 0
    while due < start + seconds:
        while time.monotonic() < due:
            rig.drain(waits, compute)
            poll.poll(max(0.0, (due - time.monotonic()) * 1e3))
        rig.lane.submit(1, 1, row)
        sent += 1
        due += rng.expovariate(load * MAX_BATCH / ENGINE_S)
    while len(waits) < sent:
        rig.drain(waits, compute)
        poll.poll(1)
    rig.former.close()
    third = len(waits) // 3
    first, last, every = sorted(waits[:third]), sorted(waits[-third:]), sorted(waits)
    return {
        "requests": sent,
        "engine_mean_ms": sum(compute) / len(compute) / 1e6,
        "queue_p50_ms": every[len(every) // 2] / 1e6,
        "queue_p99_ms": every[int(0.99 * len(every))] / 1e6,
        "first_third_p50_ms": first[third // 2] / 1e6,
        "last_third_p50_ms": last[third // 2] / 1e6,
    }


def main() -> None:
    arguments = flags(__doc__).parse_args()
    results = Results("queue_wait", arguments.out)
    for number in range(1, 4):
        for load in (0.25, 0.95):
            results.add(f"{load:.0%} of capacity, round {number}", **measure(load, arguments.seconds, number))
    results.finish()


if __name__ == "__main__":
    main()
