"""Writes protobuf wire format by hand, well or badly: what no protobuf library would write."""

from __future__ import annotations

VARINT, FIXED64, BYTES, START, END, FIXED32 = range(6)


def varint(value: int, length: int = 0) -> bytes:
    """A varint of at least `length` bytes: over-long where fewer would do."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < length:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int, length: int = 0) -> bytes:
    return varint(number << 3 | wire_type, length)


def number(field: int, value: int, length: int = 0) -> bytes:
    return tag(field, VARINT) + varint(value, length)


def data(field: int, payload: bytes) -> bytes:
    return tag(field, BYTES) + varint(len(payload)) + payload


def group(field: int, body: bytes = b"") -> bytes:
    return tag(field, START) + body + tag(field, END)


def nested_groups(depth: int) -> bytes:
    return tag(15, START) * depth + tag(15, END) * depth
