"""A worker that has gone mad: whatever it writes costs its requests an INTERNAL, and nothing else.

The worker here is this test, which writes completions into the lane's memory itself; offsets are those that
fq_layout.h asserts.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from dispatch_rig import Rig, model, row
from dispatch_rig import request as infer_request

from service.models.spec import ModelSpec, TensorSpec

LINE, SLOTS, RANK = 128, 8, 8
COMPLETION_RING = 5 * LINE  # its control block; entries lie behind the submission ring's
COMPLETIONS = 9 * LINE + LINE
FINAL, INTERNAL = 1, 13
M = model(max_batch_size=0, outputs=("Y",))
STRINGS = replace(M, outputs=(TensorSpec("Y", "BYTES", (-1, -1)),))


class MadWorker:
    def __init__(self, spec: ModelSpec) -> None:
        self.rig = Rig(slots=SLOTS)
        self.lane = self.rig.worker(spec)
        former = self.rig.workers.pop(self.lane).former
        self.memory = mmap.mmap(self.rig.lane_fds[self.lane], 0)
        self.output = mmap.mmap(former.output_fd, 0)
        self.former = former
        self.tail = 0

    def complete(
        self, slot: int, *, flags: int = FINAL, status: int = 0, text: int = 0, at: int = 0, length: int = 0
    ) -> None:
        entry = struct.pack("<4I2Q", slot, flags, status, text, at, length).ljust(LINE, b"\0")
        place = COMPLETIONS + self.tail % SLOTS * LINE
        self.memory[place : place + LINE] = entry
        self.tail += 1
        self.publish(self.tail)

    def publish(self, tail: int) -> None:
        self.memory[COMPLETION_RING : COMPLETION_RING + 8] = struct.pack("<Q", tail)

    def slices(self, at: int, *slices: tuple[int, int, int, int, tuple[int, ...]]) -> int:
        """Writes an answer of (index, rank, offset, length, dims) slices at `at`: its length."""
        data = struct.pack("<2IQ", len(slices), 0, 0)
        for index, rank, offset, length, dims in slices:
            data += struct.pack("<2I2Q8q", index, rank, offset, length, *dims, *[0] * (RANK - len(dims)))
        self.output[at : at + len(data)] = data
        return len(data)

    def outcome(self) -> tuple[int, str]:
        """Of one request, whose answer was written by the caller of this."""
        ((code, payload),) = self.rig.drain().values()
        return code, payload.decode("utf-8", "replace")


@pytest.fixture(params=[M])
def mad(request: pytest.FixtureRequest) -> Iterator[MadWorker]:
    worker = MadWorker(request.param)
    worker.rig.submit(infer_request(M, row(1)[0]))
    yield worker
    assert worker.rig.dispatcher.check() == 0
    token, _ = worker.rig.submit(infer_request(M, row(1)[0]))  # and the thread serves on
    assert worker.rig.dispatcher.close_lane(worker.lane)[-1] == token
    worker.rig.dispatcher.free_lane(worker.lane)
    assert worker.rig.at_rest()


SLOT = 0  # the first that is claimed
PAGE = 4096


@pytest.mark.parametrize(
    ("at", "length"),
    [
        (0, 0),
        (8, 104),
        (PAGE, 100),
        (PAGE + 4, 104),
        (1 << 20, 104),
        ((1 << 20) - 64, 104),
        (1 << 63, 104),
        (PAGE, 2**64 - 1),
    ],
)
def test_an_answer_that_lies_outside(mad: MadWorker, at: int, length: int) -> None:
    mad.complete(SLOT, at=at, length=length)
    code, text = mad.outcome()
    assert code == INTERNAL and "model 'm' makes no sense: it lies outside" in text


@pytest.mark.parametrize(
    ("slice", "why"),
    [
        ((1, 1, PAGE, 4, (1,)), "an output is missing"),
        ((0, 9, PAGE, 4, (1,)), "too many dimensions"),
        ((0, 1, 0, 4, (1,)), "outside its arena"),
        ((0, 1, 1 << 20, 4, (1,)), "outside its arena"),
        ((0, 1, 2**64 - 4, 8, (2,)), "outside its arena"),
        ((0, 1, PAGE, 8, (1,)), "shape and size disagree"),
        ((0, 2, PAGE, 4, (-1, -1)), "shape and size disagree"),
        ((0, 2, PAGE, 0, (2**62, 4)), "shape and size disagree"),
    ],
)
def test_a_slice_that_lies(
    mad: MadWorker, slice: tuple[int, int, int, int, tuple[int, ...]], why: str
) -> None:
    mad.complete(SLOT, at=PAGE, length=mad.slices(PAGE, slice))
    code, text = mad.outcome()
    assert code == INTERNAL and why in text


@pytest.mark.parametrize("mad", [STRINGS], indirect=True)
@pytest.mark.parametrize(
    ("payload", "dims"),
    [
        (b"\1\0\0\0a", (2,)),
        (b"\1\0\0\0a", (0,)),
        (b"\1\0\0\0a", (1, -1)),
        (b"\1\0\0\0a", (-1, -1)),
        (b"\1\0\0\0a", (2**62, 4)),
        (b"\1\0\0\0a\0", (1,)),
        (b"\0\0\0", (1,)),
        (b"\2\0\0\0a", (1,)),
        (b"\xff\xff\xff\xffa", (1,)),
        (b"", (1,)),
        (b"\0\0\0\0" * 3, (1, 2)),
    ],
)
def test_strings_that_do_not_add_up(mad: MadWorker, payload: bytes, dims: tuple[int, ...]) -> None:
    mad.output[2 * PAGE : 2 * PAGE + len(payload)] = payload
    slice = (0, len(dims), 2 * PAGE, len(payload), dims)
    mad.complete(SLOT, at=PAGE, length=mad.slices(PAGE, slice))
    code, text = mad.outcome()
    assert code == INTERNAL and "shape and size disagree" in text


@pytest.mark.parametrize("mad", [STRINGS], indirect=True)
def test_strings_to_the_last_byte_of_the_arena(mad: MadWorker) -> None:
    end = len(mad.output)
    mad.output[end - 5 :] = b"\1\0\0\0a"
    mad.complete(SLOT, at=PAGE, length=mad.slices(PAGE, (0, 1, end - 5, 5, (1,))))
    assert mad.outcome()[0] == 0


@pytest.mark.parametrize("mad", [STRINGS], indirect=True)
def test_a_string_that_ends_behind_the_arena(mad: MadWorker) -> None:
    end = len(mad.output)
    mad.output[end - 5 :] = b"\2\0\0\0a"
    mad.complete(SLOT, at=PAGE, length=mad.slices(PAGE, (0, 1, end - 5, 5, (1,))))
    assert "shape and size disagree" in mad.outcome()[1]


def test_another_number_of_outputs(mad: MadWorker) -> None:
    good = (0, 1, PAGE, 4, (1,))
    mad.complete(SLOT, at=PAGE, length=mad.slices(PAGE, good, good))
    assert "another number of outputs" in mad.outcome()[1]


def test_a_good_answer_passes(mad: MadWorker) -> None:
    mad.complete(SLOT, at=PAGE, length=mad.slices(PAGE, (0, 1, PAGE, 4, (1,))))
    assert mad.outcome()[0] == 0


def test_slots_that_are_not_out_and_answers_twice(mad: MadWorker) -> None:
    for slot in (SLOT + 1, SLOTS, 2**32 - 1):
        mad.complete(slot)
    assert mad.rig.drain() == {}
    mad.complete(SLOT, status=INTERNAL)
    assert mad.outcome()[0] == INTERNAL
    mad.complete(SLOT, status=INTERNAL)
    assert mad.rig.drain() == {}


def test_a_completion_that_is_not_final_changes_nothing(mad: MadWorker) -> None:
    mad.complete(SLOT, flags=0)
    assert mad.rig.drain() == {} and mad.rig.dispatcher.outstanding == 1


def test_a_status_that_does_not_exist_and_words_that_are_none(mad: MadWorker) -> None:
    mad.complete(SLOT, status=99, text=2**32 - 1)
    code, text = mad.outcome()
    assert (code, text) == (INTERNAL, "the worker failed without saying why")


def test_an_index_that_is_no_index(mad: MadWorker) -> None:
    mad.publish(2**40)
    assert mad.rig.drain() == {} and mad.rig.dispatcher.outstanding == 1
