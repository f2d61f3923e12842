"""Compiles C of the tests against the installed headers of fastqueue, and runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import fastqueue

HERE = Path(__file__).parent
INCLUDE = Path(fastqueue.get_include())
STRICT = ["-Wall", "-Wextra", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def compiler(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}")
    return path


def headers() -> list[Path]:
    return sorted(INCLUDE.glob("*.h"))


def run(command: Sequence[str | Path], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout)


def build(
    sources: Sequence[Path], output: Path, *flags: str, include: Path = INCLUDE, cc: str = "gcc"
) -> Path:
    """Compiles and links; a compiler's message is the failure's message."""
    done = run([compiler(cc), "-g", *STRICT, *flags, f"-I{include}", *sources, "-o", output, "-pthread"])
    assert done.returncode == 0, f"{cc} refused {[s.name for s in sources]}:\n{done.stderr}"
    return output


def build_explorer(output: Path, include: Path = INCLUDE, optimize: str = "-O2") -> Path:
    here = HERE / "explorer"
    flags = ["-std=gnu11", optimize, "-Wno-stringop-overread", "-DFQ_MODEL", f"-I{here}"]
    return build(sorted(here.glob("*.c")), output, *flags, include=include)


class Label(NamedTuple):
    """A row of FQ_LABELS."""

    name: str
    order: str
    partners: str
    why: str


def labels(include: Path = INCLUDE) -> list[Label]:
    rows = re.findall(r'\bX\((\w+), (\w+), "([^"]*)", "([^"]*)"\)', (include / "fq_atomic.h").read_text())
    return [Label(*row) for row in rows]


def without_comments(text: str) -> str:
    """C without comments and string literals, lines kept."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda match: '""' + "\n" * match[0].count("\n"), text, flags=re.DOTALL)
