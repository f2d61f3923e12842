"""The C files of the codec: no warning from a compiler, nothing of Python, no heap on the way of requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiling import assert_compiles_alone

SOURCES = sorted((Path(__file__).resolve().parents[2] / "service" / "codec").glob("hr_*.[ch]"))
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", "-O2"]


def test_the_sources_are_here() -> None:
    assert {path.stem for path in SOURCES} >= {
        "hr_wire",
        "hr_scan",
        "hr_spec",
        "hr_strings",
        "hr_validate",
        "hr_encode",
        "hr_error",
    }


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_compiles_alone_without_a_warning(path: Path, compiler: str, tmp_path: Path) -> None:
    assert_compiles_alone(path, compiler, STRICT, tmp_path)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_knows_no_python_and_allocates_nothing_per_request(path: Path) -> None:
    text = path.read_text()
    assert "Python.h" not in text
    if path.stem != "hr_spec":  # a spec is made once per load
        assert not re.search(r"\b(malloc|calloc|realloc|alloca|free)\s*\(", text)
    assert len(text.splitlines()) <= 400
