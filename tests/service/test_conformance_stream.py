"""ModelStreamInfer: answers in the order of the requests, failures that leave the stream open, and its four
ends.
"""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from scripted import affine
from waiting import wait_until
from wire import infer_request, output, rows, status_of

from service.engines.base import EngineError
from service.errors import SHUTTING_DOWN

WINDOW = 64


def request(number: int, model: str = "affine", **settings):
    return infer_request(model, x=rows(1, 10.0 * number), id=str(number), **settings)


def check(answer, number: int, model: str = "affine") -> None:
    response = answer.infer_response
    assert answer.error_message == ""
    assert (response.model_name, response.id) == (model, str(number))
    assert np.array_equal(output(response), 2 * rows(1, 10.0 * number) + 1)


def test_every_request_is_answered_in_order_and_half_close_ends_it(serve):
    _, wire = serve(affine())
    stream = wire.stream().send(*[request(i) for i in range(200)]).half_close()
    answers = stream.rest()
    assert len(answers) == 200
    for number, answer in enumerate(answers):
        check(answer, number)
    assert stream.end() == ("OK", "")


def test_a_streamed_response_says_that_it_is_the_final_one_and_a_unary_one_does_not(serve):
    _, wire = serve(affine())
    answer = wire.stream().send(request(1)).next().infer_response
    assert answer.parameters["triton_final_response"].bool_param is True
    assert "triton_final_response" not in wire.infer(request(1)).parameters


def test_a_quick_model_waits_for_its_turn_behind_a_slow_one(serve):
    slow, quick = affine("slow"), affine("quick")
    service, wire = serve(slow, quick)
    slow.gate.shut()
    stream = wire.stream().send(request(1, "slow"), request(2, "quick"), request(3, "slow"))
    wait_until(lambda: quick.batches == [1] and service.in_flight == 2, "the quick model done")
    slow.gate.open()
    check(stream.next(), 1, "slow")
    check(stream.next(), 2, "quick")
    check(stream.next(), 3, "slow")


def test_answers_come_while_the_client_goes_on_sending(serve):
    _, wire = serve(affine())
    stream = wire.stream()
    for number in range(20):
        check(stream.send(request(number)).next(), number)
    assert stream.half_close().end() == ("OK", "")


def test_no_more_than_a_window_is_read_ahead(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    stream = wire.stream().send(*[request(i) for i in range(WINDOW + 40)])
    wait_until(lambda: service.in_flight == WINDOW, "a full window")
    other = wire.infer_later(request(7))
    wait_until(lambda: service.in_flight == WINDOW + 1, "another client's request beside it")
    engine.gate.open()
    assert status_of(other) == "OK"
    for number, answer in enumerate(stream.half_close().rest()):
        check(answer, number)


BAD = {
    "unknown model": (lambda r: setattr(r, "model_name", "other"), "Request for unknown model: 'other'"),
    "wrong datatype": (lambda r: setattr(r.inputs[0], "datatype", "INT32"), "data-type is 'INT32'"),
    "too few bytes": (lambda r: r.raw_input_contents.__setitem__(0, b"x"), "Expected 16, got 1"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_failed_request_is_told_by_id_and_the_stream_goes_on(serve, fault):
    _, wire = serve(affine())
    change, words = BAD[fault]
    bad = request(1)
    change(bad)
    stream = wire.stream().send(request(0), bad, request(2)).half_close()
    good, failed, again = stream.rest()
    check(good, 0)
    assert words in failed.error_message
    assert failed.infer_response.id == "1"
    assert failed.infer_response.model_name == bad.model_name
    assert not failed.infer_response.outputs
    check(again, 2)
    assert stream.end() == ("OK", "")


def test_bytes_that_are_no_request_are_an_error_without_an_id(serve):
    _, wire = serve(affine())
    stream = wire.stream().send(b"\x0a\xff", request(2)).half_close()
    failed, again = stream.rest()
    assert failed.error_message
    assert failed.infer_response.id == ""
    check(again, 2)


def test_a_model_that_fails_fails_that_request_alone(serve):
    engine = affine(max_batch_size=1)

    def compute(x):
        if x[0, 0] == 10.0:
            raise EngineError("ten is not liked here")
        return [2 * x + 1]

    engine.compute = compute
    _, wire = serve(engine)
    good, failed, again = wire.stream().send(*[request(i) for i in range(3)]).half_close().rest()
    check(good, 0)
    assert failed.error_message == "ten is not liked here"
    assert (failed.infer_response.id, failed.infer_response.model_name) == ("1", "affine")
    check(again, 2)


def test_a_request_on_a_stream_has_its_own_timeout(serve):
    slow, quick = affine("slow"), affine("quick")
    _, wire = serve(slow, quick)
    slow.gate.shut()
    late = request(1, "slow")
    late.parameters["timeout"].int64_param = 20_000
    stream = wire.stream().send(late, request(2, "quick"))
    failed = stream.next()
    assert failed.error_message
    assert failed.infer_response.id == "1"
    check(stream.next(), 2, "quick")


def test_a_client_that_asks_for_it_gets_the_first_failure_as_the_streams_status(serve):
    _, wire = serve(affine())
    bad = request(1)
    bad.model_name = "other"
    stream = wire.stream([("triton_grpc_error", "true")]).send(request(0), bad, request(2))
    check(stream.next(), 0)
    code, text = stream.end()
    assert code == "NOT_FOUND"
    assert "other" in text


def test_a_full_queue_is_a_failed_request_on_an_open_stream(serve):
    engine = affine()
    service, wire = serve(engine, slots_per_lane=2)
    engine.gate.shut()
    stream = wire.stream().send(*[request(i) for i in range(3)]).half_close()
    engine.gate.wait_until_held()
    wait_until(lambda: service.frontend.rejected()["resource_exhausted"] == 1, "one refused")
    engine.gate.open()
    first, second, refused = stream.rest()
    check(first, 0)
    check(second, 1)
    assert "--slots-per-lane" in refused.error_message
    assert refused.infer_response.id == "2"


@pytest.mark.parametrize("pending", [0, 1, 100])
def test_half_close_is_answered_whatever_is_pending(serve, pending):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    stream = wire.stream().send(*[request(i) for i in range(pending)]).half_close()
    wait_until(lambda: service.in_flight == min(pending, WINDOW), "all of it pending")
    engine.gate.open()
    for number, answer in enumerate(stream.rest()):
        check(answer, number)
        pending -= 1
    assert pending == 0
    assert stream.end() == ("OK", "")


def test_cancelling_a_stream_cancels_everything_on_it(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    stream = wire.stream().send(*[request(i) for i in range(30)])
    engine.gate.wait_until_held()
    wait_until(lambda: service.in_flight == 30, "all in flight")
    stream.cancel()
    wait_until(lambda: service.in_flight == 0, "all of it cancelled")
    engine.gate.open()
    assert wire.infer(request(7)).id == "7"
    assert sum(engine.batches) < 30


def test_a_lost_worker_fails_what_it_held_and_leaves_the_stream(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    stream = wire.stream().send(request(0), request(1))
    wait_until(lambda: service.in_flight == 2, "both in flight")
    service.cut_link()
    for number in range(2):
        failed = stream.next()
        assert "try later" in failed.error_message
        assert failed.infer_response.id == str(number)
    engine.gate.open()
    service.stop_worker()
    service.start_worker([affine()])
    check(stream.send(request(2)).next(), 2)


def test_draining_answers_what_was_read_and_then_ends_the_stream(serve):
    engine = affine()
    service, wire = serve(engine)
    idle = wire.stream().send(request(0))
    check(idle.next(), 0)
    engine.gate.shut()
    busy = wire.stream().send(*[request(i) for i in range(5)])
    wait_until(lambda: service.in_flight == 5, "all in flight")
    service.begin_drain()
    assert idle.end() == ("UNAVAILABLE", SHUTTING_DOWN)
    assert wire.stream().send(request(9)).end() == ("UNAVAILABLE", SHUTTING_DOWN)
    engine.gate.open()
    for number in range(5):
        check(busy.next(), number)
    assert busy.end() == ("UNAVAILABLE", SHUTTING_DOWN)


def test_a_stream_that_was_half_closed_before_the_drain_ends_well(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    stream = wire.stream().send(request(0)).half_close()
    wait_until(lambda: service.in_flight == 1, "it in flight")
    service.begin_drain()
    engine.gate.open()
    check(stream.next(), 0)
    assert stream.end()[0] in ("OK", "UNAVAILABLE")


def test_a_stream_before_the_first_worker_fails_request_by_request(serve):
    service, wire = serve()
    stream = wire.stream().send(request(0))
    assert stream.next().error_message == "Server not ready"
    service.start_worker([affine()])
    check(stream.send(request(1)).next(), 1)


def test_many_streams_side_by_side_do_not_mix(serve):
    _, wire = serve(affine())
    streams = [wire.stream().send(*[request(100 * s + i) for i in range(30)]).half_close() for s in range(16)]
    for s, stream in enumerate(streams):
        answers = stream.rest()
        assert len(answers) == 30
        for i, answer in enumerate(answers):
            check(answer, 100 * s + i)


def test_a_stream_without_a_single_request_ends_well(serve):
    _, wire = serve(affine())
    stream = wire.stream().half_close()
    assert stream.rest() == []
    assert stream.call.code() == grpc.StatusCode.OK
