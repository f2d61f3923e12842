"""Memory of a device: ranges that grow where they are, a pool per model, and what a model may take.

    AddressRange   addresses reserved once, memory mapped behind what is there: nothing in it ever moves, so
                   captured graphs stay valid; scratch and I/O buffers of the streams lie in such ranges
    Pool           what an engine allocates while it runs, in the order of a stream (cuMemAllocFromPoolAsync);
                   its size is bounded by the driver itself
    ModelMemory    a model's account: what the device saw its load take, its pool, and its cap

A model's cap (`gpu_memory_limit` of its config) covers both: the pool gets what the load has left of it.
Loads come one at a time on a device, so that what the device has less of after one is what this one took. A
load that makes a shared range grow is charged for that growth: without it the model could not run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from service.cuda.driver import OUT_OF_MEMORY, DriverError, api, check
from service.errors import StartError

MB = 1 << 20
KEPT_BYTES = 64 * MB  # what a pool keeps of freed memory, for the next allocation (release threshold)


class NoRoom(StartError):
    """A model that does not fit, with the numbers: needed, cap, free."""


class Reading(NamedTuple):
    """Bytes of the device, whoever has them."""

    used: int
    free: int


def megabytes(count: int) -> str:
    return f"{-(-count // MB):,} MB"


class Meter:
    """Reads how much of a device is in use: NVML's word, which counts everything in every process; the
    driver's own where there is no NVML.
    """

    def __init__(self, bus_id: str) -> None:
        self._nvml: Any = None
        try:
            import pynvml as nvml

            nvml.nvmlInit()
        except Exception:  # not installed, no library, not permitted: the driver's numbers serve
            return
        try:
            self._handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
            self._nvml = nvml
        except Exception:
            nvml.nvmlShutdown()

    def read(self) -> Reading:
        """Now. The context is current where NVML is missing."""
        if self._nvml is not None:
            info = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            return Reading(int(info.used), int(info.free))
        free, total = check(api().cuMemGetInfo(), "asking for free memory")
        return Reading(int(total) - int(free), int(free))

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


class AddressRange:
    """`reserve` bytes of addresses on device `index`; the first `bytes` of them are memory."""

    def __init__(self, index: int, reserve: int) -> None:
        driver = api()
        kinds = driver.CUmemAllocationType, driver.CUmemLocationType
        self._prop = driver.CUmemAllocationProp()
        self._prop.type = kinds[0].CU_MEM_ALLOCATION_TYPE_PINNED
        self._prop.location.type = kinds[1].CU_MEM_LOCATION_TYPE_DEVICE
        self._prop.location.id = index
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity = driver.cuMemGetAllocationGranularity(self._prop, flag)
        self._granularity = int(check(granularity, "asking for a granularity"))
        self._reserved = self._rounded(reserve)
        self._parts: list[tuple[int, int]] = []  # offset and bytes of each mapping
        self.address = int(check(driver.cuMemAddressReserve(self._reserved, 0, 0, 0), "reserving addresses"))

    @property
    def bytes(self) -> int:
        """Bytes of memory there are, from `address` on."""
        return sum(size for _, size in self._parts)

    def _rounded(self, size: int) -> int:
        return -(-size // self._granularity) * self._granularity

    def growth(self, size: int) -> int:
        """Bytes of memory that `grow(size)` would take."""
        return max(0, self._rounded(size) - self.bytes)

    def grow(self, size: int) -> None:
        """Has at least `size` bytes from now on. Raises DriverError, and then is as before."""
        more = self.growth(size)
        if not more:
            return
        if self.bytes + more > self._reserved:
            raise ValueError(f"{size} bytes in a range of {self._reserved}")
        driver, offset = api(), self.bytes
        place = self.address + offset
        memory = check(driver.cuMemCreate(more, self._prop, 0), f"taking {megabytes(more)}")
        try:
            check(driver.cuMemMap(place, more, 0, memory, 0), "mapping memory")
        finally:
            check(driver.cuMemRelease(memory), "letting go of memory")  # the mapping holds it
        access = driver.CUmemAccessDesc()
        access.location = self._prop.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            check(driver.cuMemSetAccess(place, more, [access], 1), "opening memory")
        except DriverError:
            check(driver.cuMemUnmap(place, more), "unmapping memory")
            raise
        self._parts.append((offset, more))

    def shrink(self, size: int) -> None:
        """Gives back what lies beyond `size` bytes, as far as it was mapped by itself. Nothing uses it."""
        while self._parts and self._parts[-1][0] >= self._rounded(size):
            offset, mapped = self._parts.pop()
            check(api().cuMemUnmap(self.address + offset, mapped), "unmapping memory")

    def close(self) -> None:
        self.shrink(0)
        check(api().cuMemAddressFree(self.address, self._reserved), "freeing addresses")


class Pool:
    """A model's pool on device `index`: at most `limit` bytes; 0: as many as there are."""

    def __init__(self, index: int, limit: int = 0) -> None:
        driver = api()
        props = driver.CUmemPoolProps()
        props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = index
        props.maxSize = limit
        self.limit = limit
        self.handle = check(driver.cuMemPoolCreate(props), "making a memory pool")
        keep = driver.cuuint64_t(KEPT_BYTES)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        check(driver.cuMemPoolSetAttribute(self.handle, threshold, keep), "setting a release threshold")

    @property
    def reserved_bytes(self) -> int:
        """What the pool has of the device, in use or kept."""
        current = api().CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        return int(check(api().cuMemPoolGetAttribute(self.handle, current), "asking a pool for its size"))

    def allocate(self, size: int, stream: int) -> int:
        """The address of memory that work on `stream` may use from now on. Raises DriverError."""
        of = megabytes(self.limit) if self.limit else "any size"
        what = f"allocating {megabytes(size)} from a pool of {of}"
        return int(check(api().cuMemAllocFromPoolAsync(size, self.handle, stream), what))

    def free(self, address: int, stream: int) -> None:
        """Gives memory back when what is on the stream now is done."""
        check(api().cuMemFreeAsync(address, stream), "freeing memory of a pool")

    def close(self) -> None:
        """Everything in it was given back."""
        check(api().cuMemPoolTrimTo(self.handle, 0), "trimming a memory pool")
        check(api().cuMemPoolDestroy(self.handle), "ending a memory pool")


class ModelMemory:
    """What one model has on its device, and what it may have.

    `index`: the device's number. `limit`: its cap in bytes; 0: none. `loading`: the device's lock on loads.
    An engine that allocates gets `pool`; it is made at the first use, with what the loads so far have left of
    the cap.
    """

    def __init__(self, index: int, name: str, limit: int, meter: Meter, loading: threading.RLock) -> None:
        self.index = index
        self._name = name
        self.limit = limit
        self._meter = meter
        self._loading = loading
        self._pool: Pool | None = None
        self.is_loading = False  # what is taken without a stream is counted, by `loading`
        self.loaded_bytes = 0
        self.held_bytes = 0  # after the last load: what that took, and its pool
        self.told_of_fallbacks = False  # that copies for it came from memory that is not pinned

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.index, max(0, self.limit - self.loaded_bytes) if self.limit else 0)
        return self._pool

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Around anything that takes memory for good: a load, its contexts, its graphs. Counts what it took.
        Raises NoRoom when that is more than the cap, or when the device had no more.
        """
        with self._loading:
            before, pooled = self._meter.read(), self._pooled()
            outer, self.is_loading = self.is_loading, True
            try:
                yield
            except DriverError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                raise self._refused(self.loaded_bytes, before.free, str(error)) from error
            finally:
                self.is_loading = outer
            took = self._meter.read().used - before.used - (self._pooled() - pooled)
            self.loaded_bytes += max(0, took)
            self.held_bytes = self.loaded_bytes + self._pooled()
            if self.limit and self.loaded_bytes >= self.limit:
                raise self._refused(self.loaded_bytes, self._meter.read().free)

    def _pooled(self) -> int:
        """What the pool has, which its own limit bounds."""
        return self._pool.reserved_bytes if self._pool is not None else 0

    def require(self, needed: int) -> None:
        """Raises NoRoom when `needed` more bytes are more than the cap leaves or than the device has free."""
        free = self._meter.read().free
        if needed > free or (self.limit and self.loaded_bytes + needed >= self.limit):
            raise self._refused(self.loaded_bytes + needed, free)

    def _refused(self, needed: int, free: int, why: str = "") -> NoRoom:
        cap = f"gpu_memory_limit is {megabytes(self.limit)}" if self.limit else "it has no gpu_memory_limit"
        needs = f"needs {megabytes(needed)} on device {self.index}" + (" and more" if why else "")
        what = f"model '{self._name}' {needs}; {cap}, and {megabytes(free)} of the device are free"
        return NoRoom(f"{what} ({why})" if why else what)

    def close(self) -> None:
        """The model is gone."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
