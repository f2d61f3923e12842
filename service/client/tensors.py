"""Arrays to and from protocol messages. Does no I/O.

Tensors travel as raw contents only: little-endian, row-major, one entry of ``raw_input_contents`` per
input, in the order of ``inputs``; the same on the way back.

BYTES are object arrays of ``bytes``. On the way out an array of numpy's own strings ("S", "U") or of ``str``
will do. Text is UTF-8; a byte that is none is a lone surrogate in it ("surrogateescape") and survives JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from service._pb import inference as pb
from service.client.errors import InvalidTensor
from service.engines.strings import packed, unpacked
from service.models.spec import DATATYPES

Array = npt.NDArray[Any]

LENGTH_BYTES = 4  # before each element of BYTES
NUMPY_OF = {row.name: np.dtype(row.numpy) for row in DATATYPES.values() if row.numpy}
DATATYPE_OF = {dtype: name for name, dtype in NUMPY_OF.items()}


@dataclass(frozen=True)
class TensorInfo:
    """One input or output as ModelMetadata tells it: the shape has its batch axis, -1 is a dynamic size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def dtype(self) -> np.dtype[Any]:
        """The numpy type. Raises InvalidTensor for a datatype that has none (BF16)."""
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
        request.raw_input_contents.append(_raw(name, array))
    for name in outputs:
        request.outputs.add(name=name)
    return request


def datatype_of(tensor: str, array: Array) -> str:
    """The protocol datatype of an array. Raises InvalidTensor, naming the tensor, where there is none."""
    if array.dtype.kind in "SU":
        return "BYTES"
    datatype = DATATYPE_OF.get(array.dtype.newbyteorder("="))
    if datatype is None:
        raise InvalidTensor(f"tensor '{tensor}' is a numpy {array.dtype}, which has no protocol datatype")
    return datatype


def strings_of(tensor: str, array: Array) -> Array:
    """An array of BYTES as an object array of ``bytes``. Raises InvalidTensor, naming the first element that
    is neither ``bytes`` nor ``str``.
    """
    made = np.empty(array.size, object)
    for number, element in enumerate(array.ravel().tolist()):
        if not isinstance(element, bytes | str):
            kind = type(element).__name__
            raise InvalidTensor(
                f"tensor '{tensor}': expected strings for BYTES, element {number} is a {kind}"
            )
        made[number] = element if isinstance(element, bytes) else _encoded(tensor, element)
    return made.reshape(array.shape)


def _encoded(tensor: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidTensor(f"tensor '{tensor}': a string that is no text: {error}") from None


def text_of(element: bytes) -> str:
    """A string of BYTES as text, which ``strings_of`` turns back into the same bytes."""
    return element.decode("utf-8", "surrogateescape")


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


def _raw(tensor: str, array: Array) -> bytes:
    if datatype_of(tensor, array) == "BYTES":
        return packed(strings_of(tensor, array), 1).wire
    return _little_endian(array).tobytes()


def _little_endian(array: Array) -> Array:
    swap = array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big")
    return array.astype(array.dtype.newbyteorder("<")) if swap else array


def _view(output: Any, raw: bytes) -> Array:
    dtype = numpy_dtype(output.name, output.datatype).newbyteorder("<")
    shape = tuple(output.shape)
    if output.datatype == "BYTES":
        return _strings(output, shape, raw)
    want = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(raw) != want:
        raise InvalidTensor(
            f"output '{output.name}' {output.datatype}{list(shape)} should have {want} bytes, got {len(raw)}"
        )
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def _strings(output: Any, shape: tuple[int, ...], raw: bytes) -> Array:
    try:
        if prod(shape) > len(raw) // LENGTH_BYTES:
            raise ValueError(f"{prod(shape)} elements cannot lie in {len(raw)} bytes")
        return unpacked(memoryview(raw), shape)
    except ValueError as error:
        raise InvalidTensor(f"output '{output.name}' BYTES{list(shape)}: {error}") from None
