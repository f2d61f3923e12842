"""The first run at each batch size after READY, against the median of later ones: is everything warm?

Requests of 1 row, 2, 4 and so on up to the model's max_batch_size are sent one at a time, each of which is a
batch of its own; the largest comes first, as a busy start would have it. The client's time is the call's; the
engine's is what ModelStatistics says of that batch. Each model has a service of its own, and is measured in
three of them. What a warm-up leaves cold is in `engine_first_over_median`; the client's figure of the very
first call also has the connection's first use in it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from models import affine
from results import Results, flags

from service._pb import inference as pb
from service.bench.report import server_work
from service.client import Client
from service.client.inputs import random_inputs
from service.demo.model import find_model
from service.demo.server import running

ROUNDS = 3
LATER = 30  # runs after the first, at each size
AT_LEAST = 5  # of them, however long they take
READINGS = 100


@dataclass(frozen=True)
class Run:
    """One request that was a batch of its own: what its client waited, and what the engine took, in us."""

    client_us: float
    engine_us: float


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument(
        "models", nargs="*", type=Path, help="ONNX files; left out: the demo's, and y = 2x + 1"
    )
    arguments = parser.parse_args()
    results = Results("first_run", arguments.out)
    with tempfile.TemporaryDirectory() as folder:
        default = [find_model().path, affine(Path(folder, "affine.onnx"))]
        for path in arguments.models or default:
            for number in range(1, ROUNDS + 1):
                measure_model(results, path, number, arguments.seconds)
    results.finish()


def measure_model(results: Results, path: Path, number: int, seconds: float) -> None:
    """Starts a service with one model and adds a line for each size; each takes `seconds` at most."""
    with running(path, path.stem) as server, Client(server.url) as client:
        for size in sizes(client.model_config(path.stem).max_batch_size):
            runs = runs_of(client, path.stem, size, seconds)
            first, later = runs[0], runs[1:]
            client_p50 = statistics.median(run.client_us for run in later)
            engine_p50 = statistics.median(run.engine_us for run in later)
            results.add(
                f"{path.stem}, {size} rows, start {number}",
                runs=len(runs),
                client_first_us=first.client_us,
                client_p50_us=client_p50,
                client_first_over_median=first.client_us / client_p50,
                engine_first_us=first.engine_us,
                engine_p50_us=engine_p50,
                engine_first_over_median=first.engine_us / engine_p50,
            )


def sizes(max_batch_size: int) -> list[int]:
    """The largest, then powers of two upwards; 1 for a model that does not batch."""
    most = max(1, max_batch_size)
    return [most, *(1 << n for n in range(most.bit_length()) if 1 << n != most)]


def runs_of(client: Client, model: str, rows: int, seconds: float) -> list[Run]:
    """The first run at a size and LATER more, fewer when time is up, but AT_LEAST."""
    info = client.model_metadata(model)
    inputs = random_inputs(info, client.model_config(model).max_batch_size > 0, rows, {}, seed=1)
    until = time.monotonic() + seconds
    found: list[Run] = []
    while len(found) <= AT_LEAST or (len(found) <= LATER and time.monotonic() < until):
        before = client.model_statistics(model)[-1]
        start = time.perf_counter_ns()
        client.infer(model, inputs)
        client_us = (time.perf_counter_ns() - start) / 1e3
        found.append(Run(client_us, engine_us(client, model, before)))
    return found


def engine_us(client: Client, model: str, before: pb.ModelStatistics) -> float:
    """The engine's time of the one batch since `before`. Counters may trail the answer by a moment."""
    for _ in range(READINGS):
        work = server_work(before, client.model_statistics(model)[-1])
        if work.requests:
            break
        time.sleep(0.01)
    if (work.requests, work.batches) != (1, 1):
        raise RuntimeError(
            f"expected one request in one batch, and nobody else's, got {work.requests} in {work.batches}"
        )
    return work.phase_us["compute_infer"]


if __name__ == "__main__":
    main()
