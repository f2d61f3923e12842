"""The batch former on a fake clock: priority levels, their queue policies, batches that run for too long."""

from __future__ import annotations

import pytest
from queue_rig import MS, Rig

from fastqueue import MAX_LEVELS, Batch, Level

pytestmark = pytest.mark.t1

OK, CANCELLED, DEADLINE, EXHAUSTED = 0, 1, 4, 8
SECOND = 1000 * MS
TWO, THREE = [Level()] * 2, [Level()] * 3


def busy(rig: Rig) -> Batch:
    """One batch is running; nothing can start before it ends."""
    rig.submit()
    running = rig.launch()
    assert running is not None
    return running


def batches_behind(rig: Rig, running: Batch) -> list[list[int]]:
    """Ends what runs, and runs everything that waits: the slots of each batch, in their order."""
    rig.compute(running)
    rig.poll()
    rig.run_all()
    found: dict[int, list[int]] = {}
    for slot, completion in rig.poll().items():
        found.setdefault(completion.batch, []).append(slot)
    return [sorted(slots) for _, slots in sorted(found.items())]


# ---- levels ----


def test_a_higher_level_goes_into_the_next_batch_first() -> None:
    rig = Rig(max_batch=2, levels=THREE)
    running = busy(rig)
    low = [rig.submit(priority=3) for _ in range(2)]
    high = [rig.submit(priority=1) for _ in range(2)]
    middle = [rig.submit(priority=2) for _ in range(2)]
    assert batches_behind(rig, running) == [high, middle, low]
    rig.assert_clean()


def test_a_batch_is_filled_from_several_levels_and_first_come_first_served_within_one() -> None:
    rig = Rig(max_batch=3, levels=THREE)
    running = busy(rig)
    sent = {priority: [] for priority in (1, 2, 3)}
    for priority in (2, 3, 1, 2, 3, 1, 2, 3, 1, 1):
        sent[priority].append(rig.submit(priority=priority))
    expected = sent[1] + sent[2] + sent[3]
    assert batches_behind(rig, running) == [
        sorted(expected[:3]), sorted(expected[3:6]), sorted(expected[6:9]), expected[9:]
    ]  # fmt: skip


@pytest.mark.parametrize(("priority", "place"), [(0, 1), (1, 0), (2, 1), (3, 2), (4, 1), (2**32 - 1, 1)])
def test_none_and_one_that_does_not_exist_are_the_default(priority: int, place: int) -> None:
    rig = Rig(max_batch=1, levels=THREE, default_level=1)
    running = busy(rig)
    asked = rig.submit(priority=priority)
    slots = [rig.submit(priority=3), rig.submit(priority=2), rig.submit(priority=1)]
    expected = slots[::-1]
    expected.insert(place, asked)
    assert [slot for (slot,) in batches_behind(rig, running)] == expected


def test_a_model_without_levels_ignores_priority() -> None:
    rig = Rig(max_batch=1)
    running = busy(rig)
    slots = [rig.submit(priority=priority) for priority in (9, 3, 0, 1, 2)]
    assert [slot for (slot,) in batches_behind(rig, running)] == slots


def test_levels_are_bounded() -> None:
    Rig(levels=[Level()] * MAX_LEVELS, default_level=MAX_LEVELS - 1)
    for levels, default in (([Level()] * (MAX_LEVELS + 1), 0), ([], 0), (TWO, 2)):
        with pytest.raises(ValueError, match=f"1 to {MAX_LEVELS} levels"):
            Rig(levels=levels, default_level=default)


def test_the_lowest_of_all_levels_still_runs() -> None:
    rig = Rig(max_batch=1, levels=[Level()] * MAX_LEVELS)
    running = busy(rig)
    slots = [rig.submit(priority=priority) for priority in range(MAX_LEVELS, 0, -1)]
    assert [slot for (slot,) in batches_behind(rig, running)] == slots[::-1]


def test_of_several_shapes_the_one_with_the_highest_request_goes_first() -> None:
    rig = Rig(max_batch=8, levels=TWO, output_row_bytes=[-1])
    running = busy(rig)
    old = [rig.submit(width=4, priority=2) for _ in range(3)]
    young = [rig.submit(width=6, priority=2), rig.submit(width=6, priority=1)]
    assert batches_behind(rig, running) == [young, old]


def test_waiting_for_company_counts_from_the_oldest_whatever_its_level() -> None:
    rig = Rig(max_batch=8, max_wait_ns=10 * MS, levels=TWO)
    rig.submit(priority=2)
    rig.clock(4 * MS)
    rig.submit(priority=1)
    assert rig.step() == 10 * MS
    rig.clock(10 * MS)
    batch = rig.launch()
    assert batch is not None and (batch.rows, batch.reason) == (2, "wait")


def test_a_request_whose_parts_have_begun_is_not_overtaken() -> None:
    """It holds memory for all its parts: one that needs such memory too must not stand before it."""
    rig = Rig(max_batch=8, levels=TWO, output_mb=1)
    row = 16
    low = rig.submit(((1 << 20) // 2 - 8192) // row, priority=2)  # its join is all that joins may have
    first = rig.launch()
    assert first is not None
    high = rig.submit(20, priority=1)
    rig.compute(first)
    while (batch := rig.launch()) is not None:
        if batch.check():
            rig.compute(batch)
        for slot, completion in rig.poll().items():
            assert completion.status == OK
            if slot == low:
                low = -1
            else:
                assert (slot, low) == (high, -1), "the first one is done before the other begins"
    assert low == -1 and high in rig.done
    rig.assert_clean()


def test_cancelled_requests_leave_their_level_in_order() -> None:
    rig = Rig(max_batch=1, levels=THREE)
    running = busy(rig)
    slots = [rig.submit(priority=1 + number % 3) for number in range(12)]
    rig.step()
    gone = {slots[0], slots[1], slots[5], slots[9], slots[11]}
    for slot in sorted(gone):
        rig.lane.cancel(slot)
    expected = [slot for level in range(3) for slot in slots[level::3] if slot not in gone]
    # One was closed behind the batch that ran: it is dropped there.
    ran = [slot for slots in batches_behind(rig, running) for slot in slots if rig.done[slot].status == OK]
    assert ran == expected
    rig.assert_clean()


# ---- how many may wait ----


def test_a_full_queue_refuses_and_says_so() -> None:
    rig = Rig(max_batch=1, levels=[Level(max_queue=3)])
    running = busy(rig)
    slots = [rig.submit() for _ in range(5)]
    rig.step()
    refused = rig.poll()
    assert sorted(refused) == slots[3:], "one of those that wait is closed behind what runs: it counts"
    for completion in refused.values():
        assert (completion.status, completion.again) == (EXHAUSTED, True)
        assert completion.message == (
            "3 requests wait, as many as its queue policy (max_queue_size) allows; try again later"
        )
    assert [slot for (slot,) in batches_behind(rig, running)] == slots[:3]
    rig.assert_clean()


def test_what_can_start_at_once_does_not_count_as_waiting() -> None:
    rig = Rig(max_batch=2, streams=2, max_streams=2, levels=[Level(max_queue=2)])
    slots = [rig.submit() for _ in range(11)]
    rig.step()
    refused = sorted(rig.poll())
    # Two batches start, which is four; two more wait, closed behind one of them; the rest is refused.
    assert refused == slots[6:]


def test_each_level_has_a_queue_of_its_own() -> None:
    rig = Rig(max_batch=1, levels=[Level(max_queue=1), Level(max_queue=2), Level()], default_level=2)
    busy(rig)
    for priority, expected in ((1, 2), (2, 1), (3, 0)):
        for _ in range(3):
            rig.submit(priority=priority)
        rig.step()
        assert len(rig.poll()) == expected


@pytest.mark.parametrize("how", ["cancel", "deadline", "run"])
def test_one_that_leaves_makes_room(how: str) -> None:
    rig = Rig(max_batch=1, levels=[Level(max_queue=2)])
    running = busy(rig)
    slots = [rig.submit(deadline_ns=5 * MS if how == "deadline" else None) for _ in range(2)]
    rig.step()
    if how == "cancel":
        rig.lane.cancel(slots[1])
    elif how == "deadline":
        rig.clock(5 * MS)
    else:
        rig.compute(running)
        assert rig.launch() is not None
    rig.step()
    rig.poll()
    third = rig.submit()
    rig.step()
    assert third not in rig.poll()


def test_a_refusal_makes_no_difference_to_who_waits() -> None:
    rig = Rig(max_batch=4, max_wait_ns=MS, levels=[Level(max_queue=1)])
    slots = [rig.submit() for _ in range(4)]
    rig.step()
    assert sorted(rig.poll()) == slots[1:], "an engine that waits for company leaves what waits in its queue"
    rig.clock(MS)
    assert rig.run_all() == [1]


# ---- how long one may wait ----


def test_one_that_waits_for_too_long_is_told_so_while_the_engine_is_busy() -> None:
    rig = Rig(max_batch=1, levels=[Level(timeout_ns=10 * MS)])
    running = busy(rig)
    rig.clock(2 * MS)
    slots = [rig.submit(), rig.submit()]  # the first is closed behind the batch that runs
    assert rig.step() <= 12 * MS, "somebody looks in time; the batch that runs may have had a time-out too"
    rig.clock(12 * MS)
    rig.step()
    told = rig.poll()
    assert sorted(told) == slots
    for completion in told.values():
        assert (completion.status, completion.again) == (DEADLINE, False)
        assert completion.message == (
            "it waited 10000 us in the queue, "
            "and its queue policy (default_timeout_microseconds) allows 10000"
        )
    rig.compute(running)
    assert rig.run_all() == []
    stats = rig.former.stats()[0]
    assert (stats.executions, stats.expired, stats.pending_rows) == (1, 2, 0)
    rig.poll()
    rig.assert_clean()


def test_a_queue_time_out_is_no_bound_on_the_execution() -> None:
    rig = Rig(max_batch=1, levels=[Level(timeout_ns=10 * MS)])
    slot = rig.submit()
    running = rig.launch()
    rig.clock(SECOND)
    assert running is not None and running.check()
    rig.compute(running)
    assert rig.poll()[slot].status == OK


def test_a_batch_is_ready_before_somebody_in_it_has_waited_too_long() -> None:
    rig = Rig(max_batch=8, max_wait_ns=SECOND, levels=[Level(timeout_ns=10 * MS)])
    slot = rig.submit()
    assert rig.step() == 9 * MS
    rig.clock(9 * MS)
    assert rig.run_all() == [1]
    assert rig.poll()[slot].status == OK


def test_each_level_has_a_time_out_of_its_own() -> None:
    rig = Rig(max_batch=8, levels=[Level(timeout_ns=4 * MS), Level(), Level(timeout_ns=2 * MS)])
    running = busy(rig)
    slots = {priority: rig.submit(priority=priority) for priority in (1, 2, 3)}
    for ms, priority in ((2, 3), (4, 1)):
        assert rig.step() == ms * MS
        rig.clock(ms * MS)
        rig.step()
        assert list(rig.poll()) == [slots[priority]]
    assert batches_behind(rig, running) == [[slots[2]]]


def test_a_delayed_request_goes_behind_the_others_of_its_level_and_before_the_next() -> None:
    rig = Rig(max_batch=1, levels=[Level(timeout_ns=10 * MS, delay=True), Level()])
    running = busy(rig)
    rig.submit()
    rig.step()  # closed behind the batch that runs
    late = [rig.submit(priority=1) for _ in range(2)]
    low = rig.submit(priority=2)
    rig.step()
    rig.clock(10 * MS)
    assert rig.step() > 10 * MS
    assert rig.poll() == {}, "nobody is refused"
    young = [rig.submit(priority=1) for _ in range(2)]
    order = [slot for (slot,) in batches_behind(rig, running)][1:]
    assert order == [*young, *late, low]
    assert {completion.status for completion in rig.done.values()} == {OK}
    rig.assert_clean()


def test_a_deadline_comes_before_the_queue_time_out() -> None:
    rig = Rig(max_batch=1, levels=[Level(timeout_ns=10 * MS, delay=True)])
    busy(rig)
    slots = [rig.submit(deadline_ns=15 * MS) for _ in range(3)]
    rig.step()
    rig.clock(10 * MS)
    assert rig.step() == 15 * MS
    assert rig.poll() == {}
    rig.clock(15 * MS)
    rig.step()
    assert sorted(rig.poll()) == slots


def test_the_rest_of_a_request_whose_first_part_runs_has_no_queue_time_out() -> None:
    rig = Rig(max_batch=4, levels=[Level(timeout_ns=10 * MS)])
    slot = rig.submit(9)
    first = rig.launch()
    assert first is not None
    rig.clock(50 * MS)
    rig.compute(first)
    assert rig.run_all() == [4, 1]
    assert rig.poll()[slot].status == OK
    rig.assert_clean()


def test_a_time_out_beyond_the_end_of_time_is_none() -> None:
    rig = Rig(max_batch=8, levels=[Level(timeout_ns=2**63 - 1)])
    rig.clock(5)
    running = busy(rig)
    slot = rig.submit()
    rig.clock(2**62)
    assert batches_behind(rig, running) == [[slot]]


# ---- batches that run for too long ----


def test_a_batch_becomes_slow_once_after_ten_seconds() -> None:
    rig = Rig(max_batch=4)
    assert rig.former.watch() == []
    rig.submit(3)
    running = rig.launch()
    assert running is not None
    rig.clock(10 * SECOND - 1)
    (seen,) = rig.former.watch()
    assert seen == (1, 3, running.number, 10 * SECOND - 1, 10 * SECOND, False)
    rig.clock(10 * SECOND)
    assert [batch.slow for batch in rig.former.watch()] == [True]
    rig.clock(30 * SECOND)
    assert [batch.slow for batch in rig.former.watch()] == [False]
    assert rig.former.stats()[0].slow == 1
    rig.compute(running)
    assert rig.former.watch() == []


def test_a_batch_that_was_predicted_to_take_long_is_slow_later() -> None:
    rig = Rig(max_batch=4)
    rig.submit(4)
    first = rig.launch()
    assert first is not None
    rig.clock(2 * SECOND)
    rig.compute(first)
    rig.submit(4)
    second = rig.launch()
    rig.clock(2 * SECOND + 40 * SECOND - 1)
    assert second is not None and not rig.former.watch()[0].slow
    rig.clock(42 * SECOND)
    assert rig.former.watch()[0].slow
    assert rig.former.stats()[0].slow == 1


def test_batches_that_are_closed_and_not_launched_are_nobodys_fault() -> None:
    rig = Rig(max_batch=1)
    busy(rig)
    rig.submit()
    rig.step()
    assert len(rig.former.watch()) == 1


def test_every_batch_that_runs_is_watched_however_many_there_are() -> None:
    streams = 70
    rig = Rig(max_batch=1, slots=256, streams=streams, max_streams=streams)
    for _ in range(2 * streams):
        rig.submit()
    running = [batch for stream in range(streams) for _ in range(2) if (batch := rig.launch(stream))]
    assert [batch.number for batch in rig.former.watch()] == [batch.number for batch in running]
    assert len(running) == 2 * streams
    for batch in running:
        rig.compute(batch)
    assert rig.former.watch() == []
