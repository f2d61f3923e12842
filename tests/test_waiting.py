"""The bound of ``wait_until`` is a time, however long the condition takes to ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import waiting


def test_a_slow_condition_is_not_asked_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 1000, 10))  # so long takes every look
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    asked = []

    def never() -> bool:
        asked.append(True)
        return False

    with pytest.raises(AssertionError, match="the end of time did not come true within 60 s"):
        waiting.wait_until(never, "the end of time")
    assert len(asked) == 6


def test_what_holds_at_once_is_asked_once() -> None:
    answers = iter([True])
    waiting.wait_until(lambda: next(answers))
