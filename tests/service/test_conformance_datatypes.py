"""Every datatype in and out, bit by bit; raw and typed contents; what a datatype does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedEngine, model_spec, tensor
from wire import infer_request, output

from service._pb import inference as pb
from service.models.spec import numpy_dtype

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def identity(datatype: str, *dims: int, **settings: Any) -> ScriptedEngine:
    """y = x, of rows of `dims`."""
    spec = model_spec("same", [tensor("x", datatype, *dims)], [tensor("y", datatype, *dims)], **settings)
    return ScriptedEngine(spec, lambda x: [x])


def extremes(datatype: str) -> np.ndarray:
    """One row of values at the ends of what the datatype can hold."""
    dtype = numpy_dtype(datatype)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        values = [0.0, -0.0, np.inf, -np.inf, np.nan, limits.smallest_subnormal, limits.max, limits.min]
    elif dtype.kind == "b":
        values = [False, True] * 4
    else:
        limits = np.iinfo(dtype)
        values = [0, 1, limits.min, limits.max, 2, 3, 4, 100]
    return np.array([values], dtype)


def typed_request(datatype: str, array: np.ndarray) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="same")
    made = request.inputs.add(name="x", datatype=datatype, shape=array.shape)
    getattr(made.contents, CONTENTS[datatype]).extend(array.ravel().tolist())
    return request


@pytest.mark.parametrize("datatype", [*CONTENTS, "FP16"])
def test_raw_values_come_back_as_they_were(serve, datatype: str):
    _, wire = serve(identity(datatype, 8))
    array = extremes(datatype)
    response = wire.infer(infer_request("same", x=array))
    assert response.outputs[0].datatype == datatype
    assert response.raw_output_contents[0] == array.tobytes()


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_values_are_read_and_answered_raw(serve, datatype: str):
    _, wire = serve(identity(datatype, 8))
    array = extremes(datatype)
    response = wire.infer(typed_request(datatype, array))
    assert response.raw_output_contents[0] == array.tobytes()
    assert not response.outputs[0].HasField("contents")


def test_typed_and_raw_requests_meet_in_one_model(serve):
    _, wire = serve(identity("INT16", 3))
    array = np.array([[1, -2, 300], [4, 5, -(2**15)]], np.int16)
    for request in (typed_request("INT16", array), infer_request("same", x=array)):
        assert np.array_equal(output(wire.infer(request), dtype=np.int16), array)


@pytest.mark.parametrize("values", [[128, 0], [-129, 0]])
def test_a_value_that_the_datatype_cannot_hold_is_named(serve, values: Sequence[int]):
    _, wire = serve(identity("INT8", 2))
    code, text = wire.error(typed_request("INT8", np.array([values], np.int32)))
    assert code == "INVALID_ARGUMENT"
    assert str(values[0]) in text and "INT8" in text and "int_contents" in text


def test_half_floats_have_only_raw_contents(serve):
    _, wire = serve(identity("FP16", 1))
    request = pb.ModelInferRequest(model_name="same")
    request.inputs.add(name="x", datatype="FP16", shape=[1, 1]).contents.fp32_contents.append(1.0)
    code, text = wire.error(request)
    assert code == "INVALID_ARGUMENT"
    assert "FP16" in text and "raw_input_contents" in text
