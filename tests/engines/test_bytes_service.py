"""BYTES through the whole service, into ONNX Runtime and into a Python model: the unmodified tritonclient for
raw contents, raw gRPC for typed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import engine_models as models
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from engine_queue import objects
from python_rig import write_model
from tritonclient.utils import InferenceServerException

from service._pb import inference as pb
from service.config import FRONTENDS, ServeConfig
from service.engines.base import Engine, open_engine
from service.engines.python import open_python
from service.inprocess import running
from service.models.spec import ModelSpec, TensorSpec
from service.models.wanted import Wanted

LIMIT_S = 60
IDENTITY = """
    class Model:
        def execute(self, inputs):
            return {"y": inputs["x"]}
"""
TEXTS = [b"", b"a", "\N{SNOWMAN}".encode(), b"a\0b\0", b"x" * 5000, b"last"]


def onnx_identity(folder: Path) -> Engine:
    return open_engine(models.strings(folder / "m.onnx"), name="ident_bytes", wanted=Wanted(max_batch_size=4))


def python_identity(folder: Path) -> Engine:
    x, y = TensorSpec("x", "BYTES", (2,)), TensorSpec("y", "BYTES", (2,))
    spec = ModelSpec("ident_bytes", "1", "python", "python", 4, (x,), (y,))
    return open_python(write_model(folder, IDENTITY), spec)


@pytest.fixture(params=[onnx_identity, python_identity])
def engine(request: pytest.FixtureRequest) -> Callable[[Path], Engine]:
    return request.param


@pytest.fixture(params=FRONTENDS)
def address(
    request: pytest.FixtureRequest, tmp_path: Path, engine: Callable[[Path], Engine]
) -> Iterator[str]:
    settings = ServeConfig(
        (), frontend=request.param, arena_mb=16, output_arena_mb=16, grpc_port=0, metrics_port=0
    )
    with running([engine(tmp_path)], settings) as service:
        yield service.address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
        yield client


def infer(client: triton.InferenceServerClient, x: np.ndarray) -> np.ndarray:
    value = triton.InferInput("x", x.shape, "BYTES")
    value.set_data_from_numpy(x)
    return client.infer("ident_bytes", [value], client_timeout=LIMIT_S).as_numpy("y")


def test_what_is_said_of_the_model(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("ident_bytes")
    assert [(t.datatype, list(t.shape)) for t in (*metadata.inputs, *metadata.outputs)] == [
        ("BYTES", [-1, 2])
    ] * 2
    assert (
        client.get_model_config("ident_bytes", as_json=True)["config"]["input"][0]["data_type"]
        == "TYPE_STRING"
    )


@pytest.mark.parametrize("rows", [1, 3, 4, 11, 0])
def test_raw_contents(client: triton.InferenceServerClient, rows: int) -> None:
    x = objects([TEXTS[n % len(TEXTS)] + b"%d" % n for n in range(2 * rows)], (rows, 2))
    answer = infer(client, x)
    assert answer.shape == x.shape and answer.tolist() == x.tolist()


def test_many_requests_at_once_get_their_own(client: triton.InferenceServerClient) -> None:
    sent = [
        objects([b"%d.%d" % (number, n) * number for n in range(2 * (1 + number % 3))], (-1, 2))
        for number in range(40)
    ]
    with ThreadPoolExecutor(8) as pool:
        for x, answer in zip(sent, pool.map(partial(infer, client), sent), strict=True):
            assert answer.tolist() == x.tolist()


def test_typed_contents(address: str) -> None:
    request = pb.ModelInferRequest(model_name="ident_bytes")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[3, 2])
    tensor.contents.bytes_contents.extend(TEXTS)
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(call(request.SerializeToString(), timeout=LIMIT_S))
    expected = b"".join(len(text).to_bytes(4, "little") + text for text in TEXTS)
    assert list(answer.raw_output_contents) == [expected]
    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("BYTES", [3, 2])


@pytest.mark.parametrize("engine", [python_identity])
def test_bytes_that_are_no_text_stay_what_they_are(client: triton.InferenceServerClient) -> None:
    x = objects([bytes(range(256)), b"\xff\xfe", b"\xc3\x28", b"\x80"], (2, 2))
    assert infer(client, x).tolist() == x.tolist()


@pytest.mark.parametrize("engine", [onnx_identity])
def test_bytes_that_are_no_text_are_named(client: triton.InferenceServerClient) -> None:
    with pytest.raises(
        InferenceServerException, match=r"'x' .* takes text: expected UTF-8, got other bytes in element 2"
    ):
        infer(client, objects([b"a", b"b", b"\xc3\x28", b"c"], (2, 2)))
    x = objects([b"still", b"there"], (1, 2))
    assert infer(client, x).tolist() == x.tolist()
