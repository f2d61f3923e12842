"""Prometheus metrics, made at every scrape from counters that are kept elsewhere.

Nothing is counted here: the worker keeps its counters in a shared page, the front end the few of its own. A
scrape reads them once, through a Source, and one collector in a registry of its own turns them into families.
Series come and go with their models. Labels are names of loaded models, their versions, and words of this
program; what a client sends never becomes one.

Worker counters start from 0 when a worker is started again, which Prometheus takes for what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from service.models.counts import GRAPH_HITS, GRAPH_MISSES, PINNED_FALLBACKS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MODEL_LABELS = ("model", "version")


class CountLike(Protocol):
    """How often, and how long in all."""

    @property
    def count(self) -> int: ...
    @property
    def ns(self) -> int: ...


class StatsLike(Protocol):
    """A model's counters (`fastqueue` ModelStats)."""

    @property
    def rows(self) -> int: ...
    @property
    def executions(self) -> int: ...
    @property
    def success(self) -> CountLike: ...
    @property
    def fail(self) -> CountLike: ...
    @property
    def queue(self) -> CountLike: ...
    @property
    def input(self) -> CountLike: ...
    @property
    def compute(self) -> CountLike: ...
    @property
    def output(self) -> CountLike: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def expired(self) -> int: ...
    @property
    def slow(self) -> int: ...
    @property
    def pending_rows(self) -> int: ...
    @property
    def padding_rows(self) -> int: ...
    @property
    def engine(self) -> Sequence[int]: ...
    @property
    def reasons(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Snapshot:
    """Everything a scrape shows.

    Attributes:
        ready: what readiness says. in_flight: requests whose clients wait. models: (name, version,
        counters) each. rejected: requests that the front end refused, by reason.
    """

    ready: bool
    in_flight: int
    models: tuple[tuple[str, str, StatsLike], ...]
    rejected: Mapping[str, int]


Source = Callable[[], Snapshot]

# A batch's time is counted once for each of its requests, as Triton does.
_SUMMED = ", summed over requests of outcome success (each counts the whole time of its batch)."
# Family, help, and how to read it from a model's counters.
_MODEL_COUNTERS: tuple[tuple[str, str, Callable[[StatsLike], float]], ...] = (
    ("headrace_inference_count", "Rows that were executed; padded rows are not counted.", lambda s: s.rows),
    ("headrace_execution_count", "Batches that were executed.", lambda s: s.executions),
    (
        "headrace_padding_rows",
        "Rows that were executed to fill batches up to a size that the engine has.",
        lambda s: s.padding_rows,
    ),
    (
        "headrace_graph_hits",
        "Batches on a GPU that ran as a captured CUDA graph.",
        lambda s: s.engine[GRAPH_HITS],
    ),
    (
        "headrace_graph_misses",
        "Batches on a GPU that were enqueued without a graph.",
        lambda s: s.engine[GRAPH_MISSES],
    ),
    (
        "headrace_pinned_fallbacks",
        "Pieces of batches that a GPU could not copy from pinned memory.",
        lambda s: s.engine[PINNED_FALLBACKS],
    ),
    (
        "headrace_slow_batches",
        "Batches that ran for longer than 10 s and than 20 times what was predicted.",
        lambda s: s.slow,
    ),
    (
        "headrace_request_seconds",
        "Seconds from arrival to answer, summed over requests of outcome success.",
        lambda s: _seconds(s.success),
    ),
    (
        "headrace_queue_seconds",
        "Seconds from arrival to the launch of a batch, summed over requests of outcome success.",
        lambda s: _seconds(s.queue),
    ),
    (
        "headrace_compute_input_seconds",
        f"Seconds in which their batches' inputs were copied{_SUMMED}",
        lambda s: _seconds(s.input),
    ),
    (
        "headrace_compute_infer_seconds",
        f"Seconds in which their batches ran in the model{_SUMMED}",
        lambda s: _seconds(s.compute),
    ),
    (
        "headrace_compute_output_seconds",
        f"Seconds in which their batches' outputs were copied{_SUMMED}",
        lambda s: _seconds(s.output),
    ),
)
_OUTCOMES: tuple[tuple[str, Callable[[StatsLike], int]], ...] = (
    ("success", lambda s: s.success.count),
    ("failure", lambda s: s.fail.count),
    ("cancelled", lambda s: s.cancelled),
    ("expired", lambda s: s.expired),
)


class Metrics:
    """A registry with one collector over `source`, which is asked on the thread of every scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition, of type CONTENT_TYPE."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing to check at registration: the families are this file's own."""
        return ()

    def collect(self) -> Iterable[Metric]:
        snapshot = self._source()
        yield GaugeMetricFamily("headrace_ready", "1 while every model can be used.", value=snapshot.ready)
        yield GaugeMetricFamily(
            "headrace_requests_in_flight",
            "Requests that were accepted and are not answered yet.",
            value=snapshot.in_flight,
        )
        yield _rejected(snapshot)
        yield _requests(snapshot)
        yield _batches(snapshot)
        yield _pending(snapshot)
        yield from (_model_counter(snapshot, *row) for row in _MODEL_COUNTERS)


def _seconds(count: CountLike) -> float:
    return count.ns / 1e9


def _model_counter(
    snapshot: Snapshot, name: str, text: str, read: Callable[[StatsLike], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=MODEL_LABELS)
    for model, version, stats in snapshot.models:
        family.add_metric((model, version), read(stats))
    return family


def _requests(snapshot: Snapshot) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "headrace_requests",
        "Requests that ended, by outcome; failure includes cancelled and expired.",
        labels=(*MODEL_LABELS, "outcome"),
    )
    for model, version, stats in snapshot.models:
        for outcome, read in _OUTCOMES:
            family.add_metric((model, version, outcome), read(stats))
    return family


def _batches(snapshot: Snapshot) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "headrace_batches",
        "Batches that were closed, by why: full, waited long enough, or a deadline was near.",
        labels=(*MODEL_LABELS, "reason"),
    )
    for model, version, stats in snapshot.models:
        for reason, count in stats.reasons.items():
            family.add_metric((model, version, reason), count)
    return family


def _pending(snapshot: Snapshot) -> GaugeMetricFamily:
    family = GaugeMetricFamily("headrace_pending_rows", "Rows that wait for a batch.", labels=MODEL_LABELS)
    for model, version, stats in snapshot.models:
        family.add_metric((model, version), stats.pending_rows)
    return family


def _rejected(snapshot: Snapshot) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "headrace_rejected",
        "Requests that were refused before they reached a worker, or whose answers had no room beside those "
        "that clients do not read, by status code or shutting_down.",
        labels=("reason",),
    )
    for reason, count in sorted(snapshot.rejected.items()):
        family.add_metric((reason,), count)
    return family
