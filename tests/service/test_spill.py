"""Messages that an arena has no room for in its head: they spill over, are answered, and memory goes back."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from arena_memory import allocated_bytes
from scripted import ScriptedEngine, model_spec, tensor
from waiting import wait_until
from wire import done_response, infer_request, output, status_of, strings

from service._pb import inference as pb

MB = 1 << 20
WIDTH = MB // 4  # a row of FP32 is 1 MB
ARENA_MB = 16
PATIENCE_S = 300.0  # half a gigabyte in Python on a busy machine


def summing(**settings) -> ScriptedEngine:
    """1 MB a row in, its sum out."""
    spec = model_spec("sum", [tensor("x", "FP32", WIDTH)], [tensor("y", "FP32", 1)], **settings)
    return ScriptedEngine(spec, lambda x: [x.sum(axis=1, keepdims=True)])


def rows(count: int, first: int = 1):
    """Row i is all `first` + i, so that its sum says which one it is."""
    x = np.empty((count, WIDTH), np.float32)
    x[:] = np.arange(first, first + count, dtype=np.float32)[:, None]
    return infer_request("sum", x=x)


def sums(count: int, first: int = 1) -> list[float]:
    return [float(n * WIDTH) for n in range(first, first + count)]


def memory_is_back(arena: str) -> None:
    """The arena has no more than its head and as much again."""
    limit = (2 * ARENA_MB + 1) * MB
    gc.collect()  # the arenas of services that have ended: they count until their reference cycles are gone
    wait_until(lambda: allocated_bytes(arena) <= limit, f"the {arena} arena's memory given back")


@pytest.mark.parametrize("mb", [5, 64, pytest.param(512, marks=pytest.mark.slow)])
def test_a_large_input_is_answered_and_its_memory_goes_back(serve, mb: int):
    service, wire = serve(summing(max_batch_size=512), arena_mb=ARENA_MB)
    call = wire.infer_later(rows(mb), PATIENCE_S)
    response = pb.ModelInferResponse.FromString(call.result(PATIENCE_S))
    assert output(response).ravel().tolist() == sums(mb)
    assert service.frontend.server.arena_used == 0
    memory_is_back("input")


def test_a_large_input_is_split_where_it_lies(serve):
    engine = summing(max_batch_size=8)
    _, wire = serve(engine, arena_mb=ARENA_MB)
    assert output(wire.infer(rows(20))).ravel().tolist() == sums(20)
    assert engine.batches == [8, 8, 4]


def test_what_has_spilled_over_is_bounded_and_more_is_told_to_come_back(serve):
    engine = summing(max_batch_size=1)
    service, wire = serve(engine, arena_mb=ARENA_MB, spill_mb=16)
    engine.gate.shut()
    calls = [wire.infer_later(rows(5, first)) for first in (1, 6, 11)]
    wait_until(lambda: service.in_flight == 3, "three of 5 MB, in 16 MB")
    refused = wire.infer_later(rows(5))
    assert status_of(refused) == "RESOURCE_EXHAUSTED"
    assert "--spill-mb" in refused.details()
    assert "16 MB" in refused.details()
    assert int(dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    small = wire.infer_later(rows(1))
    engine.gate.open()
    for call, first in zip(calls, (1, 6, 11), strict=True):
        assert output(done_response(call)).ravel().tolist() == sums(5, first)
    assert output(done_response(small)).ravel().tolist() == sums(1), "small ones have the head"


def test_what_never_fits_is_told_by_both_settings_and_not_to_come_back(serve):
    _, wire = serve(summing(max_batch_size=32), arena_mb=ARENA_MB, spill_mb=16)
    call = wire.infer_later(rows(17))
    assert status_of(call) == "RESOURCE_EXHAUSTED"
    assert "--arena-mb" in call.details()
    assert "--spill-mb" in call.details()
    assert str(17 * MB)[:4] in call.details()
    assert "grpc-retry-pushback-ms" not in dict(call.trailing_metadata())


def widening(**settings) -> ScriptedEngine:
    """Four bytes in, 1 MB a row out."""
    spec = model_spec("widen", [tensor("x", "FP32", 1)], [tensor("y", "FP32", WIDTH)], **settings)
    return ScriptedEngine(spec, lambda x: [np.repeat(x, WIDTH, axis=1)])


def narrow_rows(count: int, first: int = 1):
    return infer_request("widen", x=np.arange(first, first + count, dtype=np.float32)[:, None])


def check_widened(response, count: int, first: int = 1) -> None:
    y = output(response)
    assert y.shape == (count, WIDTH)
    assert (y == np.arange(first, first + count, dtype=np.float32)[:, None]).all()


@pytest.mark.parametrize("mb", [5, 64])
def test_a_large_output_is_answered_and_its_memory_goes_back(serve, mb: int):
    _, wire = serve(widening(max_batch_size=64), output_arena_mb=ARENA_MB)
    check_widened(wire.infer(narrow_rows(mb)), mb)
    memory_is_back("output")


def test_requests_in_parts_larger_than_the_arena_at_once(serve):
    engine = widening(max_batch_size=4)
    _, wire = serve(engine, output_arena_mb=ARENA_MB, spill_mb=48)
    engine.gate.shut()
    calls = [wire.infer_later(narrow_rows(20, first)) for first in (1, 101, 201)]
    engine.gate.open()
    for call, first in zip(calls, (1, 101, 201), strict=True):
        check_widened(done_response(call), 20, first)


def test_outputs_that_find_no_room_now_are_told_to_come_back(serve):
    """The parts of a request of strings are collected, and fill the arena before the last one is there."""
    spec = model_spec("same", [tensor("x", "BYTES", 1)], [tensor("y", "BYTES", 1)], max_batch_size=1)
    _, wire = serve(ScriptedEngine(spec, lambda x: [x]), output_arena_mb=1, spill_mb=0)
    call = wire.infer_later(infer_request("same", x=strings([[b"a" * 300_000]] * 4)))
    assert status_of(call) == "RESOURCE_EXHAUSTED"
    assert "--output-arena-mb" in call.details()
    assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert status_of(wire.infer_later(infer_request("same", x=strings([[b"a" * 300_000]])))) == "OK"


def test_outputs_that_never_fit_are_not_told_to_come_back(serve):
    spec = model_spec("same", [tensor("x", "BYTES", 1)], [tensor("y", "BYTES", 1)], max_batch_size=1)
    _, wire = serve(ScriptedEngine(spec, lambda x: [x]), output_arena_mb=1, spill_mb=0)
    call = wire.infer_later(infer_request("same", x=strings([[b"a" * (1 << 20)]])))
    assert status_of(call) == "RESOURCE_EXHAUSTED"
    assert "grpc-retry-pushback-ms" not in dict(call.trailing_metadata())
