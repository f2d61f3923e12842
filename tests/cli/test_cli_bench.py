"""``headrace bench`` against a server whose accounts are known: what is sent, what is made of it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FakeServer, Run


def report_of(run: Run, server: FakeServer, *flags: object) -> dict[str, Any]:
    result = run("bench", "affine", "--url", server.url, "--json", *flags)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.mark.parametrize("way", [[], ["--stream"]], ids=["unary", "stream"])
def test_a_closed_loop_counts_its_requests_and_not_the_warm_up(
    run: Run, server: FakeServer, way: list[str]
) -> None:
    server.batch_of = 4
    report = report_of(run, server, "-n", 40, "-c", 4, "--warm-up", 8, *way)
    assert report["latency_us"]["count"] == 40 and report["failures"] == {}
    assert len(server.seen) == 48
    assert report["server"]["requests"] == 40 and report["server"]["rows"] == 40
    assert report["server"]["by_size"] == {"4": 10} and report["server"]["mean_batch"] == 4.0
    assert report["streams"] == (4 if way else 0)


def test_the_phases_are_the_servers_and_outside_is_the_rest(run: Run, server: FakeServer) -> None:
    report = report_of(run, server, "-n", 10)
    assert report["server"]["phase_us"] == {
        "queue": 2000.0,
        "compute_input": 100.0,
        "compute_infer": 5000.0,
        "compute_output": 50.0,
    }
    assert report["outside_engine_us"] == pytest.approx(report["latency_us"]["p50"] - 5000.0)


def test_an_open_loop_sends_so_many_and_says_how_late(run: Run, server: FakeServer) -> None:
    report = report_of(run, server, "-n", 30, "--rate", 2000, "--warm-up", 1)
    assert report["latency_us"]["count"] == report["late_us"]["count"] == 30
    assert len(server.seen) == 31


def test_streams_can_be_fewer_than_requests_in_flight(run: Run, server: FakeServer) -> None:
    report = report_of(run, server, "-n", 60, "-c", 12, "--stream", "--streams", 3)
    assert report["streams"] == 3 and report["latency_us"]["count"] == 60
    assert len(server.requests_by_stream) == 3 and min(server.requests_by_stream) > 0


def test_each_request_on_a_stream_has_an_id_of_its_own(run: Run, server: FakeServer) -> None:
    report_of(run, server, "-n", 20, "--stream", "--streams", 1, "-c", 4, "--warm-up", 1)
    ids = [request.id for request in server.seen]
    assert len(set(ids)) == len(ids) == 21 and "" not in ids


def test_rows_per_request_and_random_values(run: Run, server: FakeServer) -> None:
    report = report_of(run, server, "-n", 2, "--rows", 3, "--warm-up", 1)
    assert report["rows_per_request"] == 3 and report["server"]["rows"] == 6
    (values,) = {request.raw_input_contents[0] for request in server.seen}
    sent = np.frombuffer(values, "<f4")
    assert sent.shape == (12,) and len(set(sent)) > 1 and 0 <= sent.min() <= sent.max() < 1


def test_a_file_is_sent_as_infer_would(run: Run, server: FakeServer, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3, 4], [5, 6, 7, 8]]))
    report = report_of(run, server, "-n", 1, "--input", tmp_path / "x.npy")
    assert report["rows_per_request"] == 2
    assert np.frombuffer(server.seen[0].raw_input_contents[0], "<f4").tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("way", [[], ["--stream"]], ids=["unary", "stream"])
def test_failures_are_counted_by_reason(run: Run, server: FakeServer, way: list[str]) -> None:
    turns = itertools.count()
    server.refuse = lambda request: "too much" if next(turns) % 2 else ""
    report = report_of(run, server, "-n", 10, "--warm-up", 1, *way)
    (reason,) = report["failures"]
    assert "too much" in reason
    assert report["latency_us"]["count"] == report["failures"][reason] == 5


def test_a_server_that_refuses_the_first_request_is_not_loaded(run: Run, server: FakeServer) -> None:
    server.refuse = lambda request: "unexpected shape"
    result = run("bench", "affine", "--url", server.url, "-c", 8)
    assert result.exit_code == 1
    assert "the first request failed: INVALID_ARGUMENT: unexpected shape" in result.stderr


def test_a_server_without_statistics_is_still_measured(run: Run, server: FakeServer) -> None:
    server.missing |= {"ModelStatistics", "ModelConfig"}
    report = report_of(run, server, "-n", 5)
    assert report["server"] is None and report["outside_engine_us"] is None
    assert report["latency_us"]["count"] == 5
    assert server.seen[0].inputs[0].shape == [1, 4]
    text = run("bench", "affine", "--url", server.url, "-n", 5).stdout
    assert "keeps no statistics" in text


@pytest.mark.parametrize("way", [[], ["--stream"]], ids=["unary", "stream"])
def test_a_server_that_ends_in_the_middle_leaves_what_the_client_saw(
    run: Run, server: FakeServer, way: list[str]
) -> None:
    ending = threading.Thread(target=server.stop)

    def ends_after_five(request: object) -> str:
        if len(server.seen) == 6 and not ending.is_alive():  # one more for the warm-up
            ending.start()
            ending.join()
        return ""

    server.refuse = ends_after_five
    flags = ["-n", 10, "--warm-up", 1, *way]
    report = report_of(run, server, *flags)
    assert report["latency_us"]["count"] == 5 and sum(report["failures"].values()) == 5
    assert report["server"] is None and report["outside_engine_us"] is None
    assert "did not answer ModelStatistics after the load" in report["server_lost"]


def test_why_the_servers_side_is_missing_is_printed(run: Run, server: FakeServer) -> None:
    def statistics_end(request: object) -> str:
        server.statistics_fail = len(server.seen) >= 3
        return ""

    server.refuse = statistics_end
    result = run("bench", "affine", "--url", server.url, "-n", 10, "--warm-up", 1)
    assert result.exit_code == 0
    assert "10 answered, 0 failed" in result.stdout
    assert "unknown: the server did not answer ModelStatistics after the load: INTERNAL" in result.stdout


def test_a_server_that_was_started_again_has_no_figures_of_its_own(run: Run, server: FakeServer) -> None:
    def starts_again(request: object) -> str:
        if len(server.seen) == 20:
            server.requests = server.rows = server.batches = 0
        return ""

    server.refuse = starts_again
    report = report_of(run, server, "-n", 10, "--warm-up", 16)
    assert report["latency_us"]["count"] == 10 and report["server"] is None
    assert "counters started anew" in report["server_lost"]


def test_a_process_that_ends_in_the_middle_has_no_cpu_time(run: Run, server: FakeServer) -> None:
    watched = subprocess.Popen(["sleep", "1000"])

    def ends(request: object) -> str:
        if len(server.seen) == 3:
            watched.kill()
            watched.wait()
        return ""

    server.refuse = ends
    report = report_of(run, server, "-n", 10, "--warm-up", 1, "--pid", watched.pid)
    assert report["latency_us"]["count"] == 10 and report["server_cpu_s"] is None
    assert report["server"]["requests"] == 10


def test_a_trivial_engine_gets_a_hint(run: Run, server: FakeServer) -> None:
    hint = "these figures are the cost of serving, not of a model"
    assert hint not in run("bench", "affine", "--url", server.url, "-n", 10).stdout
    server.compute_ns = server.queue_ns = 0
    assert hint in run("bench", "affine", "--url", server.url, "-n", 10).stdout


def test_the_report_for_people_has_every_part(run: Run, server: FakeServer) -> None:
    server.batch_of = 2
    text = run(
        "bench", "affine", "--url", server.url, "-n", 20, "-c", 2, "--pid", os.getpid(), "--warm-up", 4
    ).stdout
    assert f"affine at {server.url}: 2 in flight, unary calls, 1 row(s) a request" in text
    assert "20 answered, 0 failed" in text
    assert "queue 2.000 ms, copy-in 0.100, compute 5.000, copy-out 0.050" in text
    assert "10 of 2.00 rows on average" in text
    for part in ("p50", "p99", "throughput", "outside the engine", "server CPU", "us a request", "100.0%"):
        assert part in text
    assert "\x1b" not in text


def test_other_peoples_requests_are_noticed(run: Run, server: FakeServer) -> None:
    def and_one_more(request: object) -> str:
        server.requests += 1
        return ""

    server.refuse = and_one_more
    text = run("bench", "affine", "--url", server.url, "-n", 20).stdout
    assert "somebody else        sent 20 more requests" in text


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--rate", 5, "-c", 2], "give one of them"),
        (["--shape", "x"], "--shape is NAME:D,D"),
        (["--shape", "x:a,b"], "--shape is NAME:D,D"),
        (["--shape", "x:-1"], "--shape is NAME:D,D"),
        (["--pid", 2**22 + 1], "no such process on this machine"),
    ],
    ids=["both loops", "no sizes", "not numbers", "negative", "no process"],
)
def test_wrong_flags_end_with_exit_code_2(
    run: Run, server: FakeServer, flags: list[object], text: str
) -> None:
    result = run("bench", "affine", "--url", server.url, "-n", 1, *flags)
    assert result.exit_code == 2 and text in result.stderr


def test_a_shape_that_contradicts_the_model_is_refused(run: Run, server: FakeServer) -> None:
    for shape, text in (
        ("x:5", "gives [5], the model has [4]"),
        ("z:4", "names ['z'], but the inputs are 'x'"),
    ):
        result = run("bench", "affine", "--url", server.url, "-n", 1, "--shape", shape)
        assert result.exit_code == 1 and text in result.stderr
