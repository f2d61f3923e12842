"""Tensors that have one form on the wire and another in the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from codec_models import BATCHED, PLAIN, Model, Tensor, refused, request, validate

from service.codec import RequestError

Dims = tuple[int, ...]


def reshaped(model: Model, dims: Dims, reshape: Dims) -> Model:
    return replace(model, inputs=(Tensor("A", "FP32", dims, reshape), Tensor("B")))


@pytest.mark.parametrize(
    ("dims", "reshape", "sent", "seen"),
    [
        ((1,), (), [1], []),
        ((1, 1), (), [1, 1], []),
        ((), (1,), [], [1]),
        ((6,), (2, 3), [6], [2, 3]),
        ((2, 3), (6,), [2, 3], [6]),
        ((4, -1, 6), (2, 2, -1, 6, 1), [4, 5, 6], [2, 2, 5, 6, 1]),
        ((-1, 2, -1), (1, -1, 2, -1), [7, 2, 3], [1, 7, 2, 3]),
        ((-1,), (-1, 1), [0], [0, 1]),
        ((1,) * 7, (1,), [1] * 7, [1]),
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 8])
def test_the_model_gets_its_own_form(dims: Dims, reshape: Dims, sent: Dims, seen: Dims, rows: int) -> None:
    for model, axis in ((BATCHED, [rows]), (PLAIN, [])):
        model = reshaped(model, dims, reshape)
        message = request(replace(model, inputs=(Tensor("A", "FP32", tuple(sent)), Tensor("B"))), rows)
        bound = validate(message, model)
        assert bound["shapes"] == [[*axis, *seen], [*axis, 4]]
        assert bound["inputs"] == list(message.raw_input_contents)
        assert bound["rows"] == (rows if axis else 1)


@pytest.mark.parametrize(
    ("shape", "model", "words"),
    [
        ([2], BATCHED, "Expected [-1,1], got [2] (the model batches"),
        ([2, 2], BATCHED, "Expected [-1,1], got [2,2]"),
        ([2, 1, 1], BATCHED, "Expected [-1,1], got [2,1,1]"),
        ([], PLAIN, "Expected [1], got []"),
        ([2], PLAIN, "Expected [1], got [2]"),
    ],
)
def test_a_wrong_shape_is_told_the_form_on_the_wire(shape: list[int], model: Model, words: str) -> None:
    model = reshaped(model, (1,), ())
    message = request(model)
    message.inputs[0].shape[:] = shape
    assert f"unexpected shape for input 'A' for model 'm'. {words}" in refused(message, model).message


def test_bytes_are_counted_by_the_form_on_the_wire() -> None:
    model = reshaped(BATCHED, (6,), (2, 3))
    message = request(model)
    message.raw_input_contents[0] += b"1234"
    assert "Expected 48, got 52" in refused(message, model).message


def test_typed_contents_are_reshaped_too() -> None:
    model = replace(BATCHED, inputs=(Tensor("A", "FP32", (1,), ()),))
    message = request(model, rows=3)
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3])
    assert validate(message, model)["shapes"] == [[3]]


@pytest.mark.parametrize(
    ("dims", "reshape"),
    [((2,), ()), ((2, 3), (5,)), ((-1,), (1,)), ((1,), (-1,)), ((4, -1), (-1, 4)), ((1,), (1,) * 8)],
)
def test_forms_that_do_not_agree_are_no_spec(dims: Dims, reshape: Dims) -> None:
    for model in (
        reshaped(BATCHED, dims, reshape),
        replace(BATCHED, outputs=(Tensor("A", "INT8", dims, reshape),)),
    ):
        with pytest.raises(RequestError, match="'A' has dims .* and reshape .*: expected at most 7"):
            model.spec()
