"""Compiles one C file by itself: a header that forgets an include, or a file that warns, is a failure."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def assert_compiles_alone(path: Path, compiler: str, flags: Sequence[str], folder: Path) -> None:
    """Fails with what the compiler says; skips where it is missing. `folder`: for what comes out."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    language = ["-Wno-unused-function", "-x", "c"] if path.suffix == ".h" else []
    command = [compiler, *flags, *language, "-c", str(path), "-o", str(folder / "out.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
