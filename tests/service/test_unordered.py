"""headrace_unordered: a request on a stream whose answer does not wait for its turn."""

from __future__ import annotations

import pytest
from scripted import affine
from waiting import wait_until
from wire import infer_request, rows

WINDOW = 64


def request(number: int, model: str, unordered: bool | None):
    message = infer_request(model, x=rows(1, number), id=str(number))
    if unordered is not None:
        message.parameters["headrace_unordered"].bool_param = unordered
    return message


def ids(answers) -> list[int]:
    assert not any(answer.error_message for answer in answers)
    return [int(answer.infer_response.id) for answer in answers]


def two_models(serve):
    slow, quick = affine("slow"), affine("quick")
    service, wire = serve(slow, quick)
    slow.gate.shut()
    return service, wire, slow, quick


@pytest.mark.parametrize("said", [None, False])
def test_by_default_a_quick_answer_waits_for_a_slow_one(serve, said):
    service, wire, slow, quick = two_models(serve)
    stream = wire.stream().send(request(1, "slow", said), request(2, "quick", said)).half_close()
    wait_until(lambda: service.in_flight == 1, "the quick one finished")
    slow.gate.open()
    assert ids(stream.rest()) == [1, 2]


def test_an_unordered_stream_is_answered_in_order_of_completion(serve):
    _, wire, slow, _ = two_models(serve)
    stream = wire.stream().send(request(1, "slow", True), request(2, "quick", True)).half_close()
    assert ids([stream.next()]) == [2]
    slow.gate.open()
    assert ids(stream.rest()) == [1]
    assert stream.end() == ("OK", "")


def test_an_unordered_request_overtakes_ordered_ones_which_keep_their_order(serve):
    service, wire, slow, _ = two_models(serve)
    sent = [request(1, "slow", None), request(2, "quick", None), request(3, "quick", True)]
    stream = wire.stream().send(*sent)
    assert ids([stream.next()]) == [3], "ahead of 1, which is slow, and of 2, which has to wait for 1"
    slow.gate.open()
    assert ids([stream.next(), stream.next()]) == [1, 2]
    assert stream.half_close().end() == ("OK", "")


def test_an_ordered_request_does_not_wait_for_unordered_ones(serve):
    _, wire, slow, _ = two_models(serve)
    stream = wire.stream().send(request(1, "slow", True), request(2, "quick", None))
    assert ids([stream.next()]) == [2]
    slow.gate.open()
    assert ids([stream.next()]) == [1]
    assert stream.half_close().end() == ("OK", "")


def test_a_refused_request_does_not_wait_for_unordered_ones(serve):
    _, wire, slow, _ = two_models(serve)
    stream = wire.stream().send(request(1, "slow", True), request(2, "other", True))
    failed = stream.next()
    assert "other" in failed.error_message
    assert failed.infer_response.id == "2"
    slow.gate.open()
    assert ids(stream.half_close().rest()) == [1]


def test_unordered_requests_fill_the_same_window_and_a_cancelled_stream_lets_go_of_them(serve):
    service, wire, slow, _ = two_models(serve)
    stream = wire.stream().send(*[request(i, "slow", True) for i in range(WINDOW + 10)])
    wait_until(lambda: service.in_flight == WINDOW, "a full window")
    stream.cancel()
    wait_until(lambda: service.in_flight == 0, "all cancelled")
    slow.gate.open()
    assert ids(wire.stream().send(request(1, "quick", True)).half_close().rest()) == [1]


def test_every_unordered_request_is_answered_once(serve):
    _, wire = serve(affine())
    stream = wire.stream().send(*[request(i, "affine", i % 3 != 0) for i in range(300)]).half_close()
    answers = ids(stream.rest())
    assert sorted(answers) == list(range(300))
    assert [i for i in answers if i % 3 == 0] == list(range(0, 300, 3)), "ordered ones among themselves"


def test_it_has_no_effect_on_a_unary_call(serve):
    _, wire = serve(affine())
    assert wire.infer(request(1, "affine", True)).id == "1"


def test_it_is_a_bool(serve):
    _, wire = serve(affine())
    message = request(1, "affine", None)
    message.parameters["headrace_unordered"].int64_param = 1
    code, text = wire.error(message)
    assert code == "INVALID_ARGUMENT"
    assert "'headrace_unordered' parameter, expected bool_param, got int64_param" in text
