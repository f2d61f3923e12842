"""libcuda, through cuda-bindings: whether there is a driver, and what its results mean.

Every call of the driver API returns a tuple whose first member is its result; `check` takes the rest out of
it, or raises. `cuda.bindings` is imported only here, at the first use: a service without such models never
loads it, and on a machine without a driver the user gets a sentence.
"""

from __future__ import annotations

from functools import cache
from typing import Any

OUT_OF_MEMORY = 2

# After these the context is lost: every later call fails with the same error, until the process ends.
STICKY = {
    4: "CUDA_ERROR_DEINITIALIZED",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    220: "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    710: "CUDA_ERROR_ASSERT",
    714: "CUDA_ERROR_HARDWARE_STACK_ERROR",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    717: "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    718: "CUDA_ERROR_INVALID_PC",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    721: "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    999: "CUDA_ERROR_UNKNOWN",
}


class NoDriver(Exception):
    """No device can be used here. One sentence for a person: what is missing, what to do."""


class DriverError(Exception):
    """A call of the driver failed. `code`: the CUresult; `name`: as CUDA's documentation has it."""

    def __init__(self, code: int, name: str, what: str) -> None:
        super().__init__(f"{what}: {name} ({code})")
        self.code = code
        self.name = name
        self.what = what

    @property
    def is_sticky(self) -> bool:
        return is_sticky(self.code)


def is_sticky(code: int) -> bool:
    """Whether nothing runs on the context any more after this result."""
    return code in STICKY


@cache
def api() -> Any:
    """The module `cuda.bindings.driver`, after cuInit. Raises NoDriver; a failure is not remembered."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoDriver(
            "cuda-bindings is not installed, and models on a device need it: pip install 'headrace[tensorrt]'"
        ) from error
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:  # cuda-pathfinder's: no libcuda.so.1
        raise NoDriver(
            "there is no NVIDIA driver on this machine (libcuda.so.1 was not found); install it, or run the "
            "container with its GPUs (docker run --gpus all)"
        ) from error
    if int(result):
        raise NoDriver(
            "the NVIDIA driver finds no device that can be used: cuInit says "
            f"{result_name(int(result))} ({int(result)}); see nvidia-smi, and CUDA_VISIBLE_DEVICES"
        )
    return driver


def result_name(code: int) -> str:
    """The name of a CUresult, as CUDA's documentation has it."""
    from cuda.bindings import driver

    try:
        return str(driver.CUresult(code).name)
    except ValueError:
        return f"CUresult {code}"


def device_names() -> list[str]:
    """A word on each device: number, name, memory. Raises NoDriver."""
    driver, found = api(), []
    for index in range(int(check(driver.cuDeviceGetCount(), "counting devices"))):
        handle = check(driver.cuDeviceGet(index), f"opening device {index}")
        memory = int(check(driver.cuDeviceTotalMem(handle), "asking for its memory"))
        found.append(f"cuda:{index} {name_of(handle)}, {memory >> 20:,} MB")
    return found


def name_of(handle: Any) -> str:
    """What a device is called, as in "NVIDIA H200"."""
    name: bytes = check(api().cuDeviceGetName(256, handle), "naming a device")
    return text_of(name)


def text_of(field: bytes) -> str:
    """Of a C string in a field of fixed size."""
    return field.partition(b"\0")[0].decode("utf-8", "replace")


def check(result: tuple[Any, ...], what: str) -> Any:
    """What a call returned: its value, a tuple of several, None without any. `what` was tried, for people.

    Raises DriverError.
    """
    code, *values = result
    if int(code):
        raise DriverError(int(code), result_name(int(code)), what)
    if len(values) > 1:
        return tuple(values)
    return values[0] if values else None
