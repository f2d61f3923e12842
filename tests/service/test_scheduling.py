"""Who goes first, who may wait and for how long: priorities, queue policies, budgets and bounds, as clients
see them. Engines wait for the test at their gates; nothing here depends on how fast anything is.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from scripted import affine
from waiting import wait_until
from wire import SERVICE, done_response, hold, infer_request, output, queue, rows, status_of

from service.config import STATUS_CODES
from service.models.scheduling import QueuePolicy, Scheduling

MODES = pytest.mark.parametrize("mode", STATUS_CODES)


def request(model: str = "affine", first: float = 0.0, **parameters):
    """One row. `priority`: as int64; `unsigned`: the same as uint64."""
    message = infer_request(model, x=rows(1, first))
    for key, value in parameters.items():
        if key == "unsigned":
            message.parameters["priority"].uint64_param = value
        else:
            message.parameters[key].int64_param = value
    return message


def ordered(**settings):
    """A model that runs one row at a time, and a list of the first number of each row that it ran."""
    engine = affine(max_batch_size=1, **settings)
    ran: list[float] = []

    def compute(x: np.ndarray) -> list[np.ndarray]:
        ran.append(float(x[0, 0]))
        return [2 * x + 1]

    engine.compute = compute
    return engine, ran


def levels(count: int, default: int) -> Scheduling:
    return Scheduling((QueuePolicy(),) * count, default)


def policy(**settings) -> Scheduling:
    return Scheduling((QueuePolicy(**settings),))


def hold_two(engine, service, wire, first=None):
    """One batch runs and one is closed behind it: whatever comes now waits in the queue. The service has a
    model "other", whose answer says that what was sent before it has been taken.
    """
    first = hold(engine, wire, first or request())
    (second,) = queue(service, wire, [request()])
    assert status_of(wire.infer_later(request("other"))) == "OK"
    wait_until(lambda: not pending(service), "the second one closed")
    return [first, second]


def pending(service) -> int:
    return sum(entry.stats().pending_rows for entry in service.frontend.catalog.entries)


def at_rest(service) -> bool:
    dispatcher = service.frontend.server
    return dispatcher.outstanding == 0 and dispatcher.arena_used == 0


# ---- priorities ----


def test_priority_as_int64_and_as_uint64_with_0_and_one_too_many_as_the_default(serve):
    engine, ran = ordered(scheduling=levels(3, default=2))
    service, wire = serve(engine, affine("other"))
    held = hold_two(engine, service, wire)
    sent = []
    asked = [
        *[("priority", 3), ("priority", 0), ("unsigned", 4), ("unsigned", 2), ("priority", 2)],
        *[("unsigned", 1), ("priority", 1), ("unsigned", 3), ("unsigned", 2**64 - 1), ("unsigned", 0)],
    ]
    for number, (kind, value) in enumerate(asked, 1):
        sent += queue(service, wire, [request(first=100.0 * number, **{kind: value})])
    wait_until(lambda: pending(service) == len(asked), "all in the queue")
    engine.gate.open()
    assert {status_of(call) for call in (*held, *sent)} == {"OK"}
    assert ran[2:] == [600, 700, 200, 300, 400, 500, 900, 1000, 100, 800]


def test_a_model_without_levels_takes_them_as_they_come(serve):
    engine, ran = ordered()
    service, wire = serve(engine, affine("other"))
    held = hold_two(engine, service, wire)
    sent = []
    for number, priority in enumerate([3, 1, 2], 1):
        sent += queue(service, wire, [request(first=100.0 * number, priority=priority)])
    engine.gate.open()
    assert {status_of(call) for call in (*held, *sent)} == {"OK"}
    assert ran[2:] == [100, 200, 300]


# ---- queue policies ----


@MODES
def test_a_queue_of_its_own_size_refuses_that_model_by_name(serve, mode):
    engine, other = affine(max_batch_size=1, scheduling=policy(max_queue_size=2)), affine("other")
    service, wire = serve(engine, other, status_codes=mode)
    first = hold(engine, wire, request())
    waiting = queue(service, wire, [request()] * 2)
    refused = wire.infer_later(request())
    expected = "UNAVAILABLE" if mode == "triton" else "RESOURCE_EXHAUSTED"
    assert status_of(refused) == expected
    assert refused.details() == (
        "Exceeds maximum queue size: model 'affine': 2 requests wait, as many as its queue policy "
        "(max_queue_size) allows; try again later"
    )
    assert int(dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    on_stream = wire.stream().send(request()).next()
    assert on_stream.error_message == refused.details()
    assert status_of(wire.infer_later(request("other"))) == "OK"
    engine.gate.open()
    assert [status_of(call) for call in (first, *waiting)] == ["OK"] * 3
    assert status_of(wire.infer_later(request())) == "OK"
    assert engine.batches == [1] * 4


@MODES
def test_a_queue_time_out_names_the_wait_and_the_limit_while_the_model_is_busy(serve, mode):
    engine = affine(max_batch_size=1, scheduling=policy(timeout_us=20_000))
    service, wire = serve(engine, status_codes=mode)
    first = hold(engine, wire, request())
    late = [wire.infer_later(request()) for _ in range(3)]
    expected = "UNAVAILABLE" if mode == "triton" else "DEADLINE_EXCEEDED"
    for call in late:
        assert status_of(call) == expected
        assert call.details().startswith("Request timeout expired: model 'affine': it waited ")
        assert call.details().endswith("its queue policy (default_timeout_microseconds) allows 20000")
    wait_until(lambda: service.frontend.server.outstanding == 1, "their slots given back")
    engine.gate.open()
    assert status_of(first) == "OK", "what runs has left the queue, however long it runs"
    assert engine.batches == [1]


def test_a_request_that_is_delayed_is_answered_in_the_end(serve):
    engine, ran = ordered(scheduling=policy(timeout_us=1000, delay=True))
    service, wire = serve(engine, affine("other"))
    held = hold_two(engine, service, wire)
    late = queue(service, wire, [request(first=100.0)])
    engine.gate.open()
    assert {status_of(call) for call in (*held, *late)} == {"OK"}
    assert ran[2:] == [100]


@pytest.mark.parametrize("override", [True, False])
def test_a_requests_timeout_and_the_policys(serve, override):
    engine = affine(max_batch_size=1, scheduling=policy(timeout_us=3_600_000_000, override=override))
    service, wire = serve(engine)
    first = hold(engine, wire, request())
    call = wire.infer_later(request(timeout=1000))
    if override:
        assert status_of(call) == "DEADLINE_EXCEEDED"
    else:
        wait_until(lambda: service.in_flight == 2, "both there")
    engine.gate.open()
    assert status_of(first) == "OK"
    assert status_of(call) == ("DEADLINE_EXCEEDED" if override else "OK")


# ---- one budget, whatever the engine does ----


@MODES
@pytest.mark.parametrize("budget", ["timeout", "deadline"])
def test_what_is_late_is_told_while_another_runs_and_never_runs(serve, mode, budget):
    """Also right behind the batch that runs, where it waits in a batch of its own."""
    engine = affine(max_batch_size=1)
    service, wire = serve(engine, status_codes=mode)
    first = hold(engine, wire, request())
    late = [
        wire.infer_later(request(timeout=20_000)) if budget == "timeout" else
        wire.infer_later(request(), timeout_s=0.02) for _ in range(4)
    ]  # fmt: skip
    for call in late:
        if budget == "deadline":
            by_whom = {"DEADLINE_EXCEEDED"} | ({"UNAVAILABLE"} if mode == "triton" else set())
            assert status_of(call) in by_whom, "the client's own library may be first"
        else:
            assert status_of(call) == ("UNAVAILABLE" if mode == "triton" else "DEADLINE_EXCEEDED")
            assert call.details() == (
                "Request timeout expired: model 'affine' did not answer within 20000 us"
            )
    wait_until(lambda: service.frontend.server.outstanding == 1, "all slots but the first one's")
    engine.gate.open()
    assert status_of(first) == "OK"
    (stats,) = [entry.stats() for entry in service.frontend.catalog.entries]
    assert (stats.executions, stats.success.count, stats.pending_rows) == (1, 1, 0)
    assert at_rest(service)


def test_fifty_that_do_not_wait_any_longer_leave_nothing_behind(serve):
    engine = affine(max_batch_size=8)
    service, wire = serve(engine)
    first = hold(engine, wire, request())
    late = [wire.infer_later(request(), timeout_s=0.05) for _ in range(50)]
    assert Counter(status_of(call) for call in late) == {"DEADLINE_EXCEEDED": 50}
    wait_until(lambda: service.in_flight == 1, "only the first one left")
    wait_until(lambda: pending(service) == 0, "nothing in the queue")
    engine.gate.open()
    assert status_of(first) == "OK"
    wait_until(lambda: at_rest(service), "every slot given back")
    assert engine.batches == [1]


def unary_with_little_time(wire, count: int, seed: int) -> Counter[str]:
    call = wire.channel.unary_unary(f"{SERVICE}ModelInfer")
    data, dice, found = request().SerializeToString(), random.Random(seed), Counter[str]()
    for _ in range(count):
        try:
            call(data, timeout=dice.uniform(0, 0.002))
            found["OK"] += 1
        except grpc.RpcError as error:
            found[error.code().name] += 1
    return found


def streams_with_little_time(wire, count: int, seed: int) -> Counter[str]:
    call = wire.channel.stream_stream(f"{SERVICE}ModelStreamInfer")
    data, dice, found = request().SerializeToString(), random.Random(seed), Counter[str]()
    for _ in range(count // 4):
        try:
            for _ in call(iter([data] * 4), timeout=dice.uniform(0, 0.002)):
                pass
            found["OK"] += 4
        except grpc.RpcError as error:
            found[error.code().name] += 4
    return found


@pytest.mark.slow
@pytest.mark.parametrize("send", [unary_with_little_time, streams_with_little_time])
def test_five_thousand_requests_with_hardly_any_time_leave_nothing_behind(serve, send):
    service, wire = serve(affine())
    with ThreadPoolExecutor(16) as pool:
        parts = list(pool.map(send, [wire] * 16, [316] * 16, range(16)))
    found = sum(parts, Counter[str]())
    assert sum(found.values()) == 16 * 316
    assert set(found) <= {"OK", "DEADLINE_EXCEEDED", "CANCELLED"}, found
    wait_until(lambda: at_rest(service), "every slot and every block given back")
    assert service.frontend.server.check() == 0
    y = output(done_response(wire.infer_later(request(first=3.0))))
    assert np.array_equal(y, 2 * rows(1, 3.0) + 1)


# ---- one model's backlog ----


def test_one_models_backlog_refuses_that_model_alone(serve):
    flooded, other = affine("flooded"), affine("other")
    service, wire = serve(flooded, other, slots_per_lane=16)
    first = hold(flooded, wire, request("flooded"))
    backlog = queue(service, wire, [request("flooded")] * 7)
    refused = [wire.infer_later(request("flooded")) for _ in range(20)]
    assert {status_of(call) for call in refused} == {"RESOURCE_EXHAUSTED"}
    assert "model 'flooded'" in refused[0].details() and "--slots-per-lane" in refused[0].details()
    assert dict(refused[0].trailing_metadata())["grpc-retry-pushback-ms"]
    for number in range(20):
        y = output(wire.infer(request("other", first=float(number))))
        assert np.array_equal(y, 2 * rows(1, number) + 1)
    flooded.gate.open()
    assert {status_of(call) for call in (first, *backlog)} == {"OK"}
    wait_until(lambda: at_rest(service), "every slot given back")
