"""Batches that are handed over to C: where their rows lie, what Python may still do with them, their end."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from c_toolchain import HERE, build
from queue_rig import WIDTH, Rig

from fastqueue import Batch, BatchFormer, FrontLane, InputArena, QueueError
from fastqueue.errors import LayoutMismatch

pytestmark = pytest.mark.t1

ROW = 4 * WIDTH
MB = 1 << 20
CANCELLED, UNAVAILABLE = 1, 14


class Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_uint64))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("handed_over") / "handed_over.so"
    built = ctypes.CDLL(
        str(build([HERE / "c" / "handed_over.c"], path, "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC"))
    )
    built.copies.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
    built.answer.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    built.refuse.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)
    return built


def batch_of(rig: Rig, sizes: Iterable[int], width: int = WIDTH) -> Batch:
    """The next batch of requests of these sizes."""
    for rows in sizes:
        rig.submit(rows, width=width)
    batch = rig.launch()
    assert batch is not None
    return batch


def pieces(library: ctypes.CDLL, address: int, room: int = 64) -> tuple[int, list[bytes]]:
    """How many pieces there are, and the bytes of those that had room; what lies behind is untouched."""
    out = (Piece * (room + 1))()
    out[room] = Piece(0xABCD, 0xEF)
    count = library.copies(address, 0, out, room)
    assert (out[room].start, out[room].size) == (0xABCD, 0xEF), "written beyond"
    return count, [ctypes.string_at(piece.start, piece.size) for piece in out[: min(count, room)]]


@pytest.mark.parametrize("sizes", [[1], [8], [1] * 8, [3, 1, 4], [2, 0, 5, 0, 1], [20], [0]])
def test_pieces_are_what_gather_copies(library: ctypes.CDLL, sizes: list[int]) -> None:
    rig = Rig(max_batch=8)
    batch = batch_of(rig, sizes)
    x = np.concatenate(list(rig.sent.values()))[: batch.rows]
    count, data = pieces(library, batch.hand_over())
    assert b"".join(data) == x.tobytes()
    assert count == len(data) == sum(rows > 0 for rows in sizes), (
        "a request of whose rows none is there has none"
    )


def test_blocks_that_touch_are_one_piece(library: ctypes.CDLL) -> None:
    """600 KB take three blocks of 256 KB, which lie side by side in an empty arena."""
    rig = Rig(max_batch=8)
    batch = batch_of(rig, [2], width=75_000)
    assert pieces(library, batch.hand_over()) == (1, [rig.sent[0].tobytes()])


def test_blocks_that_do_not_touch(library: ctypes.CDLL) -> None:
    """Every other block is somebody else's: what is larger than one lies in what is left."""
    rig = Rig(max_batch=1, arena_mb=2)
    rig.submit(), rig.submit()
    running, behind = rig.launch(), rig.launch()  # from here on what comes waits
    waiting = [rig.submit(width=60_000) for _ in range(5)]  # 240 KB each
    rig.step()
    for slot in waiting[1::2]:
        rig.lane.cancel(slot)
    rig.step()
    assert [c.status for c in rig.poll().values()] == [CANCELLED, CANCELLED]
    split = rig.submit(width=120_000)
    for slot in waiting[::2]:
        rig.lane.cancel(slot)
    assert running is not None and behind is not None
    running.hand_over(), behind.fail(UNAVAILABLE, "out of the way")
    batch = rig.launch()
    assert batch is not None
    count, data = pieces(library, batch.hand_over())
    assert count == 2 and b"".join(data) == rig.sent[split].tobytes()


def test_pieces_that_have_no_room_are_counted(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=8)
    batch = batch_of(rig, [1, 2, 3])
    address, x = batch.hand_over(), list(rig.sent.values())
    assert pieces(library, address, 2) == (3, [x[0].tobytes(), x[1].tobytes()])
    assert pieces(library, address, 0) == (3, [])


def test_a_part_of_a_request_has_its_own_rows_alone(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=8, streams=2, max_streams=2)
    batch_of(rig, [20]).hand_over()
    second = rig.launch(1)
    assert second is not None
    assert pieces(library, second.hand_over()) == (1, [rig.sent[0][8:16].tobytes()])


def test_an_input_that_the_requests_do_not_have(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=8)
    assert library.copies(batch_of(rig, [2, 3]).hand_over(), 7, None, 0) == 0


def test_c_answers_what_was_handed_over(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=8)
    batch = batch_of(rig, [3, 1])
    assert batch.reserve([ROW], wait=False) is not None
    assert library.answer(batch.hand_over(), 0) == 0
    for slot, x in rig.sent.items():
        completion = rig.lane.poll()
        assert completion is not None and completion.status == 0 and completion.slot == slot
        ((dims, data),) = completion.outputs
        assert dims == x.shape and data == x.tobytes()
    rig.assert_clean()


def test_c_fails_what_was_handed_over(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=8)
    batch = batch_of(rig, [3])
    library.refuse(batch.hand_over(), UNAVAILABLE, b"the device is gone")
    completion = rig.lane.poll()
    assert completion is not None and completion.again
    assert (completion.status, completion.message) == (UNAVAILABLE, "the device is gone")
    rig.assert_clean()


def test_the_launch_slot_is_taken_until_c_is_done(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=1)
    first = batch_of(rig, [1])
    address = first.hand_over()
    second = batch_of(rig, [1])
    rig.submit()
    assert rig.launch() is None, "two launch slots"
    library.refuse(address, UNAVAILABLE, b"over")
    assert rig.launch() is not None
    second.hand_over()


@pytest.mark.parametrize(
    "use",
    [
        lambda batch: batch.rows,
        lambda batch: batch.check(),
        lambda batch: batch.reserve([ROW]),
        lambda batch: batch.complete([(1, WIDTH)]),
        lambda batch: batch.fail(UNAVAILABLE, "gone"),
        lambda batch: batch.hand_over(),
    ],
)
def test_nothing_is_left_in_python(use: Any) -> None:
    batch = batch_of(Rig(), [1])
    batch.hand_over()
    with pytest.raises(QueueError, match="handed over"):
        use(batch)


def test_outputs_whose_row_ends_are_pythons_stay_with_python() -> None:
    rig = Rig(max_batch=8, output_row_bytes=[-1])
    batch = batch_of(rig, [2])
    assert batch.reserve([np.array([3, 7], np.uint64)], wait=False) is not None
    with pytest.raises(QueueError, match="cannot be handed over"):
        batch.hand_over()
    batch.fail(UNAVAILABLE, "still ours")


def test_where_the_arenas_lie() -> None:
    former = BatchFormer(2, spill_mb=3)
    arena = InputArena(1, spill_mb=2)
    lane = FrontLane(arena, 8)
    number = former.attach_lane(*lane.fds)
    address, head, size = former.lane_memory(number)
    assert ctypes.string_at(address, 8) == b"QINPUT01"
    assert size - head == 2 * MB
    assert head == MB + 256 * 1024, "the head's blocks, and a large one whose first page is the header"
    address, head, size = former.output_memory()
    assert ctypes.string_at(address, 8) == b"OUTPUT01"
    assert (head, size) == (2 * MB, 5 * MB)
    without_tail = BatchFormer(1).output_memory()
    assert without_tail[1:] == (MB, MB)


def test_rows_lie_in_the_lanes_memory(library: ctypes.CDLL) -> None:
    rig = Rig(max_batch=8)
    address, head, _ = rig.former.lane_memory(rig.number)
    out = (Piece * 1)()
    assert library.copies(batch_of(rig, [2]).hand_over(), 0, out, 1) == 1
    assert address < out[0].start < out[0].start + out[0].size <= address + head


@pytest.mark.parametrize("head", [0xFFFF_FFFF_FFFF_F000, 4097])
def test_a_head_that_cannot_be(head: int) -> None:
    """The header is the front end's to write: what it says is checked before it is used."""
    arena = InputArena(1)
    lane = FrontLane(arena, 8)
    with open(f"/proc/self/fd/{arena.fd}", "r+b", buffering=0) as file:
        file.seek(24)
        file.write(head.to_bytes(8, "little"))
    with pytest.raises(LayoutMismatch, match="whole pages within"):
        BatchFormer(1).attach_lane(*lane.fds)


def test_no_lane_no_memory() -> None:
    with pytest.raises(ValueError, match="lane 3 is not attached"):
        BatchFormer(1).lane_memory(3)


def test_a_lanes_memory_is_there_until_its_owner_has_let_go(library: ctypes.CDLL) -> None:
    """Who registered it with a device unregisters it when nothing of the lane runs, before it is unmapped."""
    rig = Rig(max_batch=8)
    address, head, _ = rig.former.lane_memory(rig.number)
    seen: list[bytes] = []
    rig.former.detach_lane(rig.number, lambda: seen.append(ctypes.string_at(address, 8)))
    assert seen == [b"QINPUT01"]
    with pytest.raises(ValueError, match="not attached"):
        rig.former.lane_memory(rig.number)
