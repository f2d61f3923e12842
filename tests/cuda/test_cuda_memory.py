"""A model's account: what a load took, against its cap and what the device has free."""

from __future__ import annotations

import threading

import pytest

from service.cuda.driver import OUT_OF_MEMORY, DriverError
from service.cuda.memory import MB, ModelMemory, NoRoom, Reading


class ScriptedMeter:
    """A device of `total` bytes of which the test says how many are used."""

    def __init__(self, total: int = 1000 * MB) -> None:
        self.total = total
        self.used = 0

    def read(self) -> Reading:
        return Reading(self.used, self.total - self.used)


def _account(meter: ScriptedMeter, limit: int = 0) -> ModelMemory:
    return ModelMemory(0, "resnet", limit, meter, threading.RLock())


def test_loads_add_up() -> None:
    meter = ScriptedMeter()
    account = _account(meter)
    for took in (100 * MB, 20 * MB):
        with account.loading():
            meter.used += took
    assert account.loaded_bytes == 120 * MB


def test_what_others_free_meanwhile_is_no_credit() -> None:
    meter = ScriptedMeter()
    meter.used = 300 * MB
    account = _account(meter)
    with account.loading():
        meter.used -= 200 * MB
    assert account.loaded_bytes == 0


def test_a_load_beyond_the_cap_is_refused_with_the_numbers() -> None:
    meter = ScriptedMeter()
    account = _account(meter, 500 * MB)
    needs = "model 'resnet' needs 812 MB on device 0"
    expected = f"^{needs}; gpu_memory_limit is 500 MB, and 188 MB of the device are free$"
    with pytest.raises(NoRoom, match=expected), account.loading():
        meter.used += 812 * MB


def test_a_load_that_the_device_has_no_room_for_is_refused_with_the_numbers() -> None:
    account = _account(ScriptedMeter())
    expected = (
        "needs 0 MB on device 0 and more; it has no gpu_memory_limit, and 1,000 MB of the device are free"
    )
    with pytest.raises(NoRoom, match=expected), account.loading():
        raise DriverError(OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "taking 2,000 MB")


def test_other_errors_of_a_load_are_themselves() -> None:
    with pytest.raises(DriverError), _account(ScriptedMeter()).loading():
        raise DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "copying")


@pytest.mark.parametrize(("limit", "needed"), [(500, 600), (0, 1001), (500, 500)])
def test_what_will_not_fit_is_refused_beforehand(limit: int, needed: int) -> None:
    with pytest.raises(NoRoom, match=f"needs {needed:,} MB"):
        _account(ScriptedMeter(), limit * MB).require(needed * MB)


def test_what_will_fit_is_not() -> None:
    _account(ScriptedMeter(), 500 * MB).require(499 * MB)
    _account(ScriptedMeter()).require(1000 * MB)


def test_loads_come_one_at_a_time() -> None:
    meter, lock = ScriptedMeter(), threading.RLock()
    first, second = (ModelMemory(0, name, 0, meter, lock) for name in "ab")

    def load() -> None:
        with second.loading():
            meter.used += 5 * MB

    thread = threading.Thread(target=load)
    with first.loading():
        thread.start()
        meter.used += 7 * MB
    thread.join(60)
    assert (first.loaded_bytes, second.loaded_bytes) == (7 * MB, 5 * MB)
