"""Models and streams that come and go while the worker serves: everything of them is used again, but their
ids.
"""

from __future__ import annotations

import threading

import pytest
from queue_rig import Rig
from waiting import LIMIT_S, wait_until

from fastqueue import WorkerPage

pytestmark = pytest.mark.t1

OK, UNAVAILABLE = 0, 14


def remove_later(rig: Rig, model: int) -> threading.Thread:
    thread = threading.Thread(target=rig.former.remove_model, args=(model,))
    thread.start()
    return thread


def test_what_was_sent_before_the_removal_is_answered_before_it_returns() -> None:
    rig = Rig()
    slot = rig.submit(2)  # it lies in the lane: nobody has looked there yet
    thread = remove_later(rig, 1)
    wait_until(
        lambda: (batch := rig.former.try_batch(rig.streams[0])) is not None and rig.compute(batch) == 2
    )
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert rig.poll()[slot].status == OK
    assert rig.former.stats() == []
    rig.assert_clean()


def test_what_is_sent_after_it_is_told_to_send_again() -> None:
    rig = Rig()
    rig.former.remove_model(1)
    slot = rig.submit()
    rig.step()
    done = rig.poll()[slot]
    assert done.status == UNAVAILABLE
    assert "unloaded" in done.message
    rig.assert_clean()


def test_a_thousand_models_one_after_the_other_take_the_room_of_one() -> None:
    rig = Rig()
    page = WorkerPage(rig.former.page_fd)
    stream = rig.streams[0]
    for id in range(2, 1002):
        rig.former.remove_stream(stream)
        rig.former.remove_model(id - 1)
        rig.add_model(id, group=id, max_batch=8)
        assert rig.former.add_stream(id) == stream
        assert [stats.model for stats in page.stats()] == [id]
    slot = rig.submit(model=1001)
    rig.step()
    batch = rig.former.try_batch(stream)
    assert batch is not None
    rig.compute(batch)
    assert rig.poll()[slot].status == OK
    assert page.stats_of(1001).rows == 1
    assert page.stats_of(1000) is None
    assert page.stats_of(0) is None


def test_a_row_that_is_used_again_starts_from_zero() -> None:
    rig = Rig()
    rig.submit(3)
    batch = rig.launch()
    assert batch is not None
    rig.compute(batch)
    rig.former.remove_model(1)
    rig.add_model(2, group=2, max_batch=8)
    (stats,) = rig.former.stats()
    assert (stats.model, stats.rows, stats.executions, stats.sizes) == (2, 0, 0, [])


def test_a_reload_of_the_largest_model_has_room_beside_it() -> None:
    rig = Rig(streams=64)
    rig.add_model(2, group=2, max_batch=8)
    assert [rig.former.add_stream(2) for _ in range(64)] == list(range(64, 128))
