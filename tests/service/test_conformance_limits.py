"""ModelInfer at its limits: deadlines, cancelled calls, full queues, a lost worker, a server that ends."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, takewhile
from signal import SIGKILL, SIGSTOP
from subprocess import PIPE, Popen
from threading import Event, Thread

import grpc
import numpy as np
import pytest
from hpack import Decoder
from http2 import HEADERS, PING, RST_STREAM, Http2, frames_of_call
from scripted import affine
from waiting import wait_until
from wire import done_response, hold, infer_request, output, queue, rows, status_of

from service._pb import inference as pb

INFER = "/inference.GRPCInferenceService/ModelInfer"

# ---- time and room ----


def test_a_timeout_is_answered_while_the_model_is_busy(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    late = infer_request("affine", x=rows(1))
    late.parameters["timeout"].int64_param = 20_000
    code, text = wire.error(late)
    assert code == "DEADLINE_EXCEEDED"
    assert text
    engine.gate.open()
    assert status_of(first) == "OK"
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"
    assert engine.batches == [1, 1]


def test_a_timeout_is_answered_while_the_request_itself_is_running(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    late = infer_request("affine", x=rows(1))
    late.parameters["timeout"].int64_param = 200_000
    future = wire.infer_later(late)
    engine.gate.wait_until_held()
    assert status_of(future) == "DEADLINE_EXCEEDED"
    assert "affine" in future.details()
    assert service.in_flight == 0
    engine.gate.open()
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"


def test_a_grpc_deadline_frees_what_the_request_held(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    late = wire.infer_later(infer_request("affine", x=rows(1)), timeout_s=0.05)
    assert status_of(late) == "DEADLINE_EXCEEDED"
    wait_until(lambda: service.in_flight == 1, "the late request gone")
    engine.gate.open()
    assert status_of(first) == "OK"
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"
    assert engine.batches == [1, 1]


def test_a_deadline_in_a_hundred_years_does_no_harm(serve):
    _, wire = serve(affine())
    future = wire.infer_later(infer_request("affine", x=rows(1)), timeout_s=5e9)
    assert status_of(future) == "OK"


def test_a_cancelled_call_is_dropped_from_the_queue(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    second, third = queue(service, wire, [infer_request("affine", x=rows(1))] * 2)
    second.cancel()
    wait_until(lambda: service.in_flight == 2, "the cancelled request gone")
    engine.gate.open()
    assert [status_of(future) for future in (first, second, third)] == ["OK", "CANCELLED", "OK"]
    assert engine.batches == [1, 1]


def test_a_burst_of_twice_what_runs_at_once_waits_and_is_not_refused(serve):
    engine = affine(max_batch_size=1, instances=4)
    service, wire = serve(engine)
    engine.gate.shut()
    burst = queue(service, wire, [infer_request("affine", x=rows(1, 10.0 * i)) for i in range(8)])
    engine.gate.wait_until_held(4)
    assert not any(future.done() for future in burst)
    engine.gate.open()
    for i, future in enumerate(burst):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 10.0 * i) + 1)


def test_the_first_requests_of_a_model_that_is_slow_when_it_is_cold_are_served(serve):
    """Nothing is refused by an estimate: there is none before the first batch, and it never decides."""
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))  # runs, for as long as it likes
    (second,) = queue(service, wire, [infer_request("affine", x=rows(1, 10.0))])
    assert not first.done()
    assert not second.done()
    engine.gate.open()
    assert np.array_equal(output(done_response(first)), 2 * rows(1) + 1)
    assert np.array_equal(output(done_response(second)), 2 * rows(1, 10.0) + 1)


def test_a_full_queue_refuses_with_a_hint_when_to_come_back(serve):
    engine = affine()
    service, wire = serve(engine, slots_per_lane=4)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1))] * 3)
    refused = wire.infer_later(infer_request("affine", x=rows(1)))
    assert status_of(refused) == "RESOURCE_EXHAUSTED"
    assert "--slots-per-lane" in refused.details()
    assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"] == "100"
    engine.gate.open()
    assert [status_of(future) for future in (first, *queued)] == ["OK"] * 4


def test_a_full_arena_refuses_and_recovers(serve):
    engine = affine(width=1 << 16)
    service, wire = serve(engine, arena_mb=1, spill_mb=0)
    request = infer_request("affine", x=rows(1, width=1 << 16))
    first = hold(engine, wire, request)
    refused = []
    while not refused:
        before = service.in_flight
        future = wire.infer_later(request)
        wait_until(lambda f=future, n=before: f.done() or service.in_flight > n, "an answer or a place")
        refused = [future] if future.done() else []
    assert status_of(refused[0]) == "RESOURCE_EXHAUSTED"
    assert "--arena-mb" in refused[0].details()
    engine.gate.open()
    wait_until(lambda: service.in_flight == 0, "the queue empty")
    assert status_of(first) == "OK"
    assert status_of(wire.infer_later(request)) == "OK"


def test_a_request_larger_than_the_arena_names_the_setting(serve):
    _, wire = serve(affine(width=1 << 19), arena_mb=1, spill_mb=0)
    refused = wire.infer_later(infer_request("affine", x=rows(1, width=1 << 19)))
    assert status_of(refused) == "RESOURCE_EXHAUSTED"
    assert "--arena-mb" in refused.details()
    assert "grpc-retry-pushback-ms" not in dict(refused.trailing_metadata()), "it would be refused again"


# ---- the worker's death, and the end ----


def test_a_lost_worker_answers_at_once_and_the_next_one_serves(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1))] * 10)
    service.cut_link()
    for future in (first, *queued):
        assert status_of(future) == "UNAVAILABLE"
        assert "try later" in future.details()
    assert not wire.call("ServerReady").ready
    assert not wire.call("ModelReady", pb.ModelReadyRequest(name="affine")).ready
    code, text = wire.error(infer_request("affine", x=rows(1)))
    assert code == "UNAVAILABLE"
    assert "affine" in text
    assert wire.error(infer_request("other", x=rows(1)))[0] == "NOT_FOUND"
    with pytest.raises(grpc.RpcError, match="not at ready state"):
        wire.call("ModelMetadata", pb.ModelMetadataRequest(name="affine"))
    engine.gate.open()
    service.stop_worker()
    service.start_worker([affine()])
    assert wire.call("ServerReady").ready
    assert np.array_equal(output(wire.infer(infer_request("affine", x=rows(1)))), 2 * rows(1) + 1)


def test_the_memory_of_a_lost_worker_is_used_again_when_its_process_has_ended(serve):
    """A device may be copying from it as long as that lives, stopped or not."""
    engine = affine()
    service, wire = serve(affine())
    service.cut_link()
    service.stop_worker()
    with Popen([sys.executable, "-c", "input()"], stdin=PIPE) as process:
        process_fd = os.pidfd_open(process.pid)
        service.start_worker([engine], process_fd=process_fd)
        held = [hold(engine, wire, infer_request("affine", x=rows(8)))]
        held += queue(service, wire, [infer_request("affine", x=rows(8))] * 5)
        service.cut_link()
        assert {status_of(future) for future in held} == {"UNAVAILABLE"}
        process.send_signal(SIGSTOP)
        engine.gate.open()
        service.stop_worker()
        service.start_worker([affine()])
        server = service.frontend.server
        for number in range(20):
            assert np.array_equal(output(wire.infer(infer_request("affine", x=rows(1, number)))),
                                  2 * rows(1, number) + 1)  # fmt: skip
        wait_until(lambda: server.outstanding == 0, "the answers' release")
        assert server.arena_used >= 6 * rows(8).nbytes and server.check() == 0
        process.send_signal(SIGKILL)
    wait_until(lambda: server.arena_used == 0, "the end of the quarantine")
    assert server.check() == 0
    os.close(process_fd)


def test_draining_finishes_what_is_accepted_and_refuses_what_is_new(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1, 10.0 * i)) for i in range(20)])
    service.begin_drain()
    assert not wire.call("ServerReady").ready
    assert wire.call("ServerLive").live
    expected = "GRPC server is shutting down and has stopped accepting new requests."
    assert wire.error(infer_request("affine", x=rows(1))) == ("UNAVAILABLE", expected)
    engine.gate.open()
    assert status_of(first) == "OK"
    for i, future in enumerate(queued):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 10.0 * i) + 1)


@contextmanager
def held_up(service) -> Iterator[None]:
    """The front end's loop stands still meanwhile."""
    standing, go = Event(), Event()

    def stand() -> None:
        standing.set()
        go.wait()

    service.call_soon(stand)
    standing.wait()
    try:
        yield
    finally:
        go.set()


def ends(frames: Iterable[tuple[int, int, int, bytes]], decoder: Decoder, count: int) -> Iterator[str]:
    """How each of `count` calls ends: its gRPC status, or the error of its reset."""
    for kind, _, _, payload in frames:
        end = None
        if kind == RST_STREAM and any(payload):  # without an error it follows the status
            end = f"reset {int.from_bytes(payload, 'big')}"
        elif kind == HEADERS:
            end = dict(decoder.decode(payload)).get("grpc-status")
        if end is None:
            continue
        yield end
        if (count := count - 1) == 0:
            return


def test_calls_that_nobody_has_looked_at_when_the_drain_begins_are_told_so(serve):
    service, _ = serve(affine())
    client = Http2(service.grpc_port)
    message = infer_request("affine", x=rows(1)).SerializeToString()
    with held_up(service):  # what comes now lies with gRPC
        client.write(b"".join(frames_of_call(stream, INFER, message) for stream in range(1, 401, 2)))
        client.send(PING, 0, 0, b"received")
        frames = client.frames()
        early = list(takewhile(lambda frame: frame[0] != PING, frames))
        drained = Thread(target=service.drain)
        drained.start()
    expected = {"0", str(grpc.StatusCode.UNAVAILABLE.value[0])}
    found = Counter(ends(chain(early, frames), client.decoder, 200))
    assert set(found) <= expected, "an answer, or told to go elsewhere"
    assert found.total() == 200
    drained.join()
    client.close()


def test_a_drain_that_runs_out_of_time_says_how_many_were_left(serve):
    engine = affine()
    service, wire = serve(engine, drain_timeout_s=0.05)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1))] * 2)
    assert service.drain() == 3
    assert {status_of(future) for future in (first, *queued)} <= {"UNAVAILABLE", "CANCELLED"}


# ---- defects of ours ----


@pytest.mark.parametrize("frontend", ["grpcio"], indirect=True)  # on the other one no Python is on the way
def test_a_defect_is_internal_and_tells_the_log_and_not_the_client(serve, monkeypatch, capfd):
    service, wire = serve(affine())

    def broken(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.frontend.state, "check_started", broken)
    code, text = wire.error(infer_request("affine", x=rows(1)))
    assert code == "INTERNAL"
    assert "secret" not in text
    assert "secret" in capfd.readouterr().err
    failed = wire.stream().send(infer_request("affine", x=rows(1), id="7")).next()
    assert failed.infer_response.id == "7"
    assert "secret" not in failed.error_message
    monkeypatch.undo()
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"


def test_a_defect_in_another_rpc_is_internal_and_tells_the_log_and_not_the_client(serve, monkeypatch, capfd):
    service, wire = serve(affine())

    def broken(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.frontend.catalog, "find", broken)
    with pytest.raises(grpc.RpcError) as caught:
        wire.call("ModelMetadata", pb.ModelMetadataRequest(name="affine"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "secret" in capfd.readouterr().err
