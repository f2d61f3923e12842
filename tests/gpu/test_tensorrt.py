"""TensorRT plans on a real device, built here from small ONNX models, through the whole service."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.client import Client, ClientError
from service.engines.base import ModelLoadError, open_engine
from service.inprocess import running
from service.models.counts import GRAPH_HITS, GRAPH_MISSES
from service.models.wanted import Wanted

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)
from device_models import ask_from_threads, device_config

from service.cuda.device import close_device, the_device
from service.cuda.memory import NoRoom
from service.engines.tensorrt_runtime import known

trt = pytest.importorskip("tensorrt", reason="TensorRT is not installed")

WIDTH = 64
ONE = ((1, 8, 16),)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    yield
    close_device()


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


def opened(path: Path, name: str = "affine", **wanted: Any) -> Any:
    return open_engine(str(path), name=name, wanted=Wanted(**wanted))


def test_answers_from_eight_threads_are_their_own(tmp_path) -> None:
    path = affine(tmp_path / "affine.plan")
    with running([opened(path, "a"), opened(path, "b", batch_sizes=(8, 16))], device_config()) as service:
        wrong = ask_from_threads(service.address, ["a", "b"], requests=1000, width=WIDTH)
        assert wrong == []
        for stats in service._worker._former.stats():
            assert stats.engine[GRAPH_HITS] > 0 and stats.engine[GRAPH_MISSES] == 0


def test_what_is_derived_from_a_plan(tmp_path) -> None:
    engine = opened(affine(tmp_path / "affine.plan"))
    assert (engine.spec.platform, engine.spec.max_batch_size) == ("tensorrt_plan", 16)
    assert engine.spec.batch_sizes == engine.sizes == (1, 2, 4, 8, 16)
    assert [(t.name, t.datatype, t.dims) for t in engine.spec.inputs] == [("x", "FP32", (WIDTH,))]
    assert engine.spec.instances == the_device().stream_count
    engine.close()


def test_profiles_in_turns_on_every_stream_and_a_shape_outside_of_all(tmp_path) -> None:
    path = affine(tmp_path / "affine.plan", [(1, 2, 4), (5, 12, 16)])
    with running([opened(path)], device_config()) as service, Client(service.address) as client:
        for rows in (4, 5, 16, 1) * 20:
            x = np.random.default_rng(rows).random((rows, WIDTH), np.float32)
            np.testing.assert_array_equal(client.infer("affine", {"x": x}).outputs["y"], 2 * x + 1)
        assert ask_from_threads(service.address, ["affine"], requests=200, width=WIDTH) == []
        large = np.ones((17, WIDTH), np.float32)  # more than any profile takes: run in parts
        np.testing.assert_array_equal(client.infer("affine", {"x": large}).outputs["y"], 2 * large + 1)


def test_a_shape_that_no_profile_takes_is_the_callers_fault(tmp_path) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    dims = ("n", "m")
    model = onnx_model(nodes, [value("x", dims=dims)], [value("y", dims=dims)])
    log, path = known().log, tmp_path / "vary.plan"
    builder = trt.Builder(log)
    network = builder.create_network(0)
    assert trt.OnnxParser(network, log).parse(model)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("x", (1, 1), (4, 32), (16, 100))
    config.add_optimization_profile(profile)
    path.write_bytes(bytes(builder.build_serialized_network(network, config)))
    with running([opened(path, "vary")], device_config()) as service, Client(service.address) as client:
        for width in (1, 7, 100):
            x = np.random.default_rng(width).random((3, width), np.float32)
            np.testing.assert_array_equal(client.infer("vary", {"x": x}).outputs["y"], x + x)
        with pytest.raises(ClientError, match=r"\[16, 100\].*101"):
            client.infer("vary", {"x": np.ones((1, 101), np.float32)})


TYPES = {
    "FP32": (TensorProto.FLOAT, np.float32),
    "FP16": (TensorProto.FLOAT16, np.float16),
    "INT32": (TensorProto.INT32, np.int32),
    "INT64": (TensorProto.INT64, np.int64),
}


@pytest.mark.parametrize("datatype", TYPES)
def test_types_in_and_out(tmp_path, datatype) -> None:
    kind, dtype = TYPES[datatype]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    model = onnx_model(nodes, [value("x", kind)], [value("y", kind)])
    path = build(model, tmp_path / "add.plan")
    with running([opened(path, "add")], device_config()) as service, Client(service.address) as client:
        x = np.arange(3 * WIDTH).reshape(3, WIDTH).astype(dtype)
        y = client.infer("add", {"x": x}).outputs["y"]
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x + x)


def test_bytes_in_and_booleans_out(tmp_path) -> None:
    """UINT8 pixels, as images come; BOOL as comparisons give it."""
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Greater", ["f", "half"], ["y"]),
    ]
    outputs = [value("y", TensorProto.BOOL)]
    model = onnx_model(nodes, [value("x", TensorProto.UINT8)], outputs, half=np.float32(127.5))
    path = build(model, tmp_path / "bright.plan")
    with running([opened(path, "bright")], device_config()) as service, Client(service.address) as client:
        x = np.arange(3 * WIDTH).reshape(3, WIDTH).astype(np.uint8)
        np.testing.assert_array_equal(client.infer("bright", {"x": x}).outputs["y"], x > 127)


def test_outputs_whose_size_depends_on_data(tmp_path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    outputs = [value("y", TensorProto.INT64, (2, "found"))]
    path = build(onnx_model(nodes, [value("x")], outputs), tmp_path / "found.plan")
    with running([opened(path, "found", max_batch_size=0)], device_config()) as service:
        assert service._worker.specs[0].max_batch_size == 0
        with Client(service.address) as client:
            for seed in range(5):
                x = np.random.default_rng(seed).integers(0, 2, (4, WIDTH)).astype(np.float32)
                y = client.infer("found", {"x": x}).outputs["y"]
                np.testing.assert_array_equal(y, np.stack(np.nonzero(x)))


def damaged(plan: bytes) -> dict[str, bytes]:
    middle = len(plan) // 2

    def flip(part: bytes) -> bytes:
        return bytes(byte ^ 0xFF for byte in part)

    return {
        "truncated": plan[:middle],
        "corrupt": plan[:middle] + flip(plan[middle : middle + 64]) + plan[middle + 64 :],
        "foreign": b"\x7fELF" + plan[4:],
        "version": plan[:8] + flip(plan[8:16]) + plan[16:25] + b"\x03" + plan[26:],  # 10.3, it says
    }


def test_damaged_plans_are_refused_and_leak_nothing(tmp_path) -> None:
    plan = affine(tmp_path / "affine.plan").read_bytes()
    path = tmp_path / "damaged.plan"

    def refused(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(ModelLoadError) as refusal:
            opened(path, "damaged")
        return str(refusal.value)

    kinds = damaged(plan)
    words = {"truncated": "build it again here", "foreign": "does not begin as a plan does"}
    words["version"] = f"built with TensorRT 10.3.0.26, running {trt.__version__}: build it again"
    for kind, told in words.items():
        text = refused(kinds[kind])
        assert trt.__version__ in text and "NVIDIA" in text and told in text
    before = the_device().used_bytes()
    for _ in range(100):
        refused(kinds["truncated"])
    assert the_device().used_bytes() - before <= before * 0.05


def test_load_infer_unload_fifty_times_returns_to_the_baseline(tmp_path) -> None:
    path = affine(tmp_path / "affine.plan")
    with running([opened(path, "stays")], device_config()) as service:
        models = service._worker._models
        models.remove(models.add(opened(path, "comes")))
        before = the_device().used_bytes()
        for _ in range(50):
            models.remove(models.add(opened(path, "comes")))
        assert the_device().used_bytes() <= before * 1.05
        assert ask_from_threads(service.address, ["stays"], requests=20, width=WIDTH) == []


def test_a_cap_that_is_too_small_is_told_with_the_numbers(tmp_path) -> None:
    path = affine(tmp_path / "affine.plan")
    with pytest.raises(NoRoom, match=r"needs .* MB.*gpu_memory_limit is 1 MB.*free"):
        with running([opened(path, gpu_memory_limit=1 << 20)], device_config()):
            pass
