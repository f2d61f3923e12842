"""Engines for tests: a model is a function over numpy arrays, and the test says when it may run."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import numpy as np

from service.engines.strings import packed, unpacked
from service.models.spec import ModelSpec, TensorSpec, numpy_dtype

LIMIT_S = 60.0


def tensor(name: str, datatype: str = "FP32", *dims: int) -> TensorSpec:
    return TensorSpec(name, datatype, tuple(dims))


def model_spec(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], **settings
) -> ModelSpec:
    settings = {"max_batch_size": 8, "version": "1", **settings}
    return ModelSpec(
        name=name,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        **settings,
    )


class Gate:
    """Lets batches run one permit at a time while it is shut, and all of them while it is open (as at
    first).
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open = True
        self._permits = 0
        self.waiting = 0

    def shut(self) -> None:
        with self._condition:
            self._open = False

    def open(self) -> None:
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def permit(self, count: int = 1) -> None:
        with self._condition:
            self._permits += count
            self._condition.notify_all()

    def wait_until_held(self, count: int = 1) -> None:
        """Returns once `count` batches are waiting at the gate."""
        with self._condition:
            assert self._condition.wait_for(lambda: self.waiting >= count, LIMIT_S), (
                "no batch came to the gate"
            )

    def enter(self) -> None:
        with self._condition:
            self.waiting += 1
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._open or self._permits > 0, LIMIT_S), (
                "nobody opened the gate"
            )
            self.waiting -= 1
            self._permits -= 0 if self._open else 1


class ScriptedEngine:
    """One model that is a function: arrays in, a sequence of arrays out, rows first when the model batches.

    Attributes:
        sample: what the model is warmed up with; nothing by default, so that `batches` are the test's own.
        gate: what every batch has to pass before it runs.
        batches: the rows of each batch that was executed, in order.
        closed: how often the engine was closed.
    """

    sample: Sequence[np.ndarray] = ()

    def __init__(self, spec: ModelSpec, compute: Callable[..., Sequence[np.ndarray]]) -> None:
        self.spec = spec
        self.compute = compute
        self.gate = Gate()
        self.batches: list[int] = []
        self.closed = 0

    def create_instance(self, index: int) -> ScriptedInstance:
        return ScriptedInstance(self)

    def close(self) -> None:
        self.closed += 1


class ScriptedInstance:
    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def execute(self, batch) -> None:
        engine = self._engine
        engine.gate.enter()
        engine.batches.append(batch.rows)
        inputs = [self._gather(batch, i, spec) for i, spec in enumerate(engine.spec.inputs)]
        batch.mark_input_done()
        outputs = [np.ascontiguousarray(array) for array in engine.compute(*inputs)]
        made = [self._made(array, batch.rows) for array in outputs]
        addresses = batch.reserve([size for _, size in made])
        batch.mark_compute_done()
        for address, (data, _) in zip(addresses, made, strict=True):
            ctypes.memmove(address, data, len(data))
        batch.complete([array.shape for array in outputs])

    @staticmethod
    def _made(array: np.ndarray, rows: int) -> tuple[bytes, int | np.ndarray]:
        """The bytes of an output, and what `reserve` has to know of them."""
        if array.dtype.kind == "O":
            return packed(array, rows)
        return array.tobytes(), array.nbytes // rows

    @staticmethod
    def _gather(batch, index: int, spec: TensorSpec) -> np.ndarray:
        if spec.datatype == "BYTES":
            memory = np.empty(batch.input_bytes(index) + 1, np.uint8)
            batch.gather(index, memory.ctypes.data, memory.nbytes)
            return unpacked(memory[:-1].data, batch.input_shape(index))
        array = np.empty(batch.input_shape(index), numpy_dtype(spec.datatype))
        assert array.nbytes == batch.input_bytes(index)
        if array.nbytes:
            batch.gather(index, array.ctypes.data, array.nbytes)
        return array

    def close(self) -> None:
        pass


def affine(name: str = "affine", width: int = 4, **settings) -> ScriptedEngine:
    """y = 2x + 1 on FP32 rows of `width`."""
    spec = model_spec(name, [tensor("x", "FP32", width)], [tensor("y", "FP32", width)], **settings)
    return ScriptedEngine(spec, lambda x: [2 * x + 1])


def two_in_two_out(**settings) -> ScriptedEngine:
    """sum and difference of two INT32 rows of 16, as Triton's example model."""
    inputs = [tensor("INPUT0", "INT32", 16), tensor("INPUT1", "INT32", 16)]
    outputs = [tensor("OUTPUT0", "INT32", 16), tensor("OUTPUT1", "INT32", 16)]
    return ScriptedEngine(model_spec("simple", inputs, outputs, **settings), lambda a, b: [a + b, a - b])


def ints(first: int, count: int = 1) -> np.ndarray:
    return np.arange(first, first + 16 * count, dtype=np.int32).reshape(count, 16)
