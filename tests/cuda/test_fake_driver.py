"""The driver of the tests notices each rule that is broken: otherwise its silence would say nothing."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_driver import MAGIC, FakeCompute, driver, violations

from service.cuda.device import close_device, the_device
from service.cuda.driver import api, check
from service.cuda.memory import MB, AddressRange, Pool


class Ground:
    """A device with a stream, memory on both sides, and a computation."""

    def __init__(self) -> None:
        driver().fake_devices(2)
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

    def graph(self, work: Callable[[], None]) -> Any:
        """What `work` puts on the stream, as a graph that can be launched."""
        mode = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(api().cuStreamBeginCapture(self.stream, mode), "capture")
        work()
        graph = check(api().cuStreamEndCapture(self.stream), "capture")
        launchable = check(api().cuGraphInstantiate(graph, 0), "graph")
        check(api().cuGraphDestroy(graph), "graph")
        return launchable

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
    driver().fake_hold(ground.stream, 1)
    for _ in range(3):
        ground.copy()
        ground.compute()
    driver().fake_hold(ground.stream, 0)
    ground.wait()


def allocation_while_serving(ground: Ground) -> None:
    driver().fake_serving(1)
    ground.memory.grow(8 * MB)


def plain_memory(ground: Ground) -> None:
    ground.copy(source=ctypes.addressof(ground.plain))


def unmapped_device_memory(ground: Ground) -> None:
    ground.copy(target=ground.memory.address + 8 * MB)


def scratch_of_two_streams(ground: Ground) -> None:
    other = ground.device.new_stream()
    for stream in (ground.stream, other):
        ground.compute(stream, scratch=ground.memory.address + MB)
        ground.wait(stream)


def unmapping_under_a_graph(ground: Ground) -> None:
    ground.graph(ground.compute)
    ground.memory.shrink(0)


def freeing_under_a_graph(ground: Ground) -> None:
    memory = int(check(api().cuMemAlloc(MB), "memory"))
    ground.graph(lambda: ground.copy(target=memory))
    check(api().cuMemFree(memory), "memory")


def unmapping_under_work(ground: Ground) -> None:
    driver().fake_hold(ground.stream, 1)
    ground.copy()
    ground.memory.shrink(0)


def unpinning_under_work(ground: Ground) -> None:
    driver().fake_hold(ground.stream, 1)
    ground.copy()
    ground.device.free_pinned(ground.host)


def writing_read_only_memory(ground: Ground) -> None:
    place = ctypes.addressof(ground.plain)
    read_only = api().CU_MEMHOSTREGISTER_READ_ONLY
    check(api().cuMemHostRegister(place, 64, read_only), "pinning")
    check(api().cuMemcpyDtoHAsync(place, ground.memory.address, 64, ground.stream), "copy")


def use_after_a_free(ground: Ground) -> None:
    pool = Pool(0)
    memory = pool.allocate(MB, ground.stream)
    driver().fake_hold(ground.stream, 1)
    pool.free(memory, ground.stream)
    ground.copy(target=memory)


def memory_of_another_device(ground: Ground) -> None:
    other = AddressRange(1, 64 * MB)
    other.grow(4 * MB)
    ground.copy(target=other.address)


def a_stream_that_is_gone(ground: Ground) -> None:
    check(api().cuStreamDestroy(ground.stream), "stream")
    ground.copy()


def a_graph_that_is_gone(ground: Ground) -> None:
    graph = ground.graph(ground.compute)
    check(api().cuGraphExecDestroy(graph), "graph")
    api().cuGraphLaunch(graph, ground.stream)


def an_allocation_without_a_context(ground: Ground) -> None:
    thread = threading.Thread(target=lambda: api().cuMemAlloc(MB))
    thread.start()
    thread.join()


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
    (freeing_under_a_graph, "memory of a captured graph is freed"),
    (unmapping_under_work, "memory that work on a stream uses is unmapped"),
    (unpinning_under_work, "memory that work on a stream uses is unpinned"),
    (writing_read_only_memory, "a copy to memory that is registered as read-only"),
    (use_after_a_free, "a copy whose device side is not mapped"),
    (memory_of_another_device, "work on a stream of device 0 uses memory of device 1"),
    (a_stream_that_is_gone, "work on a stream that is not there"),
    (a_stream_that_waits_for_others, "a stream that waits for the default stream"),
    (a_graph_that_is_gone, "a graph is launched that is not there"),
    (an_allocation_without_a_context, "no context is current in a thread that launches or allocates"),
]


@pytest.mark.parametrize(("breaks", "says"), BROKEN, ids=[breaks.__name__ for breaks, _ in BROKEN])
def test_a_broken_rule_is_noticed(ground: Ground, breaks: Callable[[Ground], None], says: str) -> None:
    breaks(ground)
    assert any(says in text for text in violations())


def two_batches(ground: Ground) -> None:
    driver().fake_hold(ground.stream, 1)
    for _ in range(2):
        ground.copy()
        ground.copy(target=ground.memory.address + 64)
        ground.compute()
        check(api().cuMemcpyDtoHAsync(ground.host, ground.memory.address, 64, ground.stream), "copy")
    driver().fake_hold(ground.stream, 0)
    ground.wait()


def scratch_of_one_stream(ground: Ground) -> None:
    for _ in range(2):
        ground.compute(scratch=ground.memory.address + MB)
        ground.wait()


def pools_while_serving(ground: Ground) -> None:
    pool = Pool(0)
    driver().fake_serving(1)
    memory = pool.allocate(MB, ground.stream)
    ground.copy(target=memory)
    pool.free(memory, ground.stream)
    ground.wait()
    pool.close()


def memory_that_grew_in_place(ground: Ground) -> None:
    ground.memory.grow(8 * MB)  # a copy over the seam of two mappings
    ground.copy(target=ground.memory.address + 4 * MB - 32)
    ground.wait()


def unmapping_when_the_graph_is_gone(ground: Ground) -> None:
    graph = ground.graph(ground.compute)
    check(api().cuGraphLaunch(graph, ground.stream), "graph")
    ground.wait()
    check(api().cuGraphExecDestroy(graph), "graph")
    ground.memory.shrink(0)


def plain_memory_where_that_is_expected(ground: Ground) -> None:
    driver().fake_pageable(1)
    plain_memory(ground)
    ground.wait()


KEPT = [
    two_batches,
    scratch_of_one_stream,
    pools_while_serving,
    memory_that_grew_in_place,
    unmapping_when_the_graph_is_gone,
    plain_memory_where_that_is_expected,
]


@pytest.mark.parametrize("keeps", KEPT)
def test_what_keeps_the_rules_is_not(ground: Ground, keeps: Callable[[Ground], None]) -> None:
    keeps(ground)
    assert violations() == []
