"""A front-end thread and a real worker's queue, stepped by hand on one fake clock."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fastqueue import Batch, BatchFormer, Level
from service._pb import inference
from service.frontend._dispatch import Dispatcher, RequestError
from service.models.spec import ModelSpec, TensorSpec

SECOND = 1_000_000_000
MIB = 1 << 20


def model(
    name: str = "m",
    *,
    version: str = "1",
    max_batch_size: int = 4,
    inputs: Sequence[str] = ("X",),
    outputs: Sequence[str] = ("Y", "Z"),
) -> ModelSpec:
    """FP32 in and out, rows of any size. Every output is the sum of the inputs, times its place from 1."""
    return ModelSpec(
        name=name,
        version=version,
        platform="test",
        backend="test",
        max_batch_size=max_batch_size,
        inputs=tuple(TensorSpec(i, "FP32", (-1,)) for i in inputs),
        outputs=tuple(TensorSpec(o, "FP32", (-1,)) for o in outputs),
    )


def request(
    spec: ModelSpec, *arrays: Any, id: str = "", outputs: Sequence[str] = (), **timeout: int
) -> bytes:
    """`arrays`: one FP32 array per input, with the batch axis where the model batches."""
    message = inference.ModelInferRequest(model_name=spec.name, model_version=spec.version, id=id)
    for tensor, array in zip(spec.inputs, arrays, strict=True):
        message.inputs.add(name=tensor.name, datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.astype("<f4").tobytes())
    for name in outputs:
        message.outputs.add(name=name)
    for key, value in timeout.items():
        message.parameters[key].int64_param = value
    wire: bytes = message.SerializeToString()
    return wire


class Worker:
    """A batch former with one stream per model, whose engine is a line of numpy."""

    def __init__(self, clock: int, output_mb: int = 1) -> None:
        self.former = BatchFormer(output_mb, clock_ns=clock)
        self.specs: dict[int, ModelSpec] = {}
        self.streams: dict[int, int] = {}

    def add(self, id: int, spec: ModelSpec, **level: int) -> None:
        self.specs[id] = spec
        self.streams[id] = self.former.add_stream(id)
        self.former.add_model(
            id,
            group=id,
            max_batch=spec.max_batch_size or 1,
            batched=spec.max_batch_size > 0,
            element_bytes=[tensor.element_bytes for tensor in spec.inputs],
            output_row_bytes=[-1] * len(spec.outputs),
            levels=[Level(**level)],
        )

    def take(self, id: int) -> Batch | None:
        """The next batch of a model, launched."""
        self.former.step()
        return self.former.try_batch(self.streams[id])

    def run(self) -> int:
        """Runs everything that waits: the number of batches."""
        count = 0
        for id in self.specs:
            while (batch := self.take(id)) is not None:
                if batch.check():
                    self.execute(batch, self.specs[id])
                    count += 1
        self.former.step()
        return count

    def execute(self, batch: Batch, spec: ModelSpec) -> None:
        total = sum(self.input(batch, i) for i in range(len(spec.inputs)))
        results = [np.ascontiguousarray(total * place, "<f4") for place in range(1, len(spec.outputs) + 1)]
        rows = max(1, batch.rows) if spec.max_batch_size else 1
        addresses = batch.reserve([r.nbytes // rows for r in results])
        for address, result in zip(addresses, results, strict=True):
            ctypes.memmove(address, result.ctypes.data, result.nbytes)
        batch.complete([r.shape for r in results])

    @staticmethod
    def input(batch: Batch, i: int) -> Any:
        shape = batch.input_shape(i)
        assert shape is not None
        array = np.empty(shape, "<f4")
        batch.gather(i, array.ctypes.data, array.nbytes)
        return array


class Rig:
    """One dispatcher; workers are added, and may die."""

    def __init__(self, arena_mb: int = 4, slots: int = 8, spill_mb: int = 0) -> None:
        self.now = 1000 * SECOND
        self.dispatcher = Dispatcher(arena_mb * MIB, slots, spill_mb=spill_mb)
        self.workers: dict[int, Worker] = {}
        self.table: list[tuple[int, int, ModelSpec]] = []
        self.lane_fds: dict[int, int] = {}
        self.tokens = 0

    def worker(self, *specs: ModelSpec, output_mb: int = 1, kind: type[Worker] = Worker) -> int:
        """A new worker that serves `specs`: its lane."""
        lane, fds = self.dispatcher.open_lane()
        self.lane_fds[lane] = fds[0]
        worker = self.workers[lane] = kind(self.now, output_mb)
        worker.former.attach_lane(*fds)
        self.dispatcher.attach_worker(lane, worker.former.page_fd, worker.former.output_fd)
        for spec in specs:
            id = len(self.table) + 1
            worker.add(id, spec)
            self.table.append((id, lane, spec))
        self.dispatcher.set_models(self.table)
        return lane

    def submit(self, wire: bytes, **options: Any) -> tuple[int, int]:
        """(token, handle)"""
        self.tokens += 1
        options.setdefault("arrival_ns", self.now)
        return self.tokens, self.dispatcher.submit(wire, self.tokens, **options)

    def pass_time(self, ns: int) -> None:
        self.now += ns
        for worker in self.workers.values():
            worker.former.set_clock(self.now)

    def drain(self) -> dict[int, tuple[int, bytes]]:
        """Answers by token; a token comes once."""
        answers = self.dispatcher.drain(self.now)
        found = {token: (code, payload) for token, code, payload, _ in answers}
        assert len(found) == len(answers)
        return found

    def run(self) -> dict[int, tuple[int, bytes]]:
        """Lets every worker run what it has: the answers."""
        for worker in self.workers.values():
            worker.run()
        return self.drain()

    def rung(self) -> bool:
        """Whether the eventfd was written. Reads it, as nobody else does here."""
        try:
            return os.eventfd_read(self.dispatcher.eventfd()) > 0
        except BlockingIOError:
            return False

    def at_rest(self) -> bool:
        """Nothing is held anywhere."""
        assert self.dispatcher.check() == 0
        for worker in self.workers.values():
            worker.former.step()
            assert worker.former.check() == 0
        return self.dispatcher.outstanding == 0 and self.dispatcher.arena_used == 0


def row(*values: float) -> Any:
    """A batch of one row."""
    return np.array([values], "<f4")


def response(payload: bytes) -> Any:
    return inference.ModelInferResponse.FromString(payload)


def arrays(message: Any) -> dict[str, Any]:
    """The outputs of a response by name."""
    assert len(message.outputs) == len(message.raw_output_contents)
    return {
        tensor.name: np.frombuffer(raw, "<f4").reshape(tensor.shape)
        for tensor, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }


def refused(rig: Rig, wire: bytes, **options: Any) -> RequestError:
    """How a submission that must fail does."""
    with pytest.raises(RequestError) as caught:
        rig.submit(wire, **options)
    return caught.value
