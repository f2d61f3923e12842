"""The batch former where room ends: full slots and arenas, and outputs that have to wait or can never fit."""

from __future__ import annotations

import numpy as np
import pytest
from queue_rig import Rig

from fastqueue.errors import OutputTooLarge, QueueFull

pytestmark = pytest.mark.t1

EXHAUSTED = 8


def test_full_slots_refuse_and_lose_nothing() -> None:
    rig = Rig(slots=4)
    for _ in range(4):
        rig.submit()
    with pytest.raises(QueueFull, match="all 4 slots"):
        rig.submit()
    rig.run_all()
    assert len(rig.poll()) == 4
    rig.submit()


def test_full_arena_refuses_and_loses_nothing() -> None:
    rig = Rig(max_batch=4, arena_mb=1, output_row_bytes=[-1])
    big = np.zeros((1, 60_000), np.float32)
    slots = [rig.lane.submit(1, 1, [(0, big.shape, big)], None, 0) for _ in range(4)]
    with pytest.raises(QueueFull, match="input arena"):
        rig.lane.submit(1, 1, [(0, big.shape, big)], None, 0)
    assert rig.lane.free_count == 60, "the slot came back"
    rig.sent |= dict.fromkeys(slots, big)
    rig.run_all()
    rig.poll()
    rig.assert_clean()


def test_a_tensor_of_many_blocks_arrives_whole() -> None:
    rig = Rig(max_batch=8, arena_mb=16, output_mb=8, output_row_bytes=[-1])
    slot = rig.submit(3, width=200_000)
    assert rig.run_all() == [3]
    assert rig.poll()[slot].status == 0
    rig.assert_clean()


def test_a_full_output_arena_delays_and_a_release_lets_go_on() -> None:
    rig = Rig(max_batch=1, output_mb=1, arena_mb=8, output_row_bytes=[-1])
    wide = 150_000  # 600 KB: two do not fit beside each other
    first, second = rig.submit(width=wide), rig.submit(width=wide)
    batch = rig.launch()
    assert batch is not None
    rig.compute(batch)
    batch = rig.launch()
    assert batch is not None
    assert batch.reserve([wide * 4], wait=False) is None
    assert list(rig.poll()) == [first]
    rig.compute(batch)
    assert list(rig.poll()) == [second]
    rig.assert_clean()


@pytest.mark.parametrize("ending", ["cancelled", "unknown model", "too large to join"])
def test_a_request_that_ends_on_the_spot_does_not_take_the_slots_last_answer_with_it(ending: str) -> None:
    rig = Rig(max_batch=8, slots=1, output_mb=1, arena_mb=8)
    for _ in range(3):
        slot = rig.submit()
        rig.run_all()
        assert rig.poll()[slot].status == 0  # released, and the worker has not looked yet
        if ending == "too large to join":
            rig.submit(40_000)
        else:
            rig.submit(model=77 if ending == "unknown model" else 1)
        if ending == "cancelled":
            rig.lane.cancel(slot)
        rig.step()
        assert rig.poll()[slot].status != 0
    rig.assert_clean()


def test_outputs_that_can_never_fit_name_the_setting() -> None:
    rig = Rig(max_batch=8, output_mb=1, arena_mb=8, output_row_bytes=[-1])
    rig.submit(width=4)
    batch = rig.launch()
    assert batch is not None
    with pytest.raises(OutputTooLarge, match="--output-arena-mb"):
        batch.reserve([2 << 20])
    batch.fail(EXHAUSTED, "too large")


def test_a_batch_has_no_more_rows_than_the_output_arena_has_room_for() -> None:
    wide = 25_000  # 100 KB a row: ten fit into 1 MB
    rig = Rig(max_batch=32, output_mb=1, arena_mb=8, output_row_bytes=[wide * 4])
    for _ in range(25):
        rig.submit(width=wide)
    sizes = []
    while (batch := rig.launch()) is not None:
        sizes.append(rig.compute(batch))
        rig.poll()
    assert sizes == [10, 10, 5]
    assert {c.status for c in rig.done.values()} == {0}
    rig.assert_clean()


def test_an_oversize_request_whose_outputs_can_never_fit_is_refused_before_it_runs() -> None:
    rig = Rig(max_batch=8, output_mb=1, arena_mb=8)
    slot = rig.submit(40_000)
    assert rig.run_all() == []
    completion = rig.poll()[slot]
    assert completion.status == EXHAUSTED
    assert "--output-arena-mb" in completion.message


def test_two_oversize_requests_do_not_hold_half_each() -> None:
    rig = Rig(max_batch=8, output_mb=1, arena_mb=8)
    rows = 20_000  # 320 KB of output each: one join fits into half of the arena, two do not
    slots = [rig.submit(rows), rig.submit(rows)]
    for _ in range(2 * rows // 8 + 1):
        batch = rig.launch()
        if batch is None:
            break
        rig.compute(batch)
        rig.poll()
    assert [rig.done[s].status for s in slots] == [0, 0]
    rig.assert_clean()
