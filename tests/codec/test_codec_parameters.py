"""Parameters of requests, inputs and requested outputs: which are known, and what they may be."""

from __future__ import annotations

from typing import Any

import pytest
from codec_models import BATCHED, refused, request, validate

from service.codec import _codec

INVALID, UNIMPLEMENTED = 3, 12


REQUEST_PARAMETERS: list[tuple[str, dict[str, Any], int, str]] = [
    (
        "timeout",
        {"string_param": "5"},
        INVALID,
        "invalid value type for 'timeout' parameter, expected int64_param (microseconds), got string_param",
    ),
    ("timeout", {"uint64_param": 5}, INVALID, "expected int64_param (microseconds), got uint64_param"),
    ("timeout", {}, INVALID, "expected int64_param (microseconds), got no value"),
    ("timeout", {"int64_param": -1}, INVALID, "parameter 'timeout': expected 0 or more microseconds, got -1"),
    (
        "priority",
        {"bool_param": True},
        INVALID,
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param, got bool_param",
    ),
    ("priority", {"int64_param": -3}, INVALID, "parameter 'priority': expected 0 or more, got -3"),
    (
        "triton_enable_empty_final_response",
        {"int64_param": 1},
        INVALID,
        "expected bool_param, got int64_param",
    ),
    ("triton_other", {"bool_param": True}, INVALID, "got 'triton_other'"),
    ("sequence_id", {"uint64_param": 1}, INVALID, "expected int64_param or string_param, got uint64_param"),
    ("sequence_id", {"int64_param": 1}, UNIMPLEMENTED, "parameter 'sequence_id' asks for sequence batching"),
    (
        "sequence_id",
        {"string_param": "s"},
        UNIMPLEMENTED,
        "parameter 'sequence_id' asks for sequence batching",
    ),
    (
        "sequence_start",
        {"bool_param": True},
        UNIMPLEMENTED,
        "parameter 'sequence_start' asks for sequence batching",
    ),
    (
        "sequence_end",
        {"bool_param": True},
        UNIMPLEMENTED,
        "parameter 'sequence_end' asks for sequence batching",
    ),
    ("sequence_end", {"int64_param": 1}, INVALID, "expected bool_param, got int64_param"),
    (
        "my own",
        {"uint64_param": 1},
        INVALID,
        "invalid value type for 'my own' parameter, expected int64_param, "
        "bool_param, string_param or double_param, got uint64_param",
    ),
    ("my own", {}, INVALID, "got no value"),
]


@pytest.mark.parametrize(("key", "value", "code", "text"), REQUEST_PARAMETERS)
def test_refuses_request_parameters(key: str, value: dict[str, Any], code: int, text: str) -> None:
    message = request()
    message.parameters[key].CopyFrom(type(message.parameters[key])(**value))
    error = refused(message)
    assert error.code == code
    assert text in error.message


def test_accepts_request_parameters() -> None:
    message = request()
    message.parameters["timeout"].int64_param = 1500
    message.parameters["priority"].uint64_param = 2**40
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["sequence_id"].int64_param = 0
    message.parameters["sequence_start"].bool_param = False
    for key, value in {"b": True, "i": -1, "s": "text", "d": 0.5}.items():
        kind = {bool: "bool", int: "int64", str: "string", float: "double"}[type(value)]
        setattr(message.parameters[f"own {key}"], f"{kind}_param", value)
    bound = validate(message)
    assert (bound["timeout_us"], bound["priority"], bound["empty_final"]) == (1500, 2**32 - 1, True)


def test_the_last_entry_of_a_parameter_counts() -> None:
    first, second = request(), request()
    first.parameters["timeout"].string_param = "no"
    del second.inputs[:], second.raw_input_contents[:]
    second.parameters["timeout"].int64_param = 9
    wire = first.SerializeToString() + second.SerializeToString()
    assert _codec.validate(BATCHED.spec(), wire)["timeout_us"] == 9


@pytest.mark.parametrize("key", ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"])
def test_shared_memory_is_refused_by_name(key: str) -> None:
    message = request()
    message.inputs[1].parameters[key].int64_param = 1
    error = refused(message)
    assert error.code == UNIMPLEMENTED
    assert f"parameter '{key}' of input 'B' asks for shared memory" in error.message
    message = request()
    message.outputs.add(name="Y").parameters[key].int64_param = 1
    assert f"parameter '{key}' of output 'Y' asks for shared memory" in refused(message).message


def test_classification_and_other_keys_of_tensors_that_mean_nothing() -> None:
    message = request()
    message.inputs[0].parameters["classification"].int64_param = 1
    output = message.outputs.add(name="Y")
    output.parameters["binary_data"].bool_param = False
    assert (validate(message)["outputs"], validate(message)["classes"]) == ([1], [0])
    output.parameters["classification"].int64_param = 2
    message.outputs.add(name="Y").parameters["classification"].int64_param = 3
    message.outputs.add(name="X").parameters["classification"].int64_param = 2**40
    bound = validate(message)
    assert (bound["outputs"], bound["classes"]) == ([1, 0], [2, 2**32 - 1])
