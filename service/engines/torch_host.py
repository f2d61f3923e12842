"""Models for torch on the CPU.

An instance copies its inputs, for a model may write to them and the input arena belongs to others, and its
outputs. Threads: torch gives every launcher a team of its own, so each gets its share of the cores.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from service.cores import available_cores
from service.engines.base import EngineError, UnservedShape
from service.engines.gathered import Gathered
from service.engines.onnx_strings import check_shapes
from service.engines.torch_library import clean, datatype_of, dtype_of, library, tensor_at
from service.engines.torch_program import Program
from service.models.probe import Array, Shape
from service.models.spec import ModelSpec

if TYPE_CHECKING:
    from fastqueue import Batch


class Host:
    """Where a program is tried out: on the CPU."""

    def run(self, program: Program, arguments: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        return program.run(arguments, tensors)


class TorchEngine:
    """A loaded model on the CPU."""

    def __init__(
        self, program: Program, arguments: Sequence[str], spec: ModelSpec, sample: Sequence[Array]
    ) -> None:
        self.spec = spec
        self.sample = sample
        self._program = program
        self._arguments = arguments
        self._threads = max(1, available_cores() // spec.instances)

    def create_instance(self, index: int) -> TorchInstance:
        return TorchInstance(self._program, self._arguments, self.spec, self._threads)

    def close(self) -> None:
        self._program.close()


class TorchInstance:
    """One execution slot: memory for each input, and a number of threads."""

    def __init__(self, program: Program, arguments: Sequence[str], spec: ModelSpec, threads: int) -> None:
        self._program = program
        self._arguments = arguments
        self._spec = spec
        self._threads = threads
        self._told = 0  # the thread that knows how many it may have
        most = max(spec.max_batch_size, *spec.batch_sizes, 1)
        self._inputs = [Gathered(i, t.row_bytes * most) for i, t in enumerate(spec.inputs)]

    def execute(self, batch: Batch) -> None:
        """Runs a batch and completes it. Raises EngineError when the model failed; the batch is then open."""
        spec = self._spec
        size = next((size for size in spec.batch_sizes if size >= batch.rows), batch.rows)
        tensors = [self._tensor(batch, index, size - batch.rows) for index in range(len(spec.inputs))]
        batch.mark_input_done(size - batch.rows)
        if spec.batches and not batch.rows and all(tensor.is_fixed for tensor in spec.outputs):
            outputs = [library().empty((0, *t.model_dims), dtype=dtype_of(t.datatype)) for t in spec.outputs]
        else:
            outputs = self._run(tensors)
        batch.mark_compute_done()
        check_outputs(spec, outputs, size)
        self._answer(batch, outputs)

    def _tensor(self, batch: Batch, index: int, padding: int) -> Any:
        tensor, shape = self._spec.inputs[index], batch.input_shape(index) or ()
        row_bytes = prod(shape[1:]) * tensor.element_bytes
        address = self._inputs[index].rows(batch, padding * row_bytes)
        if padding:
            shape = (shape[0] + padding, *shape[1:])
        return tensor_at(address, shape, tensor.datatype, prod(shape) * tensor.element_bytes)

    def _run(self, tensors: Sequence[Any]) -> list[Any]:
        if self._told != threading.get_ident():
            library().set_num_threads(self._threads)  # of this thread's team
            self._told = threading.get_ident()
        try:
            return self._program.run(self._arguments, tensors)
        except EngineError:
            raise
        except Exception as error:
            raise failure_of(error) from error

    def _answer(self, batch: Batch, outputs: Sequence[Any]) -> None:
        """The batch's own rows, which come first."""
        batches, rows = self._spec.batches, batch.rows if self._spec.batches else 1
        shapes: list[Shape] = [tuple(output.shape) for output in outputs]
        sizes = [
            prod(shape[batches:]) * tensor.element_bytes
            for shape, tensor in zip(shapes, self._spec.outputs, strict=True)
        ]
        addresses = batch.reserve(sizes) or ()
        for output, size, address in zip(outputs, sizes, addresses, strict=True):
            if size * rows:
                held = output.contiguous()
                ctypes.memmove(address, held.data_ptr(), size * rows)
        batch.complete([(rows, *shape[1:]) if batches else shape for shape in shapes])

    def close(self) -> None:
        self._inputs = []


def failure_of(error: Exception) -> EngineError:
    """What a run's exception is to the caller."""
    text = clean(error)
    if isinstance(error, AssertionError) and "Guard failed" in text:  # an exported program's own words
        return UnservedShape(f"the program was not exported for inputs of this shape: {text}")
    return EngineError(text)


def check_outputs(spec: ModelSpec, outputs: Sequence[Any], rows: int) -> None:
    """Raises EngineError for outputs that are not as the spec has them; `rows` were run."""
    if len(outputs) != len(spec.outputs):
        raise EngineError(f"{len(outputs)} outputs came out, expected {len(spec.outputs)}")
    check_shapes(spec.outputs, [tuple(output.shape) for output in outputs], rows if spec.batches else None)
    for output, tensor in zip(outputs, spec.outputs, strict=True):
        if (datatype := datatype_of(output.dtype)) != tensor.datatype:
            came = datatype or str(output.dtype)
            raise EngineError(f"output '{tensor.name}' came out as {came}, expected {tensor.datatype}")
        dims = tuple(output.shape)[spec.batches :]
        pairs = zip(dims, tensor.model_dims, strict=False)
        if len(dims) != len(tensor.model_dims) or any(want not in (-1, dim) for dim, want in pairs):
            expected = f"expected {list(tensor.model_dims)}: its shape depends on the data"
            raise EngineError(f"output '{tensor.name}' came out with rows of {list(dims)}, {expected}")
