"""What every benchmark shares: flags, the machine beside the figures, one load test against the service.

A figure without its machine means nothing, so each result is printed, and written with ``--out``, together
with CPU, cores, load, versions and commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from service.bench.clock import MonotonicClock
from service.bench.load import Until
from service.bench.report import Latency, ServerWork, latency, outside_engine_us
from service.bench.run import Plan, run
from service.client import AsyncClient
from service.client.inputs import random_inputs

PACKAGES = ("headrace", "grpcio", "onnxruntime", "numpy", "protobuf")


def machine() -> dict[str, Any]:
    """CPU, cores this process may use, load before the run, versions, and the commit of the checkout."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1_min": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The checkout these scripts are in, "-dirty" when it has changes; HEADRACE_COMMIT knows better where
    what is installed came from elsewhere.
    """
    if known := os.environ.get("HEADRACE_COMMIT"):
        return known
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


class Results:
    """Prints each result as it comes; ``finish`` writes them all, with the machine, where ``--out`` says."""

    def __init__(self, name: str, out: Path | None) -> None:
        self._name, self._out = name, out
        self._machine = machine()
        self._results: list[dict[str, Any]] = []
        for key, value in self._machine.items():
            print(f"# {key}: {value}")

    def add(self, what: str, **figures: float | str | int) -> None:
        """One line: what was measured, and its figures in the units that their names say."""
        self._results.append({"what": what, **figures})
        texts = (
            f"{key}={value:.3f}" if isinstance(value, float) else f"{key}={value}"
            for key, value in figures.items()
        )
        print(f"{what}: {', '.join(texts)}", flush=True)

    def finish(self) -> None:
        if self._out is not None:
            report = {"benchmark": self._name, "machine": self._machine, "results": self._results}
            self._out.write_text(json.dumps(report, indent=2) + "\n")


def flags(description: str | None) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each measurement takes")
    return parser


@dataclass(frozen=True)
class Measured:
    """One load test: the client's latencies in order of completion (ns), and what the server says."""

    latencies_ns: list[int]
    late: Latency | None
    client: Latency
    work: ServerWork
    seconds: float
    failures: str
    cpu_s: float

    @property
    def outside_us(self) -> float:
        """Median latency less mean engine time."""
        return outside_engine_us(self.client, self.work)

    @property
    def rows_per_s(self) -> float:
        return len(self.latencies_ns) / self.seconds


def measure(
    url: str,
    model: str,
    *,
    seconds: float,
    pid: int,
    concurrency: int = 1,
    rate: float | None = None,
    streams: int = 0,
    warm_up: int = 100,
) -> Measured:
    """Loads a model with single-row requests. Raises RuntimeError when nothing was answered or counted."""
    until = Until(duration_ns=int(seconds * 1e9))
    plan = Plan(model, "", concurrency, rate, until, streams, warm_up, timeout_s=60.0, seed=1, pid=pid)

    async def go() -> Any:
        async with AsyncClient(url) as client:
            return await run(
                client, plan, lambda m, batched: random_inputs(m, batched, 1, {}, 1), MonotonicClock()
            )

    report = asyncio.run(go())
    tally = report.tally
    summary = latency(tally.latencies_ns)
    if summary is None or report.work is None:
        raise RuntimeError(f"no answers or no statistics: {dict(tally.failures)}")
    late = latency(tally.late_ns)
    return Measured(
        tally.latencies_ns, late, summary, report.work, tally.seconds, _text(tally.failures), report.cpu_s
    )


def _text(failures: Counter[str]) -> str:
    """How many failed, and why most of them."""
    reasons = "; ".join(f"{count} x {reason}" for reason, count in failures.most_common(2))
    return f"{failures.total()} ({reasons})" if failures else "0"
