"""What a Python model sees of its tensors, and what it may return: numpy on one side, shared memory on the
other. Runs in the child process.

    datatype   the model sees             it may return
    BYTES      object array of `bytes`    object array of `bytes` and `str`, or numpy's strings ("S3", "U3")
    BF16       float32, made wider        float32, rounded to the nearest BF16
    others     an array on the memory     an array of that dtype

In memory, a tensor is what it is on the wire; only an output of BYTES has the ends of its rows in front (u64,
one per row), because the queue wants them. `str` is encoded as UTF-8. numpy's own "S" cannot hold an element
that ends in NUL bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.engines.bfloat16 import rounded, widened
from service.engines.python_memory import TensorMemory
from service.engines.strings import Packed, packed, place, unpacked
from service.models.spec import numpy_dtype

Array = np.ndarray[Any, Any]
Held = Array | Packed  # an output as it is going to lie in memory

_BITS = np.dtype(np.uint16)


class WrongElement(Exception):
    """An element that BYTES cannot hold. One clause."""


def seen_dtype(datatype: str) -> np.dtype[Any]:
    """The dtype of a tensor for the model."""
    return np.dtype(np.float32) if datatype == "BF16" else numpy_dtype(datatype)


def may_be(array: Array, datatype: str) -> bool:
    """Whether the model may return an array of this dtype."""
    return array.dtype == seen_dtype(datatype) or (datatype == "BYTES" and array.dtype.kind in "SU")


def input_of(memory: TensorMemory, offset: int, size: int, shape: Sequence[int], datatype: str) -> Array:
    """A tensor as the model gets it. ValueError or TypeError where it is not all inside the memory."""
    if datatype == "BYTES":
        return unpacked(memory.view(offset, (size,), np.dtype(np.uint8)).data, shape)
    if datatype == "BF16":
        return widened(memory.view(offset, shape, _BITS))
    return memory.view(offset, shape, numpy_dtype(datatype))


def held(array: Array, datatype: str, rows: int) -> Held:
    """An output of the model as it is going to lie in memory. Raises WrongElement."""
    if datatype == "BYTES":
        return packed(_as_bytes(array), rows)
    return rounded(array) if datatype == "BF16" else array


def _as_bytes(array: Array) -> Array:
    flat = array.ravel().tolist()  # numpy's strings become Python's
    for number, element in enumerate(flat):
        if isinstance(element, str):
            flat[number] = _encoded(element, number, array.shape)
        elif not isinstance(element, bytes):
            came = f"has {type(element).__name__} {_short(element)} at {_place(number, array.shape)}"
            raise WrongElement(f"{came}; expected bytes or str (BYTES)")
    elements = np.empty(len(flat), object)
    elements[:] = flat
    return elements.reshape(array.shape)


def _encoded(text: str, number: int, shape: Sequence[int]) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        came = f"has a str at {_place(number, shape)} that UTF-8 cannot encode ({error.reason})"
        raise WrongElement(f"{came}; expected text, or bytes") from error


def _place(number: int, shape: Sequence[int]) -> str:
    return place(np.unravel_index(number, tuple(shape)) if shape else ())  # type: ignore[arg-type]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def size_of(value: Held) -> int:
    """Bytes that it takes."""
    return value.row_ends.nbytes + len(value.wire) if isinstance(value, Packed) else value.nbytes


def put(memory: TensorMemory, offset: int, value: Held) -> None:
    """Writes it there."""
    if not isinstance(value, Packed):
        np.copyto(memory.view(offset, value.shape, value.dtype), value)
        return
    wire = np.frombuffer(value.wire, np.uint8)
    put(memory, offset, value.row_ends)
    put(memory, offset + value.row_ends.nbytes, wire)
