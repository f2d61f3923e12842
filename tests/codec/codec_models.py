"""Models and requests for tests of the codec."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from service._pb import inference
from service.codec import RequestError, _codec
from service.models.scheduling import Scheduling


@dataclass(frozen=True)
class Tensor:
    name: str
    datatype: str = "FP32"
    dims: tuple[int, ...] = (4,)
    reshape: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    text: bool = False

    @property
    def model_dims(self) -> tuple[int, ...]:
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True)
class Model:
    """Shaped like `service.models.spec.ModelSpec`, as far as the codec looks."""

    name: str = "m"
    version: str = "1"
    max_batch_size: int = 8
    inputs: tuple[Tensor, ...] = (Tensor("A"), Tensor("B", "INT8", (-1, 2)))
    outputs: tuple[Tensor, ...] = field(default=(Tensor("X"), Tensor("Y"), Tensor("Z")))
    scheduling: Scheduling = Scheduling()

    def spec(self) -> _codec.Spec:
        return _codec.Spec(self)  # type: ignore[arg-type]


BATCHED = Model()
PLAIN = replace(BATCHED, max_batch_size=0)


def request(model: Model = BATCHED, rows: int = 2) -> Any:
    """A valid ModelInferRequest; any -1 of the model's dims becomes 3."""
    message = inference.ModelInferRequest(model_name=model.name, id="7")
    for tensor in model.inputs:
        shape = ([rows] if model.max_batch_size else []) + [3 if d < 0 else d for d in tensor.dims]
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        message.raw_input_contents.append(bytes_for(tensor.datatype, shape))
    return message


def bytes_for(datatype: str, shape: list[int]) -> bytes:
    size = {"BOOL": 1, "INT8": 1, "UINT8": 1, "FP16": 2, "BF16": 2, "INT16": 2, "UINT16": 2}.get(datatype, 4)
    size = 8 if datatype.endswith("64") else size
    for dim in shape:
        size *= dim
    return bytes(i % 251 for i in range(size))


def validate(message: Any, model: Model = BATCHED) -> dict[str, Any]:
    """What the codec binds the message to."""
    return _codec.validate(model.spec(), message.SerializeToString())


def refused(message: Any, model: Model = BATCHED) -> RequestError:
    """Why the codec refuses the message."""
    with pytest.raises(RequestError) as caught:
        validate(message, model)
    return caught.value
