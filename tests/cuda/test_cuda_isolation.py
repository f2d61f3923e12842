"""A model that is busy on its one stream leaves the others to other models."""

from __future__ import annotations

import ctypes
import threading

from device_models import AffineModel, ask_from_threads, device_config
from fake_driver import HostCompute

from service.inprocess import running


def test_a_model_with_one_instance_leaves_streams_to_others(fake: ctypes.CDLL) -> None:
    held, go = threading.Event(), threading.Event()
    busy = AffineModel(HostCompute, "busy", capturable=False, instances=1)
    other = AffineModel(HostCompute, "other")
    with running([busy, other], device_config()) as service:
        enqueue = busy.compute.enqueue

        def wait_first(*arguments) -> None:
            held.set()
            assert go.wait(10)
            enqueue(*arguments)

        busy.compute.enqueue = wait_first
        waiting = threading.Thread(target=ask_from_threads, args=(service.address, ["busy"], 8, 1))
        waiting.start()
        assert held.wait(10)
        assert ask_from_threads(service.address, ["other"], 2, 20) == []
        go.set()
        waiting.join(60)  # what waited behind it is launched when its slot is free, by whoever freed it
        assert not waiting.is_alive()
