"""The strings that an ONNX file knows: vocabularies, categories, labels.

A model that looks strings up gives every string it does not know the same answer, so that made-up ones would
not tell its rows apart. ONNX Runtime does not say what a model's attributes are, and the onnx package is not
needed for anything else here; but the file is protobuf, whose fields can be walked without their definitions.

Looked into: attributes that are lists of strings, and string tensors, in attributes, initializers and
subgraphs. Everything else is stepped over, large weights too, unread.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

MAX_WORDS = 4096
MAX_WORD_BYTES = 64
_WORD = "word"
_FIELDS = {  # of each message: number of a field, and what it is
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 9: _WORD, 10: "tensor", 11: "graph"},
    "tensor": {6: _WORD},
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def words_of(path: str) -> tuple[bytes, ...]:
    """Distinct strings of the file, UTF-8 and not empty, in their order in the file; at most MAX_WORDS."""
    found: dict[bytes, None] = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, end in _places(data, "model", 0, len(data)):
            if 0 < end - start <= MAX_WORD_BYTES and _is_text(word := data[start:end]):
                found[word] = None
            if len(found) == MAX_WORDS:
                break
    return tuple(found)


def _is_text(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True


def _places(data: mmap.mmap, message: str, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and end of every word in a message; nothing more where the file is not what it should be."""
    kinds = _FIELDS[message]
    while at < end:
        tag, at = _varint(data, at, end)
        length, at = _length(data, at, end, tag & 7)
        if length < 0 or at + length > end:
            return
        kind = kinds.get(tag >> 3, "") if tag & 7 == _BYTES else ""
        if kind == _WORD:
            yield at, at + length
        elif kind:
            yield from _places(data, kind, at, at + length)
        at += length


def _length(data: mmap.mmap, at: int, end: int, wire_type: int) -> tuple[int, int]:
    """Bytes of a field's content, and where it starts; -1 for what no field has."""
    if wire_type == _VARINT:
        return 0, _varint(data, at, end)[1]
    if wire_type == _BYTES:
        return _varint(data, at, end)
    return {_FIXED64: 8, _FIXED32: 4}.get(wire_type, -1), at


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends; what is cut off is 0, and a longer one than protobuf has is cut."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            return 0, end
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at
