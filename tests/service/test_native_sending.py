"""What the kernel holds of an answer that its client does not read."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from http2 import SETTINGS, WINDOW_UPDATE, Http2
from scripted import ScriptedEngine, model_spec, tensor
from waiting import wait_until
from wire import SERVICE, infer_request

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

MB = 1 << 20
INITIAL_WINDOW_SIZE = 4
SEND_BUFFER = 256 << 10  # HR_SEND_BUFFER: the kernel takes twice as much
SAME = 20  # looks in a row at which nothing has moved


def queued(port: int) -> int:
    """Bytes that sockets of this port have taken and not brought to their peers."""
    with open("/proc/net/tcp") as sockets:
        lines = [line.split() for line in sockets]
    return sum(int(line[4].split(":")[0], 16) for line in lines if line[1].endswith(f":{port:04X}"))


def test_a_client_on_the_same_machine_that_does_not_read_has_little_in_the_kernel(serve):
    spec = model_spec("wide", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", 16 * MB)], max_batch_size=1)
    service, _ = serve(ScriptedEngine(spec, lambda x: [np.full((len(x), 16 * MB), 7, np.uint8)]))
    client = Http2(service.grpc_port)
    client.send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 32 * MB))
    client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 32 * MB))
    request = infer_request("wide", x=np.ones((1, 1), np.float32)).SerializeToString()
    client.call(1, f"{SERVICE}ModelInfer", request)
    seen: list[int] = []

    def nothing_moves() -> bool:
        seen.append(queued(service.grpc_port))
        return seen[-1] > 0 and seen[-SAME:] == [seen[-1]] * SAME

    wait_until(nothing_moves, "what the client does not read to be full")
    assert seen[-1] <= 2 * SEND_BUFFER
    client.close()
