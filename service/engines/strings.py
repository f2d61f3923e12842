"""BYTES between a batch and numpy: wire form on one side, object arrays of `bytes` on the other.

In wire form an element is its length (4 bytes, little-endian) and its bytes; elements lie one behind the
other in C order, and so do rows. Nothing in it says where a row ends: the queue has a table of row ends
beside it, which counts in bytes from the start of the tensor. A tensor of a model that does not batch is one
row.

Every element becomes an object here, which costs about a microsecond: that is the price of strings in Python.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ROW_END_BYTES = 8
_LENGTH = struct.Struct("<I")


class Packed(NamedTuple):
    """A tensor in wire form, and where its rows end (u64)."""

    wire: bytes
    row_ends: NDArray[np.uint64]


def unpacked(wire: memoryview, shape: Sequence[int]) -> Array:
    """The elements of a tensor of this shape. ValueError where `wire` does not hold exactly those."""
    count = prod(shape)
    elements = np.empty(count, object)
    at = 0
    for number in range(count):
        start = at + _LENGTH.size
        if start > len(wire):
            raise ValueError(f"{number} elements in {len(wire)} bytes; expected {count}")
        at = start + _LENGTH.unpack_from(wire, at)[0]
        if at > len(wire):
            raise ValueError(f"element {number} ends at byte {at} of {len(wire)}")
        elements[number] = bytes(wire[start:at])
    if at != len(wire):
        raise ValueError(f"{len(wire) - at} bytes are left behind {count} elements")
    return elements.reshape(shape)


def packed(array: Array, rows: int) -> Packed:
    """An object array of `bytes`, of `rows` rows along its first axis, in wire form."""
    elements = array.ravel().tolist()
    wire = b"".join(part for element in elements for part in (_LENGTH.pack(len(element)), element))
    sizes = np.fromiter((_LENGTH.size + len(element) for element in elements), np.uint64, len(elements))
    by_row = sizes.reshape(rows, len(elements) // max(rows, 1))
    return Packed(wire, by_row.sum(axis=1, dtype=np.uint64).cumsum(dtype=np.uint64))


def place(index: Sequence[int]) -> str:
    """Where an element is, for a person: [2, 0]."""
    return f"[{', '.join(str(int(number)) for number in index)}]"
