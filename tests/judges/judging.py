"""Running a program of others to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from waiting import LIMIT_S

JUDGES = Path(sys.prefix) / "judges"


def said(command: list[str], **environment: str) -> str:
    """The output of a command, both kinds. AssertionError with it, when its exit code is not 0."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * LIMIT_S,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (
        f"exit code {done.returncode} of {' '.join(command)[:400]}\n{done.stdout[-8000:]}"
    )
    return done.stdout
