"""Waiting for what another thread or process does without saying so: polls, bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LIMIT_S = 60.0
_PAUSE_S = 0.005


def wait_until(condition: Callable[[], bool], what: str = "it") -> None:
    """Returns once the condition holds. AssertionError, naming `what`, when it does not within LIMIT_S."""
    pause = threading.Event()
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {LIMIT_S:g} s")
        pause.wait(_PAUSE_S)
