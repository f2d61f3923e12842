"""The executor with one of its rules broken: the driver of the tests says so, every time.

Each mutant is the executor with one thing changed that a rule forbids. Were it not noticed, tests that pass
on that driver would say nothing of the rule.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from device_models import MB, AffineModel, device_config
from fake_driver import HostCompute, driver, violations

import service.cuda.executor as executor
import service.cuda.stream as streams
from service.client import Client
from service.cuda._launch import Pinned
from service.cuda.binding import Fixed
from service.cuda.device import Device, close_device
from service.cuda.driver import api, check
from service.cuda.memory import Pool
from service.cuda.model import Place
from service.inprocess import running


@pytest.fixture(autouse=True)
def after() -> Iterator[None]:
    """What a mutant leaves is nobody's fault."""
    driver().fake_reset()
    yield
    driver().fake_reset()
    with suppress(Exception):
        close_device()


def affine(**settings) -> AffineModel:
    return AffineModel(HostCompute, "affine", **settings)


def serves(**settings) -> None:
    """A model is loaded, asked once, and unloaded."""
    with running([affine(**settings)], device_config()) as service:
        driver().fake_serving(1)
        with Client(service.address, timeout_s=20) as client:
            width = 2000 if -1 in settings.get("dims", ()) else settings.get("dims", (4,))[0]
            client.infer("affine", {"x": np.ones((1, width), np.float32)})
        driver().fake_serving(0)


def patched(monkeypatch, owner: object, name: str, value: object) -> None:
    monkeypatch.setattr(owner, name, value)


def default_stream(monkeypatch) -> None:
    patched(monkeypatch, Device, "new_stream", lambda self: 0)


def waiting_stream(monkeypatch) -> None:
    patched(monkeypatch, Device, "new_stream", lambda self: int(check(api().cuStreamCreate(0), "stream")))


def no_wait_between_warm_ups(monkeypatch) -> None:
    """More than two batches are on a stream that does nothing meanwhile."""
    new_stream, held = Device.new_stream, []

    def holding(self: Device) -> int:
        held.append(new_stream(self))
        driver().fake_hold(held[-1], 1)
        return held[-1]

    def go_on(self, id, binding, size) -> None:
        for stream in held:
            driver().fake_hold(stream, 0)

    patched(monkeypatch, Device, "new_stream", holding)
    patched(monkeypatch, streams.DeviceStream, "_wait", lambda self: None)
    warm = streams.DeviceStream.warm

    def warm_and_go_on(self, *arguments, **more) -> None:
        warm(self, *arguments, **more)
        go_on(self, 0, None, 0)

    patched(monkeypatch, streams.DeviceStream, "warm", warm_and_go_on)
    patched(monkeypatch, streams.DeviceStream, "_capture", lambda self, id, binding, size: None)


def memory_from_the_driver_while_serving(monkeypatch) -> None:
    patched(
        monkeypatch, Pool, "allocate", lambda self, size, stream: int(check(api().cuMemAlloc(size), "memory"))
    )


def arenas_that_are_not_pinned(monkeypatch) -> None:
    patched(monkeypatch, executor.Executor, "attach_lane", lambda self, number: None)


def outputs_pinned_as_read_only(monkeypatch) -> None:
    class ReadOnly(Pinned):
        def register(self, address: int, size: int, read_only: bool = False) -> None:
            super().register(address, size, True)

    patched(monkeypatch, executor, "Pinned", ReadOnly)


def one_scratch_for_all_streams(monkeypatch) -> None:
    first: list[int] = []

    def place(stream: int, scratch: int, size: int) -> Place:
        first.append(scratch)
        return Place(stream, first[0], size)

    patched(monkeypatch, streams, "Place", place)


def threads_without_the_context(monkeypatch) -> None:
    make_current = Device.make_current

    def in_the_first_thread(self: Device) -> None:
        if threading.current_thread() is threading.main_thread():
            make_current(self)

    patched(monkeypatch, Device, "make_current", in_the_first_thread)


def no_room_for_inputs_and_outputs(monkeypatch) -> None:
    patched(monkeypatch, streams, "io_bytes", lambda model: 0)


def graphs_that_outlive_their_model(monkeypatch) -> None:
    patched(monkeypatch, Fixed, "close", lambda self: self._context.close())


MUTANTS: list[tuple[Callable, str, dict]] = [
    (default_stream, "work on the default stream", {}),
    (waiting_stream, "a stream that waits for the default stream", {}),
    (no_wait_between_warm_ups, "a third batch on a stream", {}),
    (memory_from_the_driver_while_serving, "cuMemAlloc while serving", {"dims": (-1,)}),
    (arenas_that_are_not_pinned, "whose host side is not registered", {"dims": (300_000,)}),
    (outputs_pinned_as_read_only, "a copy to memory that is registered as read-only", {}),
    (one_scratch_for_all_streams, "is used by two streams", {}),
    (threads_without_the_context, "no context is current in a thread that launches", {}),
    (no_room_for_inputs_and_outputs, "a copy whose device side is not mapped", {}),
    (graphs_that_outlive_their_model, "memory of a captured graph is unmapped", {}),
]


@pytest.mark.parametrize(
    ("mutate", "says", "model"), MUTANTS, ids=[mutate.__name__ for mutate, *_ in MUTANTS]
)
def test_a_mutant_is_noticed(monkeypatch, mutate: Callable, says: str, model: dict) -> None:
    mutate(monkeypatch)
    with suppress(Exception):  # what it breaks besides is its own affair
        serves(**{"longest": 8 * MB, **model})
    found = violations()
    assert any(says in text for text in found), found


@pytest.mark.parametrize("model", [{}, {"dims": (-1,)}, {"dims": (300_000,)}])
def test_what_is_mutated_is_right_before(model: dict) -> None:
    serves(**{"longest": 8 * MB, **model})
    assert violations() == []
