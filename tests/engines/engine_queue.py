"""A model on fastqueue's own batches, in this process: one lane, and a former whose clock stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastqueue import BatchFormer, FrontLane, InputArena
from service.engines.base import Instance, open_engine
from service.models.spec import ModelSpec, numpy_dtype
from service.models.wanted import Wanted
from service.worker.launcher import run_batch


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
        """One request, of arrays in model order, BYTES as object arrays of bytes; its slot."""
        rows = len(inputs[0]) if self.spec.batches else 1
        tensors = [self._tensor(index, array, rows) for index, array in enumerate(inputs)]
        return self.lane.submit(1, rows, tensors, None, 0)

    def _tensor(self, index: int, array: np.ndarray, rows: int):
        if array.dtype != object:
            return index, array.shape, np.ascontiguousarray(array)
        by_row = array.reshape(rows, -1) if array.size else np.empty((rows, 0), object)
        wires = [b"".join(wire_form(element) for element in row) for row in by_row]
        if not self.spec.batches:
            return index, array.shape, b"".join(wires)
        return index, array.shape, b"".join(wires), np.cumsum([len(wire) for wire in wires], dtype=np.uint64)

    def answers(self) -> dict[int, list[np.ndarray]]:
        """The outputs of every request that is done, by slot; AssertionError for one that failed. BYTES are
        object arrays of bytes, BF16 their bits.
        """
        found = {}
        while (done := self.lane.poll()) is not None:
            assert done.status == 0, done.message
            found[done.slot] = [
                _array(tensor.datatype, shape, raw)
                for tensor, (shape, raw) in zip(self.spec.outputs, done.outputs, strict=True)
            ]
        return found


class OnnxQueue(ModelQueue):
    """With one instance of the onnxruntime engine, that runs its model."""

    def __init__(self, path: str, **wanted) -> None:
        engine = open_engine(path, name="m", wanted=Wanted(**wanted))
        super().__init__(engine.spec)
        self.instance: Instance = engine.create_instance(0)

    def run(self) -> list[int]:
        """Executes batches until none is left: their rows."""
        sizes = []
        self.former.step()
        while (batch := self.former.try_batch(self.streams[0])) is not None:
            assert batch.check()
            sizes.append(batch.rows)
            run_batch(batch, self.instance, "m")
            self.former.step()
        return sizes


def _array(datatype: str, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    if datatype != "BYTES":
        return np.frombuffer(raw, np.uint16 if datatype == "BF16" else numpy_dtype(datatype)).reshape(shape)
    elements = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        assert end <= len(raw)
        elements.append(raw[4:end])
        raw = raw[end:]
    return objects(elements, shape)


def wire_form(element: bytes) -> bytes:
    return len(element).to_bytes(4, "little") + element


def objects(elements: Sequence[object], shape: Sequence[int]) -> np.ndarray:
    """An object array; numpy would make sequences of elements into dimensions."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)
