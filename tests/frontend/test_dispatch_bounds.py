"""One front-end thread: how much one model may have in flight beside others; the queue policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dispatch_rig import SECOND, Rig, model, refused, request, row

from service.models.scheduling import QueuePolicy, Scheduling

DEADLINE, EXHAUSTED = 4, 8
A, B = model("a"), model("b")


def with_policy(**policy: Any) -> Any:
    return replace(A, scheduling=Scheduling((QueuePolicy(**policy),)))


def test_one_model_has_half_of_the_slots_and_the_others_go_on() -> None:
    rig = Rig(slots=8)
    rig.worker(A, B)
    for _ in range(4):
        rig.submit(request(A, row(1)))
    error = refused(rig, request(A, row(1)))
    assert (error.code, error.transient) == (EXHAUSTED, True)
    assert error.message == (
        "the requests in flight of model 'a' have all slots that one model may have while others are loaded, "
        "half of them (4): try later, or raise --slots-per-lane"
    )
    for _ in range(4):
        rig.submit(request(B, row(1)))
    assert {code for code, _ in rig.run().values()} == {0}
    rig.submit(request(A, row(1)))
    rig.run()
    assert rig.at_rest()


def test_a_model_that_is_alone_has_them_all() -> None:
    rig = Rig(slots=8)
    rig.worker(A)
    for _ in range(8):
        rig.submit(request(A, row(1)))
    assert "all 8 slots" in refused(rig, request(A, row(1))).message


def test_one_model_has_half_of_the_arena_and_the_others_go_on() -> None:
    rig = Rig(arena_mb=4, slots=64)
    rig.worker(A, B, output_mb=16)
    block = np.zeros((1, 65000), np.float32)  # nearly 256 KB
    for _ in range(8):
        rig.submit(request(A, block))
    error = refused(rig, request(A, block))
    assert (error.code, error.transient) == (EXHAUSTED, True)
    assert "all bytes of the input arena that one model may have" in error.message
    assert "(2097152)" in error.message and "--arena-mb" in error.message
    rig.submit(request(B, block))
    rig.run()
    assert rig.at_rest()


def test_one_model_has_half_of_the_spill_and_the_others_go_on() -> None:
    rig = Rig(arena_mb=4, spill_mb=8, slots=64)
    rig.worker(A, B, output_mb=32)
    large = np.zeros((1, 250000), np.float32)  # 1 MB, more than an eighth of the arena
    for _ in range(4):
        rig.submit(request(A, large))
    error = refused(rig, request(A, large))
    assert (error.code, error.transient) == (EXHAUSTED, True)
    assert "all bytes for large requests that one model may have" in error.message
    assert "(4194304)" in error.message and "--spill-mb" in error.message
    rig.submit(request(A, row(1)))
    rig.submit(request(B, large))
    rig.run()
    assert rig.at_rest()


def test_a_model_with_nothing_in_flight_may_send_one_request_however_large() -> None:
    rig = Rig(arena_mb=4, slots=2)
    rig.worker(A, B, output_mb=16)
    large = np.zeros((1, 650000), np.float32)  # 2.5 MB, more than half
    token, _ = rig.submit(request(A, large))
    assert rig.run()[token][0] == 0
    rig.submit(request(A, row(1)))
    assert "half of them (1)" in refused(rig, request(A, row(1))).message


@pytest.mark.parametrize("how", ["answered", "cancelled", "expired"])
def test_what_has_ended_counts_no_more(how: str) -> None:
    rig = Rig(slots=2)
    lane = rig.worker(A, B)
    for _ in range(20):
        _, handle = rig.submit(request(A, row(1)), deadline_ns=rig.now + SECOND)
        if how == "cancelled":
            rig.dispatcher.cancel(handle)
        elif how == "expired":
            rig.pass_time(SECOND)
        rig.workers[lane].run()
        rig.drain()
        assert rig.at_rest()


def test_a_new_table_does_not_forget_what_is_in_flight() -> None:
    rig = Rig(slots=8)
    rig.worker(A, B)
    for _ in range(4):
        rig.submit(request(A, row(1)))
    rig.dispatcher.set_models(rig.table)
    assert "half of them (4)" in refused(rig, request(A, row(1))).message
    rig.run()
    assert rig.at_rest()
    rig.submit(request(A, row(1)))


def test_the_next_incarnation_of_a_worker_starts_from_nothing() -> None:
    rig = Rig(slots=8)
    lane = rig.worker(A, B)
    for _ in range(4):
        rig.submit(request(A, row(1)))
    rig.dispatcher.close_lane(lane)
    rig.dispatcher.free_lane(lane)
    rig.workers.clear()
    rig.table.clear()
    assert rig.worker(replace(A, max_batch_size=2), B) == lane
    for _ in range(4):
        rig.submit(request(A, row(1)))
    assert sorted(rig.run()) == [5, 6, 7, 8]
    assert rig.at_rest()


# ---- the queue policy, seen from here ----


def test_the_requests_timeout_does_not_count_where_the_policy_says_so() -> None:
    rig = Rig()
    fixed = with_policy(timeout_us=900, override=False)
    rig.worker(fixed)
    rig.submit(request(fixed, row(1), timeout=100))
    assert rig.dispatcher.next_deadline() is None
    rig.submit(request(fixed, row(1), timeout=100), deadline_ns=rig.now + SECOND)
    assert rig.dispatcher.next_deadline() == rig.now + SECOND


def test_only_on_the_levels_that_say_so() -> None:
    rig = Rig()
    levels = (QueuePolicy(timeout_us=900, override=False), QueuePolicy())
    mixed = replace(A, scheduling=Scheduling(levels, default_level=2))
    rig.worker(mixed)
    rig.submit(request(mixed, row(1), timeout=100, priority=1))
    assert rig.dispatcher.next_deadline() is None
    for priority in (0, 2, 3):
        rig.submit(request(mixed, row(1), timeout=100 - priority, priority=priority))
        assert rig.dispatcher.next_deadline() == rig.now + (100 - priority) * 1000


def test_a_refusal_of_the_queue_names_the_model_in_words_that_clients_look_for() -> None:
    rig = Rig()
    lane = rig.worker()
    full, late = with_policy(max_queue_size=1), replace(with_policy(timeout_us=50), name="late")
    for id, spec, level in ((1, full, {"max_queue": 1}), (2, late, {"timeout_ns": 50_000})):
        rig.workers[lane].add(id, spec, **level)
        rig.table.append((id, lane, spec))
    rig.dispatcher.set_models(rig.table)
    worker = rig.workers[lane]
    running = []
    for id, spec in ((1, full), (2, late)):
        rig.submit(request(spec, row(1)))
        running.append(worker.take(id))
        rig.submit(request(spec, row(1)))
    rig.submit(request(full, row(1)))
    worker.former.step()
    rig.pass_time(50_000)
    worker.former.step()
    answers = rig.dispatcher.drain(rig.now)
    assert {token: (code, payload.decode(), again) for token, code, payload, again in answers} == {
        4: (
            DEADLINE,
            "Request timeout expired: model 'late': it waited 50 us in the queue, "
            "and its queue policy (default_timeout_microseconds) allows 50",
            False,
        ),
        5: (
            EXHAUSTED,
            "Exceeds maximum queue size: model 'a': 1 requests wait, "
            "as many as its queue policy (max_queue_size) allows; try again later",
            True,
        ),
    }
