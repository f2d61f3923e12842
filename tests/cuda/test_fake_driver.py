"""The driver of the tests notices each rule that is broken: otherwise its silence would say nothing."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_driver import MAGIC, FakeCompute, driver, violations

from service.cuda.device import close_device, the_device
from service.cuda.driver import api, check
from service.cuda.memory import MB, AddressRange


class Ground:
    """A device with a stream, memory on both sides, and a computation."""

    def __init__(self) -> None:
        self.device = the_device()
        self.stream = self.device.new_stream()
        self.memory = AddressRange(0, 64 * MB)
        self.memory.grow(4 * MB)
        self.host = self.device.pinned(MB)
        self.plain = ctypes.create_string_buffer(64)

    def copy(self, source: int = 0, target: int = 0, stream: int | None = None) -> None:
        place = self.stream if stream is None else stream
        api().cuMemcpyHtoDAsync(target or self.memory.address, source or self.host, 64, place)

    def compute(self, stream: int = 0, x: int = 0, scratch: int = 0) -> None:
        at = self.memory.address
        what = FakeCompute(MAGIC, scratch, 64 if scratch else 0, x or at, at + 128, 4)
        function = ctypes.cast(driver().fake_affine, ctypes.c_void_p)
        driver().cuLaunchHostFunc(stream or self.stream, function, ctypes.addressof(what))

    def wait(self, stream: int = 0) -> None:
        check(api().cuStreamSynchronize(stream or self.stream), "waiting")


@pytest.fixture
def ground() -> Iterator[Ground]:
    driver().fake_reset()
    yield Ground()
    driver().fake_reset()
    close_device()


def on_default_stream(ground: Ground) -> None:
    ground.copy(stream=0)


def without_a_context(ground: Ground) -> None:
    thread = threading.Thread(target=ground.copy)
    thread.start()
    thread.join()


def three_batches(ground: Ground) -> None:
    driver().fake_hold(ctypes.c_void_p(ground.stream), 1)
    for _ in range(3):
        ground.copy()
        ground.compute()
    driver().fake_hold(ctypes.c_void_p(ground.stream), 0)
    ground.wait()


def allocation_while_serving(ground: Ground) -> None:
    driver().fake_serving(1)
    ground.memory.grow(8 * MB)


def plain_memory(ground: Ground) -> None:
    ground.copy(source=ctypes.addressof(ground.plain))


def unmapped_device_memory(ground: Ground) -> None:
    driver().fake_hold(ctypes.c_void_p(ground.stream), 1)  # never done: it would be a segmentation fault
    ground.copy(target=ground.memory.address + 8 * MB)


def scratch_of_two_streams(ground: Ground) -> None:
    other = ground.device.new_stream()
    for stream in (ground.stream, other):
        ground.compute(stream, scratch=ground.memory.address + MB)
        ground.wait(stream)


def unmapping_under_a_graph(ground: Ground) -> None:
    mode = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(api().cuStreamBeginCapture(ground.stream, mode), "capture")
    ground.compute()
    graph = check(api().cuStreamEndCapture(ground.stream), "capture")
    check(api().cuGraphInstantiate(graph, 0), "graph")
    ground.memory.shrink(0)


def a_stream_that_waits_for_others(ground: Ground) -> None:
    check(api().cuStreamCreate(0), "stream")


BROKEN = [
    (on_default_stream, "work on the default stream"),
    (without_a_context, "no context is current in a thread that launches"),
    (three_batches, "a third batch on a stream"),
    (allocation_while_serving, "cuMemCreate while serving"),
    (plain_memory, "a copy of 64 bytes whose host side is not registered"),
    (unmapped_device_memory, "a copy whose device side is not mapped"),
    (scratch_of_two_streams, "is used by two streams"),
    (unmapping_under_a_graph, "memory of a captured graph is unmapped"),
    (a_stream_that_waits_for_others, "a stream that waits for the default stream"),
]


@pytest.mark.parametrize(("breaks", "says"), BROKEN, ids=[breaks.__name__ for breaks, _ in BROKEN])
def test_a_broken_rule_is_noticed(ground: Ground, breaks: Callable[[Ground], None], says: str) -> None:
    breaks(ground)
    assert any(says in text for text in violations())


def test_what_keeps_the_rules_is_not(ground: Ground) -> None:
    ground.copy()
    ground.compute(scratch=ground.memory.address + MB)
    ground.wait()
    assert violations() == []
