"""The C files of the device part compile alone, without a warning and without CUDA's headers."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import assert_compiles_alone

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("fastqueue/include", "service/cuda")]
FILES = sorted((ROOT / "service/cuda").glob("*.[ch]"))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_compiles_alone(path: Path, compiler: str, tmp_path: Path) -> None:
    assert_compiles_alone(path, compiler, [*FLAGS, *INCLUDES], tmp_path)
