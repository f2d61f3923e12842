"""Programs of others that judge the native front end, out of the environment's folder judges (`.ci/judges`).

One that is missing is a skip, with what it needs; with CI=true that is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from judging import JUDGES, said
from waiting import LIMIT_S

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    if find_spec("service.frontend.native._native") is None:
        pytest.skip("needs the native front end: libnghttp2-dev, libssl-dev, zlib1g-dev at installation")


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """program(name): its path, in the folder of judges."""

    def found(name: str) -> str:
        if not (JUDGES / name).exists():
            pytest.skip(f"needs {name}, which `make judges` builds or fetches")
        return str(JUDGES / name)

    return found


@pytest.fixture(scope="session")
def judge(program: Callable[[str], str]) -> Callable[..., str]:
    """judge(name, *arguments): runs a program to its end, which must be a good one; what it said."""

    def run(name: str, *arguments: str, **environment: str) -> str:
        return said([program(name), *arguments], **environment)

    return run


@pytest.fixture(scope="session")
def interop_port() -> Iterator[str]:
    """The port of TestService, in a process of its own."""
    folders = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", str(HERE / "interop_server.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": folders}, **pipes) as server:
        port = server.stdout.readline().strip()
        assert port, "the interop server did not start: what it said is above"
        yield port
        server.stdin.close()
        server.wait(LIMIT_S)
