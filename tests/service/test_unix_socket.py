"""--grpc-unix-socket: the service behind a file, beside its port."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from lifecycle import Server
from scripted import affine
from waiting import wait_until
from wire import Wire, infer_request, output, rows

from service.config import ServeConfig
from service.errors import ConfigError, StartError
from service.inprocess import running


def check(address: str) -> None:
    wire = Wire(address)
    x = rows(2)
    assert np.array_equal(output(wire.infer(infer_request("affine", x=x))), 2 * x + 1)
    wire.close()


def bound(path: Path, listening: bool) -> socket.socket:
    there = socket.socket(socket.AF_UNIX)
    there.bind(str(path))
    if listening:
        there.listen(1)
    return there


def config_of(frontend: str, path: Path) -> ServeConfig:
    return ServeConfig((), frontend=frontend, grpc_port=0, metrics_port=0, grpc_unix_socket=str(path))


def test_it_is_served_beside_the_port_and_is_gone_with_the_server(frontend, tmp_path):
    path = tmp_path / "grpc.sock"
    with running([affine()], config_of(frontend, path)) as service:
        check(f"unix:{path}")
        check(service.address)
    assert not path.exists()


def test_what_a_dead_server_left_is_taken_over(serve, tmp_path):
    path = tmp_path / "grpc.sock"
    bound(path, listening=True).close()  # as kill -9 leaves it
    assert path.is_socket()
    serve(affine(), grpc_unix_socket=str(path))
    check(f"unix:{path}")


def refusal(frontend: str, path: Path) -> str:
    with pytest.raises(StartError) as caught:
        with running([affine()], config_of(frontend, path)):
            pass
    return str(caught.value)


def test_a_server_that_lives_keeps_its_socket(frontend, tmp_path):
    path = tmp_path / "grpc.sock"
    with bound(path, listening=True) as other:
        assert "another server does" in refusal(frontend, path)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:  # those who asked whether it lives have gone again
                other.accept()[0].close()
        socket.socket(socket.AF_UNIX).connect(str(path))


def test_a_file_that_is_no_socket_stays(frontend, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    assert f"{path}: it is there and no socket" in refusal(frontend, path)
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there(frontend, tmp_path):
    assert "No such file" in refusal(frontend, tmp_path / "nowhere" / "grpc.sock")


@pytest.mark.parametrize(
    "path, words",
    [
        ("/" + 120 * "a", "107 bytes, got 121"),
        ("a\0b", "path of a file"),
        ("unix:/run/h.sock", "path of a file"),
        ("@h", "path of a file"),
    ],
)
def test_a_path_that_none_can_have(path, words):
    with pytest.raises(ConfigError) as caught:
        ServeConfig((__file__,), grpc_unix_socket=path).check()
    assert any(words in fault for fault in caught.value.faults)


def is_ready(server: Server) -> bool:
    try:
        return server.get("/readyz")[0] == 200
    except OSError:
        return False  # nobody listens yet


def test_a_new_front_end_process_takes_the_socket_over(frontend, tmp_path):
    path = tmp_path / "grpc.sock"
    with Server(tmp_path, frontend=frontend, grpc_unix_socket=str(path)) as server:
        check(f"unix:{path}")
        killed = server.frontend()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        wait_until(lambda: is_ready(server), "ready again")
        check(f"unix:{path}")
        server.signal()
        assert server.exit_code() == 0
    assert not path.exists()
