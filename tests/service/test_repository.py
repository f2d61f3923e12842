"""A model repository served: versions, configs, padding, and what clients are told of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import triton_repository as repositories
from scripted import affine
from waiting import wait_until
from wire import Wire, hold, infer_request, output, queue, rows, status_of

from service._pb import inference as pb
from service._pb import model_config
from service.config import ServeConfig
from service.demo.server import started
from service.errors import StartError
from service.worker.__main__ import notes_about, open_engines
from service.worker.worker import Worker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def served(serve_paths: Callable[..., Wire], folder: Path) -> Callable[..., Wire]:
    """served(*more paths): the repository as it is now, in a running service; returns a client of it."""
    return lambda *more: serve_paths(folder, *more)


def config_of(wire, name: str, version: str = ""):
    return wire.call("ModelConfig", pb.ModelConfigRequest(name=name, version=version)).config


def stats_of(wire, name: str):
    return wire.call("ModelStatistics", pb.ModelStatisticsRequest(name=name)).model_stats[0]


def test_a_repository_without_any_config(served, folder: Path) -> None:
    repositories.put(folder, "plus", {1: 1.0})
    wire = served()
    response = wire.infer(infer_request("plus", x=rows(3)))
    assert np.array_equal(output(response), rows(3) + 1)
    said = config_of(wire, "plus")
    assert (said.name, said.backend, said.platform) == ("plus", "onnxruntime", "onnxruntime_onnx")
    assert said.max_batch_size == 32
    assert said.HasField("dynamic_batching")
    assert list(said.input[0].dims) == [4]


def test_no_version_is_the_highest_number(served, folder: Path) -> None:
    repositories.put(folder, "plus", {2: 2.0, 9: 9.0, 10: 10.0}, "version_policy { all { } }")
    wire = served()
    for version, added in (("", 10), ("10", 10), ("2", 2), ("9", 9)):
        response = wire.infer(infer_request("plus", version=version, x=rows(1)))
        assert response.model_version == (version or "10")
        assert np.array_equal(output(response), rows(1) + added)
    metadata = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="plus"))
    assert list(metadata.versions) == ["2", "9", "10"]
    assert wire.error(infer_request("plus", version="3", x=rows(1)))[0] == "NOT_FOUND"


def test_only_the_latest_is_served_by_default(served, folder: Path) -> None:
    repositories.put(folder, "plus", {1: 1.0, 2: 2.0})
    wire = served()
    assert wire.error(infer_request("plus", version="1", x=rows(1)))[0] == "NOT_FOUND"
    assert np.array_equal(output(wire.infer(infer_request("plus", x=rows(1)))), rows(1) + 2)


def test_files_beside_repositories(served, folder: Path, tmp_path: Path) -> None:
    repositories.put(folder, "plus", {1: 1.0})
    repositories.adds(tmp_path / "minus.onnx", -1.0)
    wire = served(str(tmp_path / "minus.onnx"))
    assert np.array_equal(output(wire.infer(infer_request("minus", x=rows(1)))), rows(1) - 1)
    assert np.array_equal(output(wire.infer(infer_request("plus", x=rows(1)))), rows(1) + 1)


def test_the_users_config_comes_back_with_what_was_derived(served, folder: Path) -> None:
    text = """
    max_batch_size: 8
    dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 2000000 }
    input [ { name: "x" data_type: TYPE_FP32 } ]
    instance_group [ { kind: KIND_GPU count: 2 } ]
    metric_tags { key: "team" value: "birds" }
    parameters { key: "speed" value { string_value: "11" } }
    optimization { cuda { graphs: true } }
    """
    repositories.put(folder, "plus", {3: 1.0}, text)
    engines = open_engines(ServeConfig((str(folder),)))
    (spec,) = [engine.spec for engine in engines]
    assert (spec.instances, spec.max_batch_wait_us, spec.max_batch_size) == (2, 2_000_000, 8)
    assert any("which is 2 s" in warning for warning in spec.warnings)
    assert any("'optimization'" in warning for warning in spec.warnings)
    worker = Worker(engines, output_arena_mb=16)
    notes = notes_about(worker)  # what the log says
    worker.stop()
    assert len(notes) == len(spec.warnings) == 6
    assert all(note.startswith("model 'plus': ") for note in notes)
    wire = served()
    said = config_of(wire, "plus")
    assert said.dynamic_batching.max_queue_delay_microseconds == 2_000_000
    assert list(said.dynamic_batching.preferred_batch_size) == [4, 8]
    assert (said.instance_group[0].count, said.instance_group[0].kind) == (2, 1)
    assert (said.metric_tags["team"], said.parameters["speed"].string_value) == ("birds", "11")
    assert said.optimization.cuda.graphs
    assert (list(said.input[0].dims), list(said.output[0].dims)) == ([4], [4])
    assert (said.output[0].name, said.output[0].data_type) == ("y", model_config.TYPE_FP32)
    assert said.platform == "onnxruntime_onnx"


def test_batches_without_dynamic_batching_in_the_config(served, folder: Path) -> None:
    repositories.put(folder, "plus", {1: 1.0}, "max_batch_size: 4")
    wire = served()
    assert config_of(wire, "plus").HasField("dynamic_batching")
    assert np.array_equal(output(wire.infer(infer_request("plus", x=rows(6)))), rows(6) + 1)
    assert stats_of(wire, "plus").execution_count == 2  # 4 + 2, or 3 + 3
    assert stats_of(wire, "plus").inference_count == 6


def test_an_explicit_0_turns_batching_off(served, folder: Path) -> None:
    repositories.put(folder, "plus", {1: 1.0}, "max_batch_size: 0")
    repositories.put(folder, "dims", {1: 1.0}, "input { name: 'x' dims: [ -1, 4 ] }")
    wire = served()
    for name in ("plus", "dims"):
        said = config_of(wire, name)
        assert (said.max_batch_size, list(said.input[0].dims)) == (0, [-1, 4])
        assert not said.HasField("dynamic_batching")
        assert np.array_equal(output(wire.infer(infer_request(name, x=rows(3)))), rows(3) + 1)


def test_preferred_sizes_hold_nobody_up(serve) -> None:
    """B 20: what waits when a launch slot is free runs as one batch, at no preferred size, and at once."""
    engine = affine(max_batch_size=8)
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    waiting = queue(service, wire, [infer_request("affine", x=rows(1)) for _ in range(3)])
    engine.gate.open()
    assert [status_of(future) for future in [first, *waiting]] == ["OK"] * 4
    assert engine.batches == [1, 3]


def test_a_batch_below_every_preferred_size_runs_at_the_delay(served, folder: Path) -> None:
    """The same in a config: nothing but the delay holds three rows back."""
    text = "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 1000 }"
    repositories.put(folder, "plus", {1: 1.0}, text)
    wire = served()
    assert np.array_equal(output(wire.infer(infer_request("plus", x=rows(3)))), rows(3) + 1)
    assert [size.batch_size for size in stats_of(wire, "plus").batch_stats] == [3]


def test_a_fixed_batch_dimension_is_padded_and_the_padding_is_not_counted(served, folder: Path) -> None:
    """B 28."""
    repositories.put(folder, "plus", {1: 1.0}, batch=4)
    wire = served()
    assert config_of(wire, "plus").max_batch_size == 4
    assert config_of(wire, "plus").parameters["allowed_batch_sizes"].string_value == "4"
    response = wire.infer(infer_request("plus", x=rows(3)))
    assert list(response.outputs[0].shape) == [3, 4]
    assert np.array_equal(output(response), rows(3) + 1)
    assert (stats_of(wire, "plus").inference_count, stats_of(wire, "plus").execution_count) == (3, 1)
    assert [size.batch_size for size in stats_of(wire, "plus").batch_stats] == [4]  # what was executed
    assert np.array_equal(output(wire.infer(infer_request("plus", x=rows(11)))), rows(11) + 1)
    wait_until(lambda: stats_of(wire, "plus").inference_count == 14)


def test_dims_of_the_config_bind_clients_where_the_model_is_open(served, folder: Path) -> None:
    repositories.put(folder, "plus", {1: 1.0}, "input { name: 'x' dims: [ 6 ] }", width="w")
    wire = served()
    metadata = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="plus"))
    assert list(metadata.inputs[0].shape) == [-1, 6]
    assert np.array_equal(output(wire.infer(infer_request("plus", x=rows(2, width=6)))), rows(2, width=6) + 1)
    assert wire.error(infer_request("plus", x=rows(2)))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("input { name: 'z' }", ["input 'z'", "the model has 'x'"]),
        ("input { name: 'x' data_type: TYPE_INT8 }", ["input 'x'", "INT8", "FP32"]),
        ("max_batch_size: 2 input { name: 'x' dims: [ 5 ] }", ["input 'x'", "[5]", "[4]"]),
        ("input { name: 'x' dims: [ -1 ] }", ["input 'x'", "[-1]", "[4]"]),
        ("output { name: 'y' dims: [ 4, 1 ] }", ["output 'y'", "[4, 1]", "[4]"]),
        ("output { name: 'w' }", ["output 'w'", "the model has 'y'"]),
        ("max_batch_size: 9 input { name: 'x' dims: [ -1, 4 ] }", ["input 'x'", "[-1, 4]", "batch axis"]),
    ],
)
def test_a_config_that_is_not_of_this_model(folder: Path, config: str, words: list[str]) -> None:
    repositories.put(folder, "plus", {1: 1.0}, config)
    with pytest.raises(StartError) as raised:
        open_engines(ServeConfig((str(folder),)))
    assert all(word in str(raised.value) for word in ["'plus'", *words])


def test_a_batch_size_that_the_model_cannot_do(folder: Path) -> None:
    repositories.put(folder, "fixed", {1: 1.0}, "max_batch_size: 8", batch=1)
    with pytest.raises(StartError, match="cannot batch: axis 0 of input 'x' is fixed at 1"):
        open_engines(ServeConfig((str(folder),)))


def serve_and_fail(*paths: str) -> tuple[int, list[str]]:
    """Exit code and lines of a service that must not start."""
    command = [sys.executable, "-P", "-m", "service", "serve", *paths, "--grpc-port", "0"]
    ended = subprocess.run([*command, "--metrics-port", "0"], capture_output=True, text=True, timeout=60)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr.splitlines()


def test_a_start_names_every_faulty_model_at_once(folder: Path) -> None:
    repositories.put(folder, "good", {1: 1.0})
    repositories.put(folder, "slip", {1: 1.0}, "name: 'slip'\ncolour: 'blue'")
    repositories.put(folder, "stateful", {1: 1.0}, "sequence_batching { }")
    repositories.put(folder, "torn", {1: 1.0})
    (folder / "torn" / "1" / "model.onnx").write_bytes(b"torn")
    repositories.put(folder, "wrong", {1: 1.0}, "input { name: 'x' data_type: TYPE_INT8 }")
    code, lines = serve_and_fail(str(folder))
    assert code == 2
    assert len(lines) == 4
    for line, words in zip(
        lines,
        ["'slip'", "'stateful'", "'torn'", "'wrong'"],
        strict=True,
    ):
        assert line.startswith("headrace: model ") and words in line
    assert "line 2, column 1" in lines[0] and "colour" in lines[0]
    assert "'sequence_batching' is not served yet" in lines[1]


def test_an_empty_folder_does_not_start(tmp_path: Path) -> None:
    code, lines = serve_and_fail(str(tmp_path))
    assert code == 2
    assert "a directory without a model" in lines[0]


def test_the_whole_service_on_a_repository(folder: Path) -> None:
    """Real processes."""
    repositories.put(folder, "plus", {1: 1.0, 2: 2.0}, "version_policy { all { } } metric_tags { key: 'a' }")
    with started([sys.executable, "-P", "-m", "service", "serve", str(folder)]) as server:
        with grpc.insecure_channel(server.url) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            request = infer_request("plus", x=rows(2))
            answer = pb.ModelInferResponse.FromString(call(request.SerializeToString(), timeout=60))
        assert answer.model_version == "2"
        assert np.array_equal(output(answer), rows(2) + 2)
