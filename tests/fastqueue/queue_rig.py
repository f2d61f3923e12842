"""A worker and one front-end thread in this process, on a clock that moves when a test says so.

The engine is y = 2x + 1 on FP32 rows of `width`, so every answer can be told from every other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from fastqueue import Batch, BatchFormer, FrontLane, InputArena

MS = 1_000_000
WIDTH = 4


class Runs:
    """What runs everything that waits, by the `launch` and `compute` of a rig."""

    launch: Callable[..., Batch | None]
    compute: Callable[..., int]

    def run_all(self) -> list[int]:
        """Runs batches until none closes: their sizes."""
        sizes = []
        while (batch := self.launch()) is not None:
            if batch.check():
                sizes.append(self.compute(batch))
        return sizes


class Rig(Runs):
    """One lane, one model (id 1) on `streams` streams of group 1; more of both can be added."""

    def __init__(
        self,
        *,
        max_batch: int = 8,
        slots: int = 64,
        streams: int = 1,
        output_mb: int = 4,
        arena_mb: int = 4,
        **model: Any,
    ) -> None:
        self.now = 0
        self.former = BatchFormer(output_mb, clock_ns=0)
        self.arena = InputArena(arena_mb)
        self.lane = FrontLane(self.arena, slots)
        self.number = self.former.attach_lane(*self.lane.fds)
        self.lane.attach_worker(self.former.page_fd, self.former.output_fd)
        self.add_model(1, group=1, max_batch=max_batch, **model)
        self.streams = [self.former.add_stream(1) for _ in range(streams)]
        self.done: dict[int, Any] = {}
        self.sent: dict[int, np.ndarray] = {}

    def add_model(
        self, id: int, *, group: int, max_batch: int, max_wait_ns: int = 0, batched: bool = True, **more: Any
    ) -> None:
        row_bytes = more.pop("output_row_bytes", [WIDTH * 4 if batched else -1])
        self.former.add_model(
            id, group=group, max_batch=max_batch, max_wait_ns=max_wait_ns, batched=batched,
            element_bytes=[4], output_row_bytes=row_bytes, **more,
        )  # fmt: skip

    def submit(
        self,
        rows: int = 1,
        *,
        model: int = 1,
        width: int = WIDTH,
        deadline_ns: int | None = None,
        priority: int = 0,
    ) -> int:
        x = np.random.default_rng(len(self.sent)).standard_normal((rows, width)).astype(np.float32)
        slot = self.lane.submit(model, rows, [(0, x.shape, x)], deadline_ns, self.now, priority)
        self.sent[slot] = x
        return slot

    def clock(self, ns: int) -> None:
        self.now = ns
        self.former.set_clock(ns)

    def step(self) -> int:
        return self.former.step()

    def launch(self, stream: int = 0) -> Batch | None:
        """Steps, then takes the stream's next batch."""
        self.step()
        return self.former.try_batch(self.streams[stream])

    def compute(self, batch: Batch, padding: int = 0) -> int:
        """Runs a launched batch, as if with `padding` rows behind it; its rows."""
        shape = batch.input_shape(0)
        assert shape is not None
        x = np.empty(shape, np.float32)
        batch.gather(0, x.ctypes.data, x.nbytes)
        batch.mark_input_done(padding)
        y = x * 2 + 1
        self.former.step()  # what was released makes room; no thread does this here while reserve would wait
        addresses = batch.reserve([y.nbytes // max(1, batch.rows)])
        assert addresses is not None
        ctypes.memmove(addresses[0], y.ctypes.data, y.nbytes)
        batch.mark_compute_done()
        rows = batch.rows
        batch.complete([shape])
        return rows

    def poll(self) -> dict[int, Any]:
        """Takes every completion, and checks the rows of each answer."""
        fresh = {}
        while (completion := self.lane.poll()) is not None:
            fresh[completion.slot] = completion
            for dims, data in completion.outputs:
                y = np.frombuffer(data, np.float32).reshape(dims)
                np.testing.assert_array_equal(y, self.sent[completion.slot] * 2 + 1)
        self.done |= fresh
        return fresh

    def assert_clean(self) -> None:
        """Everything that was taken has been given back."""
        self.former.step()
        assert self.former.check() == 0
        assert self.arena.check() == 0
        assert self.arena.used_bytes == 0
        total = self.former.free_output_bytes
        assert total % (1 << 20) == (1 << 20) - 4096, "every granule but the header's is free"


def occupy(rig: Rig) -> Batch:
    """One batch running and one closed behind it: both launch slots of the stream are taken."""
    rig.submit()
    running = rig.launch()
    rig.submit()
    rig.step()
    assert running is not None
    return running
