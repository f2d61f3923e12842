"""The batch former on a fake clock: when batches close, who is in them, and what becomes of every request."""

from __future__ import annotations

import mmap
import os
import struct

import numpy as np
import pytest
from queue_rig import MS, Rig

from fastqueue import BatchFormer, FrontLane, InputArena, WorkerPage
from fastqueue.errors import ForkedHandle, LayoutMismatch

pytestmark = pytest.mark.t1

CANCELLED, EXHAUSTED, INTERNAL, UNAVAILABLE = 1, 8, 13, 14


def test_queued_rows_run_in_full_batches() -> None:
    rig = Rig(max_batch=8)
    for _ in range(64):
        rig.submit()
    assert rig.run_all() == [8] * 8
    assert len(rig.poll()) == 64
    rig.assert_clean()


def test_rows_are_counted_not_requests() -> None:
    rig = Rig(max_batch=8)
    for _ in range(3):
        rig.submit(3)
    assert rig.run_all() == [6, 3]
    assert {c.status for c in rig.poll().values()} == {0}


def test_a_batch_closes_only_when_a_launch_slot_is_free() -> None:
    rig = Rig(max_batch=8)
    rig.submit()
    running = rig.launch()
    assert running is not None and running.rows == 1
    for _ in range(5):
        rig.submit()
    assert rig.launch() is None, "the second slot of a busy stream takes full batches only"
    for _ in range(5):
        rig.submit()
    behind = rig.launch()
    assert behind is not None and behind.rows == 8
    rig.compute(running)
    assert rig.compute(behind) == 8
    assert rig.run_all() == [2]


def test_a_batch_queues_behind_a_running_one_that_is_about_to_end() -> None:
    rig = Rig(max_batch=8, head_start_ns=300_000)
    rig.submit()
    first = rig.launch()
    assert first is not None
    rig.clock(5 * MS)
    rig.compute(first)  # the former has now seen a batch of 5 ms
    rig.submit()
    running = rig.launch()
    rig.submit()
    assert running is not None
    assert rig.launch() is None
    assert rig.step() == 10 * MS - 300_000
    rig.clock(10 * MS - 300_000)
    behind = rig.launch()
    assert behind is not None and behind.rows == 1


def test_waits_for_max_wait_and_no_longer() -> None:
    rig = Rig(max_batch=8, max_wait_ns=2 * MS)
    rig.submit()
    assert rig.launch() is None
    assert rig.step() == 2 * MS
    rig.clock(2 * MS)
    batch = rig.launch()
    assert batch is not None and batch.reason == "wait"


def test_a_full_batch_does_not_wait() -> None:
    rig = Rig(max_batch=4, max_wait_ns=2 * MS)
    for _ in range(4):
        rig.submit()
    batch = rig.launch()
    assert batch is not None and batch.reason == "full"


def test_oversize_request_is_split_and_joined_in_order() -> None:
    rig = Rig(max_batch=8)
    slot = rig.submit(20)
    assert rig.run_all() == [8, 8, 4]
    assert rig.poll()[slot].outputs[0][0] == (20, 4)
    rig.assert_clean()


def test_the_rest_of_an_oversize_request_shares_its_batch() -> None:
    rig = Rig(max_batch=8)
    slots = [rig.submit(9), rig.submit(5), rig.submit(30), rig.submit(1)]
    assert rig.run_all() == [8, 6, 8, 8, 8, 7]
    done = rig.poll()
    assert [done[s].outputs[0][0][0] for s in slots] == [9, 5, 30, 1]
    rig.assert_clean()


def test_cancelling_an_oversize_request_half_way_stops_its_other_parts() -> None:
    rig = Rig(max_batch=8)
    slot = rig.submit(20)
    batch = rig.launch()
    assert batch is not None
    rig.lane.cancel(slot)
    rig.compute(batch)
    assert rig.run_all() == []
    assert rig.poll()[slot].status == CANCELLED
    assert rig.former.stats()[0].executions == 1
    rig.assert_clean()


def test_the_error_of_one_part_fails_the_whole_request() -> None:
    rig = Rig(max_batch=8)
    slot = rig.submit(20)
    first = rig.launch()
    assert first is not None
    rig.compute(first)
    second = rig.launch()
    assert second is not None
    second.fail(INTERNAL, "the engine broke")
    assert rig.run_all() == []
    completion = rig.poll()[slot]
    assert (completion.status, completion.message) == (INTERNAL, "the engine broke")
    rig.assert_clean()


def test_different_shapes_never_share_a_batch() -> None:
    rig = Rig(max_batch=8, output_row_bytes=[-1])
    for width in (4, 8, 4, 8, 4):
        rig.submit(width=width)
    assert sorted(rig.run_all()) == [2, 3]
    assert {c.status for c in rig.poll().values()} == {0}


def test_zero_rows_keep_the_others_aligned() -> None:
    rig = Rig(max_batch=8)
    slots = [rig.submit(2), rig.submit(0), rig.submit(3)]
    assert rig.run_all() == [5]
    done = rig.poll()
    assert [done[s].outputs[0][0] for s in slots] == [(2, 4), (0, 4), (3, 4)]
    rig.submit(0)
    assert rig.run_all() == [0]
    rig.poll()
    rig.assert_clean()


def test_a_model_that_does_not_batch_runs_one_request_at_a_time() -> None:
    rig = Rig(max_batch=1, batched=False)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    slots = [rig.lane.submit(1, 1, [(0, (3, 4), x)], None, 0) for _ in range(2)]
    rig.sent |= dict.fromkeys(slots, x)
    assert rig.run_all() == [1, 1]
    assert [c.outputs[0][0] for c in rig.poll().values()] == [(3, 4), (3, 4)]


def test_an_input_that_is_the_whole_batch_is_not_copied() -> None:
    rig = Rig(max_batch=8)
    rig.submit(5)
    alone = rig.launch()
    assert alone is not None and alone.input_pointer(0) % 64 == 0 and alone.input_pointer(0) != 0
    rig.compute(alone)
    rig.submit(2)
    rig.submit(2)
    shared = rig.launch()
    assert shared is not None and shared.input_pointer(0) == 0


def test_fairness_between_models_that_share_a_stream() -> None:
    rig = Rig(max_batch=1, slots=256)
    rig.add_model(2, group=1, max_batch=1)
    for _ in range(40):
        rig.submit(model=1)
        rig.submit(model=2)
    order = []
    for _ in range(40):
        batch = rig.launch()
        assert batch is not None
        order.append(batch.model)
        rig.clock(rig.now + (4 * MS if batch.model == 1 else MS))
        rig.compute(batch)
        rig.poll()
    assert order.count(2) > 2.5 * order.count(1), f"device time is shared, not turns: {order}"


def test_a_model_occupies_at_most_its_streams() -> None:
    rig = Rig(max_batch=1, streams=3, max_streams=2)
    for _ in range(8):
        rig.submit()
    rig.step()
    launched = [rig.former.try_batch(s) for s in rig.streams for _ in range(2)]
    assert sum(b is not None for b in launched) == 4


def test_the_front_end_is_gone() -> None:
    rig = Rig(max_batch=4)
    for _ in range(12):
        rig.submit()
    running = rig.launch()
    assert running is not None
    rig.compute(running)  # delivered, and never released
    rig.step()
    assert rig.former.stats()[0].pending_rows < 12
    batch = rig.former.try_batch(rig.streams[0])
    while batch is not None:
        rig.compute(batch)
        batch = rig.former.try_batch(rig.streams[0])
    rig.former.detach_lane(rig.number)
    assert rig.former.check() == 0
    assert rig.former.free_output_bytes == (4 << 20) - 4096
    assert rig.launch() is None


def test_an_unknown_model_is_answered() -> None:
    rig = Rig()
    slot = rig.submit(model=77)
    rig.step()
    assert rig.poll()[slot].status == UNAVAILABLE


def test_padding_is_in_the_size_that_ran_and_in_a_number_of_its_own() -> None:
    rig = Rig(max_batch=4)
    for rows, padding in ((3, 1), (4, 0), (3, 0)):
        slot = rig.submit(rows=rows)
        batch = rig.launch()
        assert batch is not None and rig.compute(batch, padding) == rows
        assert rig.poll()[slot].batch_rows == rows
    (stats,) = rig.former.stats()
    assert (stats.rows, stats.executions) == (10, 3)
    assert [(s.rows, s.executions) for s in stats.sizes] == [(3, 1), (4, 2)]
    assert stats.padding_rows == 1


def test_an_engine_has_numbers_of_its_own() -> None:
    rig = Rig()
    rig.submit()
    batch = rig.launch()
    assert batch is not None
    batch.count(0)
    batch.count(3, 7)
    batch.count(3)
    with pytest.raises(ValueError, match="an engine has 4 numbers of its own, and none is 4"):
        batch.count(4)
    rig.compute(batch)
    rig.submit()
    rig.run_all()
    (stats,) = WorkerPage(rig.former.page_fd).stats()
    assert stats.engine == (1, 0, 0, 8)


def test_counters_say_what_ran() -> None:
    rig = Rig(max_batch=8)
    for _ in range(10):
        rig.submit()
    rig.run_all()
    rig.poll()
    (stats,) = WorkerPage(rig.former.page_fd).stats()
    assert (stats.model, stats.rows, stats.executions, stats.success.count) == (1, 10, 2, 10)
    assert [(s.rows, s.executions) for s in stats.sizes] == [(2, 1), (8, 1)]
    assert stats.reasons == {"full": 1, "wait": 1, "deadline": 0}
    assert stats.pending_rows == 0


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(0, 1 << 20, id="header-bytes"),
        pytest.param(4, 65, id="tensors"),
        pytest.param(8, 1 << 30, id="extents"),
        pytest.param(16, 9, id="tensor-index"),
        pytest.param(20, 200, id="rank"),
        pytest.param(24, 7, id="first-extent"),
        pytest.param(28, 5, id="extent-count"),
        pytest.param(32, 1 << 20, id="tensor-length"),
        pytest.param(40, 2, id="rows"),
        pytest.param(48, 1 << 30, id="dimension"),
        pytest.param(112, 1 << 31, id="extent-offset"),
        pytest.param(120, 1 << 31, id="extent-length"),
    ],
)
def test_a_broken_descriptor_is_answered_and_read_nowhere(offset: int, value: int) -> None:
    rig = Rig()
    slot = rig.submit()
    with mmap.mmap(rig.arena.fd, 0) as memory:
        header = 262144  # the first block of the arena
        assert struct.unpack_from("<II", memory, header + 4) == (1, 1), "the header lies here"
        struct.pack_into("<I", memory, header + offset, value)
    assert rig.run_all() == []
    completion = rig.poll()[slot]
    assert completion.status == INTERNAL
    assert "breaks rule" in completion.message


def test_descriptors_that_are_something_else_are_refused() -> None:
    former, arena = BatchFormer(1), InputArena(1)
    lane = FrontLane(arena, 8)
    with pytest.raises(LayoutMismatch, match="lane"):
        former.attach_lane(arena.fd, arena.fd, lane.eventfd)
    with pytest.raises(LayoutMismatch, match="input arena"):
        former.attach_lane(lane.fd, lane.fd, lane.eventfd)
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, 1 << 20)
    with pytest.raises(LayoutMismatch, match="not sealed"):
        former.attach_lane(unsealed, arena.fd, lane.eventfd)
    with pytest.raises(LayoutMismatch, match="worker page"):
        lane.attach_worker(arena.fd, former.output_fd)
    os.close(unsealed)


def test_every_handle_in_a_forked_child_raises() -> None:
    rig = Rig()
    rig.submit()
    batch = rig.launch()
    page = WorkerPage(rig.former.page_fd)
    assert batch is not None
    uses = [
        lambda: rig.former.step(),
        lambda: rig.former.stats(),
        lambda: rig.arena.used_bytes,
        lambda: rig.lane.poll(),
        lambda: rig.submit(),
        lambda: page.stats(),
        lambda: batch.rows,
    ]
    pid = os.fork()
    if pid == 0:
        raised = 0
        for use in uses:
            try:
                use()
            except ForkedHandle:
                raised += 1
        os._exit(raised)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(uses)
    rig.compute(batch)
    assert len(rig.poll()) == 1, "the parent goes on"
