"""The C of a front-end thread: no warning from a compiler, and all of it links without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from compiling import assert_compiles_alone

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["fastqueue/include", "service/codec", "service/frontend"]
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O2"]
INCLUDES = [f"-I{ROOT / folder}" for folder in FOLDERS]
SOURCES = sorted((ROOT / "service/frontend").glob("dispatch*.[ch]"))
CODEC = sorted((ROOT / "service/codec").glob("*.c"))

MAIN = """
#include "dispatch.h"
int main(void) {
    hr_error err;
    hr_answer answer;
    uint64_t handle;
    int fd;
    hr_call call = {.deadline_ns = INT64_MAX};
    hr_dispatch *d = hr_dispatch_new(1, 0, 4, &err);
    if (d == NULL || hr_dispatch_open_lane(d, &fd, &err) != 0) return 1;
    if (hr_dispatch_submit(d, (const uint8_t *)"", 0, &call, &handle, &err) == 0) return 2;
    if (err.code != HR_NOT_FOUND) return 2;
    if (hr_dispatch_next(d, 0, &answer) != 0 || !hr_dispatch_arm(d) || hr_dispatch_check(d) != 0) return 3;
    hr_dispatch_free(d);
    return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_compiles_alone_without_a_warning(path: Path, compiler: str, tmp_path: Path) -> None:
    assert_compiles_alone(path, compiler, [*STRICT, *INCLUDES], tmp_path)
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.slow
def test_a_program_without_python_links_and_runs(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    main = tmp_path / "main.c"
    main.write_text(MAIN)
    sources = [str(path) for path in [main, *CODEC, *SOURCES] if path.suffix == ".c"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    program = str(tmp_path / "program")
    done = subprocess.run(
        ["gcc", *STRICT, *sanitize, *INCLUDES, *sources, "-pthread", "-o", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
