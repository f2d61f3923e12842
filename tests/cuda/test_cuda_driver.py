"""What the results of the driver mean, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.cuda.driver import DriverError, check, is_sticky

ASK = "from service.cuda.driver import NoDriver, api\ntry:\n    api()\nexcept NoDriver as e:\n    print(e)"


def test_values_come_out_of_a_result() -> None:
    assert check((0,), "") is None
    assert check((0, 7), "") == 7
    assert check((0, 7, 8), "") == (7, 8)


def test_a_failure_says_what_was_tried_and_what_the_driver_said() -> None:
    with pytest.raises(DriverError, match=r"^taking memory: CUDA_ERROR_OUT_OF_MEMORY \(2\)$") as failed:
        check((2,), "taking memory")
    assert (failed.value.code, failed.value.is_sticky) == (2, False)


@pytest.mark.parametrize("name", ["ILLEGAL_ADDRESS", "LAUNCH_FAILED", "ECC_UNCORRECTABLE", "ASSERT"])
def test_errors_that_lose_the_context(name: str) -> None:
    from cuda.bindings import driver

    assert is_sticky(int(getattr(driver.CUresult, f"CUDA_ERROR_{name}")))


@pytest.mark.parametrize(
    "name", ["OUT_OF_MEMORY", "INVALID_VALUE", "NOT_READY", "STREAM_CAPTURE_INVALIDATED"]
)
def test_errors_that_do_not(name: str) -> None:
    from cuda.bindings import driver

    assert not is_sticky(int(getattr(driver.CUresult, f"CUDA_ERROR_{name}")))


def test_without_a_driver_there_is_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", ASK], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    if not done.stdout:
        pytest.skip("this machine has a driver")
    assert done.stdout.startswith("there is no NVIDIA driver on this machine (libcuda.so.1 was not found)")


def test_devices_are_named_with_their_memory(fake) -> None:
    from service.cuda.driver import device_names

    fake.fake_devices(2)
    fake.fake_memory(3 << 30)
    first, second = device_names()
    assert first.startswith("cuda:0 ") and second.startswith("cuda:1 ")
    assert first.endswith(", 3,072 MB")
