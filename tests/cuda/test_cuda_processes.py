"""A whole service of real processes whose worker has a device, on the driver of the tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from device_models import rows_of
from device_processes import all_told, ask_at_once, serving, wait_until_served
from waiting import wait_until

from service.client import Client, RpcFailed

WORKER = Path(__file__).with_name("device_worker.py")
KILLS = 5
IN_FLIGHT = 8  # two batches on each of four streams
WIDTH = 1 << 12


def test_a_lost_device_costs_its_batch_and_another_worker_serves(tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    with serving(WORKER, tmp_path) as service:
        with Client(service.address) as client:
            assert np.array_equal(client.infer("affine", {"x": x}).outputs["y"], 2 * x + 1)
            (tmp_path / "lose").touch()
            with pytest.raises(RpcFailed) as refused:
                client.infer("affine", {"x": x})
        assert refused.value.code == "UNAVAILABLE"
        wait_until_served(service.address, x)
    assert ", devices cuda:0 Fake 0\n" in service.text
    assert "cuda:0 Fake 0 is lost to this process: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in service.text
    assert service.returncode == 0, service.text


def test_a_worker_that_is_killed_while_it_copies_is_replaced_and_nothing_of_it_is_left(
    tmp_path: Path,
) -> None:
    """What it had of the input arena comes back each time: all of it is needed for the next one."""
    hold, held = tmp_path / "hold", tmp_path / "held"
    with serving(WORKER, tmp_path, arena_mb=2, spill_mb=0) as service:
        for kill in range(KILLS):
            held.write_bytes(b"")
            hold.touch()
            batches = [rows_of(kill, number, (8, WIDTH)) for number in range(IN_FLIGHT)]
            threads, told = ask_at_once(service.address, batches)
            wait_until(lambda: held.stat().st_size == IN_FLIGHT, "two batches on every stream")
            hold.unlink()
            os.kill(service.worker_pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
            assert told == ["UNAVAILABLE"] * IN_FLIGHT
            wait_until_served(service.address, rows_of(kill, 99, (1, WIDTH)))
            assert all_told(service.address, batches) == [""] * IN_FLIGHT
    assert service.text.count("ended with signal SIGKILL") == KILLS
    assert service.returncode == 0, service.text
