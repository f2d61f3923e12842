"""Waiting for what another thread or process does without saying so: polls, bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable

LIMIT_S = 60.0
_PAUSE_S = 0.005


def wait_until(condition: Callable[[], bool], what: str = "it") -> None:
    """Returns once the condition holds. AssertionError, naming `what`, when it does not within LIMIT_S."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / _PAUSE_S)):
        if condition():
            return
        pause.wait(_PAUSE_S)
    raise AssertionError(f"{what} never came true")
