"""A batch over numpy memory, with the calls of fastqueue.Batch that engines make, and strict about them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

POISON = 0xCD
GUARD = 64


class ProtocolBroken(AssertionError):
    """The engine did something no engine may do."""


class FakeBatch:
    """A closed batch of requests; each is a list of input arrays in model order.

    `in_place`: a single request lies in one aligned piece, as in the input arena. `offset`: shifts the
    outputs from their alignment, as a part of a split request does.
    """

    def __init__(
        self, *requests: Sequence[np.ndarray], batched: bool = True, in_place: bool = False, offset: int = 0
    ) -> None:
        self.requests = [[np.ascontiguousarray(array) for array in request] for request in requests]
        self.batched = batched
        self.rows = sum(request[0].shape[0] for request in self.requests) if batched else 1
        self.request_count = len(self.requests)
        self.calls: list[str] = []
        self.gathered: list[int] = []
        self.shapes: list[tuple[int, ...]] | None = None
        self._offset = offset
        self._views = [aligned_copy(array) for array in self.requests[0]] if in_place else []
        self._outputs: list[np.ndarray] = []
        self._sizes: list[int] = []

    def input_shape(self, index: int) -> tuple[int, ...]:
        shape = self.requests[0][index].shape
        return (self.rows, *shape[1:]) if self.batched else shape

    def input_bytes(self, index: int) -> int:
        return sum(request[index].nbytes for request in self.requests)

    def input_pointer(self, index: int) -> int:
        return int(self._views[index].ctypes.data) if self._views else 0

    def gather(self, index: int, address: int, capacity: int) -> None:
        if address % 64:
            raise ProtocolBroken(f"input {index} is gathered to an unaligned address")
        if self.input_bytes(index) > capacity:
            raise ValueError("the buffer is too small")
        self.gathered.append(address)
        for request in self.requests:
            ctypes.memmove(address, request[index].ctypes.data, request[index].nbytes)
            address += request[index].nbytes

    def gather_rows(self, index: int, first: int, rows: int, address: int, capacity: int) -> None:
        whole = np.concatenate([request[index] for request in self.requests])
        if not 0 <= first < first + rows <= self.rows:
            raise ProtocolBroken(f"{rows} rows from {first} on, of {self.rows}")
        some = whole[first : first + rows]
        if some.nbytes > capacity:
            raise ValueError("the buffer is too small")
        self.gathered.append(address)
        ctypes.memmove(address, np.ascontiguousarray(some).ctypes.data, some.nbytes)

    def mark_input_done(self, padding: int = 0) -> None:
        self.padding = padding
        self.calls.append("input done")

    def mark_compute_done(self) -> None:
        self.calls.append("compute done")

    def reserve(self, outputs: Sequence[int]) -> list[int]:
        if self._outputs:
            raise ProtocolBroken("outputs are reserved twice")
        if any(size < 0 for size in outputs):
            raise OverflowError("can't convert negative value to uint64_t")
        self.calls.append("reserve")
        self._sizes = [size * self.rows for size in outputs]
        self._outputs = [aligned(size + self._offset + 2 * GUARD) for size in self._sizes]
        return [int(memory.ctypes.data) + GUARD + self._offset for memory in self._outputs]

    def complete(self, shapes: Sequence[tuple[int, ...]]) -> None:
        if not self._outputs:
            raise ProtocolBroken("complete before reserve")
        self.calls.append("complete")
        self.shapes = [tuple(shape) for shape in shapes]

    def output(self, index: int, dtype: Any) -> np.ndarray:
        """The output as the clients get it. Checks that nothing around it was written."""
        assert self.shapes is not None, "the batch was not completed"
        start, size, memory = GUARD + self._offset, self._sizes[index], self._outputs[index]
        assert (memory[:start] == POISON).all() and (memory[start + size :] == POISON).all(), "written beyond"
        return np.frombuffer(memory[start : start + size].tobytes(), dtype).reshape(self.shapes[index])


def aligned(size: int) -> np.ndarray:
    """`size` poisoned bytes at a 64-byte boundary."""
    memory = np.full(size + 64, POISON, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    memory = aligned(max(array.nbytes, 1))
    memory[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return memory
