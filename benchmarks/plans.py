"""A TensorRT plan behind gRPC, loaded until it gives no more: what reaches the device, and what it takes.

The load comes from a generator of your own (``--load``), since one in Python is far slower than a device. It
is called with ``--addr HOST:PORT --method METHOD --file REQUEST --n N --conns C --threads T --dur S --warm S
--pids P,P``: N calls in flight over C connections, each the message in the file REQUEST. It prints a line of
JSON: ``rps``, ``p50`` and ``p99`` in us, ``err``, and ``srv_us`` and ``cli_us``, CPU per request of those
processes and of its own. The service's count of rows over the same time stands beside it, and NVML's word,
once a second, of how busy the device was.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
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
            with utilization() as busy:
                before, began = rows(server, arguments.plan.stem), time.perf_counter()
                found = load(arguments, server, request, count)
                counted = rows(server, arguments.plan.stem) - before
                seconds = time.perf_counter() - began
            results.add(
                f"{count} in flight",
                requests_per_s=found["rps"],
                rows_per_s_counted_with_warm_up=counted / seconds,
                p50_ms=found["p50"] / 1000,
                p99_ms=found["p99"] / 1000,
                failed=found["err"],
                server_cpu_us_per_request=found["srv_us"],
                client_cpu_us_per_request=found["cli_us"],
                device_busy_percent=mean(busy) if busy else 0.0,
            )
        results.add("statistics", **figures(server, arguments.plan.stem))
    results.finish()


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


def load(arguments: Any, server: Server, request: Path, count: int) -> dict[str, Any]:
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 2 * arguments.seconds)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(server: Server, model: str) -> int:
    """Rows that the service says it has answered."""
    with Client(server.url) as client:
        return int(client.model_statistics(model)[0].inference_count)


def figures(server: Server, model: str) -> dict[str, float]:
    with Client(server.url) as client:
        stats = client.model_statistics(model)[0]
    total = stats.inference_stats
    count = max(1, stats.execution_count)
    return {
        "mean_batch": stats.inference_count / count,
        "queue_us_per_request": total.queue.ns / 1000 / max(1, total.queue.count),
        "input_us_per_request": total.compute_input.ns / 1000 / max(1, total.compute_input.count),
        "compute_us_per_request": total.compute_infer.ns / 1000 / max(1, total.compute_infer.count),
        "output_us_per_request": total.compute_output.ns / 1000 / max(1, total.compute_output.count),
    }


if __name__ == "__main__":
    main()
