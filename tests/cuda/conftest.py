"""Tests on the driver of the tests: a rule that is broken fails the test that broke it."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator

import pytest
from fake_driver import driver, violations

from service.cuda.device import close_device


@pytest.fixture
def fake() -> Iterator[ctypes.CDLL]:
    """The driver, as it is at first."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    found = driver()
    found.fake_reset()
    yield found
    close_device()
    assert violations() == []
    assert found.fake_is_lost() or found.fake_used() == 0, "memory of the device was not given back"
