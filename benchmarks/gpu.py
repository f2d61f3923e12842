"""What benchmarks on a device share: how busy it is, and which model file was measured."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def digest(path: Path) -> str:
    """The first digits of the file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@contextmanager
def utilization() -> Iterator[list[float]]:
    """Percent of each second in which the device did something; nothing where there is no NVML."""
    found: list[float] = []
    over = threading.Event()
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no such library, no driver
        yield found
        return

    def watch() -> None:
        while not over.wait(1.0):
            found.append(float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        pynvml.nvmlShutdown()


def used_bytes() -> int:
    """Bytes of the first device that are in use, by whomever; 0 where there is no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        used = int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
        pynvml.nvmlShutdown()
    except Exception:  # no such library, no driver
        return 0
    return used
