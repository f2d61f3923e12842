"""Model control of the service as processes: the command line, deaths in the middle of a load, what is
left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import triton_repository as repositories
from gated_model import SOURCE, Gate
from test_model_control import Control
from waiting import LIMIT_S, wait_until
from wire import Wire, infer_request, output, rows

from service.demo.server import started

pytestmark = pytest.mark.slow

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


class Running(Control):
    """The service as processes, and a client of it."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.process = psutil.Process(pid)
        self.wire = Wire(url)

    def child(self, words: str) -> psutil.Process:
        (found,) = [c for c in self.process.children() if words in " ".join(c.cmdline())]
        return found

    def run(self, *words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-P", "-m", "service", *words, "--url", self.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@contextmanager
def running(folder: Path, frontend: str, *flags: str) -> Iterator[Running]:
    command = [sys.executable, "-P", "-m", "service", "serve", str(folder)]
    command += ["--frontend", frontend, "--model-control-mode", "explicit", *flags]
    command += ["--arena-mb", "16", "--output-arena-mb", "16"]
    with started(command) as server:
        service = Running(server.url, server.pid)
        yield service
        service.wire.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    repositories.put(repository, "one", {1: 1.0})
    repositories.put(repository, "two", {1: 2.0})
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "1" / "model.py").write_text(SOURCE)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
    return repository


def test_the_command_line_loads_lists_and_unloads(folder: Path, frontend: str) -> None:
    with running(folder, frontend) as service:
        assert "UNAVAILABLE (not loaded)" in service.run("models", "one").stdout
        assert service.run("models", "load", "one").stdout == "loaded 'one'\n"
        assert "READY" in service.run("models", "one").stdout
        assert service.adds("one") == 1.0
        assert service.run("models", "unload", "one").returncode == 0
        lines = service.run("models").stdout.splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["one", "slow", "two"]
        assert "UNAVAILABLE (unloaded)" in lines[1]
        failed = service.run("models", "load", "three")
        assert failed.returncode == 1
        assert "failed to load 'three', failed to poll from model repository" in failed.stderr
        wrong = service.run("models", "reload", "one")
        assert wrong.returncode == 2
        assert "expected MODEL, load MODEL or unload MODEL, got 'reload one'" in wrong.stderr


def begin_slow_load(service: Running, gate: Gate) -> tuple[threading.Thread, list[str]]:
    """A load that ends when the gate is opened."""
    gate.shut()
    ends: list[str] = []

    def load() -> None:
        try:
            service.load("slow")
            ends.append("OK")
        except grpc.RpcError as error:
            ends.append(error.code().name)

    thread = threading.Thread(target=load)
    thread.start()
    wait_until(gate.processes, "the model is being loaded")
    return thread, ends


def test_a_load_holds_up_nobody_else(folder: Path, frontend: str) -> None:
    with running(folder, frontend, "--load-model", "one") as service:
        gate = Gate(folder / "slow" / "1")
        thread, ends = begin_slow_load(service, gate)
        assert service.state("slow") == [("", "LOADING", "")]
        assert service.adds("one") == 1.0
        service.load("two")
        service.unload("two")
        assert service.wire.call("ServerReady").ready
        assert ends == []
        gate.open()
        thread.join(LIMIT_S)
        assert ends == ["OK"]
        response = service.wire.infer(infer_request("slow", x=rows(2)))
        assert np.array_equal(output(response), rows(2) + 1)


def test_a_worker_that_is_killed_in_the_middle_of_a_load_comes_back_without_it(
    folder: Path, frontend: str
) -> None:
    with running(folder, frontend, "--load-model", "one") as service:
        service.load("two", {"max_batch_size": 3})
        gate = Gate(folder / "slow" / "1")
        thread, ends = begin_slow_load(service, gate)
        service.child("service.worker").send_signal(signal.SIGKILL)
        thread.join(LIMIT_S)
        assert ends == ["UNAVAILABLE"]
        wait_until(lambda: service.wire.call("ServerReady").ready, "ready again")
        assert [row[0] for row in service.index(ready=True)] == ["one", "two"]
        assert service.max_batch("two") == 3
        gate.open()
        service.load("slow")
        assert service.is_ready("slow")


def test_a_front_end_that_is_killed_is_told_what_is_loaded(folder: Path, frontend: str) -> None:
    with running(folder, frontend) as service:
        service.load("one")
        service.load("two")
        service.unload("two")
        before = service.child("service.frontend")
        before.send_signal(signal.SIGKILL)
        before.wait(LIMIT_S)

        def is_back() -> bool:
            wire = Wire(service.url)
            try:
                return wire.call("ServerReady").ready
            except grpc.RpcError:
                return False
            finally:
                wire.close()

        wait_until(is_back, "ready again")
        service.wire = Wire(service.url)
        assert service.adds("one") == 1.0
        assert service.state("two") == [("1", "UNAVAILABLE", "unloaded")]
        service.unload("one")
        assert service.state("one") == [("1", "UNAVAILABLE", "unloaded")]


def test_nothing_is_left_of_files_when_the_service_ends(
    folder: Path, frontend: str, tmp_path: Path, monkeypatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    model = (folder / "one" / "1" / "model.onnx").read_bytes()
    with running(folder, frontend) as service:
        service.load("given", {}, {"file:1/model.onnx": model})
        (home,) = temporary.glob("headrace-models-*")
        assert len(os.listdir(home)) == 1
        service.child("service.worker").send_signal(signal.SIGKILL)
        wait_until(lambda: not service.is_ready("given"), "the death noticed")
        wait_until(lambda: service.is_ready("given"), "the model back")
    assert not list(temporary.glob("headrace-models-*"))
