"""BYTES: raw and typed tensors are the same bytes to the queue, each row ends where it should, and what does
not add up is refused in Triton's words.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
import pytest
from codec_models import Model, Tensor
from codec_wire import data, group, number, varint

from service._pb import inference
from service.codec import RequestError, _codec

CASES = int(os.environ.get("CODEC_CASES", "250"))
INVALID = 3
PLAIN = Model(inputs=(Tensor("A", "BYTES", (-1,)),), max_batch_size=0)
BATCHED = Model(inputs=(Tensor("A", "BYTES", (-1,)),))
TEXTS = [b"", b"a", b"\0", b"\xff\xfe", "größe".encode(), b"x" * 63, b"y" * 64, b"z" * 65, b"w" * 5000]


def wire_form(strings: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def raw(payload: bytes, *shape: int) -> bytes:
    message = inference.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype="BYTES", shape=shape)
    message.raw_input_contents.append(payload)
    return bytes(message.SerializeToString())


def typed(strings: Sequence[bytes], *shape: int) -> bytes:
    message = inference.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="A", datatype="BYTES", shape=shape)
    tensor.contents.SetInParent()
    tensor.contents.bytes_contents.extend(strings)
    return bytes(message.SerializeToString())


def bound(wire: bytes, model: Model = PLAIN, piece: int = 1 << 20) -> dict[str, Any]:
    return _codec.validate(model.spec(), wire, piece)


def refused(wire: bytes, model: Model = PLAIN) -> str:
    with pytest.raises(RequestError) as caught:
        bound(wire, model)
    assert caught.value.code == INVALID
    return caught.value.message


# ---- what is accepted ----


@pytest.mark.parametrize("strings", [[], [b""], [b"", b"", b""], [b"\xff\xfe"], [b"\0a\0"], TEXTS])
def test_raw_and_typed_are_the_same_bytes(strings: list[bytes]) -> None:
    for wire in (raw(wire_form(strings), len(strings)), typed(strings, len(strings))):
        assert bound(wire)["inputs"] == [wire_form(strings)]
        assert bound(wire)["row_ends"] == {}


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_a_shape_without_elements_has_no_bytes(shape: tuple[int, int]) -> None:
    for wire in (raw(b"", *shape), typed([], *shape)):
        assert bound(wire, BATCHED)["inputs"] == [b""]
        assert bound(wire, BATCHED)["row_ends"] == {0: bytes(8 * shape[0])}


def test_a_scalar_is_one_string() -> None:
    model = replace(PLAIN, inputs=(Tensor("A", "BYTES", ()),))
    assert bound(raw(wire_form([b"one"])), model)["inputs"] == [wire_form([b"one"])]


def test_beside_inputs_of_other_datatypes() -> None:
    model = replace(BATCHED, inputs=(Tensor("N", "INT8", (1,)), *BATCHED.inputs, Tensor("B", "BYTES", (2,))))
    message = inference.ModelInferRequest(model_name="m")
    message.inputs.add(name="B", datatype="BYTES", shape=[2, 2])
    message.inputs.add(name="N", datatype="INT8", shape=[2, 1])
    message.inputs.add(name="A", datatype="BYTES", shape=[2, 1])
    strings = [[b"1", b"", b"333", b"22"], [b"long" * 9, b"s"]]
    message.raw_input_contents.extend([wire_form(strings[0]), b"\1\2", wire_form(strings[1])])
    found = bound(message.SerializeToString(), model)
    assert found["inputs"] == [b"\1\2", wire_form(strings[1]), wire_form(strings[0])]
    assert {i: struct.unpack("<2Q", ends) for i, ends in found["row_ends"].items()} == {
        1: (40, 45),
        2: (9, 22),
    }


# ---- against the library, and against arithmetic ----


def some_strings(random: Random, count: int) -> list[bytes]:
    made = [random.randbytes(random.randrange(90)) for _ in range(count)]
    return [random.choice(TEXTS) if random.random() < 0.5 else string for string in made]


def contents(random: Random, strings: Sequence[bytes]) -> list[bytes]:
    """The strings in order, over one or more `contents`, with what nobody reads between them."""
    noise = [number(8, 3), data(15, b"xy"), group(11, number(1, 5)), number(9, 1)]
    fields, found = [], []
    for string in strings:
        fields.append(b"\x42" + varint(len(string), random.choice([0, 0, 0, 5])) + string)
        if random.random() < 0.1:
            fields.append(random.choice(noise))
    while fields or not found:
        many = random.randint(0, len(fields))
        found.append(data(5, b"".join(fields[:many])))
        fields = fields[many:]
    return found


def typed_by_hand(random: Random, strings: Sequence[bytes], *shape: int) -> bytes:
    fields = contents(random, strings)
    dims = data(3, b"".join(varint(dim) for dim in shape))
    for field in (data(1, b"A"), data(2, b"BYTES"), dims, data(9, b"unknown")):
        fields.insert(random.randint(0, len(fields)), field)
    return data(1, b"m") + data(5, b"".join(fields))


def test_the_same_strings_as_the_library() -> None:
    random = Random(1)
    for _ in range(CASES):
        strings = some_strings(random, random.choice([0, 1, 2, 7, 100]))
        wire = typed_by_hand(random, strings, len(strings))
        read = inference.ModelInferRequest.FromString(wire).inputs[0].contents.bytes_contents
        assert list(read) == strings
        for piece in (1 << 20, random.randint(1, 9), 64 * random.randint(1, 9)):
            assert bound(wire, piece=piece)["inputs"] == [wire_form(strings)], wire.hex()


def test_rows_end_where_their_last_string_does() -> None:
    random = Random(2)
    for _ in range(CASES):
        rows, each = random.choice([0, 1, 2, 9, 70]), random.choice([0, 1, 2, 3])
        strings = some_strings(random, rows * each)
        ends = list(accumulate(len(wire_form(strings[i * each : i * each + each])) for i in range(rows)))
        if rows > 8 and each == 0:
            continue
        form = wire_form(strings)
        for wire in (raw(form, rows, each), typed_by_hand(random, strings, rows, each)):
            found = bound(wire, BATCHED, piece=8 * random.randint(1, 20))
            assert found["rows"] == rows
            assert found["inputs"] == [form]
            assert np.frombuffer(found["row_ends"][0], "<u8").tolist() == ends


def test_damaged_messages_are_refused_or_read_as_the_library_reads_them() -> None:
    random = Random(3)
    accepted = 0
    for _ in range(CASES * 4):
        strings = some_strings(random, 3)
        bad = bytearray(typed_by_hand(random, strings, 3))
        for _ in range(random.choice([0, 1, 1, 2])):
            bad[random.randrange(len(bad))] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
        wire = bytes(bad)
        try:
            found = bound(wire)
        except RequestError:
            continue
        accepted += 1
        message = inference.ModelInferRequest.FromString(wire)
        assert found["inputs"] == [wire_form(message.inputs[0].contents.bytes_contents)], wire.hex()
    assert CASES < accepted < CASES * 4


def reference(payload: bytes) -> list[bytes] | None:
    """The strings of a raw tensor; None when they do not add up."""
    found, at = [], 0
    while at < len(payload):
        if len(payload) - at < 4:
            return None
        (length,) = struct.unpack_from("<I", payload, at)
        found.append(payload[at + 4 : at + 4 + length])
        if len(found[-1]) < length:
            return None
        at += 4 + length
    return found


def test_damaged_raw_tensors_are_refused_when_they_do_not_add_up() -> None:
    random = Random(4)
    accepted = 0
    for _ in range(CASES * 4):
        bad = bytearray(wire_form([random.randbytes(random.randrange(4)) for _ in range(3)]))
        for _ in range(random.choice([0, 1, 1, 2])):
            bad[random.randrange(len(bad))] = random.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
        if random.random() < 0.2:
            del bad[random.randrange(len(bad)) :]
        strings = reference(bytes(bad))
        try:
            found = bound(raw(bytes(bad), 3))
        except RequestError:
            assert strings is None or len(strings) != 3, bad.hex()
        else:
            accepted += 1
            assert strings is not None and len(strings) == 3, bad.hex()
            assert found["inputs"] == [bytes(bad)]
    assert CASES / 2 < accepted < CASES * 3


# ---- what is refused ----

NAMES = "for inference input 'A' for model 'm'"


@pytest.mark.parametrize(
    ("payload", "expected", "available"),
    [
        (b"\0\0\0\0" + b"\0\0", "4 bytes", "2 bytes available for element 1"),
        (b"\5", "4 bytes", "1 bytes available for element 0"),
        (b"\5\0\0\0abcd", "string of length 5", "4 bytes available for element 0"),
        (b"\1\0\0\0a\1\0\0\0", "string of length 1", "0 bytes available for element 1"),
        (b"\xff\xff\xff\xffabcd", "string of length 4294967295", "4 bytes available for element 0"),
        (b"\0\0\0\x80", "string of length 2147483648", "0 bytes available for element 0"),
    ],
)
def test_a_string_that_is_cut_off(payload: bytes, expected: str, available: str) -> None:
    what = "data" if "string" in expected else "length indicator"
    text = f"incomplete string {what} {NAMES}, expecting {expected} but only {available}"
    assert refused(raw(payload, 2)) == text


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (wire_form([b"a"]), f"expected 2 string elements {NAMES}, got 1"),
        (b"", f"expected 2 string elements {NAMES}, got 0"),
        (wire_form([b"a", b"", b"c"]), f"unexpected number of string elements 3 {NAMES}, expecting 2"),
    ],
)
def test_raw_strings_of_another_number(payload: bytes, text: str) -> None:
    assert refused(raw(payload, 2)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, f"expected 2 string elements {NAMES}, got 0"),
        (1, f"expected 2 string elements {NAMES}, got 1"),
        (3, f"unexpected number of string elements 3 {NAMES}, expecting 2"),
    ],
)
def test_typed_strings_of_another_number(count: int, text: str) -> None:
    assert refused(typed([b"a"] * count, 2)) == text


def test_strings_where_the_shape_has_no_elements() -> None:
    assert refused(raw(wire_form([b""]), 0)) == f"unexpected number of string elements 1 {NAMES}, expecting 0"
    assert refused(typed([b""], 0)) == f"unexpected number of string elements 1 {NAMES}, expecting 0"


@pytest.mark.parametrize("shape", [(2**62, 2**62), (2**40, 0, 2**40), (2**31 - 1, 2**62)])
def test_a_shape_whose_product_overflows_has_no_strings_that_fit(shape: tuple[int, ...]) -> None:
    model = replace(PLAIN, inputs=(Tensor("A", "BYTES", (-1,) * len(shape)),))
    for wire in (raw(b"", *shape), typed([], *shape)):
        assert refused(wire, model) == f"expected {2**64 - 1} string elements {NAMES}, got 0"


def test_contents_of_another_field_are_refused() -> None:
    message = inference.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="A", datatype="BYTES", shape=[1])
    tensor.contents.int_contents.append(1)
    assert refused(message.SerializeToString()) == (
        "input 'A' for model 'm' has datatype BYTES: expected its contents in bytes_contents, got 1 elements "
        "in int_contents"
    )


# ---- text ----

TEXT = replace(PLAIN, inputs=(replace(PLAIN.inputs[0], text=True),))
NO_TEXT = [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"x" * 64 + b"\x80"]


@pytest.mark.parametrize(
    "strings", [[], [b""], [b"\0", "gr\u00f6\u00dfe".encode(), b"", b"x" * 100, "\U0001f600".encode()]]
)
def test_text_is_accepted(strings: list[bytes]) -> None:
    for wire in (raw(wire_form(strings), len(strings)), typed(strings, len(strings))):
        assert bound(wire, TEXT)["inputs"] == [wire_form(strings)]


@pytest.mark.parametrize("other", NO_TEXT)
@pytest.mark.parametrize("place", [0, 2])
def test_other_bytes_are_refused_where_text_is_due_and_only_there(other: bytes, place: int) -> None:
    strings = [b"a", b"", b"c"]
    strings[place] = other
    expected = "inference input 'A' for model 'm' takes text: expected UTF-8, got other bytes in element "
    for wire in (raw(wire_form(strings), 3), typed(strings, 3)):
        assert refused(wire, TEXT) == f"{expected}{place}"
        assert bound(wire, PLAIN)["inputs"] == [wire_form(strings)]


def test_a_character_does_not_reach_into_the_next_element() -> None:
    strings = ["\u00e9".encode()[:1], "\u00e9".encode()[1:]]
    for wire in (raw(wire_form(strings), 2), typed(strings, 2)):
        assert refused(wire, TEXT).endswith("in element 0")
