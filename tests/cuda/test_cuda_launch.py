"""The C layer alone: what is pinned, and what becomes of a completer that nobody closes."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cuda._launch import Completer, LaunchSlot, Pinned, open_table
from service.cuda.device import the_device
from service.cuda.driver import STICKY, DriverError

PAGE = mmap.PAGESIZE
NOT_SUPPORTED, OUT_OF_MEMORY = 801, 2
MOST = 256  # HR_PINNED_MAX


@pytest.fixture
def read_only() -> Iterator[int]:
    """The address of a page of a memfd that is mapped for reading alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.memfd_create("test")
    os.ftruncate(fd, PAGE)
    address = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    yield address
    libc.munmap(address, PAGE)
    os.close(fd)


def rights(address: int) -> str:
    """Of the mapping that starts there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.startswith(f"{address:x}-"):
            return line.split()[1]
    raise AssertionError(f"nothing is mapped at {address:x}")


@pytest.fixture
def pinned(fake: ctypes.CDLL) -> Pinned:
    open_table()
    the_device()
    return Pinned()


def test_a_driver_that_pins_nothing_read_only_gets_it_writable_for_that_moment(
    fake, pinned, read_only
) -> None:
    fake.fake_fail_next(b"cuMemHostRegister_v2", NOT_SUPPORTED)
    pinned.register(read_only, PAGE, read_only=True)
    assert rights(read_only) == "r--s"
    pinned.unregister(read_only)


def test_another_failure_is_told_and_nothing_is_tried(fake, pinned, read_only) -> None:
    fake.fake_fail_next(b"cuMemHostRegister_v2", OUT_OF_MEMORY)
    with pytest.raises(DriverError, match="pinning memory: CUDA_ERROR_OUT_OF_MEMORY"):
        pinned.register(read_only, PAGE, read_only=True)
    assert rights(read_only) == "r--s"


def test_more_ranges_than_are_remembered_are_refused(pinned) -> None:
    with mmap.mmap(-1, (MOST + 1) * PAGE) as memory:
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        first = ctypes.addressof(view)
        for index in range(MOST):
            pinned.register(first + index * PAGE, PAGE)
        with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            pinned.register(first + MOST * PAGE, PAGE)
        for index in range(MOST):
            pinned.unregister(first + index * PAGE)
        del view


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_a_completer_that_nobody_closes_takes_its_thread_with_it(pinned) -> None:
    before = threads()
    completer = Completer(int(the_device().context), print, STICKY)
    assert len(threads() - before) == 1
    del completer
    assert threads() <= before


def test_a_launch_slot_without_events_is_told(fake, pinned) -> None:
    completer = Completer(int(the_device().context), print, STICKY)
    fake.fake_fail_next(b"cuEventCreate", OUT_OF_MEMORY)
    with pytest.raises(DriverError, match="making events: CUDA_ERROR_OUT_OF_MEMORY"):
        LaunchSlot(completer, the_device().new_stream(), (0, 0))
    completer.close()
