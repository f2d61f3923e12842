"""When an I/O thread of the native front end naps before it looks for events again."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import service.frontend

HEADER = Path(service.frontend.__file__).parent / "native" / "native_moderation.h"
SOURCE = """
#include HEADER
int should_nap(long long idle_ns, unsigned long long out) { return hr_should_nap(idle_ns, out); }
long long nap_ns(void) { return HR_NAP_NS; }
"""


@pytest.fixture(scope="module")
def moderation(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    folder = tmp_path_factory.mktemp("moderation")
    (folder / "m.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", f'-DHEADER="{HEADER}"', "m.c", "-o", "m.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "m.so"))


@pytest.mark.parametrize("out", [0, 1, 2, 15])
def test_never_while_few_calls_are_out(moderation: ctypes.CDLL, out: int) -> None:
    assert not moderation.should_nap(ctypes.c_longlong(0), ctypes.c_ulonglong(out))


def test_with_many_out_while_wake_ups_follow_each_other(moderation: ctypes.CDLL) -> None:
    many = ctypes.c_ulonglong(16)
    assert moderation.should_nap(ctypes.c_longlong(0), many)
    assert moderation.should_nap(ctypes.c_longlong(49_999), many)
    assert not moderation.should_nap(ctypes.c_longlong(50_000), many)
    assert not moderation.should_nap(ctypes.c_longlong(10_000_000_000), ctypes.c_ulonglong(100_000))


def test_a_nap_is_short_beside_what_a_batch_waits(moderation: ctypes.CDLL) -> None:
    moderation.nap_ns.restype = ctypes.c_longlong
    assert 0 < moderation.nap_ns() <= 100_000
