"""--status-codes: the same refusals in Headrace's codes and in Triton's, unary and on a stream."""

from __future__ import annotations

import grpc
import pytest
from scripted import affine
from silent import SilentClient
from waiting import wait_until
from wire import SERVICE, hold, infer_request, rows, status_of

from service.config import STATUS_CODES, ServeConfig
from service.errors import TRITON, Code, ConfigError, as_triton

EXPECTED = {  # a refusal: status and words in each mode
    "queue full": {
        "headrace": ("RESOURCE_EXHAUSTED", "--slots-per-lane"),
        "triton": ("UNAVAILABLE", "Exceeds maximum queue size"),
    },
    "timeout": {
        "headrace": ("DEADLINE_EXCEEDED", ""),
        "triton": ("UNAVAILABLE", "Request timeout expired"),
    },
    "never fits": {
        "headrace": ("RESOURCE_EXHAUSTED", "--arena-mb"),
        "triton": ("INVALID_ARGUMENT", "--arena-mb"),
    },
    "calls": {
        "headrace": ("RESOURCE_EXHAUSTED", "--max-calls"),
        "triton": ("UNAVAILABLE", "Exceeds maximum queue size"),
    },
    "unknown model": {
        "headrace": ("NOT_FOUND", "Request for unknown model: 'other'"),
        "triton": ("NOT_FOUND", "Request for unknown model: 'other'"),
    },
}
MODES = pytest.mark.parametrize("mode", STATUS_CODES)


def request(count: int = 1, model: str = "affine"):
    return infer_request(model, x=rows(count), id="7")


def refused(wire, message, fault: str, mode: str) -> grpc.Call:
    code, words = EXPECTED[fault][mode]
    call = wire.infer_later(message)
    assert status_of(call) == code
    assert words in call.details()
    assert call.details().count("Request timeout expired") <= 1
    return call


@MODES
def test_a_full_queue(serve, mode):
    engine = affine()
    service, wire = serve(engine, slots_per_lane=2, status_codes=mode)
    first = hold(engine, wire, request())
    second = wire.infer_later(request())
    wait_until(lambda: service.in_flight == 2, "both slots taken")
    call = refused(wire, request(), "queue full", mode)
    assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    failed = wire.stream().send(request()).next()
    assert EXPECTED["queue full"][mode][1] in failed.error_message
    code, _ = wire.stream([("triton_grpc_error", "true")]).send(request()).end()
    assert code == EXPECTED["queue full"][mode][0]
    engine.gate.open()
    assert [status_of(first), status_of(second)] == ["OK", "OK"]


@MODES
def test_a_timeout(serve, mode):
    engine = affine()
    _, wire = serve(engine, status_codes=mode)
    first = hold(engine, wire, request())
    late = request()
    late.parameters["timeout"].int64_param = 10_000
    refused(wire, late, "timeout", mode)
    assert wire.stream().send(late).next().error_message.startswith(EXPECTED["timeout"][mode][1])
    code, _ = wire.stream([("triton_grpc_error", "true")]).send(late).end()
    assert code == EXPECTED["timeout"][mode][0]
    engine.gate.open()
    assert status_of(first) == "OK"


@MODES
def test_a_request_that_never_fits(serve, mode):
    _, wire = serve(affine(width=1 << 18), arena_mb=1, spill_mb=0, status_codes=mode)
    call = refused(wire, infer_request("affine", x=rows(1, width=1 << 18)), "never fits", mode)
    assert "grpc-retry-pushback-ms" not in dict(call.trailing_metadata())


@MODES
def test_too_many_calls(serve, mode):
    service, wire = serve(affine(), max_calls=1, status_codes=mode)
    silent = SilentClient(service.address)  # a connection of its own
    silent.begin()
    wait_until(lambda: service.frontend.server.calls == 1, "the one call that may be")
    refused(wire, request(), "calls", mode)
    silent.close()


@MODES
def test_what_both_say_alike(serve, mode):
    _, wire = serve(affine(), status_codes=mode)
    refused(wire, request(model="other"), "unknown model", mode)


@MODES
@pytest.mark.parametrize("count", [8, 9, 20])
def test_a_request_of_more_rows_than_a_batch_has(serve, mode, count):
    engine = affine(max_batch_size=8)
    _, wire = serve(engine, status_codes=mode)
    call = wire.infer_later(request(count))
    answer = wire.stream().send(request(count)).next()
    if mode == "triton" and count > 8:
        words = "inference request batch-size must be <= 8 for 'affine'"
        assert status_of(call) == "INVALID_ARGUMENT"
        assert words in call.details()
        assert (words in answer.error_message, answer.infer_response.id) == (True, "7")
        assert engine.batches == []
    else:
        assert status_of(call) == "OK"
        assert not answer.error_message
        assert sum(engine.batches) == 2 * count


def test_a_model_that_does_not_batch_has_no_such_limit(serve):
    _, wire = serve(affine(max_batch_size=0), status_codes="triton")
    one = infer_request("affine", x=rows(1)[0])
    assert wire.raw(f"{SERVICE}ModelInfer", one.SerializeToString())


def test_the_table_has_no_code_that_triton_does_not_have():
    told = {code for code, _ in TRITON.values()}
    assert not told & {Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED}
    for code in Code:
        for transient in (True, False, None):
            if code != Code.OK:
                assert as_triton(code, "words", transient)[1].endswith("words")


def test_words_are_not_said_twice():
    assert as_triton(Code.DEADLINE_EXCEEDED, "Request timeout expired: late", None) == (
        Code.UNAVAILABLE,
        "Request timeout expired: late",
    )
    told = as_triton(Code.RESOURCE_EXHAUSTED, "all 4 slots", True)
    assert told == (Code.UNAVAILABLE, "Exceeds maximum queue size: all 4 slots")


def test_another_word_is_a_fault_of_the_configuration():
    with pytest.raises(ConfigError, match="--status-codes must be one of headrace, triton, got 'kserve'"):
        ServeConfig(("/",), status_codes="kserve").check()
