"""Which batches are formed, and what callers wait, on a device of 5 ms a batch with at most 8 rows.

1. Full load: 64 requests in flight. Expected: batches of nearly 8. Its throughput is the capacity for what
follows. 2. One in flight: what a call costs beside the engine. 3. A quarter of the capacity, Poisson
arrivals: the 99th percentile of the waiting should be within one engine time. Waiting is a request's
latency less the engine time and less what a call costs beside it (from 2). The machine alone also makes
some calls late: machine_p99_ms is the percentile less the median, from 2. 4. 95 % of the capacity, Poisson
arrivals: the queue should not grow; the median latency of the first and of the last third of the requests
is compared.
"""

from __future__ import annotations

from device import running
from results import Measured, Results, flags, measure

from service.bench.report import percentile

ENGINE_MS = 5.0
MAX_BATCH = 8
IN_FLIGHT = 64
ROUNDS = 3


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument(
        "--stream", action="store_true", help="16 streams instead of unary calls, for 1 and 2"
    )
    arguments = parser.parse_args()
    results = Results("batching", arguments.out)
    with running(ENGINE_MS, MAX_BATCH) as server:
        for number in range(1, ROUNDS + 1):
            one_round(results, number, server.url, server.pid, arguments.seconds, arguments.stream)
    results.finish()


def one_round(results: Results, number: int, url: str, pid: int, seconds: float, stream: bool) -> None:
    """The four measurements, in the order in which they need each other."""
    streams = (16, 1) if stream else (0, 0)
    full = measure(url, "device", seconds=seconds, pid=pid, concurrency=IN_FLIGHT, streams=streams[0])
    results.add(f"{IN_FLIGHT} in flight, round {number}", **common(full))
    alone = measure(url, "device", seconds=seconds / 2, pid=pid, streams=streams[1])
    results.add(f"1 in flight, round {number}", **common(alone), outside_engine_p50_us=alone.outside_us)
    quarter = measure(url, "device", seconds=seconds, pid=pid, rate=full.rows_per_s / 4)
    results.add(
        f"a quarter of capacity, round {number}",
        **common(quarter),
        **waiting(quarter, alone),
        **offered(quarter),
    )
    nearly = measure(url, "device", seconds=seconds, pid=pid, rate=full.rows_per_s * 0.95)
    results.add(
        f"95 % of capacity, round {number}",
        **common(nearly),
        **waiting(nearly, alone),
        **offered(nearly),
        **growth(nearly),
    )


def offered(found: Measured) -> dict[str, float]:
    """What was offered, as a share of what the engine could do at the speed that it had meanwhile.

    Above 1 the engine was slowed down by something else, and a growing queue is what must be seen.
    """
    could = MAX_BATCH / (found.work.phase_us["compute_infer"] / 1e6)
    return {"offered_of_engine": found.rows_per_s / could}


def common(found: Measured) -> dict[str, float | int | str]:
    return {
        "requests": found.client.count,
        "failed": found.failures,
        "rows_per_s": found.rows_per_s,
        "mean_batch": found.work.mean_batch,
        "engine_mean_ms": found.work.phase_us["compute_infer"] / 1e3,
        "queue_mean_ms": found.work.phase_us["queue"] / 1e3,
        "client_p50_ms": found.client.p50 / 1e3,
        "client_p99_ms": found.client.p99 / 1e3,
    }


def waiting(found: Measured, alone: Measured) -> dict[str, float]:
    """Latency less the engine and less what a call costs beside it; and how late the generator itself was."""
    base_us = found.work.phase_us["compute_infer"] + alone.outside_us
    late = found.late.p99 / 1e3 if found.late else 0.0
    return {
        "waiting_p99_ms": (found.client.p99 - base_us) / 1e3,
        "machine_p99_ms": (alone.client.p99 - alone.client.p50) / 1e3,
        "sent_late_p99_ms": late,
    }


def growth(found: Measured) -> dict[str, float]:
    third = max(1, len(found.latencies_ns) // 3)
    first, last = sorted(found.latencies_ns[:third]), sorted(found.latencies_ns[-third:])
    return {
        "first_third_p50_ms": percentile(first, 0.5) / 1e6,
        "last_third_p50_ms": percentile(last, 0.5) / 1e6,
    }


if __name__ == "__main__":
    main()
