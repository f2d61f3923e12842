"""A real worker process with models of a repository, on the driver of the tests, which has two devices.

Every batch of a model writes the file `<model>.ran` beside the repository: the process, and how often it has
retained each device's context. The file `<model>.lose` loses the device in the model's next batch. While
there is a file `<model>.wait` the model is not loaded.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from device_models import AffineModel
from fake_driver import HostCompute, driver
from waiting import wait_until

from service.models.repository import Found
from service.worker.__main__ import main

ILLEGAL_ADDRESS = 700
DEVICES = 2
FOLDER = Path(os.environ["HEADRACE_TEST_FOLDER"])


class TellingCompute(HostCompute):
    def __init__(self, name: str) -> None:
        self._name = name

    def enqueue(self, *arguments) -> None:
        if (FOLDER / f"{self._name}.lose").exists():
            (FOLDER / f"{self._name}.lose").unlink()
            driver().fake_sticky(ILLEGAL_ADDRESS)
        contexts = [driver().fake_contexts(device) for device in range(DEVICES)]
        new = FOLDER / f"{self._name}.{threading.get_native_id()}"
        new.write_text(json.dumps({"pid": os.getpid(), "contexts": contexts}))
        new.rename(FOLDER / f"{self._name}.ran")
        super().enqueue(*arguments)


def open_one(found: Found) -> AffineModel:
    wait_until(lambda: not (FOLDER / f"{found.name}.wait").exists(), "leave to load")
    driver().fake_devices(DEVICES)
    said = found.wanted.config_json
    return AffineModel(lambda: TellingCompute(found.name), found.name, capturable=False, instances=1,
                       config_json=said)  # fmt: skip


os._exit(main(sys.argv[1:], open_one=open_one))
