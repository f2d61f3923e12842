"""The executor on a real device, with a kernel of the tests' own: answers, memory, caps, failures."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.client import Client, ClientError, RpcFailed
from service.cuda.memory import NoRoom
from service.inprocess import running
from service.models.counts import GRAPH_HITS, GRAPH_MISSES, PINNED_FALLBACKS

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)

from device_models import MB, AffineModel, ask_from_threads, device_config
from ptx import PtxCompute

from service.cuda.device import close_device, the_device


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """A device that is made by the test and closed after it."""
    yield
    close_device()


def affine(name: str = "affine", **settings) -> AffineModel:
    return AffineModel(PtxCompute, name, **settings)


def test_answers_from_eight_threads_are_their_own() -> None:
    with running(
        [affine("a"), affine("b", sizes=(8,)), affine("c", capturable=False)], device_config()
    ) as service:
        assert ask_from_threads(service.address, ["a", "b", "c"], requests=1000) == []
        first, second, last = [stats.engine for stats in service._worker._former.stats()]
        assert first[GRAPH_HITS] > 0 and first[GRAPH_MISSES] == 0
        assert second[GRAPH_HITS] > 0 and second[GRAPH_MISSES] == 0
        assert last[GRAPH_HITS] == 0 and last[GRAPH_MISSES] > 0
        assert first[PINNED_FALLBACKS] == second[PINNED_FALLBACKS] == last[PINNED_FALLBACKS] == 0


def test_shapes_that_vary_and_shapes_that_depend_on_data() -> None:
    models = [affine("varying", dims=(-1,)), affine("settling", dims=(-1,), settling=True)]
    with running(models, device_config()) as service:
        for width in (1, 7, 4096):
            assert ask_from_threads(service.address, ["varying", "settling"], requests=50, width=width) == []


def test_the_ready_line_names_the_device() -> None:
    with running([affine()], device_config()) as service:
        assert service._worker.devices.names == [the_device().name]
        assert the_device().name.startswith("cuda:0 NVIDIA")


def test_loads_and_unloads_return_to_the_baseline() -> None:
    config = device_config()
    with running([affine("stays")], config) as service:
        models = service._worker._models

        def once() -> None:
            model = models.add(affine("comes", scratch_bytes=64 * MB, weights=64 * MB, sizes=(1, 64)))
            models.remove(model)

        once()  # what the driver keeps for good is there then
        before = the_device().used_bytes()
        for _ in range(50):
            once()
        after = the_device().used_bytes()
        assert after <= before * 1.05 and after - before <= 64 * MB
        assert ask_from_threads(service.address, ["stays"], requests=50) == []


def test_a_model_beyond_its_cap_is_refused_with_the_numbers() -> None:
    with pytest.raises(NoRoom, match="gpu_memory_limit is 500 MB, and .* MB of the device are free"):
        affine(weights=800 * MB, limit=500 * MB)


def test_contexts_beyond_the_cap_are_refused_and_others_go_on() -> None:
    with running([affine("stays")], device_config()) as service:
        big = affine("big", weights=100 * MB, scratch_bytes=200 * MB, limit=500 * MB)
        with pytest.raises(NoRoom, match="model 'big' needs"):
            service._worker._models.add(big)
        assert ask_from_threads(service.address, ["stays"], requests=50) == []


def test_memory_that_runs_out_fails_that_batch_alone() -> None:
    model = affine("varying", dims=(-1,), weights=0, scratch_bytes=0, limit=256 * MB, longest=1 << 30)
    config = device_config(arena_mb=512, output_arena_mb=512)
    with running([model], config) as service, Client(service.address, timeout_s=60) as client:
        with pytest.raises(RpcFailed) as refused:
            client.infer("varying", {"x": np.ones((1, 40 * MB), np.float32)})
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        assert ask_from_threads(service.address, ["varying"], requests=50) == []


def test_pools_keep_little_of_what_was_freed() -> None:
    device = the_device()
    stream = device.new_stream()
    before = device.used_bytes()
    accounts = [device.model_memory(name) for name in "abc"]
    rng, peak = np.random.default_rng(0), 0
    for _ in range(100):
        sizes = [int(size) for size in rng.integers(1, 64, 9)]
        held = [(a, a.pool.allocate(s * MB, stream)) for a, s in zip(accounts * 3, sizes, strict=True)]
        peak = max(peak, sum(sizes) * MB)
        for account, address in held:
            account.pool.free(address, stream)
    from service.cuda.driver import api, check

    check(api().cuStreamSynchronize(stream), "waiting")
    assert sum(account.pool.reserved_bytes for account in accounts) <= 1.3 * peak
    for account in accounts:
        account.close()
    assert device.used_bytes() - before <= 16 * MB, "what was in the pools is the device's again"
    check(api().cuStreamDestroy(stream), "ending a stream")


def test_a_model_loaded_in_one_thread_and_used_and_unloaded_in_others(tmp_path) -> None:
    (tmp_path / "moves/1").mkdir(parents=True)
    (tmp_path / "moves/1/model.onnx").touch()
    config = replace(device_config(model_control_mode="explicit"), model_paths=(str(tmp_path),))
    threads: list[threading.Thread] = []

    def open_one(found):
        threads.append(threading.current_thread())
        return affine("moves")

    with running([], config, open_one) as service, Client(service.address) as client:
        for _ in range(2):
            client.load_model("moves")
            assert ask_from_threads(service.address, ["moves"], requests=20) == []
            launchers = {thread.name for thread in service._worker.devices.executor().launchers()}
            assert threads[-1].name not in launchers
            client.unload_model("moves")


def test_a_lost_device_is_told_and_ends_the_worker() -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", str(here / "broken_service.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "told: UNAVAILABLE" in done.stdout or "UNAVAILABLE" in done.stdout, done.stdout + done.stderr
    assert "is lost to this process: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.stdout, (
        done.stdout + done.stderr
    )


def test_shapes_that_no_context_takes_are_the_callers_fault() -> None:
    with running([affine("varying", dims=(-1,), longest=100)], device_config()) as service:
        with Client(service.address) as client, pytest.raises(ClientError) as refused:
            client.infer("varying", {"x": np.ones((1, 101), np.float32)})
        assert "expected at most 100 values" in str(refused.value)
        assert ask_from_threads(service.address, ["varying"], requests=20) == []
