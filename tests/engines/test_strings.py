"""BYTES between wire form and numpy, by the definition of the wire form."""

from __future__ import annotations

import numpy as np
import pytest
from engine_queue import objects, wire_form
from hypothesis import given
from hypothesis import strategies as st

from service.engines.strings import packed, place, unpacked

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def wire_of(elements: list[bytes]) -> bytes:
    return b"".join(map(wire_form, elements))


@given(st.data())
def test_elements_come_back_as_they_were_packed(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    count = int(np.prod(shape, dtype=int))
    elements = data.draw(st.lists(st.binary(max_size=300), min_size=count, max_size=count))
    rows = shape[0] if shape else 1
    wire, row_ends = packed(objects(elements, shape), rows)
    assert wire == wire_of(elements)
    per_row = count // rows if rows else 0
    expected = [len(wire_of(elements[: per_row * (row + 1)])) for row in range(rows)]
    assert row_ends.dtype == np.uint64 and row_ends.tolist() == expected
    back = unpacked(memoryview(wire), shape)
    assert back.shape == shape and back.dtype == object and back.ravel().tolist() == elements


def test_a_tensor_that_does_not_batch_is_one_row() -> None:
    assert packed(objects([b"a", b"bcd"], (2,)), 1).row_ends.tolist() == [12]


def test_a_view_in_another_order_is_packed_in_its_own() -> None:
    array = objects([b"a", b"b", b"c", b"d"], (2, 2)).T
    assert packed(array, 2).wire == wire_of([b"a", b"c", b"b", b"d"])


@pytest.mark.parametrize(
    ("wire", "fault"),
    [
        (b"", "0 elements in 0 bytes; expected 2"),
        (wire_of([b"abc"]), "1 elements in 7 bytes; expected 2"),
        (wire_of([b"abc"]) + b"\1\0\0", "1 elements in 10 bytes; expected 2"),
        (wire_of([b"abc"]) + b"\2\0\0\0x", "element 1 ends at byte 13 of 12"),
        (b"\xff\xff\xff\xff", "element 0 ends at byte 4294967299 of 4"),
        (wire_of([b"a", b"b", b""]), "4 bytes are left behind 2 elements"),
    ],
)
def test_what_is_not_wire_form_is_refused(wire: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        unpacked(memoryview(wire), (2,))


def test_the_place_of_an_element() -> None:
    assert place(np.unravel_index(5, (2, 3))) == "[1, 2]" and place(()) == "[]"
