"""Arrays to and from protocol messages. Does no I/O.

Tensors travel as raw contents only: little-endian, row-major, one entry of ``raw_input_contents`` per
input, in the order of ``inputs``; the same on the way back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from service._pb import inference as pb
from service.client.errors import InvalidTensor
from service.models.spec import DATATYPES

Array = npt.NDArray[Any]

# BYTES has elements of different sizes and is not carried yet.
NUMPY_OF = {row.name: np.dtype(row.numpy) for row in DATATYPES.values() if row.numpy and row.element_bytes}
DATATYPE_OF = {dtype: name for name, dtype in NUMPY_OF.items()}


@dataclass(frozen=True)
class TensorInfo:
    """One input or output as ModelMetadata tells it: the shape has its batch axis, -1 is a dynamic size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def dtype(self) -> np.dtype[Any]:
        """The numpy type. Raises InvalidTensor for a datatype that has none (BF16, BYTES)."""
        return numpy_dtype(self.name, self.datatype)


@dataclass(frozen=True)
class ModelInfo:
    """A model as ModelMetadata tells it."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class InferResult:
    """The answer to one request: the outputs by name, in the order in which the server sent them."""

    model_name: str
    model_version: str
    id: str
    outputs: dict[str, Array]


def numpy_dtype(tensor: str, datatype: str) -> np.dtype[Any]:
    """The numpy type of a protocol datatype. Raises InvalidTensor, naming the tensor, where there is none."""
    try:
        return NUMPY_OF[datatype]
    except KeyError:
        known = ", ".join(NUMPY_OF)
        raise InvalidTensor(
            f"tensor '{tensor}' has datatype {datatype}; this client carries {known}"
        ) from None


def infer_request(
    model: str,
    inputs: Mapping[str, Array],
    *,
    version: str = "",
    request_id: str = "",
    outputs: Sequence[str] = (),
    timeout_us: int = 0,
) -> Any:
    """Builds a ModelInferRequest from arrays in any memory order.

    ``outputs`` empty asks for all of them. ``timeout_us`` (0: none) becomes the ``timeout`` parameter.
    Raises InvalidTensor for an array type that the protocol has no name for.
    """
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    if timeout_us:
        request.parameters["timeout"].int64_param = timeout_us
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=datatype_of(name, array), shape=array.shape)
        request.raw_input_contents.append(_little_endian(array).tobytes())
    for name in outputs:
        request.outputs.add(name=name)
    return request


def datatype_of(tensor: str, array: Array) -> str:
    """The protocol datatype of an array. Raises InvalidTensor, naming the tensor, where there is none."""
    datatype = DATATYPE_OF.get(array.dtype.newbyteorder("="))
    if datatype is None:
        raise InvalidTensor(f"tensor '{tensor}' is a numpy {array.dtype}, which has no protocol datatype")
    return datatype


def infer_result(response: Any) -> InferResult:
    """Reads a ModelInferResponse. The arrays are read-only views of its raw contents.

    Raises InvalidTensor when a raw entry is missing or does not have the size that its shape asks for.
    """
    raw = response.raw_output_contents
    if len(raw) != len(response.outputs):
        raise InvalidTensor(
            f"the answer has {len(response.outputs)} outputs but {len(raw)} raw_output_contents entries; "
            "this client reads raw contents only"
        )
    outputs = {out.name: _view(out, raw[i]) for i, out in enumerate(response.outputs)}
    return InferResult(response.model_name, response.model_version, response.id, outputs)


def _little_endian(array: Array) -> Array:
    swap = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
    return array.astype(array.dtype.newbyteorder("<")) if swap else array


def _view(output: Any, raw: bytes) -> Array:
    dtype = numpy_dtype(output.name, output.datatype).newbyteorder("<")
    shape = tuple(output.shape)
    want = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(raw) != want:
        raise InvalidTensor(
            f"output '{output.name}' {output.datatype}{list(shape)} should have {want} bytes, got {len(raw)}"
        )
    return np.frombuffer(raw, dtype=dtype).reshape(shape)
