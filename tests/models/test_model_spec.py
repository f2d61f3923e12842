"""ModelSpec: what crosses a socket, what clients are told, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from service.models.spec import (
    DATATYPES,
    MAX_INPUTS,
    ModelSpec,
    TensorSpec,
    config,
    datatype_of_config,
    datatype_of_numpy,
    metadata,
    numpy_dtype,
)

BATCHED = ModelSpec(
    "m",
    "1",
    "onnxruntime_onnx",
    "onnxruntime",
    8,
    (TensorSpec("x", "FP32", (3, -1)), TensorSpec("n", "INT64", ())),
    (TensorSpec("y", "BOOL", (2,)),),
    max_batch_wait_us=500,
    instances=2,
    warnings=("a", "b"),
)
UNBATCHED = replace(BATCHED, max_batch_size=0, why_unbatched="input 'n' is a scalar")


@pytest.mark.parametrize("spec", [BATCHED, UNBATCHED])
def test_json_gives_the_same_spec_back(spec: ModelSpec) -> None:
    assert ModelSpec.from_json(spec.to_json()) == spec


RESHAPED = replace(
    BATCHED,
    inputs=(TensorSpec("x", "FP32", (1,), ()), TensorSpec("n", "INT64", (-1, 6), (-1, 2, 3))),
    outputs=(TensorSpec("y", "FP32", (1,) * 7, (1,)),),
)


def test_a_reshape_is_the_models_and_dims_are_the_clients() -> None:
    assert [tensor.model_dims for tensor in RESHAPED.inputs] == [(), (-1, 2, 3)]
    assert [tensor.model_dims for tensor in BATCHED.inputs] == [(3, -1), ()]
    assert [tensor["shape"] for tensor in metadata(RESHAPED)["inputs"]] == [[-1, 1], [-1, -1, 6]]
    assert [tensor["dims"] for tensor in config(RESHAPED)["input"]] == [[1], [-1, 6]]
    assert RESHAPED.faults() == []
    assert ModelSpec.from_json(RESHAPED.to_json()) == RESHAPED


def test_json_of_another_version_is_refused() -> None:
    text = json.dumps({**json.loads(BATCHED.to_json()), "colour": "blue"})
    with pytest.raises(TypeError, match="colour"):
        ModelSpec.from_json(text)


@pytest.mark.parametrize("name", DATATYPES)
def test_the_datatype_table_agrees_with_numpy_and_with_the_contract(name: str) -> None:
    from service._pb import model_config

    row = DATATYPES[name]
    assert row.config in model_config.DataType.keys()
    assert datatype_of_config(row.config) == name
    if name == "BF16":
        with pytest.raises(ValueError, match="BF16 has no numpy dtype"):
            numpy_dtype(name)
    else:
        assert datatype_of_numpy(numpy_dtype(name)) == name
        assert name == "BYTES" or numpy_dtype(name).itemsize == row.element_bytes


def test_every_datatype_of_the_contract_has_a_row() -> None:
    from service._pb import model_config

    assert {row.config for row in DATATYPES.values()} == set(model_config.DataType.keys()) - {"TYPE_INVALID"}


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "V3"])
def test_a_numpy_dtype_without_a_datatype_says_so(dtype: str) -> None:
    with pytest.raises(ValueError, match="no datatype on the wire"):
        datatype_of_numpy(np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["S4", "U7", "O"])
def test_text_is_bytes_on_the_wire(dtype: str) -> None:
    assert datatype_of_numpy(np.dtype(dtype)) == "BYTES"


@pytest.mark.parametrize(
    ("tensor", "row_bytes"),
    [
        (TensorSpec("t", "FP32", (3, 4)), 48),
        (TensorSpec("t", "FP16", ()), 2),
        (TensorSpec("t", "INT64", (5, 0)), 0),
        (TensorSpec("t", "FP32", (3, -1)), -1),
        (TensorSpec("t", "BYTES", (3,)), -1),
    ],
)
def test_bytes_per_row(tensor: TensorSpec, row_bytes: int) -> None:
    assert tensor.row_bytes == row_bytes


def test_metadata_shapes_have_the_batch_axis_and_config_dims_do_not() -> None:
    assert metadata(BATCHED)["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1]},
        {"name": "n", "datatype": "INT64", "shape": [-1]},
    ]
    assert [tensor["dims"] for tensor in config(BATCHED)["input"]] == [[3, -1], []]


def test_without_batching_metadata_and_config_have_the_same_full_shapes() -> None:
    assert [tensor["shape"] for tensor in metadata(UNBATCHED)["inputs"]] == [[3, -1], []]
    assert [tensor["dims"] for tensor in config(UNBATCHED)["input"]] == [[3, -1], []]


def test_the_messages_take_the_fields_as_they_are() -> None:
    from google.protobuf import json_format

    from service._pb import inference, model_config

    said = inference.ModelMetadataResponse(**metadata(BATCHED))
    assert (said.name, list(said.versions), said.outputs[0].datatype) == ("m", ["1"], "BOOL")
    filled = json_format.ParseDict(config(BATCHED), model_config.ModelConfig())
    assert filled.max_batch_size == 8
    assert filled.dynamic_batching.max_queue_delay_microseconds == 500
    assert filled.output[0].data_type == model_config.TYPE_BOOL
    assert (filled.instance_group[0].count, filled.instance_group[0].kind) == (2, 2)  # KIND_CPU


def test_a_model_that_does_not_batch_has_no_scheduler_in_its_config() -> None:
    assert "dynamic_batching" not in config(UNBATCHED)


def test_a_good_spec_has_no_faults() -> None:
    assert BATCHED.faults() == UNBATCHED.faults() == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": "one"}, "version 'one' is not a number above 0"),
        ({"version": "0"}, "version '0' is not a number above 0"),
        ({"inputs": ()}, "it has 0 inputs; between 1 and 64 are served"),
        (
            {"inputs": tuple(TensorSpec(f"i{n}", "FP32", ()) for n in range(MAX_INPUTS + 1))},
            "it has 65 inputs; between 1 and 64 are served",
        ),
        ({"outputs": (TensorSpec("y", "FP32", ()),) * 2}, "output name 'y' comes twice"),
        ({"outputs": (TensorSpec("", "FP32", ()),)}, "output '' has no name"),
        ({"outputs": (TensorSpec("y", "FP8", ()),)}, "output 'y' has the unknown datatype FP8"),
        (
            {"outputs": (TensorSpec("y", "FP32", (1,) * 8),)},
            "output 'y' has 9 dimensions; at most 8 are served",
        ),
        (
            {"outputs": (TensorSpec("y", "FP32", (1,), (1,) * 8),)},
            "output 'y' has 9 dimensions; at most 8 are served",
        ),
        (
            {"outputs": (TensorSpec("y", "FP32", (2, 3), (5,)),)},
            "output 'y' has dims [2, 3] and reshape [5]; expected as many elements in both, got 6 and 5",
        ),
        (
            {"outputs": (TensorSpec("y", "FP32", (-2,)),)},
            "output 'y' has dims [-2]; a dim is -1 (dynamic) or a size",
        ),
    ],
)
def test_what_cannot_be_served_is_named(change: dict[str, object], fault: str) -> None:
    assert replace(BATCHED, **change).faults() == [fault]  # type: ignore[arg-type]


def test_the_batch_axis_counts_towards_the_rank() -> None:
    eight = replace(UNBATCHED, outputs=(TensorSpec("y", "FP32", (1,) * 8),))
    assert eight.faults() == []
    assert replace(eight, max_batch_size=1).faults() != []
