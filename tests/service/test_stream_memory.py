"""Clients that do not read: what lies in the front end for them is counted, bounded, and given back."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from scripted import ScriptedEngine, model_spec, tensor
from silent import SilentClient
from waiting import wait_until
from wire import SERVICE, StreamCall, infer_request, status_of

from service.frontend.grpcio import stream as stream_module

MB = 1 << 20
GRPCIO = pytest.mark.parametrize(
    "frontend", ["grpcio"], indirect=True
)  # tests of how it counts, not of what it says


def wide(max_batch_size: int = 1) -> ScriptedEngine:
    """Four bytes in, 1 MB out."""
    sizes = {"max_batch_size": max_batch_size}
    spec = model_spec("wide", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", MB)], **sizes)
    return ScriptedEngine(spec, lambda x: [np.full((len(x), MB), int(x[0, 0]), np.uint8)])


def narrow() -> ScriptedEngine:
    spec = model_spec("narrow", [tensor("x", "FP32", 1)], [tensor("y", "FP32", 1)])
    return ScriptedEngine(spec, lambda x: [x])


def request(number: int = 0, model: str = "wide"):
    return infer_request(model, id=str(number), x=np.full((1, 1), number, np.float32))


def check(answer, number: int) -> None:
    response = answer.infer_response
    assert (answer.error_message, response.id) == ("", str(number))
    assert response.raw_output_contents[0] == bytes([number]) * MB


def refusal(wire, message=None) -> tuple[str, str, dict]:
    """Status, words and trailing metadata of a unary call that must fail."""
    call = wire.infer_later(message or request())
    assert status_of(call) != "OK"
    return call.code().name, call.details(), dict(call.trailing_metadata())


@GRPCIO
def test_a_stream_that_is_not_read_is_not_read_from(serve, monkeypatch):
    monkeypatch.setattr(stream_module, "READ_AHEAD_BYTES", 4 * MB)
    engine = wide()
    service, wire = serve(engine, narrow())
    held = service.frontend.server.admission
    # The client's library reads ahead on its own; less so without these.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    reader = grpc.insecure_channel(service.address, [*options, ("grpc.max_receive_message_length", -1)])
    stream = StreamCall(reader).send(request(0))
    check(stream.next(), 0)
    stream.send(*[request(i) for i in range(1, 41)]).half_close()
    wait_until(lambda: held.held >= 4 * MB, "the bound reached")
    for number in range(20):  # the front end goes round often enough to read more, if it wanted to
        wire.infer(request(number, "narrow"))
    assert len(engine.batches) <= 1 + 4 + 4, (
        "the first, those that lie here, and what sockets and library take"
    )
    assert held.held < 6 * MB
    for number in range(1, 41):
        check(stream.next(), number)
    assert stream.end() == ("OK", "")
    assert len(engine.batches) == 41
    wait_until(lambda: (held.held, held.calls) == (0, 0), "everything given back")
    reader.close()


@GRPCIO
def test_requests_that_wait_are_bounded_in_bytes_whatever_is_in_them(serve, monkeypatch):
    monkeypatch.setattr(stream_module, "READ_AHEAD_BYTES", MB)
    engine = narrow()
    service, wire = serve(engine, wide())
    engine.gate.shut()
    unknown = b"\xfa\x7f\x80\x80\x28" + bytes(640 << 10)  # field 2047, which the protocol does not have
    messages = [request(i, "narrow").SerializeToString() + unknown for i in range(5)]
    stream = wire.stream().send(*messages).half_close()
    wait_until(lambda: service.in_flight == 2, "as many requests as make 1 MB")
    for _ in range(10):  # the front end goes round
        wire.infer(request())
    assert service.in_flight == 2
    engine.gate.open()
    assert [answer.infer_response.id for answer in stream.rest()] == list("01234")


@GRPCIO
def test_answers_beyond_a_streams_share_are_refused_in_their_turn(serve):
    engine = wide()
    service, wire = serve(engine, answer_mb=8)
    engine.gate.shut()
    stream = wire.stream().send(*[request(i) for i in range(10)]).half_close()
    wait_until(lambda: service.in_flight == 10, "all read before the first answer says how large they are")
    engine.gate.open()
    wait_until(lambda: service.in_flight == 0, "all finished")
    answers = stream.rest()
    assert [answer.infer_response.id for answer in answers] == [str(i) for i in range(10)]
    kept = [not answer.error_message for answer in answers]
    assert kept[:2] == [True, True]
    assert not all(kept)
    for number, answer in enumerate(answers):
        if kept[number]:
            check(answer, number)
        else:
            assert "--answer-mb" in answer.error_message
    wait_until(lambda: service.frontend.server.admission.held == 0, "everything given back")


class Watched:
    """A dispatcher, and how many bytes each drain gave."""

    def __init__(self, dispatcher) -> None:
        self._dispatcher = dispatcher
        self.drained: list[int] = []

    def drain(self):
        answers = self._dispatcher.drain()
        self.drained.append(sum(len(payload) for _, _, payload, _ in answers))
        return answers

    def __getattr__(self, name: str):
        return getattr(self._dispatcher, name)


@GRPCIO
def test_answers_are_taken_from_the_worker_in_portions(serve):
    engine = wide(max_batch_size=64)
    service, wire = serve(engine, output_arena_mb=128)
    calls = service.frontend.server.lanes
    calls._dispatcher = watched = Watched(calls._dispatcher)
    engine.gate.shut()
    stream = wire.stream().send(*[request(i) for i in range(60)]).half_close()
    wait_until(lambda: service.in_flight == 60, "all with the worker")
    engine.gate.open()
    assert len(stream.rest()) == 60
    assert max(engine.batches) > 40, "so many MB are there all at once"
    assert 32 * MB <= max(watched.drained) < 34 * MB


@GRPCIO
def test_a_stream_that_is_cancelled_gives_back_what_lay_there_for_it(serve):
    service, wire = serve(wide())
    held = service.frontend.server.admission
    stream = wire.stream().send(*[request(i) for i in range(40)])
    wait_until(lambda: held.held >= 6 * MB, "answers that wait for the client")
    stream.cancel()
    wait_until(lambda: (held.held, held.calls) == (0, 0), "everything given back")


@GRPCIO
def test_unary_answers_that_nobody_reads_are_bounded(serve):
    engine = wide()
    service, wire = serve(engine, answer_mb=4)
    held = service.frontend.server.admission
    silent = SilentClient(service.address)
    for _ in range(12):
        silent.infer(request())
    rejected = service.frontend.rejected
    wait_until(lambda: rejected()["resource_exhausted"] == 8, "four answers that nobody takes, and refusals")
    assert service.in_flight == 0
    assert 4 * MB <= held.held < 5 * MB
    code, words, metadata = refusal(wire)
    assert code == "RESOURCE_EXHAUSTED"
    assert "--answer-mb" in words
    assert int(metadata["grpc-retry-pushback-ms"]) > 0
    executed = len(engine.batches)
    refusal(wire)
    assert len(engine.batches) == executed, "what is refused is not executed"
    silent.close()
    wait_until(lambda: (held.held, held.calls) == (0, 0), "everything given back")
    assert status_of(wire.infer_later(request())) == "OK"


@GRPCIO
def test_no_more_calls_than_may_be_in_progress_are_read(serve):
    service, wire = serve(narrow(), max_calls=2)
    held = service.frontend.server.admission
    silent = SilentClient(service.address)
    silent.begin()
    silent.begin("ModelStreamInfer")
    wait_until(lambda: held.calls == 2, "two calls whose messages do not come")
    code, words, metadata = refusal(wire, request(1, "narrow"))
    assert (code, "--max-calls" in words) == ("RESOURCE_EXHAUSTED", True)
    assert int(metadata["grpc-retry-pushback-ms"]) > 0
    assert wire.stream().send(request(1, "narrow")).end()[0] == "RESOURCE_EXHAUSTED"
    assert wire.call("ServerLive").live, "what is no inference is answered"
    assert service.frontend.rejected()["resource_exhausted"] == 2
    silent.close()
    wait_until(lambda: held.calls == 0, "both calls over")
    assert status_of(wire.infer_later(request(1, "narrow"))) == "OK"


def test_a_call_without_a_message_is_told_so(serve):
    _, wire = serve(narrow())
    call = wire.channel.stream_unary(f"{SERVICE}ModelInfer").future(iter(()))
    assert status_of(call) == "INVALID_ARGUMENT"
    assert "expected one request" in call.details()


def test_a_message_larger_than_any_bound_of_answers_is_still_served(serve):
    """The bound is passed by one answer at most, and no answer is refused for ever."""
    spec = model_spec("huge", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", 3 * MB)], max_batch_size=1)
    engine = ScriptedEngine(spec, lambda x: [np.zeros((1, 3 * MB), np.uint8)])
    _, wire = serve(engine, answer_mb=1)
    for _ in range(3):
        assert len(wire.infer(request(0, "huge")).raw_output_contents[0]) == 3 * MB
    assert not wire.stream().send(request(0, "huge")).next().error_message
