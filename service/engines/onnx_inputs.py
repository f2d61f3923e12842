"""Inputs of an ONNX Runtime instance: bound where they lie, or gathered into a buffer that keeps its address.

Parts. What is gathered is in the processor's cache when the model reads it, unless the whole batch is
larger than that. y = 2x + 1 on 32 rows of 602 KB costs 175 us of CPU a row when the batch is gathered and
run as a whole, and 115 in parts of 2 to 8 rows (AMD EPYC, 32 MB of L3, a thread of its own). Each part
reads the model's weights again, so this is for models whose weights are small beside a part, which are
those that are bound by memory at all.
"""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Any

from service.engines.bfloat16 import element_type
from service.engines.gathered import Gathered
from service.models.probe import Shape
from service.models.spec import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from fastqueue import Batch

PART_BYTES = 1 << 20  # of all inputs
PART_ROWS = 2  # at least: a run has its own cost
FEW_WEIGHTS_BYTES = 256 << 10  # a file has at most


def has_few_weights(path: str) -> bool:
    """Whether a model has few weights, all of them in its file."""
    if os.path.getsize(path) > FEW_WEIGHTS_BYTES:
        return False
    with open(path, "rb") as file:
        return b"location" not in file.read()  # the key that every tensor in another file has


def rows_at_once(spec: ModelSpec) -> int:
    """Rows of a part; 0: batches are never run in parts (nor are those of BF16, which numpy lacks)."""
    sizes = [tensor.row_bytes for tensor in spec.inputs]
    if not spec.batches or spec.batch_sizes or min(sizes, default=0) <= 0:
        return 0
    if any(tensor.datatype == "BF16" for tensor in spec.inputs):
        return 0
    return max(PART_ROWS, PART_BYTES // sum(sizes))


class Input:
    """An input of an instance: binds the batch's data where it lies, or gathered."""

    def __init__(self, index: int, tensor: TensorSpec, max_rows: int) -> None:
        self._index = index
        self._name = tensor.name
        self._dtype = element_type(tensor.datatype)
        self._element_bytes = tensor.element_bytes
        self._row_bytes = tensor.row_bytes
        self._bound: tuple[int, Shape | None] = (0, None)
        self._gathered = Gathered(index, tensor.row_bytes * max_rows)

    def bind(self, binding: Any, batch: Batch, padding: int) -> None:
        """Binds the batch's rows and, behind them, `padding` rows of zeros."""
        shape = batch.input_shape(self._index)
        address = 0 if padding else batch.input_pointer(self._index)
        if padding and shape is not None:
            row = prod(shape[1:]) * self._element_bytes
            shape = (shape[0] + padding, *shape[1:])
            address = self._gathered.rows(batch, padding * row)
        elif address == 0:
            address = self._gathered.rows(batch)
        self._bind(binding, address, shape)

    def bind_rows(self, binding: Any, batch: Batch, first: int, rows: int) -> None:
        """Binds some of the batch's rows. Their size is one that the model declares."""
        shape = batch.input_shape(self._index)
        if address := batch.input_pointer(self._index):
            address += first * self._row_bytes
        else:
            address = self._gathered.some_rows(batch, first, rows, self._row_bytes)
        self._bind(binding, address, shape and (rows, *shape[1:]))

    def _bind(self, binding: Any, address: int, shape: Shape | None) -> None:
        if (address, shape) != self._bound:
            binding.bind_input(self._name, "cpu", 0, self._dtype, shape, address)
            self._bound = (address, shape)
