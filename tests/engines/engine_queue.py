"""A model on fastqueue's own batches, in this process: one lane, and a former whose clock stands."""

from __future__ import annotations

import numpy as np

from fastqueue import BatchFormer, FrontLane, InputArena
from service.models.spec import ModelSpec, numpy_dtype


class ModelQueue:
    """Whoever uses it takes batches from `former` for one of `streams`, and executes them."""

    def __init__(self, spec: ModelSpec, arena_mb: int = 4, streams: int = 1) -> None:
        self.spec = spec
        self.former = BatchFormer(arena_mb, clock_ns=0)
        self.arena = InputArena(arena_mb)
        self.lane = FrontLane(self.arena, 64)
        self.former.attach_lane(*self.lane.fds)
        self.lane.attach_worker(self.former.page_fd, self.former.output_fd)
        self.former.add_model(
            1,
            group=1,
            max_batch=spec.max_batch_size or 1,
            batched=spec.batches,
            element_bytes=[tensor.element_bytes for tensor in spec.inputs],
            output_row_bytes=[tensor.row_bytes for tensor in spec.outputs],
            max_streams=streams,
        )
        self.streams = [self.former.add_stream(1) for _ in range(streams)]

    def submit(self, *inputs: np.ndarray) -> int:
        """One request, of arrays in model order; its slot."""
        rows = len(inputs[0]) if self.spec.batches else 1
        tensors = [(index, array.shape, np.ascontiguousarray(array)) for index, array in enumerate(inputs)]
        return self.lane.submit(1, rows, tensors, None, 0)

    def answers(self) -> dict[int, list[np.ndarray]]:
        """The outputs of every request that is done, by slot; AssertionError for one that failed."""
        found = {}
        while (done := self.lane.poll()) is not None:
            assert done.status == 0, done.message
            found[done.slot] = [
                np.frombuffer(raw, numpy_dtype(tensor.datatype)).reshape(shape)
                for tensor, (shape, raw) in zip(self.spec.outputs, done.outputs, strict=True)
            ]
        return found
