"""TensorRT plans on a real device, built here from small ONNX models, through the whole service."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper

from service.client import Client, RpcFailed
from service.engines.base import ModelLoadError
from service.inprocess import running
from service.models.counts import GRAPH_HITS, GRAPH_MISSES

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)
from device_models import ask_from_threads, device_config
from plan_models import WIDTH, affine, build, onnx_model, opened, perceptron, trt, value

from service.cuda.device import choose, close_device, the_device
from service.engines.tensorrt_runtime import known


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    yield
    close_device()
    choose()


@pytest.mark.timeout(600)
def test_answers_from_eight_threads_are_their_own(tmp_path) -> None:
    path = affine(tmp_path / "affine.plan")
    with running([opened(path, "a"), opened(path, "b", batch_sizes=(8, 16))], device_config()) as service:
        wrong = ask_from_threads(service.address, ["a", "b"], requests=10_000, width=WIDTH)
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
    whole = device_config(status_codes="triton")  # nothing is split
    with running([opened(path)], whole) as service, Client(service.address) as client:
        with pytest.raises(RpcFailed) as refused:
            client.infer("affine", {"x": large})
        assert refused.value.code == "INVALID_ARGUMENT"


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
        with pytest.raises(RpcFailed, match=r"\[16, 100\].*101") as refused:
            client.infer("vary", {"x": np.ones((1, 101), np.float32)})
        assert refused.value.code == "INVALID_ARGUMENT"


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


def test_two_plans_that_share_a_streams_scratch(tmp_path) -> None:
    """By turns, a hundred times each: bit for bit what each of them answers alone."""
    names = ("first", "second")
    paths = [perceptron(tmp_path / f"{name}.plan", seed) for seed, name in enumerate(names)]
    x = np.random.default_rng(2).standard_normal((8, WIDTH)).astype(np.float32)
    alone = []
    for name, path in zip(names, paths, strict=True):
        choose(stream_count=1)
        with running([opened(path, name)], device_config(streams=1)) as service:
            with Client(service.address) as client:
                alone.append(client.infer(name, {"x": x}).outputs["y"])
        close_device()
    choose(stream_count=1)
    engines = [opened(path, name) for name, path in zip(names, paths, strict=True)]
    assert all(engine.scratch_bytes > 0 for engine in engines)
    with running(engines, device_config(streams=1)) as service, Client(service.address) as client:
        for _ in range(100):
            for name, expected in zip(names, alone, strict=True):
                np.testing.assert_array_equal(client.infer(name, {"x": x}).outputs["y"], expected)


def damaged(plan: bytes) -> dict[str, bytes]:
    middle = len(plan) // 2

    def flip(part: bytes) -> bytes:
        return bytes(byte ^ 0xFF for byte in part)

    return {
        "truncated": plan[:middle],
        "corrupt": plan[:32] + flip(plan[32:]),
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
    for kind in ("truncated", "corrupt"):
        for _ in range(100):
            refused(kinds[kind])
    assert the_device().used_bytes() - before <= before * 0.05
