"""BF16 through the onnxruntime engine: bits in, the same bits out; arithmetic where the model does some."""

from __future__ import annotations

from pathlib import Path

import engine_models as models
import numpy as np
import pytest
from engine_fakes import FakeBatch

from service.engines.base import open_engine
from service.engines.bfloat16 import rounded, widened
from service.inprocess import running
from service.models.wanted import Wanted

# 0, -0, inf, -inf, a NaN, the smallest subnormal, the largest and the smallest number, 1.0
BITS = np.array([[0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 1, 0x7F7F, 0xFF7F, 0x3F80]], np.uint16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_every_bit_pattern_comes_back(path: Path) -> None:
    engine = open_engine(models.identity(path, models.T.BFLOAT16), name="m", wanted=Wanted())
    assert [tensor.datatype for tensor in (*engine.spec.inputs, *engine.spec.outputs)] == ["BF16", "BF16"]
    width = engine.spec.inputs[0].dims[0]
    every = np.arange(1 << 16, dtype=np.uint16)[: (1 << 16) // abs(width) * abs(width)]
    batch = FakeBatch([every[: 32 * abs(width)].reshape(32, -1)])
    engine.create_instance(0).execute(batch)  # type: ignore[arg-type]
    assert np.array_equal(batch.output(0, np.uint16), batch.requests[0][0])


def test_a_model_that_calculates_batches(path: Path) -> None:
    """Casts up, doubles, casts down: rows are found to be independent by float32 test inputs."""
    h, kind = models.h, models.T.BFLOAT16
    nodes = [
        h.make_node("Cast", ["x"], ["wide"], to=models.F),
        h.make_node("Add", ["wide", "wide"], ["sum"]),
        h.make_node("Cast", ["sum"], ["y"], to=kind),
    ]
    models.save(path, nodes, [("x", kind, ["N", 3])], [("y", kind, ["N", 3])])
    engine = open_engine(str(path), name="m", wanted=Wanted())
    assert engine.spec.max_batch_size == 32
    one, two = 0x3F80, 0x4000  # 1.0 and 2.0
    batch = FakeBatch([np.full((1, 3), one, np.uint16)], [np.full((2, 3), two, np.uint16)])
    engine.create_instance(0).execute(batch)  # type: ignore[arg-type]
    assert batch.output(0, np.uint16).tolist() == [[two] * 3, [0x4080] * 3, [0x4080] * 3]


def test_through_the_whole_service(path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    from service._pb import inference as pb

    kind = models.T.BFLOAT16
    nodes = [models.h.make_node("Identity", ["x"], ["y"])]
    models.save(path, nodes, [("x", kind, ["N", 9])], [("y", kind, ["N", 9])])
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[BITS.tobytes()])
    request.inputs.add(name="x", datatype="BF16", shape=[1, 9])
    prefix = "/inference.GRPCInferenceService/"
    with running([open_engine(str(path), name="m", wanted=Wanted())]) as service:
        channel = grpc.insecure_channel(service.address, [("grpc.enable_http_proxy", 0)])
        answer = channel.unary_unary(prefix + "ModelInfer")(request.SerializeToString(), timeout=60)
        config = channel.unary_unary(prefix + "ModelConfig")(
            pb.ModelConfigRequest(name="m").SerializeToString(), timeout=60
        )
        channel.close()
    response = pb.ModelInferResponse.FromString(answer)
    assert response.outputs[0].datatype == "BF16"
    assert response.raw_output_contents[0] == BITS.tobytes()
    assert pb.ModelConfigResponse.FromString(config).config.input[0].data_type == 14  # TYPE_BF16


def test_numbers_are_rounded_to_the_nearest_and_ties_to_even() -> None:
    bits = [0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F818000, 0xBF818000, 0x7F7FFFFF, 0xFF800000]
    nearest = [0x3F80, 0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF82, 0x7F80, 0xFF80]
    assert rounded(np.array(bits, np.uint32).view(np.float32)).tolist() == nearest


def test_a_nan_stays_one() -> None:
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC10000], np.uint32)
    assert rounded(bits.view(np.float32)).tolist() == [0x7FC0, 0xFFFF, 0x7FC1]


def test_every_bit_pattern_is_the_nearest_to_itself() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(rounded(widened(every)), every)


def test_the_shape_is_kept() -> None:
    for shape in ((), (0, 3), (2, 1, 3)):
        assert widened(rounded(np.ones(shape, np.float32))).shape == shape
    assert rounded(np.asfortranarray([[1, 2], [3, 4]], np.float32)).tolist() == [
        [0x3F80, 0x4000],
        [0x4040, 0x4080],
    ]
