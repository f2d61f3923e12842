"""A Python model whose processes are all gone is not ready until one is back, and says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton_repository as repositories
from gated_model import SOURCE, Gate
from grpc_health.v1 import health_pb2
from test_metrics_port import get
from test_model_control import Control
from test_model_control_processes import CONFIG
from waiting import wait_until
from wire import infer_request, rows

from service.config import ServeConfig
from service.inprocess import running


class Python(Gate):
    """Model "python": each of its processes waits at the gate."""

    def kill(self, count: int) -> None:
        """Kills so many; returns when as many others are waiting at the shut gate."""
        before = self.processes()
        self.shut()
        for pid in sorted(before)[:count]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(self.processes() - before) == count, "other processes")


@pytest.fixture
def model(tmp_path: Path) -> Python:
    folder = tmp_path / "repository" / "python"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(SOURCE)
    (folder / "config.pbtxt").write_text(f"{CONFIG}\ninstance_group {{ count: 2 kind: KIND_CPU }}")
    repositories.put(tmp_path / "repository", "other", {1: 1.0})
    return Python(folder / "1")


@pytest.fixture
def control(model: Python, tmp_path: Path, frontend: str) -> Iterator[Control]:
    settings = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}
    more = {"model_control_mode": "explicit", "load_models": ("*",), "frontend": frontend}
    with running([], ServeConfig((str(tmp_path / "repository"),), **settings, **more)) as service:
        control = Control(service)
        yield control
        model.open()
        control.wire.close()


def probes(control: Control) -> tuple[bool, int, int]:
    """What ServerReady, the health service and the metrics port say."""
    health = control.wire.raw("/grpc.health.v1.Health/Check", b"")
    return (
        control.wire.call("ServerReady").ready,
        health_pb2.HealthCheckResponse.FromString(health).status,
        get(f"{control.service.metrics_url}/readyz")[0],
    )


def test_a_server_with_a_model_that_is_down_may_unload_it_and_is_ready(
    control: Control, model: Python
) -> None:
    model.kill(2)
    wait_until(lambda: not control.wire.call("ServerReady").ready, "not ready")
    control.unload("python")
    assert probes(control) == (True, health_pb2.HealthCheckResponse.SERVING, 200)


def test_a_model_without_a_process_is_not_ready_until_one_is_back(control: Control, model: Python) -> None:
    assert control.is_ready("python")
    model.kill(2)
    wait_until(lambda: not control.is_ready("python"), "not ready")
    assert control.state("python") == [("1", "UNAVAILABLE", "its process is being started again")]
    assert control.wire.call("ServerLive").live
    assert control.is_ready("other")
    assert probes(control) == (False, health_pb2.HealthCheckResponse.NOT_SERVING, 503)
    model.open()
    wait_until(lambda: control.is_ready("python"), "ready again")
    assert probes(control) == (True, health_pb2.HealthCheckResponse.SERVING, 200)
    assert control.state("python") == [("1", "READY", "")]
    assert control.adds("python") == 1.0


def test_a_model_with_one_of_two_processes_is_ready(control: Control, model: Python) -> None:
    model.kill(1)
    assert control.is_ready("python")
    assert control.state("python") == [("1", "READY", "")]


def test_a_model_that_does_not_start_again_says_why(control: Control, model: Python) -> None:
    (model.folder / "model.py").write_text("raise RuntimeError('the disk is gone')")
    for pid in model.processes():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "the disk is gone" in control.state("python")[0][2], "why")
    assert not control.is_ready("python")
    code, text = control.wire.error(infer_request("python", x=rows(1)))
    assert (code, "the disk is gone" in text) == ("UNAVAILABLE", True)
    (model.folder / "model.py").write_text(SOURCE)
    control.load("python")
    assert control.is_ready("python")
    assert control.adds("python") == 1.0


def test_other_models_that_come_and_go_leave_it_not_ready(control: Control, model: Python) -> None:
    model.kill(2)
    wait_until(lambda: not control.is_ready("python"), "not ready")
    control.unload("other")
    control.load("other")
    assert not control.is_ready("python")
    assert ("python", "1", "UNAVAILABLE") in [row[:3] for row in control.index()]
    assert "python" not in [row[0] for row in control.index(ready=True)]
