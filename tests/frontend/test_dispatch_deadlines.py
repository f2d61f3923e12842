"""One front-end thread on a fake clock: deadlines that pass and clients that no longer wait."""

from __future__ import annotations

from random import Random

import pytest
from dispatch_rig import SECOND, Rig, model, refused, request, row

DEADLINE = 4
M = model()


def test_a_deadline_that_has_passed_is_refused() -> None:
    rig = Rig()
    rig.worker(M)
    assert refused(rig, request(M, row(1)), deadline_ns=rig.now).code == DEADLINE
    assert rig.at_rest()


@pytest.mark.parametrize(
    ("deadline", "timeout_us", "after"),
    [(SECOND, 0, SECOND), (None, 2500, 2_500_000), (SECOND, 2500, 2_500_000), (1000, 2500, 1000)],
)
def test_the_budget_is_the_earlier_of_deadline_and_timeout(
    deadline: int | None, timeout_us: int, after: int
) -> None:
    rig = Rig()
    rig.worker(M)
    at = None if deadline is None else rig.now + deadline
    token, _ = rig.submit(request(M, row(1), timeout=timeout_us), deadline_ns=at)
    assert rig.dispatcher.next_deadline() == rig.now + after
    rig.pass_time(after - 1)
    assert rig.drain() == {}
    rig.pass_time(1)
    code, text = rig.drain()[token]
    assert code == DEADLINE and text.decode().startswith(
        "Request timeout expired: model 'm' did not answer within"
    )
    assert rig.dispatcher.next_deadline() is None


def test_no_deadline() -> None:
    rig = Rig()
    rig.worker(M)
    rig.submit(request(M, row(1)))
    rig.submit(request(M, row(1), timeout=2**62))
    assert rig.dispatcher.next_deadline() is None


def test_a_passed_deadline_is_answered_once_and_the_slot_lives_until_final() -> None:
    rig = Rig()
    lane = rig.worker(M)
    token, _ = rig.submit(request(M, row(1)), deadline_ns=rig.now + 100)
    batch = rig.workers[lane].take(1)
    assert batch is not None and batch.check()
    rig.pass_time(100)
    assert list(rig.drain()) == [token]
    assert rig.dispatcher.outstanding == 1 and rig.dispatcher.arena_used > 0
    rig.workers[lane].execute(batch, M)
    assert rig.drain() == {}
    assert rig.at_rest()


def test_a_cancelled_request_is_never_told_and_its_slot_lives_until_final() -> None:
    rig = Rig()
    lane = rig.worker(M)
    _, handle = rig.submit(request(M, row(1)), deadline_ns=rig.now + SECOND)
    batch = rig.workers[lane].take(1)
    assert batch is not None and batch.check()
    rig.dispatcher.cancel(handle)
    assert rig.dispatcher.next_deadline() is None
    assert rig.dispatcher.outstanding == 1
    rig.workers[lane].execute(batch, M)
    assert rig.drain() == {}
    assert rig.at_rest()


def test_a_cancelled_request_that_waits_is_never_run() -> None:
    rig = Rig()
    lane = rig.worker(M)
    _, handle = rig.submit(request(M, row(1)))
    rig.dispatcher.cancel(handle)
    assert rig.workers[lane].run() == 0
    assert rig.drain() == {}
    assert rig.at_rest()


def test_a_late_cancel_meets_nobody() -> None:
    rig = Rig(slots=1)
    rig.worker(M)
    token, handle = rig.submit(request(M, row(1)))
    assert token in rig.run()
    other, _ = rig.submit(request(M, row(2)))  # the same slot
    rig.dispatcher.cancel(handle)
    rig.dispatcher.cancel(2**64 - 1)
    assert list(rig.run()) == [other]


def test_deadlines_in_any_order() -> None:
    rig = Rig(slots=64)
    rig.worker(M)
    random = Random(3)
    waiting: dict[int, int] = {}
    handles: dict[int, int] = {}
    for after in random.sample(range(1, 1000), 60):
        token, handles[token] = rig.submit(request(M, row(1)), deadline_ns=rig.now + after)
        waiting[token] = rig.now + after
    for token in random.sample(sorted(waiting), 20):
        rig.dispatcher.cancel(handles[token])
        del waiting[token]
        assert rig.dispatcher.check() == 0
    while waiting:
        earliest = min(waiting.values())
        assert rig.dispatcher.next_deadline() == earliest
        rig.pass_time(earliest - rig.now)
        assert [waiting.pop(token) for token in rig.drain()] == [earliest]
        assert rig.dispatcher.check() == 0
    assert rig.dispatcher.outstanding == 60
    rig.run()
    assert rig.at_rest()
