"""BF16 beside numpy, which has no such type: the upper half of a float32, kept as 16 bits.

Batches carry the bits and nobody converts them. Only the test runs at load compute with numbers: those are
float32 in this process, and are cut (as clients cut them) on their way into the model.
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


def stored(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """The array as it lies in memory for the model."""
    if datatype == "BF16":
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(array)


def numbers_of(value: Any) -> NDArray[Any]:
    """A copy of an OrtValue on the CPU; BF16 as float32."""
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    bits = np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * prod(shape)), np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(shape)
