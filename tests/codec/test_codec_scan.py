"""The scanner against the protobuf library: the corner cases, one by one.

Each case says whether the message is accepted; the values of an accepted one must be those that the library
finds. Where implementations of protobuf differ we follow upb, and `FOLLOWING_UPB` names every such case: a
child process asks the pure-Python implementation, and nothing else may differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import codec_reference
import pytest
from codec_wire import BYTES, END, FIXED32, FIXED64, START, data, group, nested_groups, number, tag, varint
from google.protobuf import __version__ as protobuf_version
from google.protobuf.internal import api_implementation

from service.codec import RequestError, _codec

VALUE = data(3, b"v")
ENTRY = data(1, b"k") + data(2, VALUE)


def parameter(body: bytes) -> bytes:
    return data(4, body)


def value(body: bytes) -> bytes:
    return parameter(data(1, b"k") + data(2, body))


def tensor(body: bytes) -> bytes:
    return data(5, body)


def contents(body: bytes) -> bytes:
    return tensor(data(5, body))


ACCEPTED = {
    "nothing": b"",
    "all strings": data(1, b"m") + data(2, b"7") + data(3, b"id"),
    "the last string wins": data(1, b"a") + data(2, b"1") + data(1, b"b") + data(1, b""),
    "NUL in a string": data(1, b"a\0b"),
    "text of every length of character": data(3, "aé€😀".encode() * 5),
    "tag of 2 bytes where 1 would do": tag(1, BYTES, 2) + b"\x01a",
    "tag of 5 bytes": tag(1, BYTES, 5) + b"\x01a",
    "the highest field number": tag(2**29 - 1, 0) + b"\x01",
    "length of 10 bytes": tag(1, BYTES) + varint(1, 10) + b"a",
    "length whose bits above the 64th are dropped": tag(1, BYTES) + b"\x81" + b"\x80" * 8 + b"\x7ea",
    "value of 10 bytes": tensor(number(3, 5, 10)),
    "value whose bits above the 64th are dropped": tensor(tag(3, 0) + b"\x81" + b"\x80" * 8 + b"\x7f"),
    "unknown varint": number(15, 2**64 - 1),
    "unknown fixed": tag(15, FIXED64) + bytes(8) + tag(16, FIXED32) + bytes(4),
    "unknown bytes that are no UTF-8": data(15, b"\xff"),
    "unknown group": group(15, number(1, 2) + group(2, data(1, b"x")) + tag(3, FIXED32) + bytes(4)),
    "group that an over-long tag closes": tag(15, START) + tag(15, END, 3),
    "group with the number of a known field": group(1) + group(5, data(1, b"x")),
    "known numbers with other wire types": number(1, 3)
    + number(5, 1)
    + number(7, 1)
    + tag(3, FIXED64)
    + bytes(8),
    "groups 100 deep": nested_groups(100),
    "groups 99 deep in an input": tensor(nested_groups(99)),
    "groups 98 deep in contents": contents(nested_groups(98)),
    "groups 98 deep in a value": value(nested_groups(98)),
    "groups 99 deep in an entry": parameter(ENTRY + nested_groups(99)),
    "groups 97 deep in a value of an input": tensor(data(4, data(2, nested_groups(97)))),
    "parameters of each kind": b"".join(
        parameter(data(1, key) + data(2, body))
        for key, body in {
            b"b": number(1, 1),
            b"i": number(2, -5),
            b"s": data(3, b"text"),
            b"d": tag(4, FIXED64) + b"\0\0\0\0\0\0\xf8\x7f",
            b"u": number(5, 2**64 - 1),
        }.items()
    ),
    "a parameter twice: the last one": parameter(ENTRY) + value(number(2, 5)),
    "a parameter twice: the last one has no value": parameter(ENTRY) + parameter(data(1, b"k")),
    "a key twice in an entry": parameter(data(1, b"a") + ENTRY),
    "two values in an entry merge": parameter(ENTRY + data(2, number(2, 5))),
    "a second, empty value changes nothing": parameter(ENTRY + data(2, b"")),
    "an entry without a key": parameter(data(2, VALUE)),
    "an entry without a value": parameter(data(1, b"k")),
    "an empty entry": parameter(b""),
    "an entry with an unknown field is dropped": parameter(ENTRY) + parameter(data(1, b"k") + number(3, 1)),
    "an entry with an unknown group is dropped": parameter(ENTRY + group(3)),
    "an entry with a key of another type is dropped": parameter(ENTRY + number(1, 1)),
    "a value with an unknown field is kept": value(VALUE + number(15, 1)),
    "the last member of a oneof": value(number(2, 5) + VALUE + number(1, 0)),
    "a member of another type is unknown": value(number(2, 5) + tag(3, FIXED32) + bytes(4)),
    "a bool of many bits": value(number(1, 2**40)),
    "a bool whose only bits are dropped": value(tag(1, 0) + b"\x80" * 9 + b"\x02"),
    "a shape, packed and not": tensor(
        data(3, b"\x01\x02") + number(3, 3) + data(3, b"") + data(3, varint(-1))
    ),
    "a shape of 20 dimensions": tensor(data(3, bytes(range(20)))),
    "contents merge": tensor(data(5, data(2, b"\x01\x02")) + data(5, number(2, 3) + data(6, bytes(8)))),
    "empty contents": contents(b""),
    "contents of every field": contents(
        b"".join(data(field, b"\x01\x02\x80\x01") for field in (1, 2, 3, 4, 5, 8))
        + data(6, bytes(12))
        + data(7, bytes(16))
    ),
    "contents not packed": contents(
        b"".join(number(field, 2**63) for field in range(1, 6))
        + tag(6, FIXED32)
        + bytes(4)
        + tag(7, FIXED64)
        + bytes(8)
    ),
    "contents with other wire types": contents(
        number(6, 1) + tag(6, FIXED64) + bytes(8) + tag(1, FIXED32) + bytes(4)
    ),
    "bytes contents are no text": contents(data(8, b"\xff")),
    "inputs, outputs and raw entries in any order": data(7, b"1")
    + data(6, data(1, b"o"))
    + tensor(b"")
    + data(7, b""),
    "70 inputs, outputs and raw entries": (tensor(b"") + data(6, b"") + data(7, b"x")) * 70,
}

REFUSED = {
    "tag of 6 bytes": tag(1, BYTES, 6) + b"\x01a",
    "tag above 32 bits": b"\x8a\x80\x80\x80\x10\x01a",
    "half a tag": b"\x80",
    "tag without a value": tag(1, BYTES),
    "field number 0": number(0, 0),
    "field number 0 with bytes": data(0, b""),
    "field number 0 in a group": group(15, number(0, 0)),
    "group 0": group(0),
    "wire type 6": b"\x7e",
    "wire type 7": b"\x7f\x00",
    "wire type 6 in a group": group(15, b"\x0e"),
    "varint of 11 bytes": tensor(number(3, 1, 11)),
    "length of 11 bytes": tag(1, BYTES) + varint(1, 11) + b"a",
    "more bytes announced than there are": tag(1, BYTES) + b"\x05abc",
    "more bytes announced than 2^31": tag(1, BYTES) + varint(2**31) + b"abc",
    "a length that is negative": tag(1, BYTES) + varint(-1) + b"abc",
    "a length of 2^32": tag(1, BYTES) + varint(2**32),
    "half a fixed32": tag(15, FIXED32) + bytes(3),
    "half a fixed64": tag(15, FIXED64) + bytes(7),
    "an end without a group": tag(15, END),
    "a group closed by another number": tag(15, START) + tag(14, END),
    "a group never closed": tag(15, START),
    "a group closed outside its message": tensor(tag(15, START)) + tag(15, END),
    "a varint that leaves its message": tensor(tag(3, 0)) + b"\x01",
    "groups 101 deep": nested_groups(101),
    "groups 100 deep in an input": tensor(nested_groups(100)),
    "groups 99 deep in contents": contents(nested_groups(99)),
    "groups 99 deep in a value": value(nested_groups(99)),
    "groups 100 deep in an entry": parameter(ENTRY + nested_groups(100)),
    "groups 98 deep in a value of an input": tensor(data(4, data(2, nested_groups(98)))),
    "text that is no UTF-8": data(1, b"\xff"),
    "text that is no UTF-8, behind 8 ASCII": data(2, b"abcdefgh\xff"),
    "text that is no UTF-8, replaced later": data(1, b"\xff") + data(1, b"a"),
    "a surrogate": data(1, b"\xed\xa0\x80"),
    "an over-long character": data(3, b"\xc0\x80"),
    "an over-long character of 3 bytes": data(3, b"\xe0\x80\x80"),
    "an over-long character of 4 bytes": data(3, b"\xf0\x80\x80\x80"),
    "a character above U+10FFFF": data(3, b"\xf4\x90\x80\x80"),
    "half a character": data(1, b"\xe2\x82"),
    "a key that is no UTF-8": parameter(data(1, b"\xff")),
    "a key that is no UTF-8, in an entry that is dropped": parameter(data(1, b"\xff") + number(3, 1)),
    "a string member that is no UTF-8, replaced later": value(data(3, b"\xff") + number(2, 5)),
    "a name that is no UTF-8": tensor(data(1, b"\xff")),
    "a datatype that is no UTF-8": tensor(data(2, b"\xff")),
    "an output name that is no UTF-8": data(6, data(1, b"\xff")),
    "packed fp32 of 3 bytes": contents(data(6, b"abc")),
    "packed fp64 of 4 bytes": contents(data(7, b"abcd")),
    "half a packed varint": contents(data(2, b"\x80")),
    "half a packed varint, the rest behind it": contents(data(2, b"\x80") + b"\x01"),
    "half a packed dimension": tensor(data(3, b"\x01\x80")),
    "a packed varint of 11 bytes": contents(data(3, varint(1, 11))),
}

# Where the pure-Python implementation accepts what upb refuses, or finds something else.
FOLLOWING_UPB = {
    "tag of 2 bytes where 1 would do",
    "tag of 5 bytes",
    "group that an over-long tag closes",
    "groups 100 deep",
    "groups 99 deep in a value",
    "groups 99 deep in contents",
    "groups 98 deep in a value of an input",
    "groups 99 deep in an entry",
    "an entry with an unknown field is dropped",
    "an entry with an unknown group is dropped",
    "an entry with a key of another type is dropped",
    "tag of 6 bytes",
    "tag above 32 bits",
    "field number 0 in a group",
}

# Cases that protobuf 7 decides the other way; see hr_wire.h.
UNLIKE_7 = {
    "length of 10 bytes",
    "length whose bits above the 64th are dropped",
    "field number 0 in a group",
}


def follow(name: str) -> None:
    if name in UNLIKE_7 and int(protobuf_version.split(".")[0]) >= 7:
        pytest.skip("protobuf 7 decides this the other way")


def ours(wire: bytes) -> dict[str, object] | None:
    try:
        return _codec.scan(wire)
    except RequestError as error:
        assert error.code == 3 and "byte" in error.message
        return None


@pytest.fixture(scope="module", autouse=True)
def upb() -> None:
    if api_implementation.Type() != "upb":
        pytest.skip(f"needs protobuf's upb implementation, this is {api_implementation.Type()}")


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts_with_the_same_values(name: str) -> None:
    follow(name)
    expected = codec_reference.expected(ACCEPTED[name])
    assert expected is not None, "the library refuses this; the case is in the wrong table"
    assert ours(ACCEPTED[name]) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    follow(name)
    assert codec_reference.expected(REFUSED[name]) is None, (
        "the library accepts this; the case is in the wrong table"
    )
    assert ours(REFUSED[name]) is None


def test_every_cut_of_a_message_as_the_library() -> None:
    whole = (
        ACCEPTED["parameters of each kind"] + ACCEPTED["contents of every field"] + ACCEPTED["unknown group"]
    )
    for end in range(len(whole)):
        assert ours(whole[:end]) == codec_reference.expected(whole[:end]), f"cut at {end}"


def test_differs_from_pure_python_only_where_it_follows_upb() -> None:
    cases = {**ACCEPTED, **REFUSED}
    child = subprocess.run(
        [sys.executable, str(Path(codec_reference.__file__))],
        input="".join(f"{wire.hex()}\n" for wire in cases.values()),
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        check=True,
    )
    as_json = [json.dumps(ours(wire), default=bytes.hex, sort_keys=True) for wire in cases.values()]
    answers = child.stdout.splitlines()
    assert len(answers) == len(cases)
    differing = {name for name, mine, theirs in zip(cases, as_json, answers, strict=True) if mine != theirs}
    assert differing <= FOLLOWING_UPB | UNLIKE_7, "a difference that nobody decided on"


def test_a_refusal_says_where() -> None:
    with pytest.raises(RequestError) as caught:
        _codec.scan(data(1, b"model") + tensor(data(1, b"x") + data(2, b"\xff")))
    assert caught.value.code == 3
    assert "expected datatype of an input (a length, and UTF-8) at byte 13 of 15" in caught.value.message
