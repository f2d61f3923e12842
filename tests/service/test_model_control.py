"""Loading and unloading over gRPC: what clients see, whatever is in flight meanwhile."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
import triton_repository as repositories
from scripted import LIMIT_S, ScriptedEngine, affine
from waiting import wait_until
from wire import Wire, done_response, infer_request, output, queue, rows

from service._pb import inference as pb
from service.config import ServeConfig
from service.errors import StartError
from service.inprocess import InProcess, running
from service.models.repository import Found
from service.worker.library import open_model


class Control:
    """A service under explicit control, and a client of it that loads and unloads."""

    def __init__(self, service: InProcess) -> None:
        self.service = service
        self.wire = Wire(service.address)

    def load(self, name: str, config: object = None, files: dict[str, bytes] | None = None, **more) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=name, **more)
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config)
            request.parameters["config"].string_param = text
        for path, data in (files or {}).items():
            request.parameters[path].bytes_param = data
        self.wire.call("RepositoryModelLoad", request)

    def unload(self, name: str, **more) -> None:
        self.wire.call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=name, **more))

    def index(self, **more) -> list[tuple[str, str, str, str]]:
        response = self.wire.call("RepositoryIndex", pb.RepositoryIndexRequest(**more))
        return [(m.name, m.version, m.state, m.reason) for m in response.models]

    def state(self, name: str) -> list[tuple[str, str, str]]:
        return [row[1:] for row in self.index() if row[0] == name]

    def is_ready(self, name: str) -> bool:
        return self.wire.call("ModelReady", pb.ModelReadyRequest(name=name)).ready

    def adds(self, name: str) -> float:
        """What the model adds to its input."""
        return float(output(self.wire.infer(infer_request(name, x=np.zeros((1, 4), np.float32))))[0, 0])

    def max_batch(self, name: str) -> int:
        return self.wire.call("ModelConfig", pb.ModelConfigRequest(name=name)).config.max_batch_size


NOT_READY = "Request for unknown model: 'one' version 1 is not at ready state"


def refused(call: Callable, *arguments, **named) -> tuple[str, str]:
    """Status and words of a call that must fail."""
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **named)
    return raised.value.code().name, raised.value.details()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    repositories.put(repository, "one", {1: 1.0})
    repositories.put(repository, "two", {1: 2.0, 2: 3.0}, "version_policy { all { } }")
    repositories.put(repository, "torn", {1: 1.0})
    (repository / "torn" / "1" / "model.onnx").write_bytes(b"torn")
    return repository


@pytest.fixture
def start(frontend: str, folder: Path) -> Iterator[Callable[..., Control]]:
    with ExitStack() as stack:

        def start_one(*load: str, open_one: Callable = open_model, **settings) -> Control:
            settings = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0,
                        "model_control_mode": "explicit", "load_models": load, **settings}  # fmt: skip
            config = ServeConfig((str(folder),), frontend=frontend, **settings)
            control = Control(stack.enter_context(running([], config, open_one)))
            stack.callback(control.wire.close)
            return control

        yield start_one


@pytest.fixture
def scripted(start, folder: Path):
    """scripted(): under control, with engines of the test's own: y = 2x + 1. `engines` has them by name."""
    engines: dict[str, list[ScriptedEngine]] = {}

    def open_one(found: Found) -> ScriptedEngine:
        engine = affine(found.name, version=found.version)
        engines.setdefault(found.name, []).append(engine)
        return engine

    def start_scripted(*load: str, **settings):
        return start(*load, open_one=open_one, **settings), engines

    yield start_scripted
    for loaded in engines.values():
        for engine in loaded:
            engine.gate.open()


# ---- the index ----


def test_nothing_is_loaded_at_first_and_everything_is_in_the_index(start) -> None:
    control = start()
    assert control.wire.call("ServerReady").ready
    assert control.index() == [(name, "", "UNAVAILABLE", "not loaded") for name in ("one", "torn", "two")]
    assert control.index(ready=True) == []
    assert not control.is_ready("one")
    assert control.wire.error(infer_request("one", x=rows(1)))[0] == "NOT_FOUND"


def test_what_load_model_names_is_loaded_at_the_start(start) -> None:
    control = start("two")
    assert control.index(ready=True) == [("two", "1", "READY", ""), ("two", "2", "READY", "")]
    assert control.state("one") == [("", "UNAVAILABLE", "not loaded")]
    assert control.adds("two") == 3.0


@pytest.mark.parametrize(("load", "words"), [("three", "--load-model three"), ("*", "'torn'")])
def test_a_start_with_what_cannot_be_loaded_is_refused(start, load: str, words: str) -> None:
    with pytest.raises(StartError, match="one, torn, two" if load == "three" else "torn") as raised:
        start(load)
    assert words in str(raised.value)


def test_the_index_works_without_control_and_loading_does_not(start) -> None:
    control = start(model_control_mode="none")
    control.service.start_worker([affine("one"), affine("two", version="2")])
    wait_until(lambda: control.wire.call("ServerReady").ready)
    assert control.index(ready=True) == [("one", "1", "READY", ""), ("two", "2", "READY", "")]
    for call in (control.load, control.unload):
        code, text = refused(call, "one")
        assert code == "UNAVAILABLE"
        assert text.startswith("explicit model load / unload is not allowed if polling is enabled. ")
        assert "one started with --model-control-mode explicit lets clients load and unload" in text


def test_a_repository_of_its_own_name_cannot_be_chosen(start) -> None:
    control = start()
    for call in (control.load, control.unload):
        assert refused(call, "one", repository_name="other")[0] == "UNIMPLEMENTED"
    assert refused(control.index, repository_name="other")[0] == "UNIMPLEMENTED"


# ---- load and unload ----


def test_load_infer_unload(start) -> None:
    control = start()
    control.load("one")
    assert control.is_ready("one")
    assert control.adds("one") == 1.0
    control.unload("one")
    assert not control.is_ready("one")
    assert control.state("one") == [("1", "UNAVAILABLE", "unloaded")]
    code, text = control.wire.error(infer_request("one", x=rows(1)))
    words = "Request for unknown model: 'one' has no available versions: unloaded; no model is served"
    assert (code, text) == ("NOT_FOUND", words)
    code, text = control.wire.error(infer_request("one", version="1", x=rows(1)))
    assert (code, text) == ("UNAVAILABLE", f"{NOT_READY}: unloaded")
    assert control.wire.call("ServerReady").ready
    control.load("one")
    assert control.adds("one") == 1.0


def test_a_new_version_is_found_when_it_is_loaded_again(start, folder: Path) -> None:
    control = start("one")
    repositories.put(folder, "one", {7: 7.0})
    assert control.adds("one") == 1.0
    control.load("one")
    assert control.adds("one") == 7.0
    assert control.state("one") == [("7", "READY", "")]


def test_a_model_that_was_put_there_later_is_found(start, folder: Path) -> None:
    control = start()
    repositories.put(folder, "late", {1: 5.0})
    assert control.state("late") == [("", "UNAVAILABLE", "not loaded")]
    control.load("late")
    assert control.adds("late") == 5.0


def test_an_unknown_model_cannot_be_loaded_and_is_unloaded_already(start) -> None:
    control = start()
    for name in ("other", "../one", "one/1", ".", "..", "a" * 300, "a\0b"):
        code, text = refused(control.load, name)
        assert code == "INTERNAL"
        assert "failed to load '" in text
        assert "failed to poll from model repository" in text
        assert text.endswith(("; there is one, torn, two", "it cannot be the name of a model"))
    assert refused(control.load, "")[0] == "INVALID_ARGUMENT"
    control.unload("other")
    control.unload("one")
    assert [row[0] for row in control.index()] == ["one", "torn", "two"]


def test_a_broken_model_says_why_and_stays_out(start) -> None:
    control = start("one")
    code, text = refused(control.load, "torn")
    assert code == "INTERNAL"
    assert text.startswith("failed to load 'torn', ")
    assert "was not loaded by ONNX Runtime" in text
    ((_, state, reason),) = control.state("torn")
    assert state == "UNAVAILABLE"
    assert "was not loaded by ONNX Runtime" in reason
    assert control.wire.call("ServerReady").ready
    assert control.adds("one") == 1.0


def test_the_old_version_goes_on_serving_when_it_cannot_be_loaded_again(start, folder: Path) -> None:
    control = start("one")
    (folder / "one" / "1" / "model.onnx").write_bytes(b"torn")
    assert refused(control.load, "one")[0] == "INTERNAL"
    assert control.adds("one") == 1.0
    assert control.state("one") == [("1", "READY", "")]


# ---- overrides ----


def test_a_config_in_place_of_the_models_own(start) -> None:
    control = start("one")
    assert control.max_batch("one") == 32
    control.load("one", {"max_batch_size": "16"})
    assert control.max_batch("one") == 16
    control.load("one")
    assert control.max_batch("one") == 32


@pytest.mark.parametrize("config", ["{", "[]", '{"colour": 1}', '{"max_batch_size": -1}', '{"name": "x"}'])
def test_a_config_that_is_none_is_refused(start, config: str) -> None:
    control = start("one")
    code, text = refused(control.load, "one", config)
    assert code == "INTERNAL"
    assert text.startswith("failed to load 'one', ")
    assert "config" in text
    assert control.adds("one") == 1.0


def model_bytes(tmp_path: Path, what: float) -> bytes:
    repositories.adds(tmp_path / "given.onnx", what)
    return (tmp_path / "given.onnx").read_bytes()


def test_files_in_place_of_the_models_own(start, tmp_path: Path) -> None:
    control = start("one")
    control.load("one", {}, {"file:1/model.onnx": model_bytes(tmp_path, 9.0)})
    assert control.adds("one") == 9.0
    (home,) = os.scandir(control.service.folder)
    assert home.stat().st_mode & 0o777 == 0o700
    control.load("one")
    assert control.adds("one") == 1.0
    wait_until(lambda: not os.listdir(control.service.folder), "the end of the files")


def test_files_of_a_model_that_is_in_no_repository(start, tmp_path: Path) -> None:
    control = start()
    control.load("given", {"backend": "onnxruntime"}, {"file:3/model.onnx": model_bytes(tmp_path, 9.0)})
    assert control.adds("given") == 9.0
    assert control.state("given") == [("3", "READY", "")]
    control.unload("given")
    assert control.state("given") == []
    assert not os.listdir(control.service.folder)


def test_files_need_a_config(start, tmp_path: Path) -> None:
    control = start("one")
    code, text = refused(control.load, "one", None, {"file:1/model.onnx": b"x"})
    assert code == "INVALID_ARGUMENT"
    assert text == "Load parameter 'config' must be specified for model file override"


@pytest.mark.parametrize(
    "path",
    [
        "1/../../model.onnx",
        "../1/model.onnx",
        "/1/model.onnx",
        "1/" + "a" * 256,
        "model.onnx",
        "",
        "1//m",
        "1/a\0b",
    ],
)
def test_a_file_that_would_lie_elsewhere(start, tmp_path: Path, path: str) -> None:
    control = start("one")
    code, text = refused(control.load, "one", {}, {f"file:{path}": b"x"})
    assert code == "INTERNAL"
    assert "failed to load 'one', failed to poll from model repository" in text
    assert control.wire.call("ServerLive").live
    assert control.adds("one") == 1.0
    assert not os.listdir(control.service.folder)


def test_files_that_do_not_load_are_removed(start) -> None:
    control = start()
    for _ in range(50):
        assert refused(control.load, "given", {}, {"file:1/model.onnx": b"torn"})[0] == "INTERNAL"
    assert not os.listdir(control.service.folder)
    assert control.state("given") == []


def test_a_parameter_nobody_knows(start) -> None:
    control = start("one")
    request = pb.RepositoryModelLoadRequest(model_name="one")
    request.parameters["colour"].string_param = "blue"
    assert refused(control.wire.call, "RepositoryModelLoad", request)[0] == "INVALID_ARGUMENT"
    unload = pb.RepositoryModelUnloadRequest(model_name="one")
    unload.parameters["unload_dependents"].bool_param = True
    control.wire.call("RepositoryModelUnload", unload)
    assert not control.is_ready("one")


# ---- what is in flight ----


def test_an_unload_answers_what_it_had_accepted_and_refuses_what_is_new(scripted) -> None:
    """G 94."""
    control, engines = scripted("one")
    (engine,) = engines["one"]
    engine.gate.shut()
    futures = queue(control.service, control.wire, [infer_request("one", x=rows(1, i)) for i in range(8)])
    engine.gate.wait_until_held()
    unload = threading.Thread(target=control.unload, args=("one",))
    unload.start()
    wait_until(lambda: control.state("one") == [("1", "UNLOADING", "")], "unloading")
    wait_until(lambda: not control.is_ready("one"), "not ready")
    code, text = control.wire.error(infer_request("one", x=rows(1)))
    assert (code, "'one' has no available versions: it is being unloaded" in text) == ("NOT_FOUND", True)
    unloading = ("UNAVAILABLE", f"{NOT_READY}: it is being unloaded")
    assert control.wire.error(infer_request("one", version="1", x=rows(1))) == unloading
    assert (
        refused(control.wire.call, "ModelConfig", pb.ModelConfigRequest(name="one", version="1")) == unloading
    )
    assert engine.closed == 0
    engine.gate.open()
    for i, future in enumerate(futures):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, i) + 1)
    unload.join(LIMIT_S)
    assert control.state("one") == [("1", "UNAVAILABLE", "unloaded")]
    assert engine.closed == 1


def test_a_stream_hears_of_the_model_that_went_and_goes_on(scripted) -> None:
    control, engines = scripted("one", "two")
    engines["one"][0].gate.shut()
    stream = control.wire.stream()
    stream.send(infer_request("one", x=rows(1), id="held"))
    engines["one"][0].gate.wait_until_held()
    unload = threading.Thread(target=control.unload, args=("one",))
    unload.start()
    wait_until(lambda: not control.is_ready("one"), "not ready")
    stream.send(infer_request("one", x=rows(1), id="late"), infer_request("two", x=rows(1), id="other"))
    engines["one"][0].gate.open()
    held, late, other = stream.next(), stream.next(), stream.next()
    assert (held.infer_response.id, held.error_message) == ("held", "")
    assert late.infer_response.id == "late"
    assert "Request for unknown model: 'one'" in late.error_message
    assert (other.infer_response.id, other.error_message) == ("other", "")
    stream.half_close()
    assert stream.end()[0] == "OK"
    unload.join(LIMIT_S)


def test_the_old_one_answers_what_it_has_while_the_new_one_serves(scripted) -> None:
    control, engines = scripted("one")
    (old,) = engines["one"]
    old.gate.shut()
    (future,) = queue(control.service, control.wire, [infer_request("one", x=rows(1))])
    old.gate.wait_until_held()
    control.load("one")
    assert np.array_equal(output(control.wire.infer(infer_request("one", x=rows(1)))), 2 * rows(1) + 1)
    assert (old.closed, engines["one"][1].batches) == (0, [1])
    old.gate.open()
    assert np.array_equal(output(done_response(future)), 2 * rows(1) + 1)
    wait_until(lambda: old.closed == 1, "the end of the old one")


# ---- deaths ----


def test_a_worker_that_is_started_again_loads_what_was_loaded(start, folder: Path, tmp_path: Path) -> None:
    control = start("one", "two")
    control.load("one", {"max_batch_size": 4})
    control.load("given", {}, {"file:1/model.onnx": model_bytes(tmp_path, 9.0)})
    control.unload("two")
    ids = {entry.id for entry in control.service.frontend.catalog.entries}
    control.service.cut_link()
    assert all(row[2] == "UNAVAILABLE" for row in control.index())
    assert control.wire.error(infer_request("one", x=rows(1)))[0] == "UNAVAILABLE"
    assert refused(control.load, "two")[0] == "UNAVAILABLE"
    control.service.stop_worker()
    control.service.start_worker([])
    assert control.max_batch("one") == 4
    assert control.adds("given") == 9.0
    assert [row[0] for row in control.index(ready=True)] == ["given", "one"]
    assert not ids & {entry.id for entry in control.service.frontend.catalog.entries}


def test_a_model_that_does_not_load_again_keeps_nobody_down(start, folder: Path) -> None:
    control = start("one", "two")
    control.service.cut_link()
    control.service.stop_worker()
    model = folder / "one" / "1" / "model.onnx"
    whole = model.read_bytes()
    model.write_bytes(b"torn")
    control.service.start_worker([])
    assert control.adds("two") == 3.0
    ((_, state, reason),) = control.state("one")
    assert state == "UNAVAILABLE"
    assert "ONNX Runtime" in reason
    model.write_bytes(whole)
    control.load("one")
    assert control.adds("one") == 1.0


# ---- many of them ----


def test_metrics_have_no_series_of_a_model_that_is_gone(start) -> None:
    """F 92."""
    control = start("one")

    def series() -> int:
        frontend = control.service.frontend
        return len(frontend._snapshot().models)

    control.load("two")
    assert series() == 3
    control.unload("two")
    assert series() == 1
    control.wire.error(infer_request("unknown", x=rows(1)))
    assert series() == 1


def test_a_storm_of_loads_and_unloads_ends_where_the_index_says(scripted) -> None:
    control, engines = scripted("one")
    failures: list[str] = []

    def storm(number: int) -> None:
        wire = Wire(control.service.address)
        name = ("one", "two")[number % 2]
        for i in range(12):
            method = ("Load", "Unload")[(i + number // 2) % 2]
            request = getattr(pb, f"RepositoryModel{method}Request")(model_name=name)
            try:
                wire.call(f"RepositoryModel{method}", request)
            except grpc.RpcError as error:
                failures.append(f"{method} {name}: {error.details()}")
        wire.close()

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failures == []
    ready = {name for name, _, state, _ in control.index() if state == "READY"}
    assert {row[2] for row in control.index()} <= {"READY", "UNAVAILABLE"}
    for name in ("one", "two"):
        assert control.is_ready(name) == (name in ready)
        control.unload(name)
        wait_until(lambda n=name: all(engine.closed == 1 for engine in engines[n]), "all of them closed")


def test_requests_do_not_fail_while_the_model_is_loaded_again(start) -> None:
    """G 96, in short: the whole of it is in test_model_control_long.py."""
    control = start("one")
    stop = threading.Event()
    outcomes: list[str] = []

    def caller() -> None:
        wire = Wire(control.service.address)
        while not stop.is_set():
            try:
                response = wire.infer(infer_request("one", x=rows(2)))
                outcomes.append("right" if np.array_equal(output(response), rows(2) + 1) else "wrong")
            except grpc.RpcError as error:
                outcomes.append(error.details())
        wire.close()

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for size in (1, 2, 4, 8, 16):
        control.load("one", {"max_batch_size": size})
        assert control.max_batch("one") == size
        before = len(outcomes)
        wait_until(lambda b=before: len(outcomes) > b + 8, "more answers")
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert set(outcomes) == {"right"}
