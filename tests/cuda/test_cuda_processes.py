"""A whole service of real processes whose worker has a device, on the driver of the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import LIMIT_S, wait_until

from service.client import Client, ClientError, RpcFailed
from service.config import ServeConfig

WORKER = Path(__file__).with_name("device_worker.py")
SCRIPT = """
import sys
from service.config import ServeConfig
from service.supervisor import COMMANDS, WORKER, serve
sys.exit(serve(ServeConfig.from_json(sys.argv[1]), {**COMMANDS, WORKER: [sys.executable, sys.argv[2]]}))
"""


def test_a_lost_device_costs_its_batch_and_another_worker_serves(tmp_path: Path) -> None:
    (tmp_path / "affine.onnx").touch()
    ready, ours = os.pipe()
    config = ServeConfig((str(tmp_path / "affine.onnx"),), grpc_port=0, metrics_port=0, arena_mb=16,
                         output_arena_mb=16, ready_fd=ours)  # fmt: skip
    with open(tmp_path / "log", "w+") as log:
        command = [sys.executable, "-P", "-c", SCRIPT, config.to_json(), str(WORKER)]
        server = subprocess.Popen(command, pass_fds=[ours], stdout=log, stderr=log)
        os.close(ours)
        try:
            with open(ready) as line:
                said = json.loads(line.readline())
            with Client(f"127.0.0.1:{said['grpc_port']}") as client:
                lose_and_serve_again(client, tmp_path / "lose")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(LIMIT_S)
        log.seek(0)
        text = log.read()
    assert ", devices cuda:0 Fake 0\n" in text
    assert "cuda:0 Fake 0 is lost to this process: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in text
    assert server.returncode == 0, text


def lose_and_serve_again(client: Client, lose: Path) -> None:
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(client.infer("affine", {"x": x}).outputs["y"], 2 * x + 1)
    lose.touch()
    with pytest.raises(RpcFailed) as refused:
        client.infer("affine", {"x": x})
    assert refused.value.code == "UNAVAILABLE"

    def serves() -> bool:
        try:
            return np.array_equal(client.infer("affine", {"x": x}).outputs["y"], 2 * x + 1)
        except ClientError:
            return False

    wait_until(serves, "the next worker")
