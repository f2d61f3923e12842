"""A build without the headers of the native front end: it says why in the installation itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_wheel import IGNORED, ROOT

pytestmark = pytest.mark.slow


def build(tree: Path, compiler: str) -> str:
    """What the build's Python step leaves and says, with this compiler."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tree / "built")]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "CC": compiler}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_what_is_missing_is_in_the_installation_until_it_is_there(tmp_path: Path) -> None:
    if find_spec("Cython") is None or find_spec("grpc_tools") is None:
        pytest.skip("needs Cython and grpcio-tools (pip install 'headrace[dev]')")
    if find_spec("service.frontend.native._native") is None:
        pytest.skip("needs the headers of the native front end: libnghttp2-dev, libssl-dev, zlib1g-dev")
    tree = shutil.copytree(ROOT, tmp_path / "tree", ignore=IGNORED)
    word = tree / "built" / "service" / "native_missing.txt"
    said = build(tree, "cc -nostdinc")
    headers = "for want of nghttp2/nghttp2.h and openssl/ssl.h of OpenSSL 3 and zlib.h"
    for part in (headers, "apt-get install libnghttp2-dev libssl-dev zlib1g-dev"):
        assert part in word.read_text() and part in said
    build(tree, "cc")
    assert not word.exists()
