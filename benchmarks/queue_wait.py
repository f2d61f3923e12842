"""What requests wait in the queue itself: two processes, no gRPC, an engine of 5 ms a batch of at most 8.

The generator is the front end, in this process; the queue's former and the launcher run in another, as they
do in the service, so that the generator's interpreter lock is not what a launcher waits for.

Poisson arrivals at a quarter of the capacity, then at 95 % of it. The capacity is measured first, closed loop
with 64 in flight, because a sleep of 5 ms takes longer on a real machine: 95 % of what the sleep promises can
be more than the engine does. Each completion carries its own queue time: nothing of the generator is in it.

A request that finds the engine busy must wait for the batch that runs, however long that takes here.
`over_running` is what it waited beyond that batch's time (all of its wait, when nothing ran): what the queue,
the launcher and the machine's wake-ups add.

Expected: at a quarter the queue's 99th percentile is within one engine time; at 95 % the last third waits no
longer than the first, but for chance.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import threading
import time
from bisect import bisect_right
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

import numpy as np
from results import Results, flags

from fastqueue import BatchFormer, FrontLane, InputArena

ENGINE_S = 0.005
MAX_BATCH = 8
WIDTH = 16
ROW = [(0, (1, WIDTH), np.zeros((1, WIDTH), np.float32).data)]


class Worker:
    """The former and one launcher as threads of a process of its own; one model, one stream."""

    def __init__(self) -> None:
        self.former = BatchFormer(16)
        self.spans: list[tuple[int, int]] = []  # when each batch began and ended, monotonic ns
        self.former.add_model(
            1, group=1, max_batch=MAX_BATCH, element_bytes=[4], output_row_bytes=[4 * WIDTH]
        )
        self.stream = self.former.add_stream(1)

    def serve(self, link: Connection) -> None:
        """Takes the lane's descriptors, gives its own, runs until a word comes; tells the spans."""
        fds = [recv_handle(link) for _ in range(3)]
        self.former.attach_lane(*fds)
        for fd in (self.former.page_fd, self.former.output_fd):
            send_handle(link, fd, os.getppid())
        threads = [threading.Thread(target=target) for target in (self.former.run, self._launch)]
        for thread in threads:
            thread.start()
        link.recv()
        self.former.close()
        for thread in threads:
            thread.join()
        link.send(self.spans)

    def _launch(self) -> None:
        while (batch := self.former.next_batch(self.stream)) is not None:
            if batch.check():
                began = time.monotonic_ns()
                batch.mark_input_done()
                batch.reserve([4 * WIDTH])
                time.sleep(ENGINE_S)  # the engine
                batch.mark_compute_done()
                batch.complete([(batch.rows, WIDTH)])
                self.spans.append((began, time.monotonic_ns()))


def serve(link: Connection) -> None:
    """The worker process."""
    Worker().serve(link)


class Rig:
    """The front end's side: one lane to a worker process."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._link, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs,))
        self._process.start()
        self.lane = FrontLane(InputArena(16), 4096)
        for fd in self.lane.fds:
            send_handle(self._link, fd, self._process.pid)
        page_fd, output_fd = recv_handle(self._link), recv_handle(self._link)
        self.lane.attach_worker(page_fd, output_fd)

    def poller(self) -> select.poll:
        poll = select.poll()
        poll.register(self.lane.eventfd)
        return poll

    def drain(self, waits: list[int], compute: list[int]) -> None:
        while (done := self.lane.poll()) is not None:
            waits.append(done.queue_ns)
            compute.append(done.compute_ns)

    def close(self) -> list[tuple[int, int]]:
        """Ends the worker: when each of its batches began and ended, monotonic ns."""
        self._link.send("end")
        spans: list[tuple[int, int]] = self._link.recv()
        self._process.join()
        return spans


def percentile(ordered: list[int], share: float) -> float:
    """In milliseconds, of nanoseconds in ascending order."""
    return ordered[int(share * (len(ordered) - 1))] / 1e6


def capacity(seconds: float) -> float:
    """Rows per second with 64 requests in flight: what this machine's engine really does."""
    rig = Rig()
    waits: list[int] = []
    compute: list[int] = []
    poll = rig.poller()
    start = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - start) < seconds:
        while sent - len(waits) < 64:
            rig.lane.submit(1, 1, ROW)
            sent += 1
        poll.poll(100)
        rig.drain(waits, compute)
    rig.close()
    return len(waits) / elapsed


def over_running(sent_ns: list[int], waits: list[int], spans: list[tuple[int, int]]) -> list[int]:
    """Each request's wait less the time of the batch that ran when it came; a lane is answered in order."""
    starts = [began for began, _ in spans]
    over = []
    for sent, wait in zip(sent_ns, waits, strict=True):
        began, ended = spans[max(0, bisect_right(starts, sent) - 1)]
        over.append(wait - (ended - began if began <= sent < ended else 0))
    return over


def measure(load: float, rows_per_s: float, seconds: float, seed: int) -> dict[str, float | int]:
    rig = Rig()
    waits: list[int] = []
    compute: list[int] = []
    rng, poll = random.Random(seed), rig.poller()
    start = due = time.monotonic()
    sent: list[int] = []  # when each request was, monotonic ns
    while due < start + seconds:
        while time.monotonic() < due:
            rig.drain(waits, compute)
            poll.poll(max(0.0, (due - time.monotonic()) * 1e3))
        sent.append(time.monotonic_ns())
        rig.lane.submit(1, 1, ROW)
        due += rng.expovariate(load * rows_per_s)
    while len(waits) < len(sent):
        rig.drain(waits, compute)
        poll.poll(1)
    spans = rig.close()
    third = len(waits) // 3
    every, engine = sorted(waits), sorted(compute)
    return {
        "requests": len(sent),
        "engine_mean_ms": sum(engine) / len(engine) / 1e6,
        "engine_p50_ms": percentile(engine, 0.5),
        "engine_p99_ms": percentile(engine, 0.99),
        "queue_p50_ms": percentile(every, 0.5),
        "queue_p99_ms": percentile(every, 0.99),
        "over_running_p99_ms": percentile(sorted(over_running(sent, waits, spans)), 0.99),
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
