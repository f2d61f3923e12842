"""Clients that die without a word, in numbers: nothing of theirs stays, and nobody else notices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from lifecycle import Server
from waiting import wait_until
from wire import Wire, infer_request, output, rows

CLIENT = str(Path(__file__).parent / "many_streams.py")
DEATHS, STREAMS = 100, 100
MAX_CALLS = 10 * STREAMS  # what the dead would leave open could not hide for long


@contextmanager
def client(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """A client with STREAMS open streams and one request sent on each, killed when left."""
    command = [sys.executable, "-E", CLIENT, str(server.ready["grpc_port"]), str(STREAMS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            process.stdin.write(infer_request("affine", x=rows(1), id="last words").SerializeToString())
            process.stdin.close()
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_hundred_clients_are_killed_with_a_hundred_open_streams_each(tmp_path, frontend):
    """Every other one while the model holds its requests, the rest when they have their answers."""
    with Server(tmp_path, max_calls=MAX_CALLS, frontend=frontend) as server:
        wire = Wire(server.address)
        wire.infer(infer_request("affine", x=rows(1)))
        processes = [server.frontend(), server.worker()]
        open_before = [process.num_fds() for process in processes]
        for _ in range(DEATHS // 2):
            with client(server) as answered:
                assert answered.stdout.readline() == b"answered\n"
            server.shut()
            with client(server):
                wait_until(lambda: server.in_flight() == STREAMS, "every request with the worker")
            server.open()
            wait_until(lambda: server.in_flight() == 0, "the dead client's requests gone")
        stream = wire.stream().send(infer_request("affine", x=rows(2), id="alive")).half_close()
        (answer,) = stream.rest()
        assert answer.infer_response.id == "alive"
        assert np.array_equal(output(answer.infer_response), 2 * rows(2) + 1)
        assert [server.frontend(), server.worker()] == processes
        wait_until(lambda: [process.num_fds() for process in processes] == open_before, "descriptors closed")
        assert "Traceback" not in server.log()
        wire.close()
