"""The parameter `classification`: an output is told as its best classes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from dispatch_rig import MIB, Rig, model, refused, request, response, row

from service._pb import inference
from service.models.spec import ModelSpec, TensorSpec

INVALID, EXHAUSTED = 3, 8
M = model(outputs=("Y",))


def asking(spec: ModelSpec, x: np.ndarray, id: str = "", **classes: int) -> bytes:
    """A request for these outputs, with `classification` where the number is not 0."""
    message = inference.ModelInferRequest.FromString(request(spec, x, id=id))
    for name, count in classes.items():
        output = message.outputs.add(name=name)
        if count:
            output.parameters["classification"].int64_param = count
    wire: bytes = message.SerializeToString()
    return wire


def elements(raw: bytes) -> list[str]:
    """The elements of a BYTES tensor."""
    found = []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return found


def classified(spec: ModelSpec, x: np.ndarray, **classes: int) -> inference.ModelInferResponse:
    rig = Rig()
    rig.worker(spec)
    token, _ = rig.submit(asking(spec, x, **classes))
    code, payload = rig.run()[token]
    assert code == 0, payload
    assert rig.at_rest()
    return response(payload)


def test_the_best_classes_of_each_row() -> None:
    said = classified(M, np.array([[0.25, -1, 3.5, 0], [1, 2, 3, 4]], "<f4"), Y=2)
    (output,) = said.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("Y", "BYTES", [2, 2])
    assert elements(said.raw_output_contents[0]) == ["3.500000:2", "0.250000:0", "4.000000:3", "3.000000:2"]


def test_without_batching_there_is_one_row() -> None:
    said = classified(model(outputs=("Y",), max_batch_size=0), np.array([1, 2, 3], "<f4"), Y=1)
    assert list(said.outputs[0].shape) == [1]
    assert elements(said.raw_output_contents[0]) == ["3.000000:2"]


@pytest.mark.parametrize("count", [3, 4, 2**31, 2**63 - 1])
def test_more_classes_than_there_are_is_all_of_them(count: int) -> None:
    said = classified(M, row(1, 3, 2), Y=count)
    assert list(said.outputs[0].shape) == [1, 3]
    assert elements(said.raw_output_contents[0]) == ["3.000000:1", "2.000000:2", "1.000000:0"]


def test_ties_are_in_order_of_the_index_and_what_is_no_number_is_last() -> None:
    values = row(np.nan, 0, -0.0, -np.inf, 1, np.inf, 1, -np.nan)
    texts = elements(classified(M, values, Y=8).raw_output_contents[0])
    assert [int(text.split(":")[1]) for text in texts] == [5, 4, 6, 1, 2, 3, 0, 7]
    assert texts[0] == "inf:5" and texts[5] == "-inf:3" and texts[6:] == ["nan:0", "nan:7"]
    assert texts[3:5] == ["0.000000:1", "0.000000:2"]  # the worker's sum has made the second one positive


@pytest.mark.parametrize("seed", range(20))
def test_any_number_of_any_values(seed: int) -> None:
    random = Random(seed)
    count, rows = random.randint(1, 300), random.randint(1, 9)
    x = np.array([[random.randint(-20, 20) / 4 for _ in range(count)] for _ in range(rows)], "<f4")
    k = random.choice([1, 2, 5, count, random.randint(1, count)])
    k = min(k, count)
    said = classified(M, x, Y=k)
    best = [sorted(range(count), key=lambda i, scores=scores: (-scores[i], i))[:k] for scores in x]
    expected = [f"{scores[i]:f}:{i}" for scores, order in zip(x, best, strict=True) for i in order]
    assert list(said.outputs[0].shape) == [rows, k]
    assert elements(said.raw_output_contents[0]) == expected


def test_labels_and_classes_without_one() -> None:
    y = TensorSpec("Y", "FP32", (-1,), labels=("cat", "", "größe: 3", "\udcff"))
    said = classified(replace(M, outputs=(y,)), row(1, 2, 3, 0.5, 0.25), Y=5)
    raw = said.raw_output_contents[0]
    assert b"0.500000:3:\xff" in raw
    assert elements(raw.replace(b"\xff", b"?")) == [
        "3.000000:2:größe: 3", "2.000000:1", "1.000000:0:cat", "0.500000:3:?", "0.250000:4",
    ]  # fmt: skip


def test_dimensions_of_a_row_are_one_long_list() -> None:
    x = TensorSpec("X", "FP32", (-1, -1))
    spec = replace(M, inputs=(x,), outputs=(replace(x, name="Y"),))
    said = classified(spec, np.arange(12, dtype="<f4").reshape(2, 2, 3), Y=1)
    assert list(said.outputs[0].shape) == [2, 1]
    assert elements(said.raw_output_contents[0]) == ["5.000000:5", "11.000000:5"]


def test_one_output_as_classes_and_another_as_it_is() -> None:
    said = classified(model(outputs=("Y", "Z", "W")), row(1, 2), Z=1, W=0, Y=2)
    assert [(o.name, o.datatype) for o in said.outputs] == [("Z", "BYTES"), ("W", "FP32"), ("Y", "BYTES")]
    assert elements(said.raw_output_contents[0]) == ["4.000000:1"]
    assert np.frombuffer(said.raw_output_contents[1], "<f4").tolist() == [3, 6]
    assert elements(said.raw_output_contents[2]) == ["2.000000:1", "1.000000:0"]


def test_an_output_that_is_named_twice_is_answered_as_it_was_first_asked_for() -> None:
    message = inference.ModelInferRequest.FromString(asking(M, row(1, 2), Y=1))
    message.outputs.add(name="Y")
    rig = Rig()
    rig.worker(M)
    token, _ = rig.submit(message.SerializeToString())
    said = response(rig.run()[token][1])
    assert [list(o.shape) for o in said.outputs] == [[1, 1]]


def test_no_rows_and_no_classes() -> None:
    assert list(classified(M, np.zeros((0, 3), "<f4"), Y=2).outputs[0].shape) == [0, 2]
    said = classified(M, np.zeros((2, 0), "<f4"), Y=2)
    assert (list(said.outputs[0].shape), list(said.raw_output_contents)) == ([2, 0], [b""])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"int64_param": 0}, "parameter 'classification' of output 'Y': expected 1 class or more, got 0"),
        ({"int64_param": -1}, "parameter 'classification' of output 'Y': expected 1 class or more, got -1"),
        ({"string_param": "1"}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({"uint64_param": 1}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({}, "invalid value type for 'classification' parameter, expected int64_param"),
    ],
)
def test_a_wrong_number_of_classes(value: dict, words: str) -> None:
    rig = Rig()
    rig.worker(M)
    message = inference.ModelInferRequest.FromString(asking(M, row(1), Y=1))
    message.outputs[0].parameters["classification"].CopyFrom(inference.InferParameter(**value))
    error = refused(rig, message.SerializeToString())
    assert error.code == INVALID and words in error.message
    assert rig.at_rest()


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_what_has_no_scores(datatype: str) -> None:
    rig = Rig()
    spec = replace(M, outputs=(TensorSpec("Y", datatype, (-1,)),))
    rig.worker(spec)
    error = refused(rig, asking(spec, row(1), Y=1))
    assert error.code == INVALID
    assert (
        f"class result not available for output 'Y' of model 'm' due to unsupported type '{datatype}'"
        in error.message
    )
    assert "unexpected inference output 'V'" in refused(rig, asking(spec, row(1), V=1)).message


def test_an_answer_of_too_many_classes_is_refused() -> None:
    rig = Rig(arena_mb=16)
    rig.worker(M, output_mb=16)
    wide = np.zeros((1, (1 << 20) + 1), "<f4")
    token, _ = rig.submit(asking(M, wide, Y=wide.size))
    code, text = rig.run()[token]
    assert code == EXHAUSTED
    assert text.decode() == (
        "the classes of model 'm' are more than the 1048576 that an answer may have: "
        "ask for fewer classes or rows"
    )
    token, _ = rig.submit(asking(M, wide, Y=3))
    assert rig.run()[token][0] == 0
    assert rig.at_rest()


def test_text_that_no_message_can_hold_is_refused() -> None:
    label = "l" * MIB
    spec = replace(M, outputs=(TensorSpec("Y", "FP32", (-1,), labels=(label,)),))
    rig = Rig()
    rig.worker(spec)
    token, _ = rig.submit(asking(spec, np.zeros((2048, 1), "<f4"), Y=1))
    code, text = rig.run()[token]
    assert code == EXHAUSTED
    assert "have more text than a message can have: ask for fewer classes or rows" in text.decode()
    assert rig.at_rest()
