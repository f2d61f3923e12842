"""T6: real threads over one mapping, under the sanitizers. What the explorer shows in small is run at length.

ThreadSanitizer must watch both sides as threads and over one mapping: across processes, or two mappings of
one memfd, it sees nothing. There is no list of suppressions.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from c_toolchain import HERE, INCLUDE, SANITIZE, build, compiler, run

pytestmark = [pytest.mark.t6, pytest.mark.slow]

PROGRAM = HERE / "c" / "two_producers.c"
FLAGS = ["-std=c11", "-D_GNU_SOURCE"]
ROWS = 40_000


def run_threads(path: Path) -> CompletedProcess[str]:
    """Some ThreadSanitizers refuse a kernel that spreads mappings widely; then without spreading."""
    done = run([path])
    if "unexpected memory mapping" in done.stderr:
        done = run([compiler("setarch"), "--addr-no-randomize", path])
    return done


def check_two_producers(path: Path) -> None:
    done = run_threads(path)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.fullmatch(r"(\d+) rows in (\d+) batches\n", done.stdout)
    assert match, done.stdout
    rows, batches = int(match[1]), int(match[2])
    assert rows == ROWS
    assert rows / 8 <= batches <= rows / 2  # of 8 rows at most, and really batches


@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_two_producers_get_their_rows_in_batches(cc: str, tmp_path: Path) -> None:
    """The README's C program, by the README's command, from the installed headers; a warning is an error."""
    path = tmp_path / "two_producers"
    build([PROGRAM], path, *FLAGS, "-Wconversion", "-O2", cc=cc)
    check_two_producers(path)
    needs = run([compiler("ldd"), path]).stdout
    assert "libc.so" in needs and "python" not in needs


def test_two_producers_is_short() -> None:
    """The README shows it: 60 lines of code are its point."""
    lines = [line for line in PROGRAM.read_text().splitlines() if line and not line.startswith(("/*", " *"))]
    assert len(lines) <= 60


@pytest.mark.parametrize("flags", [SANITIZE, ["-fsanitize=thread"]], ids=["address", "thread"])
def test_two_producers_under_sanitizers(flags: list[str], tmp_path: Path) -> None:
    path = tmp_path / "two_producers"
    build([PROGRAM], path, *FLAGS, "-O1", *flags)
    check_two_producers(path)


def test_stress_under_thread_sanitizer(tmp_path: Path) -> None:
    """Rings and bell: two producers, one sleeper, every entry once and in order."""
    path = build([HERE / "c" / "stress.c"], tmp_path / "stress", *FLAGS, "-O1", "-fsanitize=thread")
    done = run_threads(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "600000 entries, each once and in order\n"


def test_thread_sanitizer_sees_a_weakened_ring(tmp_path: Path) -> None:
    """The test above can fail: with a relaxed publication there is a race, and it is reported."""
    include = tmp_path / "include"
    shutil.copytree(INCLUDE, include)
    ring = include / "fq_ring.h"
    before = "fq_store_sc(&ring->control->tail, ring->own, R1)"
    assert before in ring.read_text()
    ring.write_text(ring.read_text().replace(before, before.replace("_sc", "_rlx")))
    path = tmp_path / "stress"
    build([HERE / "c" / "stress.c"], path, *FLAGS, "-O1", "-fsanitize=thread", include=include)
    done = run_threads(path)
    assert done.returncode != 0 and "data race" in done.stderr
