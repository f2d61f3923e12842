"""Memory of TensorRT plans on a real device, as clients see it who load and unload them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.client import Client, RpcFailed
from service.inprocess import InProcess, running

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)
from device_models import MB, ask_from_threads, device_config
from plan_models import WIDTH, affine, wide

from service.cuda.device import close_device, the_device


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    yield
    close_device()


def put(folder: Path, name: str, config: str = "") -> Path:
    """Where the plan of a model in a repository belongs."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    if config:
        (folder / name / "config.pbtxt").write_text(config)
    return version / "model.plan"


@contextmanager
def serving(folder: Path) -> Iterator[tuple[InProcess, Client]]:
    """The model "stays" of the repository, and a client who may load others."""
    sizes = {"arena_mb": 64, "output_arena_mb": 64}
    config = device_config(model_control_mode="explicit", load_models=("stays",), **sizes)
    with running([], replace(config, model_paths=(str(folder),))) as service:
        with Client(service.address, timeout_s=60) as client:
            yield service, client


def memory_of(client: Client, name: str) -> int:
    (stats,) = client.model_statistics(name)
    return sum(usage.byte_size for usage in stats.memory_usage)


def test_load_infer_unload_fifty_times_returns_to_the_baseline(tmp_path: Path) -> None:
    affine(put(tmp_path, "stays"))
    _, weights = wide(put(tmp_path, "comes"))
    x = np.random.default_rng(1).integers(-4, 5, (3, WIDTH)).astype(np.float32)
    expected = x @ weights

    with serving(tmp_path) as (service, client):

        def once() -> None:
            before = the_device().used_bytes()
            client.load_model("comes")
            np.testing.assert_array_equal(client.infer("comes", {"x": x}).outputs["y"], expected)
            took = the_device().used_bytes() - before
            assert took >= weights.nbytes
            assert abs(memory_of(client, "comes") - took) <= took * 0.05
            client.unload_model("comes")

        once()  # what the driver keeps for good is there then
        baseline = the_device().used_bytes()
        for _ in range(50):
            once()
        assert abs(the_device().used_bytes() - baseline) <= baseline * 0.05
        assert the_device().used_bytes() - baseline <= 16 * MB
        assert ask_from_threads(service.address, ["stays"], requests=20, width=WIDTH) == []


def test_a_cap_that_is_too_small_is_told_to_the_client_with_the_numbers(tmp_path: Path) -> None:
    affine(put(tmp_path, "stays"))
    cap = 'parameters { key: "gpu_memory_limit" value { string_value: "40MB" } }'
    wide(put(tmp_path, "big", cap))
    with serving(tmp_path) as (service, client):
        before = the_device().used_bytes()
        with pytest.raises(RpcFailed, match=r"needs .* MB.*gpu_memory_limit is 40 MB.*free") as refused:
            client.load_model("big")
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        assert the_device().used_bytes() - before <= 16 * MB
        assert ask_from_threads(service.address, ["stays"], requests=20, width=WIDTH) == []
