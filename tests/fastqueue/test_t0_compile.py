"""T0: every header compiles alone, without a warning, under two compilers; and the stubs are true."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from c_toolchain import HERE, INCLUDE, STRICT, compiler, headers, run

pytestmark = pytest.mark.t0

COMPILERS = ("gcc", "clang")
SOURCE = HERE.parents[1] / "fastqueue" / "include"
CYTHON_ADDS = [  # what no stub can be expected to tell
    r"fastqueue\._\w+\.__reduce_cython__",
    r"fastqueue\._\w+\.__setstate_cython__",
    r"fastqueue\._\w+\.__test__",
    r"fastqueue\._\w+\.(Batch|BatchFormer|FrontLane|InputArena|WorkerPage)",  # disjoint bases
]


def check(cc: str, text: str, folder: Path, *flags: str) -> None:
    source = folder / "alone.c"
    source.write_text(text)
    flags = ("-std=c11", "-D_GNU_SOURCE", "-Wconversion", "-pedantic", *flags)
    done = run([compiler(cc), *flags, *STRICT, f"-I{INCLUDE}", "-fsyntax-only", source])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cc", COMPILERS)
@pytest.mark.parametrize("header", [path.name for path in sorted(SOURCE.glob("*.h"))])
def test_header_compiles_alone(cc: str, header: str, tmp_path: Path) -> None:
    check(cc, f'#include "{header}"\n', tmp_path)


@pytest.mark.parametrize("cc", COMPILERS)
def test_headers_compile_together_and_twice(cc: str, tmp_path: Path) -> None:
    every = "".join(f'#include "{path.name}"\n' for path in headers())
    check(cc, every + every, tmp_path)


@pytest.mark.parametrize("cc", COMPILERS)
def test_the_check_notices_a_warning(cc: str, tmp_path: Path) -> None:
    """The checks above would be worth nothing if a narrowing conversion passed."""
    narrowing = '#include "fq_ring.h"\nuint32_t f(uint64_t n);\nuint32_t f(uint64_t n) { return n; }\n'
    with pytest.raises(AssertionError, match="onversion"):
        check(cc, narrowing, tmp_path)


def test_every_header_is_installed() -> None:
    assert [path.name for path in headers()] == [path.name for path in sorted(SOURCE.glob("*.h"))]


def test_stubs_tell_the_truth(tmp_path: Path) -> None:
    """Every name, argument and default of the .pyi files is the extension's, and none is missing."""
    allowed = tmp_path / "allowlist"
    allowed.write_text("\n".join(CYTHON_ADDS) + "\n")
    command = [sys.executable, "-P", "-m", "mypy.stubtest", "fastqueue", "--allowlist", allowed]
    done = run([*command, "--ignore-unused-allowlist"])
    assert done.returncode == 0, done.stdout + done.stderr
