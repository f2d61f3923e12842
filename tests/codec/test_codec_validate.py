"""Does a request fit the model? What is accepted, what is refused, and in which words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from codec_models import BATCHED, PLAIN, Model, Tensor, refused, request, validate

from service.codec import RequestError

INVALID = 3


# ---- what is accepted ----


def test_binds_inputs_in_the_order_of_the_model() -> None:
    message = request()
    bound = validate(message)
    assert bound["rows"] == 2
    assert bound["inputs"] == list(message.raw_input_contents)
    first = message.inputs[0]
    message.inputs.append(first)
    del message.inputs[0]
    message.raw_input_contents[:] = list(message.raw_input_contents)[::-1]
    assert validate(message) == bound


def test_every_datatype_with_its_size() -> None:
    names = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16".split()
    model = replace(PLAIN, inputs=tuple(Tensor(name, name, (3, -1)) for name in names))
    assert validate(request(model), model)["rows"] == 1


def test_a_scalar_and_a_model_without_inputs() -> None:
    scalar = replace(PLAIN, inputs=(Tensor("S", "INT64", ()),))
    assert validate(request(scalar), scalar)["inputs"] == [bytes(range(8))]
    empty = replace(BATCHED, inputs=())
    assert validate(request(empty), empty) | {"outputs": []} == {
        "rows": 1,
        "inputs": [],
        "shapes": [],
        "row_ends": {},
        "outputs": [],
        "classes": [0, 0, 0],
        "timeout_us": 0,
        "priority": 0,
        "empty_final": False,
    }


def test_more_rows_than_the_maximum_batch() -> None:
    assert validate(request(rows=9))["rows"] == 9


def test_no_rows_at_all() -> None:
    assert validate(request(rows=0))["rows"] == 0


@pytest.mark.parametrize("shape", [[0, 4], [4, 0], [0, 0]])
def test_empty_tensors_where_the_shape_allows_them(shape: list[int]) -> None:
    model = replace(PLAIN, inputs=(Tensor("A", "FP32", (-1, -1)),))
    message = request(model)
    message.inputs[0].shape[:] = shape
    message.raw_input_contents[0] = b""
    assert validate(message, model)["inputs"] == [b""]


def test_outputs_all_in_the_order_of_the_model_or_those_named_in_theirs() -> None:
    message = request()
    assert validate(message)["outputs"] == [0, 1, 2]
    for name in ("Z", "X", "Z"):
        message.outputs.add(name=name)
    assert validate(message)["outputs"] == [2, 0]


# ---- what is refused ----


def drop(message: Any) -> None:
    del message.inputs[1], message.raw_input_contents[1]


def swap_for(name: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[1].name = name

    return change


def extra(message: Any) -> None:
    message.inputs.add(name="C", datatype="FP32", shape=[2, 4])
    message.raw_input_contents.append(bytes(32))


def set_shape(shape: list[int], index: int = 0) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[index].shape[:] = shape

    return change


def set_raw(count: int, length: int = 32) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.raw_input_contents[:] = [bytes(length)] * count

    return change


def typed(keep_raw: bool) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[0].contents.fp32_contents.extend([1.0] * 8)
        if not keep_raw:
            del message.raw_input_contents[:]

    return change


def set_datatype(name: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[0].datatype = name

    return change


def name_outputs(*names: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for name in names:
            message.outputs.add(name=name)

    return change


REFUSALS: list[tuple[Callable[[Any], None], int, str]] = [
    (drop, INVALID, "expected 2 inputs but got 1 inputs for model 'm': missing 'B'"),
    (extra, INVALID, "expected 2 inputs but got 3 inputs for model 'm': expected 'A', 'B'"),
    (
        swap_for("A"),
        INVALID,
        "input 'A' already exists in request for model 'm': expected it once, got it again",
    ),
    (swap_for("Q"), INVALID, "unexpected inference input 'Q' for model 'm'. Expected 'A', 'B'"),
    (set_datatype("INT8"), INVALID, "inference input 'A' data-type is 'INT8', but model 'm' expects 'FP32'"),
    (set_datatype(""), INVALID, "inference input 'A' data-type is '', but model 'm' expects 'FP32'"),
    (set_shape([2, 5]), INVALID, "unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [2,5]"),
    (
        set_shape([4]),
        INVALID,
        "unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [4] (the model batches: "
        "the number of rows comes first)",
    ),
    (
        set_shape([2, 4, 1]),
        INVALID,
        "unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [2,4,1]",
    ),
    (
        set_shape([1] * 9),
        INVALID,
        "unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [1,1,1,1,1,1,1,1,...]",
    ),
    (set_shape([]), INVALID, "unexpected shape for input 'A' for model 'm'. Expected [-1,4], got []"),
    (
        set_shape([2, -1, 2], 1),
        INVALID,
        "unexpected shape for input 'B' for model 'm'. Expected [-1,-1,2], got [2,-1,2]",
    ),
    (
        set_shape([-2, 4]),
        INVALID,
        "input 'A' for model 'm': expected 0 to 2147483647 rows as first dimension, got -2",
    ),
    (
        set_shape([3, 3, 2], 1),
        INVALID,
        "input 'B' batch size does not match other inputs for 'm': expected 2 rows as in 'A', got 3",
    ),
    (set_raw(2, 31), INVALID, "input byte size mismatch for input 'A' for model 'm'. Expected 32, got 31"),
    (
        set_shape([2, 2**62, 2], 1),
        INVALID,
        "input byte size mismatch for input 'B' for model 'm'. Expected 18446744073709551615, got 12",
    ),
    (
        set_raw(1),
        INVALID,
        "unable to find data for input tensor 'B' for model 'm' in request: expected 2 entries in "
        "raw_input_contents, got 1",
    ),
    (
        set_raw(0),
        INVALID,
        "unable to find data for input tensor 'A' for model 'm' in request: expected 2 entries in "
        "raw_input_contents, got 0",
    ),
    (
        set_raw(3),
        INVALID,
        "expected 2 entries in raw_input_contents for model 'm', one for each input, got 3",
    ),
    (
        set_raw(70),
        INVALID,
        "expected 2 entries in raw_input_contents for model 'm', one for each input, got 70",
    ),
    (
        typed(keep_raw=True),
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'A' for model 'm'",
    ),
    (
        typed(keep_raw=False),
        INVALID,
        "unable to find data for input tensor 'B' for model 'm' in request: expected contents in every "
        "input, got none in this one",
    ),
    (name_outputs("X", "Q"), INVALID, "unexpected inference output 'Q' for model 'm'"),
    (name_outputs(*["X"] * 65), INVALID, "expected at most 64 requested outputs for model 'm', got 65"),
]


@pytest.mark.parametrize(("change", "code", "text"), REFUSALS, ids=[text[:60] for _, _, text in REFUSALS])
def test_refuses_with_these_words(change: Callable[[Any], None], code: int, text: str) -> None:
    message = request()
    change(message)
    error = refused(message)
    assert (error.code, error.message) == (code, text)


def test_65_inputs() -> None:
    message = request()
    for i in range(63):
        message.inputs.add(name=f"N{i}")
    assert refused(message).message == "expected 2 inputs but got 65 inputs for model 'm': expected 'A', 'B'"


def test_rows_without_data_are_bounded_by_the_maximum_batch() -> None:
    model = replace(BATCHED, inputs=(Tensor("A", "FP32", (-1,)),))
    message = request(model)
    message.raw_input_contents[0] = b""
    message.inputs[0].shape[:] = [8, 0]
    assert validate(message, model)["rows"] == 8
    message.inputs[0].shape[:] = [9, 0]
    assert refused(message, model).message == (
        "inference request batch-size must be <= 8 for 'm' where rows hold no data, got 9"
    )


def test_an_empty_tensor_too_large_for_anybody() -> None:
    model = replace(PLAIN, inputs=(Tensor("A", "FP32", (-1, -1, -1)),))
    message = request(model)
    message.raw_input_contents[0] = b""
    message.inputs[0].shape[:] = [2**40, 2**40, 0]
    assert "input byte size mismatch" in refused(message, model).message


def test_long_names_are_cut_at_a_character() -> None:
    message = request()
    message.inputs[1].name = "ü" * 300
    text = refused(message).message
    assert "'" + "ü" * 48 + "' for model 'm'" in text
    model = replace(BATCHED, name="€" * 100, inputs=tuple(Tensor(f"{i}" + "x" * 90) for i in range(9)))
    text = refused(request(), model).message
    assert "..." in text and len(text.encode()) < 512 and "\ufffd" not in text


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (replace(BATCHED, name=""), "expected UTF-8 as name of a model, got ''"),
        (replace(BATCHED, version="latest"), "model 'm': expected a number above 0 as version, got 'latest'"),
        (
            replace(BATCHED, inputs=tuple(Tensor(f"{i}") for i in range(65))),
            "model 'm': expected at most 64 inputs, got 65",
        ),
        (
            replace(BATCHED, outputs=tuple(Tensor(f"{i}") for i in range(65))),
            "expected at most 64 outputs, got 65",
        ),
        (replace(BATCHED, inputs=(Tensor("A"), Tensor("A"))), "model 'm': expected one input 'A', got two"),
        (replace(BATCHED, outputs=(Tensor(""),)), "model 'm': expected UTF-8 as name of output 0, got ''"),
        (
            replace(BATCHED, outputs=(Tensor("X", "FLOAT"),)),
            "model 'm': output 'X' has no datatype of the protocol",
        ),
        (
            replace(BATCHED, inputs=(Tensor("A", dims=(1,) * 8),)),
            "model 'm': input 'A': expected at most 7 dimensions without the batch axis, got 8",
        ),
        (replace(PLAIN, inputs=(Tensor("A", dims=(1,) * 9),)), "expected at most 8 dimensions"),
        (
            replace(PLAIN, inputs=(Tensor("A", dims=(1, -2)),)),
            "input 'A': expected dimensions of -1 or more, got -2",
        ),
    ],
)
def test_what_is_no_spec(model: Model, text: str) -> None:
    with pytest.raises(RequestError, match=re.escape(text)):
        model.spec()
