"""Percentiles, differences of statistics, and CPU time read from a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service._pb import inference as pb
from service.bench.proc import NoSuchProcess, cpu_seconds, family
from service.bench.report import is_mostly_overhead, latency, outside_engine_us, percentile, server_work


@pytest.mark.parametrize(
    ("share", "value"), [(0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_percentiles_are_by_nearest_rank(share: float, value: int) -> None:
    assert percentile(range(1, 101), share) == value


def test_a_single_value_is_every_percentile_and_nothing_has_none() -> None:
    assert percentile([7], 0.01) == percentile([7], 1.0) == 7
    with pytest.raises(ValueError, match="of nothing"):
        percentile([], 0.5)
    assert latency([]) is None


def test_latency_sorts_and_is_in_microseconds() -> None:
    summary = latency([3000, 1000, 2000])
    assert summary is not None
    assert (summary.count, summary.mean, summary.p50, summary.max) == (3, 2.0, 2.0, 3.0)


def statistics(
    requests: int, rows: int, sizes: dict[int, int], compute_ns: int, failed: int = 0
) -> pb.ModelStatistics:
    stats = pb.ModelStatistics(inference_count=rows, execution_count=sum(sizes.values()))
    stats.inference_stats.success.count = requests
    stats.inference_stats.fail.count = failed
    stats.inference_stats.compute_infer.count = requests
    stats.inference_stats.compute_infer.ns = compute_ns
    for size, count in sizes.items():
        stats.batch_stats.add(batch_size=size).compute_infer.count = count
    return stats


def test_server_work_is_the_difference_of_two_readings() -> None:
    before = statistics(10, 10, {1: 2, 4: 2}, compute_ns=10_000_000)
    after = statistics(40, 70, {1: 2, 4: 5, 8: 6}, compute_ns=160_000_000, failed=3)
    work = server_work(before, after)
    assert (work.requests, work.failed, work.rows, work.batches) == (30, 3, 60, 9)
    assert work.by_size == {4: 3, 8: 6}  # size 1 did not grow
    assert work.mean_batch == pytest.approx(60 / 9)
    assert work.phase_us["compute_infer"] == pytest.approx(5000.0)
    assert work.phase_us["queue"] == 0.0  # no count: no division


@pytest.mark.parametrize(
    ("median_us", "compute_us", "queue_us", "trivial"),
    [
        (1000, 50, 0, True),
        (1000, 199, 0, True),
        (1000, 201, 0, False),
        (9000, 5000, 3000, False),
        (9000, 1000, 7500, False),  # what it waited for is the engine, busy with others
    ],
)
def test_a_trivial_engine_takes_less_than_a_fifth_of_a_call_that_did_not_wait(
    median_us: int, compute_us: int, queue_us: int, trivial: bool
) -> None:
    after = statistics(1, 1, {1: 1}, compute_ns=compute_us * 1000)
    after.inference_stats.queue.count, after.inference_stats.queue.ns = 1, queue_us * 1000
    client = latency([median_us * 1000])
    assert client is not None
    assert is_mostly_overhead(client, server_work(pb.ModelStatistics(), after)) is trivial


def test_time_outside_the_engine_is_median_latency_less_mean_compute() -> None:
    client = latency([6_000_000, 5_500_000, 90_000_000])
    assert client is not None
    work = server_work(statistics(0, 0, {}, 0), statistics(3, 3, {1: 3}, compute_ns=15_000_000))
    assert outside_engine_us(client, work) == pytest.approx(1000.0)


def process(proc: Path, pid: int, parent: int, name: str, threads_ns: list[int]) -> None:
    folder = proc / str(pid)
    (folder / "task").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 0 0 0")
    for number, ns in enumerate(threads_ns):
        (folder / "task" / str(pid + number)).mkdir()
        (folder / "task" / str(pid + number) / "schedstat").write_text(f"{ns} 1 2\n")


def test_cpu_time_is_that_of_all_threads_of_a_process_and_its_descendants(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, "headrace", [1_000_000_000, 500_000_000])
    process(tmp_path, 20, 10, "odd) S 1 (name", [250_000_000])
    process(tmp_path, 30, 20, "grandchild", [250_000_000])
    process(tmp_path, 40, 1, "stranger", [9_000_000_000])
    (tmp_path / "self").mkdir()
    assert sorted(family(10, tmp_path)) == [10, 20, 30]
    assert cpu_seconds(10, tmp_path) == pytest.approx(2.0)


def test_a_process_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NoSuchProcess, match="no such process on this machine"):
        cpu_seconds(10, tmp_path)


def test_this_process_has_used_some_cpu() -> None:
    assert cpu_seconds(os.getpid()) > 0
