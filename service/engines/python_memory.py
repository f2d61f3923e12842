"""The memory that a python model's tensors cross in: a memfd for inputs and one for outputs per process.

    inputs    written by the launcher in the worker, read by the child
    outputs   written by the child, copied out by the launcher

A batch's tensors lie one after the other in model order, each at a multiple of ALIGN (`layout`); both sides
work the places out from the sizes, so that nothing but shapes and sizes is said. A memory has one writer,
which makes it larger (`grow`) and says how large it is now; the reader then maps as much (`follow`). It never
becomes smaller: the kernel holds both sides to that (F_SEAL_SHRINK), so a reader cannot be killed by an
access beyond the end. Pages that nobody has touched take no memory.

A memory belongs to one incarnation of the child: what is left of a dead one cannot write to its successor's.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

ALIGN = 64
_F_ADD_SEALS = 1033  # not in `fcntl` of Python 3.11
_F_SEAL_SHRINK = 2


def layout(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where tensors of these sizes lie, in bytes, and how much they take in all."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGN) * ALIGN
    return offsets, end


class TensorMemory:
    """One side's mapping of a memfd. `fd` is this object's to close.

    Attributes:
        capacity: bytes mapped. address: of the first one; changes with every growth.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.capacity = 0
        self.address = 0
        self._map: Any = None

    @classmethod
    def create(cls, name: str) -> TensorMemory:
        """New and empty. `name` shows in /proc."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
        return cls(fd)

    def grow(self, needed: int) -> None:
        """The writer's: makes room for `needed` bytes. Views from before stay valid; addresses do not."""
        if needed > self.capacity:
            capacity = max(mmap.PAGESIZE, 1 << (needed - 1).bit_length())
            os.ftruncate(self.fd, capacity)
            self.follow(capacity)

    def follow(self, capacity: int) -> None:
        """The reader's: maps what the writer says is there. ValueError when it is not."""
        if capacity > self.capacity:
            self._map = mmap.mmap(self.fd, capacity)
            self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)
            self.capacity = capacity

    def view(self, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array on this memory. ValueError or TypeError when it is not all inside."""
        if 0 in shape:  # an empty one at the very end, or in a memory that is empty itself
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._map, offset)

    def close(self) -> None:
        """Unmaps, as soon as no view is left, and closes the descriptor."""
        self._map, self.address, self.capacity = None, 0, 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
