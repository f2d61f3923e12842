"""What the driver of the tests does and answers, where a real one would: through cuda-bindings and NVML."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pynvml
from fake_driver import MAGIC, FakeCompute, build

from service.cuda.device import Device, the_device
from service.cuda.driver import api, check
from service.cuda.memory import MB, AddressRange, Pool

OUT_OF_MEMORY, INVALID_HANDLE, NOT_READY = 2, 400, 600
UNSUPPORTED, INVALIDATED, WRONG_THREAD = 900, 901, 908

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def code(result: tuple[object, ...]) -> int:
    return int(result[0])  # type: ignore[call-overload]


def thread_local() -> object:
    return api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Rows:
    """A stream, and the same floats here (`host`) and on the device (`address`)."""

    def __init__(self, fake: ctypes.CDLL) -> None:
        self.fake = fake
        self.device = the_device()
        self.stream = self.device.new_stream()
        self.memory = AddressRange(0, 64 * MB)
        self.memory.grow(2 * MB)
        self.address = self.memory.address
        self.pinned = self.device.pinned(8192)
        floats = (ctypes.c_float * 2048).from_address(self.pinned)
        self.host = np.ctypeslib.as_array(floats)
        self.host[:] = np.arange(2048)

    def copy_in(self, count: int = 4) -> None:
        check(api().cuMemcpyHtoDAsync(self.address, self.pinned, 4 * count, self.stream), "in")

    def compute(self, count: int = 4) -> None:
        what = FakeCompute(MAGIC, 0, 0, self.address, self.address + 4096, count)
        function = ctypes.cast(self.fake.fake_affine, ctypes.c_void_p)
        launched = self.fake.cuLaunchHostFunc(self.stream, function, ctypes.addressof(what))
        check((launched,), "compute")

    def copy_out(self, count: int = 4) -> None:
        check(api().cuMemcpyDtoHAsync(self.pinned + 4096, self.address + 4096, 4 * count, self.stream), "out")

    def wait(self) -> None:
        check(api().cuStreamSynchronize(self.stream), "waiting")

    def close(self) -> None:
        check(api().cuStreamDestroy(self.stream), "stream")
        self.memory.close()
        self.device.free_pinned(self.pinned)


def test_work_on_a_stream_is_done_in_order(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    rows.copy_in()
    rows.compute()
    rows.copy_out()
    rows.wait()
    assert list(rows.host[1024:1028]) == [1, 3, 5, 7]
    check(api().cuMemsetD8Async(rows.address + 4096, 0, 8, rows.stream), "zeros")
    rows.copy_out()
    rows.wait()
    assert list(rows.host[1024:1028]) == [0, 0, 5, 7]
    rows.close()


def test_a_graph_does_what_was_captured_with_what_is_there_now(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    check(api().cuStreamBeginCapture(rows.stream, thread_local()), "capture")
    rows.copy_in()
    check(api().cuMemsetD8Async(rows.address, 0, 4, rows.stream), "zeros")
    rows.compute()
    rows.copy_out()
    graph = check(api().cuStreamEndCapture(rows.stream), "capture")
    launchable = check(api().cuGraphInstantiate(graph, 0), "graph")
    check(api().cuGraphDestroy(graph), "graph")
    rows.wait()
    assert list(rows.host[1024:1028]) == [1024, 1025, 1026, 1027]  # a capture does nothing
    rows.host[:4] = 10
    check(api().cuGraphLaunch(launchable, rows.stream), "launch")
    rows.wait()
    assert list(rows.host[1024:1028]) == [1, 21, 21, 21]
    check(api().cuGraphExecDestroy(launchable), "graph")
    rows.close()


def test_a_host_function_without_a_header_gets_its_own_data(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    seen: list[int | None] = []
    function = HostFunction(seen.append)
    value = ctypes.c_uint64(7)
    assert fake.cuLaunchHostFunc(rows.stream, function, None) == 0
    assert fake.cuLaunchHostFunc(rows.stream, function, ctypes.addressof(value)) == 0
    rows.wait()
    assert seen == [None, ctypes.addressof(value)]
    rows.close()


def test_a_held_stream_does_nothing_until_it_is_let_go(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    first, last = (check(api().cuEventCreate(0), "event") for _ in range(2))
    assert code(api().cuEventElapsedTime(first, last)) == INVALID_HANDLE  # never recorded
    fake.fake_hold(rows.stream, 1)
    for event in (first, last):
        check(api().cuEventRecord(event, rows.stream), "event")
    assert code(api().cuEventQuery(last)) == code(api().cuStreamQuery(rows.stream)) == NOT_READY
    assert code(api().cuEventElapsedTime(first, last)) == NOT_READY
    fake.fake_hold(rows.stream, 0)
    check(api().cuEventSynchronize(last), "event")
    assert code(api().cuEventQuery(last)) == 0
    assert check(api().cuEventElapsedTime(first, last), "event") >= 0
    for event in (first, last):
        check(api().cuEventDestroy(event), "event")
    rows.close()


def test_a_stream_waits_for_an_event_of_another(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    other = rows.device.new_stream()
    event = rows.device.new_event()
    fake.fake_hold(other, 1)
    check(api().cuEventRecord(event, other), "event")
    check(api().cuStreamWaitEvent(rows.stream, event, 0), "wait")
    assert code(api().cuStreamQuery(rows.stream)) == NOT_READY
    fake.fake_hold(other, 0)
    rows.wait()
    check(api().cuEventDestroy(event), "event")
    check(api().cuStreamDestroy(other), "stream")
    rows.close()


def test_what_a_capture_forbids_breaks_it(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    for forbidden in (lambda: api().cuMemAlloc(MB), lambda: api().cuStreamSynchronize(rows.stream)):
        check(api().cuStreamBeginCapture(rows.stream, thread_local()), "capture")
        assert code(forbidden()) == UNSUPPORTED
        assert code(api().cuStreamEndCapture(rows.stream)) == INVALIDATED
    rows.close()


def test_a_capture_is_its_threads_own(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    check(api().cuStreamBeginCapture(rows.stream, thread_local()), "capture")
    found: list[int] = []

    def elsewhere() -> None:
        rows.device.make_current()
        found.append(code(api().cuStreamEndCapture(rows.stream)))
        memory = check(api().cuMemAlloc(MB), "another thread may allocate")
        check(api().cuMemFree(memory), "memory")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [WRONG_THREAD]
    graph = check(api().cuStreamEndCapture(rows.stream), "capture")
    check(api().cuGraphDestroy(graph), "graph")
    rows.close()


def test_a_pool_has_no_more_than_its_size(fake: ctypes.CDLL) -> None:
    rows = Rows(fake)
    pool = Pool(0, 4 * MB)
    first = pool.allocate(3 * MB, rows.stream)
    handle = pool.handle
    assert code(api().cuMemAllocFromPoolAsync(2 * MB, handle, rows.stream)) == OUT_OF_MEMORY
    assert pool.reserved_bytes == 3 * MB
    pool.free(first, rows.stream)
    rows.wait()
    second = pool.allocate(4 * MB, rows.stream)
    pool.free(second, rows.stream)
    rows.wait()
    pool.close()
    rows.close()


def test_a_device_has_no_more_than_its_memory(fake: ctypes.CDLL) -> None:
    fake.fake_memory(ctypes.c_size_t(8 * MB))
    the_device()
    memory = check(api().cuMemAlloc(6 * MB), "memory")
    assert check(api().cuMemGetInfo(), "info") == (2 * MB, 8 * MB)
    assert code(api().cuMemAlloc(4 * MB)) == OUT_OF_MEMORY
    check(api().cuMemFree(memory), "memory")


def test_the_memory_of_two_devices_is_apart(fake: ctypes.CDLL) -> None:
    fake.fake_devices(2)
    second = Device(1)
    memory = check(api().cuMemAlloc(6 * MB), "memory")
    assert (fake.fake_used_of(0), fake.fake_used_of(1)) == (0, 6 * MB)
    assert (fake.fake_contexts(0), fake.fake_contexts(1)) == (0, 1)
    assert second.name == "cuda:1 Fake 1"
    assert second.used_bytes() == 6 * MB  # NVML found it by its bus id
    check(api().cuMemFree(memory), "memory")
    second.close()
    assert fake.fake_contexts(1) == 0


def test_a_planned_failure_comes_once_and_a_lost_device_for_good(fake: ctypes.CDLL) -> None:
    the_device()
    fake.fake_fail_next(b"cuMemAlloc_v2", OUT_OF_MEMORY)
    assert code(api().cuMemAlloc(MB)) == OUT_OF_MEMORY
    check(api().cuMemFree(check(api().cuMemAlloc(MB), "memory")), "memory")
    assert fake.fake_calls(b"cuMemAlloc_v2") == 2
    fake.fake_sticky(719)
    assert code(api().cuMemAlloc(MB)) == code(api().cuEventCreate(0)) == 719
    fake.fake_sticky(0)


def test_errors_have_names_and_sentences(fake: ctypes.CDLL) -> None:
    result = api().CUresult(OUT_OF_MEMORY)
    assert check(api().cuGetErrorName(result), "name") == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert check(api().cuGetErrorString(result), "text") == b"out of memory"


def test_a_device_says_what_it_is(fake: ctypes.CDLL) -> None:
    the_device()
    which = api().CUdevice_attribute
    capability = (which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, which.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
    assert [check(api().cuDeviceGetAttribute(one, 0), "attribute") for one in capability] == [9, 1]
    assert check(api().cuDriverGetVersion(), "version") == 13000


def test_nvml_sees_the_same_devices(fake: ctypes.CDLL) -> None:
    fake.fake_devices(2)
    the_device()
    memory = check(api().cuMemAlloc(256 * MB), "memory")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    info = pynvml.nvmlDeviceGetMemoryInfo(first, version=pynvml.nvmlMemory_v2)
    assert (info.total, info.free, info.used) == (1024 * MB, 768 * MB, 256 * MB)
    assert pynvml.nvmlDeviceGetMemoryInfo(second).used == 0
    assert pynvml.nvmlDeviceGetUtilizationRates(first).memory == 25
    assert [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(first)] == [os.getpid()]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(second) == []
    pynvml.nvmlShutdown()
    check(api().cuMemFree(memory), "memory")


ASK = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
from cuda.bindings import driver
from service.cuda._launch import has_batch_copy, open_table
open_table()
print(int(driver.cuDriverGetVersion()[1]), has_batch_copy())
"""


def test_it_can_be_built_as_an_older_driver(tmp_path: Path) -> None:
    build(tmp_path, "-DFAKE_CUDA_12")
    command = [sys.executable, "-P", "-c", ASK, str(tmp_path / "libcuda.so.1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("12080 True\n", "")
