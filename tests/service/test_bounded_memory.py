"""The whole service of real processes under what is large, slow or dead: memory stays within its bounds."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from arena_memory import allocated_bytes, mapped_arenas
from lifecycle import Server
from silent import SilentClient
from waiting import wait_until
from wire import Wire, done_response, infer_request, output, rows, status_of

from service._pb import inference as pb

PUSHBACK = "grpc-retry-pushback-ms"
MB = 1 << 20
ARENA_MB = 16  # what lifecycle.Server gives both arenas
WIDTH = MB // 4
PATIENCE_S = 300.0  # a gigabyte in Python on a busy machine
GIVEN_BACK = (2 * ARENA_MB + 1) * MB  # the head, as much again, and the header


@pytest.fixture
def start(tmp_path, frontend):
    """start(*others, **settings): a running service, and a client of it."""
    with ExitStack() as stack:

        def started(*others: str, **settings) -> tuple[Server, Wire]:
            server = stack.enter_context(Server(tmp_path, others=others, frontend=frontend, **settings))
            wire = Wire(server.address)
            stack.callback(wire.close)
            return server, wire

        yield started


def large(mb: int) -> bytes:
    """A request of `mb` rows of 1 MB for the model "sum", built with few copies; row i is all i."""
    request = pb.ModelInferRequest(model_name="sum")
    request.inputs.add(name="x", datatype="FP32", shape=(mb, WIDTH))
    length, varint = mb * MB, bytearray()
    while length >= 128:
        varint.append(length & 127 | 128)
        length >>= 7
    varint.append(length)
    x = np.empty((mb, WIDTH), np.float32)
    x[:] = np.arange(mb, dtype=np.float32)[:, None]
    return b"".join([request.SerializeToString(), b"\x3a", varint, x.data.cast("B")])  # raw_input_contents


def check_sums(response, mb: int) -> None:
    assert output(response).ravel().tolist() == [float(n * WIDTH) for n in range(mb)]


def check_small(wire: Wire) -> None:
    x = rows(1)
    assert (output(wire.infer(infer_request("affine", x=x))) == 2 * x + 1).all()


def widened(count: int = 1, number: int = 1):
    return infer_request("widen", id=str(number), x=np.full((count, 1), number, np.float32))


def resident_mb(pid: int) -> dict[str, int]:
    """Memory of a process by kind: its own, and that of the arenas."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {kind: int(fields[kind].split()[0]) // 1024 for kind in ("RssAnon", "RssShmem")}


def anonymous_mb(pid: int) -> int:
    return resident_mb(pid)["RssAnon"]


def send_large(wire: Wire, mb: int):
    return wire.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(
        large(mb), timeout=PATIENCE_S
    )


@pytest.mark.slow
def test_a_gigabyte_among_small_requests(start):
    server, wire = start("sum")
    frontend = server.frontend().pid
    other = Wire(server.address)
    server.shut("sum")
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_large, wire, 1024)
        while allocated_bytes("input", frontend) < 1024 * MB:  # while it arrives, and is copied
            check_small(other)
            assert not (sending.done() and sending.result().done()), sending.result()
    for _ in range(50):  # while it waits
        check_small(other)
    server.open("sum")
    call = sending.result()
    while not call.done():  # while it runs, in 128 parts
        check_small(other)
    check_sums(pb.ModelInferResponse.FromString(call.result()), 1024)
    wait_until(lambda: allocated_bytes("input", frontend) <= GIVEN_BACK, "its memory given back")
    other.close()


def test_unary_answers_that_nobody_reads_are_bounded_and_refused_beyond(start):
    server, wire = start("widen", answer_mb=8)
    processes = {"front end": server.frontend().pid, "worker": server.worker().pid}
    check_small(wire)
    before = {name: anonymous_mb(pid) for name, pid in processes.items()}
    clients = [SilentClient(server.address) for _ in range(4)]
    refused = 'headrace_rejected_total{reason="resource_exhausted"}'
    for _ in range(75):
        for client in clients:
            client.infer(widened())
    wait_until(lambda: server.metric(refused) == 300 - 8, "300 answers of 1 MB, of which 8 MB may wait")
    call = wire.infer_later(widened())
    assert status_of(call) == "RESOURCE_EXHAUSTED"
    assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    growth = {name: anonymous_mb(pid) - before[name] for name, pid in processes.items()}
    assert growth["front end"] < 2 * (8 + 1) + 32 + 48, "what the README says, and 48 MB for the calls"
    assert growth["worker"] < 64, "a batch or two of 8 MB"
    assert allocated_bytes("output", processes["worker"]) <= GIVEN_BACK
    for client in clients:
        client.close()
    wait_until(lambda: status_of(wire.infer_later(widened())) == "OK", "room again when they are gone")


def test_a_stream_that_is_not_read_costs_its_own_answers(start):
    server, wire = start("widen", answer_mb=16)
    check_small(wire)
    frontend, worker = server.frontend().pid, server.worker().pid
    before = anonymous_mb(frontend)
    silent = Wire(server.address)
    streams = [silent.stream().send(*[widened()] * 100).half_close() for _ in range(3)]
    for number in range(50):  # whatever comes of the streams meanwhile
        check_small(wire)
        assert (output(wire.infer(widened(number=number)), dtype=np.uint8) == number).all()
    assert anonymous_mb(frontend) - before < 2 * (16 + 1) + 32 + 48, "of 300 answers of 1 MB"
    assert allocated_bytes("output", worker) <= GIVEN_BACK
    for stream in streams:
        stream.cancel()
    silent.close()


def test_an_ordered_stream_whose_first_answer_is_the_slow_one(start):
    server, wire = start("widen", answer_mb=16)
    check_small(wire)
    frontend = server.frontend().pid
    before = anonymous_mb(frontend)
    server.shut("affine")
    stream = wire.stream().send(infer_request("affine", id="0", x=rows(1)))
    stream.send(*[widened(number=number) for number in range(1, 51)]).half_close()
    wait_until(lambda: stream.sent == 51 and server.in_flight() == 1, "all but the first one finished")
    assert anonymous_mb(frontend) - before < 2 * 4 + 1 + 32 + 48, "a stream may have a quarter of 16 MB"
    other = Wire(server.address)
    assert output(other.infer(widened(number=7)), dtype=np.uint8)[0, 0] == 7, "others are answered"
    server.open("affine")
    answers = stream.rest()
    assert (output(answers[0].infer_response) == 2 * rows(1) + 1).all()
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(51)]
    kept = [answer for answer in answers[1:] if not answer.error_message]
    assert 1 <= len(kept) <= 5, "4 MB and one more"
    for answer in kept:
        number = int(answer.infer_response.id)
        assert answer.infer_response.raw_output_contents[0] == bytes([number]) * MB
    assert all("--answer-mb" in answer.error_message for answer in answers[1:] if answer not in kept)
    other.close()


def test_what_has_spilled_over_is_dropped_when_the_front_end_dies(start):
    server, wire = start("sum")
    frontend, worker = server.frontend().pid, server.worker().pid
    server.shut("sum")
    calls = [send_large(wire, 40) for _ in range(3)]
    wait_until(lambda: server.in_flight() == 3, "three large ones with the worker")
    assert allocated_bytes("input", frontend) >= 120 * MB
    (lost,) = mapped_arenas("input", worker)
    assert mapped_arenas("input", frontend) == {lost}
    server.frontend().send_signal(signal.SIGKILL)
    assert [status_of(call) for call in calls] == ["UNAVAILABLE"] * 3
    server.open("sum")
    wait_until(lambda: lost not in mapped_arenas("input", worker), "the worker to let go of it")
    wait_until(lambda: status_of(send_large(wire, 5)) == "OK", "the next front end")
    assert mapped_arenas("input", worker) == mapped_arenas("input", server.frontend().pid), "one, the new one"
    assert server.worker().pid == worker


def test_outputs_that_have_spilled_over_are_dropped_when_the_front_end_dies(start):
    server, wire = start("widen", max_batch_size=8)
    frontend, worker = server.frontend(), server.worker().pid
    server.shut("widen")
    calls = [wire.infer_later(widened(40, number)) for number in (1, 2)]
    wait_until(lambda: server.in_flight() == 2, "both with the worker")
    frontend.suspend()  # it takes no answer any more
    server.open("widen")
    wait_until(lambda: allocated_bytes("output", worker) >= 80 * MB, "both answers in the arena")
    frontend.send_signal(signal.SIGKILL)
    assert [status_of(call) for call in calls] == ["UNAVAILABLE"] * 2
    wait_until(lambda: allocated_bytes("output", worker) <= GIVEN_BACK, "the worker to drop them")
    wait_until(lambda: status_of(wire.infer_later(widened(3, 3))) == "OK", "the next front end")
    assert (output(done_response(wire.infer_later(widened(40, 4))), dtype=np.uint8) == 4).all()
    assert server.worker().pid == worker


def overload(wire: Wire, processes: dict[str, int], count: int, at_once: int):
    """Sends 1 MB `count` times on one connection, never more than `at_once` together. Returns how often each
    (outcome, says when to come back) was seen, and the most memory that each process had of each kind.
    """
    request = infer_request("slow", x=np.ones((1, WIDTH), np.float32))
    outcomes: Counter[tuple[str, bool]] = Counter()
    peaks: Counter[tuple[str, str]] = Counter()
    room = threading.Semaphore(at_once)

    def finished(call) -> None:
        outcomes[call.code().name, PUSHBACK in dict(call.trailing_metadata() or ())] += 1
        room.release()

    for number in range(count):
        room.acquire()
        wire.infer_later(request, PATIENCE_S).add_done_callback(finished)
        if number % 50 == 0:
            for name, pid in processes.items():
                for kind, mb in resident_mb(pid).items():
                    peaks[name, kind] = max(peaks[name, kind], mb)
    for _ in range(at_once):
        room.acquire()
    return outcomes, peaks


@pytest.mark.slow
def test_ten_times_too_much(start):
    """2,000 requests of 1 MB, as fast as they go, on one connection, and more at once than are let in; the
    model has 20 a second.
    """
    server, wire = start("slow", answer_mb=16, max_calls=128)
    processes = {"front end": server.frontend().pid, "worker": server.worker().pid}
    check_small(wire)
    before = {name: resident_mb(pid)["RssAnon"] for name, pid in processes.items()}
    outcomes, peaks = overload(wire, processes, count=2000, at_once=256)
    assert set(outcomes) == {("OK", False), ("RESOURCE_EXHAUSTED", True)}, outcomes
    assert outcomes["RESOURCE_EXHAUSTED", True] > 1000, "more than half is too much"
    arenas = 2 * ARENA_MB + 2 * ARENA_MB  # each with as much of its spill as is kept
    assert peaks["front end", "RssShmem"] <= arenas + 16, "the arenas, and lanes and pages"
    assert peaks["worker", "RssShmem"] <= arenas + 16
    assert peaks["worker", "RssAnon"] - before["worker"] < 32, "a few batches of 1 MB"
    arriving, unread, on_their_way = 128, 2 * (16 + 1), 32
    most = arriving + unread + on_their_way
    assert peaks["front end", "RssAnon"] - before["front end"] < most + 64, (
        "the README's bound, and gRPC's own"
    )
    check_small(wire)
