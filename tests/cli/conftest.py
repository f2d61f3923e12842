"""Fixtures: a fake server, and the command line run in this process as in a pipe."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from fake_server import FakeServer, Run
from typer.testing import CliRunner, Result

from service.cli import app


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("infer", ...)`` runs the command and returns its result: exit_code, stdout, stderr."""
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")

    def run_command(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run_command


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address of this machine where nothing listens, and nothing else can start to."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"
