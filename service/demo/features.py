"""A file's bytes to one row of the model's input, by magika's rule.

    file    |<------ first block ------>| ........ |<------ last block ------>|
            strip blanks on the left                   strip blanks on the right
    row     |first 1024 of it, padding behind|  padding before, last 1024 of it|     INT32

Two kinds of file are answered by rule, without the model: an empty one is ``empty``, and one with fewer
than 8 bytes, or fewer than 8 after the blanks at its beginning, is ``txt`` if it is UTF-8 and ``unknown``
if not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from service.demo.model import FileTypeModel

Row = npt.NDArray[np.int32]


def examine(path: Path, model: FileTypeModel) -> Row | str:
    """Reads a file's ends: a row of ``model.row_size``, or the label where a rule decides. Raises OSError."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return "empty"
        first = _read(file, 0, min(size, model.block))
        if size < model.smallest:
            return by_rule(first)
        stripped = first.lstrip()
        if len(stripped) < model.smallest:
            return by_rule(first)
        last = _read(file, max(0, size - model.block), min(size, model.block))
    return as_row(stripped, last.rstrip(), model)


def by_rule(content: bytes) -> str:
    """The label of a file with too little in it for the model."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "unknown"
    return "txt"


def as_row(first: bytes, last: bytes, model: FileTypeModel) -> Row:
    """One row from the stripped first and last blocks."""
    row = np.full(model.row_size, model.padding, dtype=np.int32)
    beginning = np.frombuffer(first[: model.beginning], dtype=np.uint8)
    end = np.frombuffer(last[-model.end :], dtype=np.uint8)
    row[: len(beginning)] = beginning
    row[model.row_size - len(end) :] = end
    return row


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
