"""BF16 beside numpy, which has no such type: the upper half of a float32, kept as 16 bits.

Batches carry the bits. Whoever computes with numbers in numpy has float32: the test runs at load, and models
in Python. Widening is exact; on the way back numbers are rounded to the nearest BF16 (ties to even), which
gives the bits that were widened unless somebody changed them.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.models.spec import numpy_dtype

ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16: ONNX Runtime takes numbers where numpy has no name


def element_type(datatype: str) -> Any:
    """What ONNX Runtime's bindings call a datatype."""
    return ONNX_BFLOAT16 if datatype == "BF16" else numpy_dtype(datatype).type


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """A copy as float32, of the same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(array: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of float32 numbers, each rounded to the nearest BF16. A NaN stays one."""
    bits = np.array(array, np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    cut = bits >> 16
    quiet = np.where(cut & 0x7F, cut, cut | 0x40)  # what made it a NaN may be in the half that is cut off
    return np.asarray(np.where(np.isnan(array), quiet, nearest), np.uint16)


def stored(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """The array as it lies in memory for the model."""
    return rounded(array) if datatype == "BF16" else np.ascontiguousarray(array)


def numbers_of(value: Any) -> NDArray[Any]:
    """A copy of an OrtValue on the CPU; BF16 as float32."""
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    bits = np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * prod(shape)), np.uint16)
    return widened(bits).reshape(shape)
