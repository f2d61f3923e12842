"""ONNX models with strings, through ONNX Runtime's Python binding: numpy arrays in, numpy arrays out.

A binding to memory, which is how other models run, has no strings. So such a model is run by `session.run`,
with all its tensors as numpy arrays; an instance allocates them for each batch. Everything else is as in
`onnxruntime`: padding, the checks of what came out, the rows that are copied to the output arena.

Strings of ONNX are UTF-8 by definition, and the binding holds to that where they pass through it. What it
does with object arrays (1.32): elements of `str` become what they are, NULs included; of `bytes`, their repr,
so that b"a" would be the four characters b'a'; what a model puts out is decoded, and one element that is not
UTF-8 fails the run. Numpy's "S" arrays take any bytes, but an element ends at its first NUL. Hence `str`, and
inputs that are `text` to the front end, which refuses a request that has anything else; what comes here all
the same fails its batch. (BYTES that are no text, images for one, are for models in Python.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from service.engines.base import EngineError
from service.engines.strings import Packed, packed, place, unpacked
from service.models.probe import Array, Declared, Shape
from service.models.spec import MAX_RANK, ModelSpec, TensorSpec, numpy_dtype

if TYPE_CHECKING:
    from fastqueue import Batch

_ALIGN = 64
_SHOWN_BYTES = 40


def has_strings(tensors: Sequence[Declared | TensorSpec]) -> bool:
    return any(tensor.datatype == "BYTES" for tensor in tensors)


def as_text(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs, with what the front end has to know of strings."""
    return tuple(replace(tensor, text=tensor.datatype == "BYTES") for tensor in tensors)


def run_once(
    session: Any,
    inputs: Sequence[Declared | TensorSpec],
    outputs: Sequence[Declared | TensorSpec],
    arrays: Sequence[Array],
) -> list[Array]:
    """A run on numpy arrays, in model order, whose BYTES are object arrays of `bytes`; so are the outputs'.

    Raises EngineError for strings that are not UTF-8, and whatever ONNX Runtime does.
    """
    feed = {}
    for tensor, array in zip(inputs, arrays, strict=True):
        feed[tensor.name] = _decoded(tensor.name, array) if tensor.datatype == "BYTES" else array
    try:
        values = session.run(None, feed)
    except UnicodeDecodeError as error:
        names = " or ".join(f"'{tensor.name}'" for tensor in outputs if tensor.datatype == "BYTES")
        what = f"output {names} has the string {error.object[:_SHOWN_BYTES]!r}"
        raise EngineError(f"{what}; expected UTF-8, as all strings of ONNX are") from error
    return [
        _encoded(np.asarray(value)) if tensor.datatype == "BYTES" else np.asarray(value)
        for tensor, value in zip(outputs, values, strict=True)
    ]


def _decoded(name: str, array: Array) -> Array:
    texts = np.empty(array.size, object)
    for number, element in enumerate(array.ravel().tolist()):
        try:
            texts[number] = element.decode()
        except UnicodeDecodeError as error:
            index = np.unravel_index(number, array.shape) if array.shape else ()
            where = f"input '{name}' has bytes at {place(index)} that are not UTF-8"  # type: ignore[arg-type]
            why = f"(byte {error.start}: {error.reason})"
            raise EngineError(f"{where} {why}; expected text, as all strings of ONNX are") from error
    return texts.reshape(array.shape)


def _encoded(array: Array) -> Array:
    elements = np.empty(array.size, object)
    elements[:] = [text.encode() for text in array.ravel().tolist()]
    return elements.reshape(array.shape)


def check_shapes(outputs: Sequence[TensorSpec], shapes: Sequence[Shape], rows: int | None) -> None:
    """Raises EngineError where outputs cannot be answered. `rows`: how many ran; None: it does not batch."""
    for shape, tensor in zip(shapes, outputs, strict=True):
        if len(shape) > MAX_RANK:
            came = f"came out with {len(shape)} dimensions, at most {MAX_RANK} are served"
            raise EngineError(f"output '{tensor.name}' {came}")
        if rows is not None and (not shape or shape[0] != rows):
            raise EngineError(
                f"output '{tensor.name}' came out as {list(shape)}, expected {rows} rows on axis 0: "
                "the model's rows are not independent, serve it with --max-batch-size 0"
            )


class StringInstance:
    """One execution slot of a model with strings.

    `clean`: what an exception of ONNX Runtime says, in one line.
    """

    def __init__(self, session: Any, spec: ModelSpec, clean: Callable[[Exception], str]) -> None:
        self._session = session
        self._spec = spec
        self._clean = clean

    def execute(self, batch: Batch) -> None:
        """Runs a batch and completes it. Raises EngineError when the model failed; the batch is then open."""
        if self._spec.batches and batch.rows == 0 and all(t.is_fixed for t in self._spec.outputs):
            values = [_no_rows(tensor) for tensor in self._spec.outputs]
            batch.mark_input_done()
        else:
            values = self._run(batch)
        batch.mark_compute_done()
        self._answer(batch, values)

    def _run(self, batch: Batch) -> list[Array]:
        size = next((size for size in self._spec.batch_sizes if size >= batch.rows), batch.rows)
        arrays = [
            _padded(_taken(batch, index, tensor.datatype), size - batch.rows)
            for index, tensor in enumerate(self._spec.inputs)
        ]
        batch.mark_input_done(size - batch.rows)
        try:
            values = run_once(self._session, self._spec.inputs, self._spec.outputs, arrays)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(self._clean(error)) from error
        shapes = [value.shape for value in values]
        check_shapes(self._spec.outputs, shapes, size if self._spec.batches else None)
        return [value[: batch.rows] for value in values] if size != batch.rows else values

    def _answer(self, batch: Batch, values: Sequence[Array]) -> None:
        rows = batch.rows if self._spec.batches else 1
        held = [
            packed(value, rows) if tensor.datatype == "BYTES" else np.ascontiguousarray(value)
            for tensor, value in zip(self._spec.outputs, values, strict=True)
        ]
        sizes = [
            value.row_ends.data if isinstance(value, Packed) else _row_bytes(value, self._spec.batches)
            for value in held
        ]
        for address, value in zip(batch.reserve(sizes) or (), held, strict=True):
            if isinstance(value, Packed):
                ctypes.memmove(address, value.wire, len(value.wire))
            else:
                ctypes.memmove(address, value.ctypes.data, value.nbytes)
        batch.complete([value.shape for value in values])

    def close(self) -> None:
        self._session = None


def _row_bytes(array: Array, batches: bool) -> int:
    return prod(array.shape[batches:]) * array.itemsize


def _no_rows(tensor: TensorSpec) -> Array:
    return np.empty((0, *tensor.model_dims), numpy_dtype(tensor.datatype))


def _taken(batch: Batch, index: int, datatype: str) -> Array:
    """An input of the whole batch, in memory of its own."""
    size, shape = batch.input_bytes(index), batch.input_shape(index) or ()
    memory = np.empty(size + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    if size:
        batch.gather(index, memory.ctypes.data + start, size)
    memory = memory[start : start + size]
    if datatype == "BYTES":
        return unpacked(memory.data, shape)
    return memory.view(numpy_dtype(datatype)).reshape(shape)


def _padded(array: Array, rows: int) -> Array:
    """With `rows` rows of zeros, or empty strings, behind its own."""
    if not rows:
        return array
    padding = np.full((rows, *array.shape[1:]), b"" if array.dtype == object else 0, array.dtype)
    return np.concatenate([array, padding])
