"""The batch former on a fake clock: deadlines and cancels, at every place where a request may be."""

from __future__ import annotations

import pytest
from queue_rig import MS, Rig, occupy

from fastqueue import QueueError

pytestmark = pytest.mark.t1

CANCELLED, DEADLINE = 1, 4


def test_a_deadline_closes_the_batch_in_time_to_run_it() -> None:
    rig = Rig(max_batch=8, max_wait_ns=50 * MS)
    for _ in range(8):
        rig.submit()
    first = rig.launch()
    assert first is not None
    rig.clock(5 * MS)
    rig.compute(first)
    rig.submit(deadline_ns=25 * MS)
    assert rig.launch() is None
    assert rig.step() == 20 * MS, "deadline minus the predicted 5 ms"
    rig.clock(20 * MS)
    batch = rig.launch()
    assert batch is not None and batch.reason == "deadline"


def test_a_model_slower_than_the_budget_is_run_all_the_same() -> None:
    """Whether nothing is known of it or it is measured: only the deadline itself ends a request."""
    rig = Rig(max_batch=8)
    for _ in range(3):
        slot = rig.submit(deadline_ns=rig.now + 10 * MS)
        batch = rig.launch()
        assert batch is not None and batch.check()
        rig.clock(rig.now + 500 * MS)
        rig.compute(batch)
        assert rig.poll()[slot].status == 0
    assert rig.former.stats()[0].expired == 0
    rig.assert_clean()


def test_an_expired_request_never_runs_and_leaves_at_its_deadline() -> None:
    rig = Rig(max_batch=1)
    running = occupy(rig)
    slot = rig.submit(deadline_ns=10 * MS)
    assert rig.step() == 10 * MS
    rig.clock(10 * MS)
    rig.step()
    assert rig.poll()[slot].status == DEADLINE
    rig.compute(running)
    assert rig.run_all() == [1]
    assert rig.former.stats()[0].expired == 1
    assert rig.former.stats()[0].executions == 2


def test_expired_between_closing_and_launch() -> None:
    rig = Rig(max_batch=1)
    slot = rig.submit(deadline_ns=10 * MS)
    batch = rig.launch()
    rig.clock(10 * MS)
    assert batch is not None and not batch.check()
    assert rig.poll()[slot].status == DEADLINE
    with pytest.raises(QueueError, match="done"):
        batch.rows  # noqa: B018


def test_cancel_removes_what_waits_at_once() -> None:
    rig = Rig(max_batch=1)
    running = occupy(rig)
    slot = rig.submit()
    rig.step()
    rig.lane.cancel(slot)
    rig.step()
    assert rig.poll()[slot].status == CANCELLED
    rig.compute(running)
    assert rig.run_all() == [1]
    rig.poll()
    rig.assert_clean()


def test_cancel_before_the_submission_is_even_taken() -> None:
    rig = Rig(max_batch=8)
    slot = rig.submit()
    rig.lane.cancel(slot)
    assert rig.run_all() == []
    assert rig.poll()[slot].status == CANCELLED


def test_cancel_between_closing_and_launch_compacts_the_batch() -> None:
    rig = Rig(max_batch=8)
    slots = [rig.submit() for _ in range(8)]
    batch = rig.launch()
    assert batch is not None
    for slot in slots[:3] + slots[4:]:
        rig.lane.cancel(slot)
    assert batch.check()
    assert rig.compute(batch) == 1
    done = rig.poll()
    assert done[slots[3]].status == 0
    assert sum(c.status == CANCELLED for c in done.values()) == 7
    rig.assert_clean()


def test_a_cancel_never_reaches_the_next_request_in_the_slot() -> None:
    rig = Rig(max_batch=1, slots=1)
    slot = rig.submit()
    rig.lane.cancel(slot)
    rig.run_all()
    rig.poll()
    assert rig.submit() == slot
    assert rig.run_all() == [1]
    assert rig.poll()[slot].status == 0
