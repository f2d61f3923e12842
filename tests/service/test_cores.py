from __future__ import annotations

import builtins
import io
import os

import pytest

from service import cores
from service.config import ServeConfig


def machine(monkeypatch, affinity: int, cpu_max: str | None) -> None:
    """This process may run on `affinity` cores, and its control group says `cpu_max`."""
    real = builtins.open

    def opened(path, *arguments, **more):
        if path != "/sys/fs/cgroup/cpu.max":
            return real(path, *arguments, **more)
        if cpu_max is None:
            raise FileNotFoundError(path)
        return io.StringIO(cpu_max)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    monkeypatch.setattr(builtins, "open", opened)


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "found"),
    [
        (16, None, 16),
        (16, "max 100000\n", 16),
        (16, "150000 100000\n", 2),
        (2, "800000 100000\n", 2),
        (4, "5 100000\n", 1),
    ],
)
def test_cores_are_what_affinity_and_quota_allow(monkeypatch, affinity, cpu_max, found) -> None:
    machine(monkeypatch, affinity, cpu_max)
    assert cores.available_cores() == found


@pytest.mark.parametrize(("affinity", "threads"), [(1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (192, 8)])
def test_a_quarter_of_the_cores_are_io_threads(monkeypatch, affinity, threads) -> None:
    machine(monkeypatch, affinity, None)
    assert cores.default_io_threads() == threads
    assert ServeConfig(model_paths=("m.onnx",)).io_threads == threads
