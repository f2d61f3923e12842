"""Memory for an input of one instance: rows are gathered into it, and it keeps its address while it is large
enough.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fastqueue import Batch

_ALIGN = 64
_EAGER_BYTES = 64 << 20  # memory starts at its final size up to here; untouched pages take none


class Gathered:
    """Memory for input number `index`; `most_bytes` is what its largest batch has, where that is known."""

    def __init__(self, index: int, most_bytes: int) -> None:
        self._index = index
        self._grow(min(max(1, most_bytes), _EAGER_BYTES))

    def rows(self, batch: Batch, zeros: int = 0) -> int:
        """The address of all the batch's rows, with `zeros` bytes of zeros behind them."""
        own = batch.input_bytes(self._index)
        self._make_room(own + zeros)
        batch.gather(self._index, self._address, self._capacity)
        if zeros:
            ctypes.memset(self._address + own, 0, zeros)
        return self._address

    def some_rows(self, batch: Batch, first: int, rows: int, row_bytes: int) -> int:
        """The address of `rows` of the batch's rows, from `first` on."""
        self._make_room(rows * row_bytes)
        batch.gather_rows(self._index, first, rows, self._address, self._capacity)
        return self._address

    def _make_room(self, needed: int) -> None:
        if needed > self._capacity:
            self._grow(1 << (needed - 1).bit_length())

    def _grow(self, capacity: int) -> None:
        self._memory = np.empty(capacity + _ALIGN, np.uint8)
        self._address = -(-self._memory.ctypes.data // _ALIGN) * _ALIGN
        self._capacity = capacity
