"""The arithmetic of a load report: percentiles, what the server says it did, and what lies between the two.

The server's side comes from ModelStatistics, read before and after: every number here is the difference of
two counters. In Triton's terms, which Headrace keeps, a request's ``compute_infer`` is the whole time of
the batch it was in; ``inference_count`` counts rows, ``execution_count`` batches, and ``batch_stats`` has
one entry for each batch size, whose ``compute_infer.count`` is the number of batches of that size.

*Time outside the engine* is the client's median latency less the mean time a request's batch spent in the
engine (``compute_infer`` alone: copies into and out of the engine's buffers count as outside). Where that is
most of a call, the figures are the cost of serving and say little about a model (``is_mostly_overhead``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service._pb import inference as pb

PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


def percentile(ordered: Sequence[int], share: float) -> int:
    """The nearest-rank percentile of an ascending sequence: the least value that ``share`` do not exceed.

    ``share`` is in (0, 1]. Raises ValueError when there is no value.
    """
    if not ordered:
        raise ValueError("a percentile of nothing")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Latency:
    """A latency distribution in microseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def latency(values_ns: Sequence[int]) -> Latency | None:
    """Summarises latencies given in ns; None when there are none."""
    if not values_ns:
        return None
    ordered = sorted(values_ns)
    p50, p90, p95, p99 = (percentile(ordered, share) / 1e3 for share in (0.50, 0.90, 0.95, 0.99))
    mean = sum(ordered) / len(ordered) / 1e3
    return Latency(len(ordered), mean, p50, p90, p95, p99, ordered[-1] / 1e3)


@dataclass(frozen=True)
class ServerWork:
    """What a server did between two readings: totals, mean us of a request by phase, batches by size."""

    requests: int
    failed: int
    rows: int
    batches: int
    phase_us: dict[str, float]
    by_size: dict[int, int]

    @property
    def mean_batch(self) -> float:
        """Rows per executed batch; 0.0 when there was none."""
        return self.rows / self.batches if self.batches else 0.0


def server_work(before: pb.ModelStatistics, after: pb.ModelStatistics) -> ServerWork:
    """The difference of two ModelStatistics messages of one model."""
    old, new = before.inference_stats, after.inference_stats
    return ServerWork(
        requests=new.success.count - old.success.count,
        failed=new.fail.count - old.fail.count,
        rows=after.inference_count - before.inference_count,
        batches=after.execution_count - before.execution_count,
        phase_us={name: _mean_us(getattr(old, name), getattr(new, name)) for name in PHASES},
        by_size=_batches_by_size(before, after),
    )


def _mean_us(old: pb.StatisticDuration, new: pb.StatisticDuration) -> float:
    count = new.count - old.count
    return float((new.ns - old.ns) / count / 1e3) if count else 0.0


def _batches_by_size(before: pb.ModelStatistics, after: pb.ModelStatistics) -> dict[int, int]:
    counts = {entry.batch_size: entry.compute_infer.count for entry in after.batch_stats}
    for entry in before.batch_stats:
        counts[entry.batch_size] = counts.get(entry.batch_size, 0) - entry.compute_infer.count
    return {size: count for size, count in sorted(counts.items()) if count}


_TRIVIAL_SHARE = 0.2


def is_mostly_overhead(client: Latency, work: ServerWork) -> bool:
    """Whether the engine takes so small a part of a call that the figures are those of serving alone.

    Waiting for a batch is left out of the comparison: a busy engine makes requests wait.
    """
    compute_us = work.phase_us["compute_infer"]
    return compute_us < _TRIVIAL_SHARE * (client.p50 - work.phase_us["queue"])


def outside_engine_us(client: Latency, work: ServerWork) -> float:
    """Median client latency less the mean engine time of a request, in microseconds."""
    return client.p50 - work.phase_us["compute_infer"]
