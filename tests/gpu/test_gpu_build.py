"""`headrace build` on a real device: the plan is served, and computes what ONNX Runtime computes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.client import Client
from service.engines.base import open_engine
from service.inprocess import running
from service.models.building import Building
from service.models.wanted import Wanted

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)
from device_models import device_config
from onnxruntime import InferenceSession

from service.cuda.device import close_device

pytest.importorskip("tensorrt", reason="TensorRT is not installed")

ROWS, WIDTH = 32, 64


@pytest.fixture(autouse=True)
def device():
    yield
    close_device()


def perceptron(path: Path, seed: int = 0) -> Path:
    """x FP32 [n, 64] -> y FP32 [n, 32], two layers."""
    rng = np.random.default_rng(seed)
    weights = {
        "a": rng.standard_normal((WIDTH, 128)).astype(np.float32) / 8,
        "b": rng.standard_normal((128, 32)).astype(np.float32) / 11,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [value("x", TensorProto.FLOAT, ["n", WIDTH])],
        [value("y", TensorProto.FLOAT, ["n", 32])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())
    return path


def build(*arguments: object) -> str:
    command = [sys.executable, "-P", "-m", "service", "build", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(seed: int = 1, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def worst(plan: Path, model: Path) -> float:
    """The largest error of the served plan, as a part of the largest value."""
    x = rows()
    expected = InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    with running([open_engine(str(plan), name="m")], device_config()) as service:
        with Client(service.address) as client:
            got = client.infer("m", {"x": x}).outputs["y"]
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("flags", "bound"), [((), 2e-3), (("--fp16",), 1e-2)])  # FP32 is TF32 there
def test_a_plan_computes_what_the_model_does(tmp_path, flags, bound) -> None:
    model = perceptron(tmp_path / "model.onnx")
    told = build(model, "--batch", "1,8,32", *flags)
    plan = tmp_path / "model.plan"
    assert told.startswith(f"{plan}: ") and "built by TensorRT 10" in told
    assert (
        (tmp_path / "config.pbtxt").read_text().startswith('platform: "tensorrt_plan"\nmax_batch_size: 32\n')
    )
    assert plan.with_name("model.plan.timing").stat().st_size > 0
    assert worst(plan, model) <= bound
    assert "another TensorRT" not in build(model, "--batch", "1,8,32", *flags)  # the timing cache fits


def test_int8_is_calibrated_once_for_the_same_model_and_data(tmp_path) -> None:
    model, data = perceptron(tmp_path / "model.onnx"), tmp_path / "rows.npz"
    np.savez(data, x=rows(2, 64))
    arguments = (model, "--batch", "1,8,32", "--fp16", "--int8", "--calibration", data)
    assert "calibration: 8 batches were read" in build(*arguments)
    assert worst(tmp_path / "model.plan", model) <= 0.1
    assert "batches were read" not in build(*arguments)
    perceptron(model, seed=1)
    again = build(*arguments)
    assert "calibration: 8 batches were read" in again
    assert "is of another model, data or TensorRT: not used" in again


def test_sizes_that_are_open_beside_the_batch(tmp_path) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    value = helper.make_tensor_value_info
    x, y = (value(name, TensorProto.FLOAT, ["n", "m"]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "t", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    path = tmp_path / "vary.onnx"
    path.write_bytes(model.SerializeToString())
    build(path, "--min-shapes", "x:1x1", "--opt-shapes", "x:4x32", "--max-shapes", "x:16x100")
    engine = open_engine(str(tmp_path / "vary.plan"), name="vary")
    with running([engine], device_config()) as service, Client(service.address) as client:
        for width in (1, 100):
            some = np.random.default_rng(width).random((3, width), np.float32)
            np.testing.assert_array_equal(client.infer("vary", {"x": some}).outputs["y"], some + some)


def test_an_onnx_file_of_a_repository_is_built_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HEADRACE_PLANS", str(tmp_path / "plans"))
    model = perceptron(tmp_path / "model.onnx")
    wanted = Wanted(max_batch_size=16, building=Building(precisions=("FP16",)))
    for _ in range(2):
        engine = open_engine(str(model), name="m", wanted=wanted, backend="tensorrt")
        assert engine.spec.max_batch_size == 16
        engine.close()
    (plan,) = (tmp_path / "plans").glob("*.plan")
    assert worst(plan, model) <= 1e-2
