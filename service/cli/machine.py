"""What the kernel says of this machine, read from its files. Each is under `ROOT`, which tests replace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path("/")
MB = 1 << 20


def gpu_driver() -> str:
    """The NVIDIA driver and how many devices it has; empty when there is none."""
    folder = ROOT / "proc/driver/nvidia"
    words = _read(folder / "version").split()
    version = next((word for word in words if word[:1].isdigit() and "." in word), "")
    if not version:
        return ""
    try:
        count = len(os.listdir(folder / "gpus"))
    except OSError:
        count = 0
    return f"NVIDIA driver {version} with {count} device{'' if count == 1 else 's'}"


def shm_free() -> str:
    """The room in /dev/shm, in words."""
    try:
        return f"{shutil.disk_usage(ROOT / 'dev/shm').free // MB:,} MB free"
    except OSError:
        return "not there"


def memory_limit() -> tuple[int, str]:
    """MB that may be used, and whose limit that is: the machine's or a control group's."""
    available = 0
    for line in _read(ROOT / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) >> 10
    limit = _smallest(_group_values("memory", "memory.max", "memory.limit_in_bytes"))
    if limit is not None and limit // MB < available:
        return int(limit // MB), "the limit of a control group"
    return available, "available in this machine"


def cpu_quota() -> float | None:
    """How many processors' time the control groups allow; None when they do not limit it."""
    found = []
    for text in _group_values("cpu", "cpu.max", ""):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    quotas = _group_values("cpu", "", "cpu.cfs_quota_us")
    periods = _group_values("cpu", "", "cpu.cfs_period_us")
    for quota, period in zip(quotas, periods, strict=False):
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _group_values(controller: str, unified: str, old: str) -> list[str]:
    """The contents of a control group's file, from this process's group up to the root: of the unified
    hierarchy by the name `unified`, and of the old one of the controller by the name `old`.
    """
    values = []
    for line in _read(ROOT / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        name = old if controllers else unified
        if not name or (controllers and controller not in controllers.split(",")):
            continue
        top = ROOT / "sys/fs/cgroup" / (controllers if controllers else "")
        group = top / path.lstrip("/")
        for folder in [group, *group.parents][: len(Path(path).parts) or 1]:
            if text := _read(folder / name):
                values.append(text)
    return values


def _smallest(values: list[str]) -> float | None:
    return min((float(value) for value in values if value.isdigit()), default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
