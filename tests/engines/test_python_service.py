"""Python models in the real service: supervisor, front end, worker, and a child per instance."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from python_rig import AFFINE, BUSY, alive, rows
from waiting import LIMIT_S, wait_until

from service._pb import inference as pb
from service.config import ServeConfig
from service.models.spec import datatype_of_numpy

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SERVE = """
import sys
from service.config import ServeConfig
from service.supervisor import COMMANDS, WORKER, serve
sys.exit(serve(ServeConfig.from_json(sys.argv[1]), {**COMMANDS, WORKER: [sys.executable, *sys.argv[2:]]}))
"""
SERVICE = "/inference.GRPCInferenceService/"


EXAMPLES = str(HERE.parents[1] / "examples" / "python_models")


def write(folder: Path, models: dict[str, str]) -> tuple[str, ...]:
    """The paths of these models' files."""
    for name, source in models.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    return tuple(str(folder / f"{name}.py") for name in models)


def start(paths: tuple[str, ...], worker: str, ready_fd: int | None = None) -> subprocess.Popen[str]:
    config = ServeConfig(
        paths, grpc_port=0, metrics_port=0, arena_mb=16, output_arena_mb=16, ready_fd=ready_fd
    )
    return subprocess.Popen(
        [sys.executable, "-P", "-c", SERVE, config.to_json(), *worker.split()],
        pass_fds=[] if ready_fd is None else [ready_fd],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


@dataclass
class Service:
    process: subprocess.Popen[str]
    channel: grpc.Channel

    def call(self, method: str, request, answer, timeout: float = LIMIT_S):
        return self.begin(method, request, answer, timeout).result()

    def begin(self, method: str, request, answer, timeout: float = LIMIT_S):
        rpc = self.channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return rpc.future(request, timeout=timeout)

    def infer(self, model: str, x: np.ndarray, name: str = "x"):
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name=name, datatype=datatype_of_numpy(x.dtype), shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
        return self.begin("ModelInfer", request, pb.ModelInferResponse)

    def is_live(self) -> bool:
        return self.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live

    def instance(self) -> psutil.Process:
        """The process of the one instance there is."""
        (found,) = [
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if "service.engines.python_child" in " ".join(child.cmdline())
        ]
        return found


WITHOUT_CONFIG = str(HERE / "python_worker.py")
REAL = "-P -m service.worker"


@contextmanager
def serving(folder: Path, **models: str) -> Iterator[Service]:
    with serving_paths(write(folder, models), WITHOUT_CONFIG) as service:
        yield service


@contextmanager
def serving_paths(paths: tuple[str, ...], worker: str) -> Iterator[Service]:
    reader, writer = os.pipe()
    process = start(paths, worker, writer)
    os.close(writer)
    with os.fdopen(reader) as file:
        line = file.readline()
    try:
        assert line, process.communicate(timeout=LIMIT_S)[1]
        with grpc.insecure_channel(f"127.0.0.1:{json.loads(line)['grpc_port']}") as channel:
            yield Service(process, channel)
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.communicate()
        wait_until(lambda: not any(alive(child.pid) for child in children), "the end of every process")


def numbers(future) -> np.ndarray:
    response = future.result()
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)


def test_a_model_that_spins_stops_neither_the_server_nor_other_models(tmp_path: Path) -> None:
    """It spins in Python until the others have been answered."""
    with serving(tmp_path, busy=BUSY, affine=AFFINE) as service:
        spinning = service.infer("busy", rows(1))
        wait_until((tmp_path / "spins").exists, "the model's work")
        for number in range(50):
            assert service.is_live()
            assert np.array_equal(numbers(service.infer("affine", rows(2, number))), 2 * rows(2, number) + 1)
        assert not spinning.done()
        (tmp_path / "stop").touch()
        assert np.array_equal(numbers(spinning), rows(1))


def test_a_killed_instance_fails_what_it_held_and_the_model_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path, busy=BUSY) as service:
        held = service.infer("busy", rows(1))
        wait_until((tmp_path / "spins").exists, "the model's work")
        service.instance().send_signal(signal.SIGKILL)
        error = held.exception()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "model 'busy' lost its process in the middle of a batch of 1 row" in error.details()
        (tmp_path / "stop").touch()
        assert np.array_equal(numbers(service.infer("busy", rows(3))), rows(3))


def test_an_exception_reaches_the_client_and_its_traceback_the_log(tmp_path: Path) -> None:
    source = """
        class Model:
            def execute(self, inputs):
                raise ValueError("no luck")
    """
    with serving(tmp_path, unlucky=source) as service:
        error = service.infer("unlucky", rows(1)).exception()
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "model 'unlucky' failed: ValueError: no luck"
        service.process.send_signal(signal.SIGTERM)
        log = service.process.communicate(timeout=LIMIT_S)[1]
        assert service.process.returncode == 0
        assert "Traceback (most recent call last)" in log and "in execute" in log


def test_a_model_whose_initialize_fails_ends_the_start_with_2(tmp_path: Path) -> None:
    source = """
        class Model:
            def initialize(self, config):
                raise OSError("no weights")
            def execute(self, inputs):
                return inputs
    """
    process = start(write(tmp_path, {"affine": AFFINE, "broken": source}), WITHOUT_CONFIG)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 2
    assert f"headrace: model 'broken' ({tmp_path / 'broken.py'}) was not loaded: OSError: no weights" in said


def test_a_killed_supervisor_leaves_no_instance(tmp_path: Path) -> None:
    with serving(tmp_path, busy=BUSY) as service:
        held = service.infer("busy", rows(1))
        wait_until((tmp_path / "spins").exists, "the model's work")
        assert not held.done()
        child = service.instance()
        service.process.kill()
        wait_until(lambda: not alive(child.pid), "the end of the child")


def test_the_examples_are_a_repository(tmp_path: Path) -> None:
    """Their config.pbtxt says what they are; the real worker finds and opens them."""
    with serving_paths((EXAMPLES,), REAL) as service:
        pixels = numbers(service.infer("image_normalizer", np.full((2, 30, 40, 3), 255, np.uint8), "IMAGE"))
        assert pixels.shape == (2, 3, 224, 224)
        np.testing.assert_allclose(pixels[1, 0], (1 - 0.485) / 0.229, rtol=1e-5)
        answer = service.infer("nearest_centroid", np.float32([[5, 3.4, 1.5, 0.2]]), "FEATURES").result()
        assert [output.name for output in answer.outputs] == ["LABEL", "DISTANCES"]
        assert np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() == [0]
        service.process.send_signal(signal.SIGTERM)
        log = service.process.communicate(timeout=LIMIT_S)[1]
        assert service.process.returncode == 0
        assert "60 measurements of 3 classes" in log and "parameter" not in log


def test_a_repository_whose_python_model_fails_to_load_ends_the_start_with_2(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("import nowhere")
    tensor = "data_type: TYPE_FP32 dims: 1 }"
    (folder / "config.pbtxt").write_text(
        f'backend: "python" input {{ name: "x" {tensor} output {{ name: "y" {tensor}'
    )
    process = start((str(tmp_path),), REAL)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 2
    assert "was not loaded: ModuleNotFoundError: No module named 'nowhere'" in said


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


LAST_WORDS = """
import os

class Model:
    def initialize(self, config):
        self.folder = config["directory"]

    def execute(self, inputs):
        return {"y": 2 * inputs["x"] + 1}

    def finalize(self):
        open(os.path.join(self.folder, "finalized"), "w").close()
"""


def test_sigterm_lets_a_model_finalize(tmp_path: Path) -> None:
    with serving(tmp_path, affine=LAST_WORDS) as service:
        assert np.array_equal(numbers(service.infer("affine", rows(1))), 2 * rows(1) + 1)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(LIMIT_S) == 0
        assert (tmp_path / "finalized").exists()
