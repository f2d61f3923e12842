"""TensorRT plans for the tests on a real device, made from small ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.engines.base import open_engine
from service.engines.tensorrt_runtime import known
from service.models.wanted import Wanted

trt = pytest.importorskip("tensorrt", reason="TensorRT is not installed")

WIDTH = 64
ONE = ((1, 8, 16),)


def onnx_model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **initial: Any) -> bytes:
    tensors = [numpy_helper.from_array(array, name) for name, array in initial.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return bytes(model.SerializeToString())


def build(
    model: bytes, path: Path, profiles: Sequence[tuple[int, int, int]] = ONE, dims: Sequence[int] = (WIDTH,)
) -> Path:
    """The plan, with a profile for each (min, opt, max) of the batch."""
    log = known().log
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    assert parser.parse(model), [parser.get_error(i).desc() for i in range(parser.num_errors)]
    config = builder.create_builder_config()
    for flag in ("BF16", "FP16"):
        config.set_flag(getattr(trt.BuilderFlag, flag))
    for sizes in profiles:
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            profile.set_shape(network.get_input(index).name, *[(size, *dims) for size in sizes])
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, known().words.last()
    path.write_bytes(bytes(plan))
    return path


def value(name: str, kind: int = TensorProto.FLOAT, dims: Sequence[Any] = ("n", WIDTH)) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def affine(path: Path, profiles: Sequence[tuple[int, int, int]] = ONE) -> Path:
    nodes = [helper.make_node("Mul", ["x", "two"], ["t"]), helper.make_node("Add", ["t", "one"], ["y"])]
    constants = {"two": np.float32(2), "one": np.float32(1)}
    return build(onnx_model(nodes, [value("x")], [value("y")], **constants), path, profiles)


def wide(path: Path, columns: int = 1 << 18) -> tuple[Path, np.ndarray[Any, Any]]:
    """y = x @ w with small whole numbers, exact in every precision; w of 64 MB, which is returned too."""
    weights = np.random.default_rng(0).integers(-1, 2, (WIDTH, columns)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = onnx_model(nodes, [value("x")], [value("y", dims=("n", columns))], w=weights)
    return build(model, path, [(1, 4, 4)]), weights


def perceptron(path: Path, seed: int, hidden: int = 4096) -> Path:
    """three matrices with a softmax behind the first two, whose activations lie in the stream's scratch."""
    rng = np.random.default_rng(seed)
    weights = {
        "a": rng.standard_normal((WIDTH, hidden)).astype(np.float32) / 8,
        "b": rng.standard_normal((hidden, hidden)).astype(np.float32) / 64,
        "c": rng.standard_normal((hidden, WIDTH)).astype(np.float32) / 64,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"], axis=-1),
        helper.make_node("MatMul", ["s", "b"], ["t"]),
        helper.make_node("Softmax", ["t"], ["u"], axis=-1),
        helper.make_node("MatMul", ["u", "c"], ["y"]),
    ]
    return build(onnx_model(nodes, [value("x")], [value("y")], **weights), path, [(8, 8, 8)])


def opened(path: Path, name: str = "affine", **wanted: Any) -> Any:
    return open_engine(str(path), name=name, wanted=Wanted(**wanted))
