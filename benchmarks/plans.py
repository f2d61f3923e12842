"""A TensorRT plan behind gRPC, loaded until it gives no more: what reaches the device, and what it takes.

The load comes from a generator of your own (``--load``), since one in Python is far slower than a device. It
is called with ``--addr HOST:PORT --method METHOD --file REQUEST --n N --conns C --threads T --dur S --warm S
--pids P,P``: N calls in flight over C connections, each the message in the file REQUEST. It prints a line of
JSON: ``rps``, ``p50`` and ``p99`` in us, ``err``, and ``srv_us`` and ``cli_us``, CPU per request of those
processes and of its own. `rows_per_s` is the growth of the service's own count of rows over a time in the
middle of that, and `device_busy_percent` NVML's word, once a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from gpu import digest, utilization
from results import Results, flags

from service._pb import inference as pb
from service.bench.proc import family
from service.client import Client
from service.client.inputs import random_inputs
from service.demo.server import Server, started

METHOD = "/inference.GRPCInferenceService/ModelInfer"
WARM_S = 1.0
MARGIN_S = 0.5  # between the load's beginning or end and what is read of the service


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="the plan to serve")
    parser.add_argument("--load", type=Path, required=True, help="the load generator")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64, 256, 512, 1024])
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--threads", type=int, default=6, help="of the load generator")
    parser.add_argument("serve", nargs="*", help="more flags of headrace serve, after --")
    arguments = parser.parse_args()
    results = Results("plans", arguments.out)
    command = [sys.executable, "-P", "-m", "service", "serve", str(arguments.plan), *arguments.serve]
    began = time.perf_counter()
    with started(command) as server, tempfile.TemporaryDirectory() as folder:
        results.add(f"ready, plan {digest(arguments.plan)}", seconds=time.perf_counter() - began)
        request = request_file(server, arguments.plan.stem, Path(folder))
        for count in arguments.in_flight:
            results.add(f"{count} in flight", **measure(arguments, server, request, count))
    results.finish()


def measure(arguments: Any, server: Server, request: Path, count: int) -> dict[str, float]:
    """One load; the service's figures are of a time in the middle of it."""
    model = arguments.plan.stem
    with generator(arguments, server, request, count) as process, utilization() as busy:
        time.sleep(WARM_S + MARGIN_S)
        before, began = statistics(server, model), time.perf_counter()
        time.sleep(arguments.seconds - 2 * MARGIN_S)
        after, seconds = statistics(server, model), time.perf_counter() - began
        out, error = process.communicate(timeout=60 + 2 * arguments.seconds)
    if process.returncode:
        raise RuntimeError(f"{arguments.load}: exit code {process.returncode}: {error[-500:]}")
    found = json.loads(out)
    return {
        "rows_per_s": (after.inference_count - before.inference_count) / seconds,
        "requests_per_s": found["rps"],
        "p50_ms": found["p50"] / 1000,
        "p99_ms": found["p99"] / 1000,
        "failed": found["err"],
        "server_cpu_us_per_request": found["srv_us"],
        "client_cpu_us_per_request": found["cli_us"],
        "device_busy_percent": mean(busy[1:-1]) if busy[1:-1] else 0.0,
        "mean_batch": (after.inference_count - before.inference_count)
        / max(1, after.execution_count - before.execution_count),
        **phases_us(before.inference_stats, after.inference_stats),
    }


def request_file(server: Server, model: str, folder: Path) -> Path:
    """A request of one row of random values."""
    with Client(server.url) as client:
        metadata = client.model_metadata(model)
        arrays = random_inputs(metadata, True, 1, {}, 1)
    request = pb.ModelInferRequest(model_name=model)
    for name, array in arrays.items():
        declared = next(tensor for tensor in metadata.inputs if tensor.name == name)
        request.inputs.add(name=name, datatype=declared.datatype, shape=array.shape)
        request.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    path = folder / "request"
    path.write_bytes(request.SerializeToString())
    return path


@contextmanager
def generator(arguments: Any, server: Server, request: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    connections = min(arguments.connections, count)
    options = {
        "addr": server.url,
        "method": METHOD,
        "file": request,
        "n": count,
        "conns": connections,
        "threads": min(arguments.threads, connections),
        "dur": arguments.seconds,
        "warm": WARM_S,
        "pids": ",".join(map(str, family(server.pid))),
    }
    command = [str(arguments.load)]
    for key, value in options.items():
        command += [f"--{key}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def statistics(server: Server, model: str) -> Any:
    with Client(server.url) as client:
        return client.model_statistics(model)[0]


def phases_us(before: Any, after: Any) -> dict[str, float]:
    """Where a request's time in the worker went, on average."""
    found = {}
    for phase in ("queue", "compute_input", "compute_infer", "compute_output"):
        first, last = getattr(before, phase), getattr(after, phase)
        found[f"{phase}_us"] = (last.ns - first.ns) / 1000 / max(1, last.count - first.count)
    return found


if __name__ == "__main__":
    main()
