"""A service of real processes with two devices, each with a worker, on the driver of the tests."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from device_processes import Service, serving
from waiting import wait_until

from service._pb import inference as pb
from service.client import Client, ClientError, RpcFailed
from service.config import FRONTENDS
from service.frontend.rpcs import SERVICE

WORKER = Path(__file__).with_name("placed_worker.py")
X = np.arange(8, dtype=np.float32).reshape(2, 4)
ON_1 = "instance_group { kind: KIND_GPU gpus: [ 1 ] }"


class Devices:
    """A running service of a repository, and a client of it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.channel = grpc.insecure_channel(service.address)

    def call(self, method: str, **fields: Any) -> Any:
        request, answer = (getattr(pb, f"{method}{which}") for which in ("Request", "Response"))
        how = self.channel.unary_unary(f"/{SERVICE}/{method}", request.SerializeToString, answer.FromString)
        return how(request(**fields), timeout=60)

    def serves(self, model: str) -> bool:
        with Client(self.service.address) as client:
            try:
                y = client.infer(model, {"x": X}).outputs["y"]
            except ClientError:
                return False
        assert np.array_equal(y, 2 * X + 1)
        return True

    def ran(self, model: str) -> dict[str, Any]:
        """What the worker that has the model says, after a batch that it has answered."""
        wait_until(lambda: self.serves(model), f"answers of model {model}")
        return dict(json.loads((self.service.folder / f"{model}.ran").read_text()))

    def device_of(self, model: str) -> int:
        """The one device whose context its worker has."""
        (device,) = [i for i, count in enumerate(self.ran(model)["contexts"]) if count]
        return device

    def index(self) -> dict[str, tuple[str, str]]:
        return {row.name: (row.state, row.reason) for row in self.call("RepositoryIndex").models}


def repository(folder: Path, **configs: str) -> None:
    """Plans by name, with these configs; "": none."""
    for name, config in configs.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "1" / "model.plan").write_bytes(b"a plan")
        if config:
            (folder / "models" / name / "config.pbtxt").write_text(config)


@contextmanager
def two_devices(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Iterator[Devices]:
    monkeypatch.setenv("HEADRACE_TEST_FOLDER", str(folder))
    with serving(WORKER, folder, "models", devices=(0, 1), **settings) as service:
        yield Devices(service)


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_lost_device_costs_its_own_models_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frontend: str
) -> None:
    if frontend == "native" and find_spec("service.frontend.native._native") is None:
        pytest.skip("needs the native front end")
    repository(tmp_path, a=ON_1, b="", c="")
    with two_devices(tmp_path, monkeypatch, frontend=frontend) as devices:
        assert {name: devices.device_of(name) for name in "abc"} == {"a": 1, "b": 0, "c": 0}
        assert devices.ran("b")["pid"] == devices.ran("c")["pid"] != devices.ran("a")["pid"]
        config = devices.call("ModelConfig", name="a").config
        assert [list(group.gpus) for group in config.instance_group] == [[1]]
        stats = devices.call("ModelStatistics").model_stats
        assert {s.name: [m.id for m in s.memory_usage] for s in stats} == {"a": [1], "b": [0], "c": [0]}

        lost = devices.ran("a")["pid"]
        (tmp_path / "a.wait").touch()
        (tmp_path / "a.lose").touch()
        failed: list[str] = []
        stop = threading.Event()
        asking = threading.Thread(target=ask_until, args=(devices, "b", stop, failed))
        asking.start()
        with Client(devices.service.address) as client, pytest.raises(RpcFailed) as refused:
            client.infer("a", {"x": X})
        assert refused.value.code == "UNAVAILABLE"
        wait_until(lambda: not devices.call("ModelReady", name="a").ready, "the truth about model a")
        assert not devices.call("ServerReady").ready and devices.call("ServerLive").live
        assert devices.call("ModelReady", name="b").ready and devices.serves("c")
        assert devices.index() == {
            "a": ("UNAVAILABLE", "its worker is starting again"),
            "b": ("READY", ""),
            "c": ("READY", ""),
        }
        (tmp_path / "a.wait").unlink()
        assert devices.device_of("a") == 1 and devices.ran("a")["pid"] != lost
        wait_until(lambda: devices.call("ServerReady").ready, "readiness")
        stop.set()
        asking.join()
        assert failed == []
    text = devices.service.text
    assert ", devices cuda:0 Fake 0, cuda:1 Fake 1\n" in text
    assert "cuda:1 Fake 1 is lost to this process" in text and "the worker 1 (process" in text
    assert devices.service.returncode == 0, text


def ask_until(devices: Devices, model: str, stop: threading.Event, failed: list[str]) -> None:
    with Client(devices.service.address) as client:
        while not stop.is_set():
            try:
                y = client.infer(model, {"x": X}).outputs["y"]
            except ClientError as error:
                failed.append(str(error))
            else:
                failed += [] if np.array_equal(y, 2 * X + 1) else ["a wrong answer"]


def test_clients_load_models_on_the_devices_that_configs_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path, a=ON_1, b="", c="", d="")
    how = {"model_control_mode": "explicit", "load_models": ("b",)}
    with two_devices(tmp_path, monkeypatch, **how) as devices:
        devices.call("RepositoryModelLoad", model_name="a")
        devices.call("RepositoryModelLoad", model_name="c")
        devices.call("RepositoryModelLoad", model_name="d")
        homes = {name: devices.device_of(name) for name in "abcd"}
        assert homes == {"a": 1, "b": 0, "c": 0, "d": 1}
        on_0 = json.dumps({"instance_group": [{"kind": "KIND_GPU", "gpus": [0]}], "backend": "tensorrt"})
        with pytest.raises(grpc.RpcError, match=r"device 1, and its config says gpus 0: unload it first"):
            devices.call("RepositoryModelLoad", model_name="a", parameters={"config": param(on_0)})
        assert devices.device_of("a") == 1
        devices.call("RepositoryModelUnload", model_name="a")
        assert devices.index()["a"] == ("UNAVAILABLE", "unloaded")
        files = {"config": param(on_0), "file:1/model.plan": pb.ModelRepositoryParameter(bytes_param=b"b")}
        devices.call("RepositoryModelLoad", model_name="a", parameters=files)
        assert devices.device_of("a") == 0 and devices.index()["a"] == ("READY", "")
        on_7 = json.dumps({"instance_group": [{"gpus": [7]}], "backend": "tensorrt"})
        devices.call("RepositoryModelUnload", model_name="c")
        with pytest.raises(
            grpc.RpcError, match=r"config says gpus 7, and it would run on device \d \(--device 0,1\)"
        ):
            devices.call("RepositoryModelLoad", model_name="c", parameters={"config": param(on_7)})

        for model in ("d", "a"):  # each worker's successor has what it had, with the files that came with it
            os.kill(devices.ran(model)["pid"], signal.SIGKILL)
            wait_until(lambda: not devices.call("ServerReady").ready, "the end of a worker")
            wait_until(lambda: devices.call("ServerReady").ready, "its successor")
            assert {name: devices.device_of(name) for name in "abd"} == {"a": 0, "b": 0, "d": 1}
    assert devices.service.returncode == 0, devices.service.text


def param(text: str) -> pb.ModelRepositoryParameter:
    return pb.ModelRepositoryParameter(string_param=text)
