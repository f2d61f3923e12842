"""SIGKILL of the worker in the middle of copies: the next one is right, and nothing stays on the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_models import MB, rows_of
from device_processes import all_told, serving, wait_until_served
from waiting import wait_until

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)

WORKER = Path(__file__).with_name("killed_worker.py")
KILLS = 20
IN_FLIGHT = 8
SHAPE = (8, 1 << 18)  # 8 MB: some 200 us on the way to the device


@pytest.fixture
def used() -> Iterator[Callable[[], int]]:
    """Bytes of the first device in use, by whomever: NVML's word."""
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    yield lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    nvml.nvmlShutdown()


def test_a_worker_that_is_killed_while_it_copies(tmp_path: Path, used: Callable[[], int]) -> None:
    before = used()
    inputs = [rows_of(1, number, SHAPE) for number in range(IN_FLIGHT)]
    with serving(WORKER, tmp_path, arena_mb=256, output_arena_mb=256) as service:
        assert all_told(service.address, inputs) == [""] * IN_FLIGHT
        with_one = used()
        assert with_one > before
        for kill in range(KILLS):
            (tmp_path / "kill").write_text(str(1 + kill % 4))
            told = all_told(service.address, inputs)
            assert set(told) <= {"", "UNAVAILABLE"} and "UNAVAILABLE" in told
            wait_until_served(service.address, rows_of(2, kill, (1, 4)))
            fresh = [rows_of(3 + kill, number, SHAPE) for number in range(IN_FLIGHT)]
            assert all_told(service.address, fresh) == [""] * IN_FLIGHT
            wait_until(lambda: used() <= with_one + 256 * MB, "one worker's memory, and not two's")
    assert service.text.count("ended with signal SIGKILL") == KILLS
    assert service.returncode == 0, service.text
    wait_until(lambda: used() <= before + 32 * MB, "the end of all that was on the device")
