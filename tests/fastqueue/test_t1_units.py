"""T1: the C core function by function, with ASan and UBSan watching. The tests are c/test_*.c."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from c_toolchain import HERE, SANITIZE, build, run

pytestmark = pytest.mark.t1

TESTS = [
    (source.stem, name)
    for source in sorted((HERE / "c").glob("test_*.c"))
    for name in re.findall(r"^TEST\((\w+)\)", source.read_text(), flags=re.MULTILINE)
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("units")

    def program(stem: str) -> Path:
        path = folder / stem
        if not path.exists():
            build([HERE / "c" / f"{stem}.c"], path, "-std=c11", "-D_GNU_SOURCE", "-O1", *SANITIZE)
        return path

    return program


@pytest.mark.parametrize(("stem", "name"), TESTS, ids=[f"{stem[5:]}-{name}" for stem, name in TESTS])
def test_unit(program: Callable[[str], Path], stem: str, name: str) -> None:
    done = run([program(stem), name], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "1 passed\n"
