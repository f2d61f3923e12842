"""How many processor cores there are to use, and how they are shared out."""

from __future__ import annotations

import os

MAX_IO_THREADS = 8  # by default


def available_cores() -> int:
    """Cores this process may use: its affinity, and the quota of its control group where there is one."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return cores


def default_io_threads() -> int:
    """A quarter of the cores: one thread receives 3 GB/s and no more, and clients and engines want theirs."""
    return max(1, min(MAX_IO_THREADS, available_cores() // 4))
