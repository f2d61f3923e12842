"""The unmodified tritonclient and model control: what Triton's own example of it asks, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import triton_repository as repositories
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from wire import rows

from service.config import ServeConfig
from service.inprocess import running

NAMES = (
    "densenet_onnx",
    "inception_onnx",
    "simple",
    "simple_dyna_sequence",
    "simple_identity",
    "simple_int8",
    "simple_sequence",
    "simple_string",
)


@pytest.fixture
def client(frontend: str, tmp_path: Path) -> Iterator[triton.InferenceServerClient]:
    repository = tmp_path / "repository"
    for name in NAMES:
        repositories.put(repository, name, {1: 1.0}, "max_batch_size: 8")
    settings = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}
    config = ServeConfig((str(repository),), frontend=frontend, model_control_mode="explicit", **settings)
    with running([], config) as service:
        client = triton.InferenceServerClient(service.address)
        yield client
        client.close()


def adds(client: triton.InferenceServerClient, name: str) -> float:
    """What the model adds to its input."""
    x = triton.InferInput("x", (1, 4), "FP32")
    x.set_data_from_numpy(rows(1))
    return float((client.infer(name, [x]).as_numpy("y") - rows(1))[0, 0])


def states(client: triton.InferenceServerClient) -> dict[str, tuple[str, str]]:
    return {row.name: (row.state, row.reason) for row in client.get_model_repository_index().models}


def refused(client: triton.InferenceServerClient, name: str, **how) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(name, **how)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def test_the_example_of_model_control(client) -> None:
    assert states(client) == dict.fromkeys(NAMES, ("UNAVAILABLE", "not loaded"))
    client.load_model("simple")
    assert client.is_model_ready("simple")
    assert client.get_model_config("simple").config.max_batch_size == 8
    code, words = refused(client, "simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
    assert (code, "failed to load" in words) == ("INTERNAL", True)
    assert client.is_model_ready("simple")
    client.load_model("simple", config='{"max_batch_size":"16"}')
    assert client.is_model_ready("simple")
    assert client.get_model_config("simple").config.max_batch_size == 16
    assert adds(client, "simple") == 1.0
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    assert states(client)["simple"] == ("UNAVAILABLE", "unloaded")
    assert "failed to load" in refused(client, "wrong_model_name")[1]


def test_files_in_place_of_the_models_own(client, tmp_path: Path) -> None:
    repositories.adds(tmp_path / "given.onnx", 9.0)
    given = (tmp_path / "given.onnx").read_bytes()
    client.load_model("simple", config='{"backend":"onnxruntime"}', files={"file:7/model.onnx": given})
    assert adds(client, "simple") == 9.0
    assert client.is_model_ready("simple", "7")
    assert not client.is_model_ready("simple", "1")
    client.load_model("simple")
    assert adds(client, "simple") == 1.0


def test_a_file_with_a_name_that_no_file_system_has(client) -> None:
    long = {f"file:1/{'a' * 256}": b"content"}
    code, words = refused(client, "simple", config='{"backend":"onnxruntime"}', files=long)
    assert code == "INTERNAL"
    assert "failed to load 'simple', failed to poll from model repository" in words
    assert client.is_server_live()
    assert client.is_server_ready()
    client.load_model("simple")
    assert adds(client, "simple") == 1.0
