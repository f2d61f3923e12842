"""Rows of variable size (BYTES): found by their table of ends, cut out of batches, joined from parts."""

from __future__ import annotations

import ctypes
import mmap
import random
import struct

import numpy as np
import pytest
from queue_rig import MS, Runs

from fastqueue import Batch, BatchFormer, FrontLane, InputArena, QueueError
from fastqueue.errors import QueueFull

pytestmark = pytest.mark.t1

CANCELLED, EXHAUSTED, INTERNAL = 1, 8, 13


class Echo(Runs):
    """One model with one variable input, and outputs: the same bytes, and their length as a u64 per row."""

    def __init__(
        self, *, max_batch: int = 8, output_mb: int = 2, arena_mb: int = 4, batched: bool = True
    ) -> None:
        self.former = BatchFormer(output_mb, clock_ns=0)
        self.arena = InputArena(arena_mb)
        self.lane = FrontLane(self.arena, 64)
        self.former.attach_lane(*self.lane.fds)
        self.lane.attach_worker(self.former.page_fd, self.former.output_fd)
        self.batched = batched
        self.former.add_model(
            1, group=1, max_batch=max_batch, batched=batched, element_bytes=[0], output_row_bytes=[-1, 8]
        )
        self.stream = self.former.add_stream(1)
        self.sent: dict[int, list[bytes]] = {}

    def submit(self, rows: list[bytes]) -> int:
        ends = np.cumsum([len(row) for row in rows], dtype=np.uint64)
        tensor = (
            (0, (len(rows),), b"".join(rows), ends) if self.batched else (0, (len(rows),), b"".join(rows))
        )
        slot = self.lane.submit(1, len(rows) if self.batched else 1, [tensor], None, 0)
        self.sent[slot] = rows
        return slot

    def launch(self) -> Batch | None:
        self.former.step()
        return self.former.try_batch(self.stream)

    def compute(self, batch: Batch) -> int:
        """The bytes of a batch carry no boundaries here: every row ends in a newline."""
        size = batch.input_bytes(0)
        memory = ctypes.create_string_buffer(max(1, size))
        batch.gather(0, ctypes.addressof(memory), size)
        rows = memory.raw[:size].splitlines(keepends=True)
        assert len(rows) == batch.rows or not self.batched
        lengths = np.array([len(row) for row in rows], np.uint64)
        ends = np.cumsum(lengths, dtype=np.uint64) if self.batched else np.array([size], np.uint64)
        addresses = batch.reserve([ends, 8 if self.batched else 8 * len(rows)])
        assert addresses is not None
        ctypes.memmove(addresses[0], memory.raw[:size], size)
        ctypes.memmove(addresses[1], lengths.tobytes(), lengths.nbytes)
        count = batch.rows
        shape = (count,) if self.batched else (len(rows),)
        batch.complete([shape, shape])
        return count

    def poll(self) -> dict[int, int]:
        """Status by slot; every answer has its own rows."""
        found = {}
        while (done := self.lane.poll()) is not None:
            found[done.slot] = done.status
            if done.status == 0:
                (dims, data), (_, lengths) = done.outputs
                assert dims == (len(self.sent[done.slot]),)
                assert data == b"".join(self.sent[done.slot])
                assert list(np.frombuffer(lengths, np.uint64)) == [len(row) for row in self.sent[done.slot]]
        self.former.step()
        return found

    def assert_clean(self) -> None:
        self.former.step()
        assert (self.former.check(), self.arena.check(), self.arena.used_bytes) == (0, 0, 0)
        assert self.former.free_output_bytes % (1 << 20) == (1 << 20) - 4096


def words(count: int, seed: int = 0, most: int = 50) -> list[bytes]:
    rng = random.Random(seed)
    return [bytes(rng.choices(b"abcdefgh", k=rng.randrange(most))) + b"\n" for _ in range(count)]


@pytest.mark.parametrize("sizes", [[1], [3, 2, 1], [8, 8], [5, 5, 5], [1] * 20])
def test_every_request_gets_its_own_rows(sizes: list[int]) -> None:
    echo = Echo()
    slots = [echo.submit(words(count, seed)) for seed, count in enumerate(sizes)]
    assert sum(echo.run_all()) == sum(sizes)
    assert echo.poll() == dict.fromkeys(slots, 0)
    echo.assert_clean()


@pytest.mark.parametrize("sizes", [[20], [9, 5, 30, 1], [8, 17, 2], [64]])
def test_requests_in_parts_are_joined_in_order(sizes: list[int]) -> None:
    echo = Echo()
    slots = [echo.submit(words(count, seed)) for seed, count in enumerate(sizes)]
    assert sum(echo.run_all()) == sum(sizes)
    assert echo.poll() == dict.fromkeys(slots, 0)
    echo.assert_clean()


def test_parts_that_end_out_of_order() -> None:
    echo = Echo()
    slot = echo.submit(words(16, seed=3))
    first, second = echo.launch(), echo.launch()
    assert first is not None and second is not None
    echo.compute(second)
    assert echo.poll() == {}
    echo.compute(first)
    assert echo.poll() == {slot: 0}
    echo.assert_clean()


def test_a_table_and_rows_of_many_blocks() -> None:
    echo = Echo(max_batch=1024, arena_mb=16, output_mb=8)
    slot = echo.submit(words(40_000, seed=1))
    assert sum(echo.run_all()) == 40_000
    assert echo.poll() == {slot: 0}
    echo.assert_clean()


def test_a_model_that_does_not_batch_needs_no_table() -> None:
    echo = Echo(max_batch=1, batched=False)
    slots = [echo.submit(words(5)), echo.submit(words(3, seed=1))]
    assert echo.run_all() == [1, 1]
    assert echo.poll() == dict.fromkeys(slots, 0)
    echo.assert_clean()


def test_an_error_of_one_part_gives_the_collected_parts_back() -> None:
    echo = Echo()
    slot = echo.submit(words(20))
    batch = echo.launch()
    assert batch is not None
    echo.compute(batch)
    batch = echo.launch()
    assert batch is not None
    batch.fail(INTERNAL, "the engine broke")
    assert echo.run_all() == []
    assert echo.poll() == {slot: INTERNAL}
    echo.assert_clean()


def test_a_cancel_half_way_gives_the_collected_parts_back() -> None:
    echo = Echo()
    slot = echo.submit(words(20))
    batch = echo.launch()
    assert batch is not None
    echo.compute(batch)
    echo.lane.cancel(slot)
    assert echo.run_all() == []
    assert echo.poll() == {slot: CANCELLED}
    echo.assert_clean()


def test_a_join_that_finds_no_room_names_the_setting() -> None:
    echo = Echo(output_mb=1)
    slot = echo.submit([b"x" * 40_000 + b"\n"] * 16)  # the parts take 640 KB, and the join as much again
    assert echo.run_all() == [8, 8]
    done = echo.lane.poll()
    assert done is not None and (done.slot, done.status) == (slot, EXHAUSTED)
    assert "--output-arena-mb" in done.message
    echo.assert_clean()


def test_parts_whose_shapes_differ_cannot_be_joined() -> None:
    echo = Echo(max_batch=1)
    slot = echo.submit(words(2))
    for number in range(2):
        batch = echo.launch()
        assert batch is not None
        addresses = batch.reserve([np.array([6], np.uint64), 8])
        assert addresses is not None
        batch.complete([(1, 2 + number), (1,)])
    done = echo.lane.poll()
    assert done is not None and (done.slot, done.status) == (slot, INTERNAL)
    assert "differ in shape" in done.message
    echo.assert_clean()


def test_row_ends_of_outputs_are_checked() -> None:
    echo = Echo()
    echo.submit(words(3))
    batch = echo.launch()
    assert batch is not None
    with pytest.raises(ValueError, match="3 row ends expected, got 2"):
        batch.reserve([np.array([1, 2], np.uint64), 8])
    with pytest.raises(ValueError, match="row 2 ends at 1, before row 1 at 2"):
        batch.reserve([np.array([1, 2, 1], np.uint64), 8])
    with pytest.raises(QueueError, match="before reserve"):
        batch.complete([(3,), (3,)])
    batch.fail(INTERNAL, "")


@pytest.mark.parametrize("ends", [(2**63, 9), (9, 2), (0, 0), (2**64 - 1, 2**64 - 1)])
def test_a_table_that_lies_stays_within_its_tensor(ends: tuple[int, int]) -> None:
    """The front end rewrites the table after the check: no byte outside the tensor is read for it."""
    echo = Echo()
    echo.submit([b"abcd\n", b"efgh\n"])
    batch = echo.launch()
    assert batch is not None
    table = struct.pack("<QQ", 5, 10)
    with mmap.mmap(echo.arena.fd, 0) as memory:
        at = memory.find(table)
        assert at > 0
        memory[at : at + 16] = struct.pack("<QQ", *ends)
    size = batch.input_bytes(0)
    assert size <= 10
    memory = ctypes.create_string_buffer(16)
    batch.gather(0, ctypes.addressof(memory), 16)
    assert memory.raw[size:] == bytes(16 - size)
    batch.fail(INTERNAL, "")


@pytest.mark.parametrize("ends", [None, [1], [1, 2, 3]])
def test_a_table_of_the_wrong_length_is_refused(ends: list[int] | None) -> None:
    echo = Echo()
    tensor = (0, (2,), b"a\nb\n") if ends is None else (0, (2,), b"a\nb\n", np.array(ends, np.uint64))
    slot = echo.lane.submit(1, 2, [tensor], None, MS)
    echo.former.step()
    done = echo.lane.poll()
    assert done is not None and (done.slot, done.status) == (slot, INTERNAL)
    assert "breaks rule 17" in done.message


def test_a_request_in_parts_that_fills_the_arena_itself_is_refused_and_not_waited_for() -> None:
    echo = Echo(max_batch=1, output_mb=1, arena_mb=4)
    echo.submit([b"a" * 300_000 + b"\n" for _ in range(4)])
    for _ in range(3):
        batch = echo.launch()
        assert batch is not None
        echo.compute(batch)  # each part's answer stays until the last one
    batch = echo.launch()
    assert batch is not None
    with pytest.raises(QueueFull, match="--spill-mb"):
        echo.compute(batch)
    batch.fail(EXHAUSTED, "full", again=True)
    done = echo.lane.poll()
    assert done is not None and (done.status, done.message, done.again) == (EXHAUSTED, "full", True)
    echo.assert_clean()
