"""Tensors whose form on the wire is not the model's: `reshape` in a model's config, and scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from wire import Wire, infer_request, output

from service._pb import inference as pb
from service.config import ServeConfig
from service.errors import StartError
from service.worker.__main__ import open_engines

PYTHON = """
class Model:
    def initialize(self, config):
        assert [list(t["dims"]) for t in config["inputs"]] == [{dims}], config

    def execute(self, inputs):
        x = inputs["x"]
        return {{"y": x + x}}
"""


def doubles(path: Path, shape: Sequence[Any]) -> None:
    """A model y = x + x over FP32 `shape`."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubles", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def put(folder: Path, engine: str, config: str, shape: Sequence[Any], batches: bool) -> None:
    """Model 'm', which doubles FP32 `shape`."""
    (folder / "m" / "1").mkdir(parents=True)
    if engine == "python":
        dims = [dim if isinstance(dim, int) else -1 for dim in shape[batches:]]
        (folder / "m" / "1" / "model.py").write_text(PYTHON.format(dims=dims))
        config += ' backend: "python"'
    else:
        doubles(folder / "m" / "1" / "model.onnx", shape)
    (folder / "m" / "config.pbtxt").write_text(config)


@pytest.fixture
def served(serve_paths: Callable[..., Wire], tmp_path: Path) -> Callable[[], Wire]:
    return lambda: serve_paths(tmp_path)


def both(dims: Sequence[int], reshape: Sequence[int], size: int) -> str:
    tensor = f"data_type: TYPE_FP32 dims: {list(dims)} reshape {{ shape: {list(reshape)} }}"
    return f"max_batch_size: {size} input {{ name: 'x' {tensor} }} output {{ name: 'y' {tensor} }}"


@pytest.mark.parametrize("engine", ["onnxruntime", "python"])
def test_a_scalar_per_row(served, tmp_path: Path, engine: str) -> None:
    """C 46: dims [1] and reshape [] at batch 1 and 8, and a wrong shape."""
    put(tmp_path, engine, both([1], [], 8), ["N"], batches=True)
    wire = served()
    for rows in (1, 8, 20):
        x = np.arange(rows, dtype=np.float32).reshape(rows, 1)
        response = wire.infer(infer_request("m", x=x))
        assert list(response.outputs[0].shape) == [rows, 1]
        assert np.array_equal(output(response), 2 * x)
    code, words = wire.error(infer_request("m", x=np.zeros(8, np.float32)))
    assert code == "INVALID_ARGUMENT" and "Expected [-1,1], got [8]" in words
    assert "Expected [-1,1], got [8,2]" in wire.error(infer_request("m", x=np.zeros((8, 2), np.float32)))[1]


@pytest.mark.parametrize("engine", ["onnxruntime", "python"])
def test_what_clients_are_told_is_the_form_on_the_wire(served, tmp_path: Path, engine: str) -> None:
    put(tmp_path, engine, both([1], [], 8), ["N"], batches=True)
    wire = served()
    metadata = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="m"))
    assert [list(t.shape) for t in (*metadata.inputs, *metadata.outputs)] == [[-1, 1], [-1, 1]]
    said = wire.call("ModelConfig", pb.ModelConfigRequest(name="m")).config
    assert (list(said.input[0].dims), list(said.output[0].dims)) == ([1], [1])
    assert said.input[0].HasField("reshape") and said.output[0].HasField("reshape")


@pytest.mark.parametrize("engine", ["onnxruntime", "python"])
@pytest.mark.parametrize(
    ("dims", "reshape", "model", "sent"),
    [
        ([6], [2, 3], [2, 3], [6]),
        ([2, 3], [6], [6], [2, 3]),
        ([4, -1], [2, 2, -1], [2, 2, "w"], [4, 5]),
        ([-1, 2, -1], [-1, 2, -1, 1], ["h", 2, "w", 1], [3, 2, 7]),
    ],
)
@pytest.mark.parametrize("size", [0, 4])
def test_any_form_of_as_many_elements(
    served, tmp_path: Path, engine, dims, reshape, model, sent, size
) -> None:
    put(tmp_path, engine, both(dims, reshape, size), ["N", *model] if size else model, batches=size > 0)
    shape = [3, *sent] if size else sent
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    response = served().infer(infer_request("m", x=x))
    assert list(response.outputs[0].shape) == shape
    assert np.array_equal(output(response), 2 * x)


@pytest.mark.parametrize("engine", ["onnxruntime", "python"])
def test_a_scalar_without_batching(served, tmp_path: Path, engine: str) -> None:
    put(tmp_path, engine, both([1], [], 0), [], batches=False)
    wire = served()
    response = wire.infer(infer_request("m", x=np.array([21], np.float32)))
    assert (list(response.outputs[0].shape), output(response).tolist()) == ([1], [42])
    assert "Expected [1], got []" in wire.error(infer_request("m", x=np.array(21, np.float32)))[1]


def test_a_model_of_rank_1_has_scalar_rows(served, tmp_path: Path) -> None:
    """Without a config nothing is reshaped: its batch axis is all there is."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    doubles(tmp_path / "m" / "1" / "model.onnx", ["N"])
    wire = served()
    for rows in (1, 8, 40):
        x = np.arange(rows, dtype=np.float32)
        response = wire.infer(infer_request("m", x=x))
        assert list(response.outputs[0].shape) == [rows]
        assert np.array_equal(output(response), 2 * x)
    metadata = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="m"))
    assert list(metadata.inputs[0].shape) == [-1]
    said = wire.call("ModelConfig", pb.ModelConfigRequest(name="m")).config
    assert (said.max_batch_size, list(said.input[0].dims)) == (32, [])


def test_a_fixed_batch_axis_is_padded_in_the_models_form(served, tmp_path: Path) -> None:
    put(tmp_path, "onnxruntime", both([1], [], 4), [4], batches=True)
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    assert np.array_equal(output(served().infer(infer_request("m", x=x))), 2 * x)


@pytest.mark.parametrize(
    ("config", "shape", "words"),
    [
        (both([2], [], 8), ["N"], ["input 'x' has dims [2] and reshape []", "got 2 and 1"]),
        (
            both([6], [3, 2], 8),
            ["N", 2, 3],
            ["input 'x'", "the config says reshape [3, 2], the model has [2, 3]"],
        ),
        (both([1], [], 8), ["N", 1], ["input 'x'", "the config says reshape [], the model has [1]"]),
    ],
)
def test_a_reshape_that_does_not_fit(tmp_path: Path, config: str, shape: list[Any], words: list[str]) -> None:
    put(tmp_path, "onnxruntime", config, shape, batches=True)
    with pytest.raises(StartError) as raised:
        open_engines(ServeConfig((str(tmp_path),)))
    assert all(word in str(raised.value) for word in ["'m'", *words])
