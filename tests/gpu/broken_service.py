"""A service in this process whose model breaks its device when the test says so; for a process of its own.

Prints, one a line: what a client is told, and what the worker ends with.
"""

from __future__ import annotations

import threading

import numpy as np
from device_models import AffineModel, device_config
from ptx import PtxCompute

from service.client import Client, ClientError
from service.cuda.device import the_device
from service.inprocess import running


def main() -> None:
    model = AffineModel(PtxCompute, capturable=False)
    ended, why = threading.Event(), []
    with running([model], device_config()) as service, Client(service.address) as client:
        the_device().on_broken = lambda text: (why.append(text), ended.set())
        model.compute._nowhere = True
        try:
            client.infer("affine", {"x": np.ones((1, 4), np.float32)})
        except ClientError as error:
            print(f"told: {error}", flush=True)
        ended.wait(60)
        print(f"ended: {why}", flush=True)


main()
