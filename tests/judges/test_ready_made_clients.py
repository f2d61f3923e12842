"""Clients that know nothing of us, on a real service: grpcurl by reflection; ghz and perf_analyzer."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.demo.server import running

pytestmark = [pytest.mark.judge, pytest.mark.slow]

SERVICE = "inference.GRPCInferenceService"
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "contents": {"fp32_contents": [0, 1, 2, 3]}}
REQUEST = json.dumps({"model_name": "doubled", "inputs": [X]})
PERF_LIMITS = ["--request-count", "200"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with `doubled`: y = 2x on FP32 [N, 4]."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
    node = helper.make_node("Mul", ["x", "two"], ["y"])
    two = numpy_helper.from_array(np.float32(2), "two")
    graph = helper.make_graph([node], "doubled", tensors[:1], tensors[1:], [two])
    path: Path = tmp_path_factory.mktemp("model") / "any.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    with running(path, "doubled", ["--frontend", "native", "--max-batch-size", "8"]) as server:
        yield server.url


# ---- grpcurl: what it knows it was told by reflection ----


def test_grpcurl_lists_the_services(judge, url):
    found = judge("bin/grpcurl", "-plaintext", url, "list").split()
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= set(found)


@pytest.mark.parametrize("symbol", [SERVICE, f"{SERVICE}.ModelInfer", "inference.ModelInferRequest"])
def test_grpcurl_describes(judge, url, symbol):
    found = judge("bin/grpcurl", "-plaintext", url, "describe", symbol)
    assert found.startswith(f"{symbol} is a ")
    assert "ModelInferRequest" in found


def test_grpcurl_infers(judge, url):
    answer = json.loads(judge("bin/grpcurl", "-plaintext", "-d", REQUEST, url, f"{SERVICE}/ModelInfer"))
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": ["1", "4"]}]
    (raw,) = answer["rawOutputContents"]
    assert struct.unpack("<4f", base64.b64decode(raw)) == (0, 2, 4, 6)


# ---- ghz ----


def test_ghz_gets_an_answer_to_each_request(judge, url):
    load = ["-n", "2000", "-c", "20", "--connections", "4", "-O", "json"]
    found = judge("bin/ghz", "--insecure", "--call", f"{SERVICE}.ModelInfer", "-d", REQUEST, *load, url)
    report = json.loads(found)
    assert report["count"] == 2000
    assert report["statusCodeDistribution"] == {"OK": 2000}
    assert not report["errorDistribution"]


# ---- perf_analyzer ----


@pytest.fixture
def perf(judge, program):
    """perf(*arguments): how many requests perf_analyzer counts, after it has run to a good end."""
    libraries = Path(program("perf"), "nvidia", "cuda_runtime", "lib")
    if find_library("b64") is None:
        pytest.skip("needs libb64.so.0d (Debian: libb64-0d)")

    def run(url: str, *arguments: str) -> int:
        command = ["-m", "doubled", "-u", url, "-i", "grpc", *arguments, *PERF_LIMITS]
        found = judge("perf/bin/perf_analyzer", *command, LD_LIBRARY_PATH=str(libraries))
        assert "error" not in found.lower()
        return sum(int(line.split()[-1]) for line in found.splitlines() if "    Request count:" in line)

    return run


def test_perf_analyzer_unary(perf, url):
    assert perf(url, "--concurrency-range", "4") >= 200


def test_perf_analyzer_streams(perf, url):
    assert perf(url, "--streaming", "--concurrency-range", "4") >= 200


def test_perf_analyzer_at_a_rate(perf, url):
    assert perf(url, "--request-rate-range", "200") >= 200
