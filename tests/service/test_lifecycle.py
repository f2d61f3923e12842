"""The service as processes: what dies comes back, what ends ends tidily, what cannot start says why."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from lifecycle import Server, alive
from waiting import LIMIT_S, wait_until
from wire import Wire, done_response, infer_request, output, rows, status_of

from service.errors import SHUTTING_DOWN
from service.frontend.addresses import why_not_bound

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path, frontend):
    with Server(tmp_path, frontend=frontend) as running:
        yield running


@pytest.fixture
def wire(server):
    client = Wire(server.address)
    yield client
    client.close()


def request(number: int = 0):
    return infer_request("affine", x=rows(1, 10.0 * number), id=str(number))


def pile_up(server: Server, wire: Wire, count: int) -> list:
    """`count` requests that the worker holds until the gate is opened."""
    server.shut()
    futures = [wire.infer_later(request(i)) for i in range(count)]
    wait_until(lambda: server.in_flight() == count, "all in flight")
    return futures


def check(future, number: int) -> None:
    response = done_response(future)
    assert response.id == str(number)
    assert np.array_equal(output(response), 2 * rows(1, 10.0 * number) + 1)


def is_ready(wire: Wire) -> bool:
    return wire.call("ServerReady").ready


def test_it_serves_and_says_so_once_in_one_line(server, wire):
    assert wire.infer(request(3)).id == "3"
    (line,) = [line for line in server.log().splitlines() if line.startswith("headrace ready:")]
    assert server.address in line
    assert "affine" in line
    assert server.ready["models"] == [{"name": "affine", "version": "1", "max_batch_size": 8}]
    assert server.get("/healthz")[0] == server.get("/readyz")[0] == 200


def test_a_killed_worker_fails_what_it_held_and_comes_back_by_itself(server, wire):
    futures = pile_up(server, wire, 50)
    killed = server.worker().pid
    os.kill(killed, signal.SIGKILL)
    assert {status_of(future) for future in futures} == {"UNAVAILABLE"}
    server.open()
    wait_until(lambda: is_ready(wire), "ready again")
    assert np.array_equal(output(wire.infer(request(1))), 2 * rows(1, 10.0) + 1)
    assert server.worker().pid != killed
    wait_until(lambda: "ready again" in server.log(), "the supervisor's word")
    assert "SIGKILL" in server.log()


def test_readiness_is_false_while_the_worker_is_away(server, wire):
    worker = server.worker()
    os.kill(server.process.pid, signal.SIGSTOP)  # so that nobody starts the next one
    try:
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: not is_ready(wire), "not ready")
        assert server.get("/readyz") == (503, "not ready\n")
        assert server.get("/healthz")[0] == 200
        assert wire.call("ServerLive").live
        assert wire.error(request())[0] == "UNAVAILABLE"
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    wait_until(lambda: is_ready(wire), "ready again")
    assert server.get("/readyz")[0] == 200


def test_killing_workers_under_load_gives_answers_or_unavailable_and_nothing_hangs(server, wire):
    outcomes: set[str] = set()
    stop = threading.Event()

    def caller(number: int) -> None:
        own = Wire(server.address)
        while not stop.is_set():
            future = own.infer_later(request(number))
            outcomes.add(status_of(future))
            if future.code().value[0] == 0:
                check(future, number)
        own.close()

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        wait_until(lambda: is_ready(wire) and len(server.children()) == 2, "ready again")
        before = wire.call("ModelStatistics").model_stats[0].inference_count
        wait_until(
            lambda b=before: wire.call("ModelStatistics").model_stats[0].inference_count > b, "more answers"
        )
        os.kill(server.worker().pid, signal.SIGKILL)
        wait_until(lambda: not is_ready(wire) or server.log().count("ready again"), "the death noticed")
    wait_until(lambda: server.log().count("ready again") == 3, "ready after the last one")
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert outcomes <= {"OK", "UNAVAILABLE"}
    assert "OK" in outcomes
    assert wire.infer(request(1)).id == "1"


def test_a_killed_front_end_comes_back_at_the_same_address(server, wire):
    before = server.frontend().pid
    assert wire.infer(request(1)).id == "1"
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: "ready again" in server.log(), "ready again")
    again = Wire(server.address)
    assert np.array_equal(output(again.infer(request(2))), 2 * rows(1, 20.0) + 1)
    again.close()
    assert server.frontend().pid != before


def test_a_killed_supervisor_leaves_nothing(server, wire):
    shared_before = set(os.listdir("/dev/shm"))
    pile_up(server, wire, 5)
    pids = [child.pid for child in server.children()]
    assert len(pids) == 2
    server.process.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of its children")
    assert set(os.listdir("/dev/shm")) <= shared_before


def test_a_child_that_cannot_look_ends_with_its_supervisor_too(server):
    worker = server.worker()
    worker.suspend()
    server.process.kill()
    wait_until(lambda: not alive(worker.pid), "the end of the worker")


def test_sigterm_finishes_what_is_accepted_and_exits_0(server, wire):
    futures = pile_up(server, wire, 100)
    stream = wire.stream().send(*[request(i) for i in range(5)])
    wait_until(lambda: server.in_flight() == 105, "the stream's requests too")
    server.signal()
    wait_until(lambda: not is_ready(wire), "not ready")
    assert server.get("/readyz")[0] == 503
    assert wire.error(request()) == ("UNAVAILABLE", SHUTTING_DOWN)
    assert server.process.poll() is None
    server.open()
    for number, future in enumerate(futures):
        check(future, number)
    for number in range(5):
        assert stream.next().infer_response.id == str(number)
    assert stream.end() == ("UNAVAILABLE", SHUTTING_DOWN)
    assert server.exit_code() == 0


def test_sigint_is_the_same_and_an_idle_service_ends_at_once(server, wire):
    wire.infer(request())
    pids = [child.pid for child in server.children()]
    os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    assert server.exit_code() == 0
    assert not any(alive(pid) for pid in pids)


def test_a_second_signal_does_not_wait(server, wire):
    futures = pile_up(server, wire, 3)
    server.signal()
    wait_until(lambda: not is_ready(wire), "draining")

    def ended_by_another() -> bool:
        server.signal()
        return server.process.poll() is not None

    wait_until(ended_by_another, "the end")  # those that follow at once are the first one, delivered again
    assert server.exit_code() == 128 + signal.SIGTERM
    assert "OK" not in {status_of(future) for future in futures}


def test_what_does_not_finish_in_time_is_a_failure(tmp_path, frontend):
    with Server(tmp_path, drain_timeout_s=0.1, frontend=frontend) as server:
        wire = Wire(server.address)
        futures = pile_up(server, wire, 2)
        server.signal()
        assert server.exit_code() == 1
        assert "2 requests had not finished" in server.log()
        assert "OK" not in {status_of(future) for future in futures}
        wire.close()


# ---- what cannot start ----


def serve_command(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    """`headrace serve`, which is expected to end by itself."""
    command = [sys.executable, "-P", "-m", "service", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **settings)


@pytest.fixture(scope="module")
def affine_onnx(tmp_path_factory):
    """A real model file, y = 2x + 1."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Mul", ["x", "two"], ["m"]), helper.make_node("Add", ["m", "one"], ["y"])]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")}
    constants = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in (("two", 2.0), ("one", 1.0))
    ]
    graph = helper.make_graph(nodes, "affine", [values["x"]], [values["y"]], constants)
    path = tmp_path_factory.mktemp("models") / "affine.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.parametrize("flag", ["--grpc-port", "--metrics-port"])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_busy_port_is_said_and_ends_with_2(affine_onnx, flag, reuse, frontend):
    with socket.socket() as holder:
        if reuse:  # as gRPC servers do by default, which hides that a port is taken
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ports = {"--grpc-port": "0", "--metrics-port": "0", flag: str(port)}
        flags = {**ports, "--frontend": frontend}
        done = serve_command(affine_onnx, *[word for pair in flags.items() for word in pair])
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert "Address already in use" in done.stderr
    assert flag in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_of_another_headrace_is_busy_too(server, affine_onnx, frontend):
    port = str(server.ready["grpc_port"])
    ports = ["--grpc-port", port, "--metrics-port", "0"]
    done = serve_command(affine_onnx, *ports, "--frontend", frontend)
    assert done.returncode == 2
    assert f"port {port}: Address already in use" in done.stderr


def test_an_address_that_is_not_ours_is_said(affine_onnx, frontend):
    ports = ["--host", "192.0.2.1", "--grpc-port", "0", "--metrics-port", "0"]
    done = serve_command(affine_onnx, *ports, "--frontend", frontend)
    assert done.returncode == 2
    assert "192.0.2.1" in done.stderr
    assert "--host" in done.stderr


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.1", "expected an address in full or a host name for --host, such as 127.0.0.1"),
        ("2130706433", "such as 127.0.0.1"),
        ("fe80::1%none", "--host"),
        ("no host", "--host"),
    ],
)
def test_what_an_address_should_look_like(host, words):
    said = why_not_bound(host, 0, "--grpc-port")
    assert said.startswith(f"cannot listen on {host}") and words in said


def test_a_corrupt_model_is_said_and_ends_with_2(tmp_path):
    model = tmp_path / "broken.onnx"
    model.write_bytes(b"\x08\x07junk")
    done = serve_command(str(model), "--grpc-port", "0", "--metrics-port", "0")
    assert done.returncode == 2
    assert "'broken'" in done.stderr
    assert str(model) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_that_is_not_there_is_said_with_all_other_faults(tmp_path):
    done = serve_command(str(tmp_path / "none.onnx"), "--instances", "0")
    assert done.returncode == 2
    assert "none.onnx" in done.stderr
    assert "--instances" in done.stderr


def test_a_real_model_is_served_by_the_real_worker(affine_onnx, tmp_path, frontend):
    reader, writer = os.pipe()
    command = [
        sys.executable,
        "-P",
        "-m",
        "service",
        "serve",
        affine_onnx,
        "--grpc-port",
        "0",
        "--metrics-port",
        "0",
        "--frontend",
        frontend,
    ]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [*command, "--ready-fd", str(writer)], pass_fds=[writer], stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        os.close(writer)
        with os.fdopen(reader) as file:
            ready = json.loads(file.readline())
        wire = Wire(f"127.0.0.1:{ready['grpc_port']}")
        x = rows(40)
        assert np.array_equal(output(wire.infer(infer_request("affine", x=x))), 2 * x + 1)
        wire.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
