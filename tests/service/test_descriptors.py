"""More clients than a process may have descriptors: they are refused, and what is connected is served on."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from lifecycle import Server
from waiting import LIMIT_S, wait_until
from wire import Wire, infer_request, output, rows

DESCRIPTORS = 160


@pytest.fixture
def server(tmp_path, frontend) -> Iterator[Server]:
    with Server(tmp_path, descriptors=DESCRIPTORS, frontend=frontend) as running:
        yield running


def hung_up(client: socket.socket) -> bool:
    """Whether the other side has closed this connection."""
    try:
        return client.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def crowd(stack: ExitStack, port: int) -> None:
    """More connections than the front end may have descriptors, of which some are hung up on."""
    clients = [
        stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
        for _ in range(2 * DESCRIPTORS)
    ]
    for client in clients:
        client.setblocking(False)
    wait_until(lambda: sum(map(hung_up, clients)) >= DESCRIPTORS, "those that are too many hung up on")


@pytest.mark.parametrize("port", ["grpc_port", "metrics_port"])
def test_a_worker_that_dies_meanwhile_comes_back_to_the_same_front_end(server, port):
    wire = Wire(server.address)
    wire.infer(infer_request("affine", x=rows(1)))
    frontend = server.frontend()
    with ExitStack() as stack:
        crowd(stack, server.ready[port])
        os.kill(server.worker().pid, signal.SIGKILL)
        wait_until(lambda: "ready again" in server.log(), "ready again")
        assert np.array_equal(output(wire.infer(infer_request("affine", x=rows(3)))), 2 * rows(3) + 1)
        assert server.frontend() == frontend
    wire.close()


def test_who_comes_when_the_crowd_has_left_is_served(server):
    with ExitStack() as stack:
        crowd(stack, server.ready["grpc_port"])
        crowd(stack, server.ready["metrics_port"])
    wire = Wire(server.address)
    wait_until(lambda: answered(wire), "a call answered")
    wait_until(lambda: probed(server), "a probe answered")
    assert server.in_flight() == 0
    wire.close()


def answered(wire: Wire) -> bool:
    """Whether a call is answered; until those who left have been noticed, a connection may be refused."""
    try:
        answer = wire.infer(infer_request("affine", x=rows(3)))
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    assert np.array_equal(output(answer), 2 * rows(3) + 1)
    return True


def probed(server: Server) -> bool:
    """Whether the metrics port answers; the same holds for it."""
    try:
        return server.get("/readyz") == (200, "ready\n")
    except OSError:
        return False
