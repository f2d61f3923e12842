"""The supervisor against children that are small scripts: starts, links, restarts, drains, exit codes.

The scripts speak the control protocol and nothing else, so these tests say what the real front end and worker
must do as well. Signals are real, and so are the processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from service import supervisor
from service.config import ServeConfig
from service.supervisor import FRONTEND, WORKER, Backoff, Supervisor, ready_line

LIMIT_S = 60

COMMON = """
import os, sys, time
from service.control import Channel
from service.process import control_fd, die_with_parent
die_with_parent()
control = Channel.from_fd(control_fd(sys.argv[1:]))
configure = control.receive()
assert configure.kind == "configure", configure
def next_link():
    while (message := control.receive()) is not None:
        if message.kind == "link":
            return Channel.from_fd(message.take_fds()[0])
        if message.kind == "stop":
            os._exit(0)
        if message.kind == "drain":
            control.send("drained", {"unfinished": UNFINISHED})
            control.receive()
    os._exit(0)
UNFINISHED = 0
"""

# A front end that is ready when the worker has spoken on the link, and not when the link ends.
GOOD_FRONTEND = (
    COMMON
    + """
control.send("listening", {"grpc_port": 4001, "metrics_port": 4002})
while True:
    link = next_link()
    hello = link.receive()
    if hello is None: continue
    control.send("ready", {"models": [{"name": hello.body["pid"], "version": "1", "max_batch_size": 8}],
                           "devices": ["cpu"]})
    import threading
    def watch(link):
        link.receive()
        control.send("not_ready")
    threading.Thread(target=watch, args=(link,), daemon=True).start()
"""
)
GOOD_WORKER = (
    COMMON
    + """
control.send("loaded", {"models": []})
while True:
    link = next_link()
    link.send("ready", {"pid": str(os.getpid())})
    kept = link
"""
)
DEAF_TO_DRAIN = GOOD_FRONTEND.replace('control.send("drained", {"unfinished": UNFINISHED})', "pass")


def command(script: str) -> list[str]:
    return [sys.executable, "-c", script]


class Service:
    """A supervisor on the running loop, with the line it writes when it is ready."""

    def __init__(self, tmp_path, frontend=GOOD_FRONTEND, worker=GOOD_WORKER, **settings):
        model = tmp_path / "m.onnx"
        model.write_bytes(b"")
        reader, writer = os.pipe()
        config = ServeConfig((str(model),), ready_fd=writer, **settings)
        commands = {FRONTEND: command(frontend), WORKER: command(worker)}
        self.now_s = 100.0  # the supervisor's clock: it moves when a test says so
        self.supervisor = Supervisor(config, commands, lambda: self.now_s)
        self.ready = asyncio.create_task(self._read_line(reader))
        self.exit_code = asyncio.create_task(self.supervisor.run())

    @staticmethod
    async def _read_line(fd: int):
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(fd, "rb")
        )
        try:
            return json.loads(await stream.readline())
        finally:
            transport.close()

    def pid(self, role: str) -> int:
        return self.supervisor._roles[role].child.pid


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_S))


async def until(condition) -> None:
    """Lets the loop turn until the condition holds; bounded by the test's own limit."""
    while not condition():
        await asyncio.sleep(0.005)


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_it_becomes_ready_and_says_so_once(tmp_path, capfd):
    async def scenario():
        service = Service(tmp_path)
        line = await service.ready
        assert (line["grpc_port"], line["metrics_port"]) == (4001, 4002)
        assert [model["version"] for model in line["models"]] == ["1"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert await service.exit_code == 0

    run(scenario())
    out, err = capfd.readouterr()
    assert out.count("headrace ready:") == 1
    assert "grpc 127.0.0.1:4001" in out
    assert "SIGTERM" in err


def test_no_child_is_left_when_it_ends(tmp_path):
    async def scenario():
        service = Service(tmp_path)
        await service.ready
        pids = [service.pid(FRONTEND), service.pid(WORKER)]
        os.kill(os.getpid(), signal.SIGINT)
        assert await service.exit_code == 0
        assert all(gone(pid) for pid in pids)

    run(scenario())


@pytest.mark.parametrize("role", [FRONTEND, WORKER])
def test_a_killed_child_is_replaced_on_a_new_link(tmp_path, capfd, role):
    async def scenario():
        service = Service(tmp_path)
        await service.ready
        old = service.pid(role)
        os.kill(old, signal.SIGKILL)
        said = ""

        def ready_again() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "ready again" in said

        await until(ready_again)
        assert service.pid(role) != old
        assert "SIGKILL" in said
        assert role in said
        os.kill(os.getpid(), signal.SIGTERM)
        assert await service.exit_code == 0

    run(scenario())


def test_the_second_front_end_is_told_the_first_ones_ports(tmp_path):
    script = GOOD_FRONTEND.replace(
        '"grpc_port": 4001',
        '"grpc_port": __import__("json").loads(configure.body["config"])["grpc_port"] or 5005',
    )

    async def scenario():
        service = Service(tmp_path, frontend=script, grpc_port=0)
        await service.ready
        assert service.supervisor._config.grpc_port == 5005
        os.kill(service.pid(FRONTEND), signal.SIGKILL)
        dead = service.pid(FRONTEND)
        await until(lambda: service.supervisor._roles[FRONTEND].child and service.pid(FRONTEND) != dead)
        assert service.supervisor._config.grpc_port == 5005
        os.kill(os.getpid(), signal.SIGTERM)
        await service.exit_code

    run(scenario())


@pytest.mark.parametrize("role", [FRONTEND, WORKER])
def test_a_child_that_cannot_start_ends_the_service_with_its_message(tmp_path, capfd, role):
    failing = COMMON + 'control.send("failed", {"message": "port 8001 is in use"})\ncontrol.receive()'

    async def scenario():
        scripts = {FRONTEND: {"frontend": failing}, WORKER: {"worker": failing}}[role]
        service = Service(tmp_path, **scripts)
        assert await service.exit_code == 2
        service.ready.cancel()

    run(scenario())
    assert "headrace: port 8001 is in use\n" in capfd.readouterr().err


def test_a_child_that_dies_while_starting_ends_the_service(tmp_path, capfd):
    async def scenario():
        service = Service(tmp_path, worker=COMMON + "os.abort()")
        assert await service.exit_code == 2
        service.ready.cancel()

    run(scenario())
    assert "worker 0 ended with signal SIGABRT while starting" in capfd.readouterr().err


def test_a_child_that_closes_its_socket_before_it_exits_is_not_called_killed(tmp_path, capfd):
    slowly = COMMON + "control.close()\nsum(range(3_000_000))\nos._exit(3)"

    async def scenario():
        service = Service(tmp_path, worker=slowly)
        assert await service.exit_code == 2
        service.ready.cancel()

    run(scenario())
    assert "worker 0 ended with exit code 3 while starting" in capfd.readouterr().err


# A front end whose first link comes to nothing although the worker lives.
UNLINKED = (
    COMMON
    + """
control.send("listening", {"grpc_port": 4001, "metrics_port": 4002})
message = control.receive()
control.send("link_ended", {"link": message.body["link"], "why": "descriptors were lost"})
"""
)


def test_a_link_that_cannot_be_made_ends_a_service_that_was_never_ready(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(supervisor, "LINK_GRACE_S", 0.01)

    async def scenario():
        service = Service(tmp_path, frontend=UNLINKED + "control.receive()")
        assert await service.exit_code == 2
        service.ready.cancel()

    run(scenario())
    err = capfd.readouterr().err
    assert "the link between the front end and worker 0 ended: descriptors were lost" in err


def test_a_link_that_ends_while_both_live_costs_the_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LINK_GRACE_S", 0.01)
    ready = 'control.send("ready", {"models": [], "devices": ["cpu"]})\n'
    first = UNLINKED.replace('control.send("link_ended"', ready + 'control.send("link_ended"')

    async def scenario():
        service = Service(tmp_path, frontend=first + "next_link()\ncontrol.receive()")
        await service.ready
        old = service.pid(WORKER)
        await until(lambda: service.supervisor._roles[WORKER].child and service.pid(WORKER) != old)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: service.supervisor._draining)
        service.now_s += 1
        os.kill(os.getpid(), signal.SIGINT)
        await service.exit_code

    run(scenario())


def test_requests_that_did_not_finish_in_time_are_a_failure(tmp_path, capfd):
    async def scenario():
        service = Service(tmp_path, frontend=GOOD_FRONTEND.replace("UNFINISHED = 0", "UNFINISHED = 3"))
        await service.ready
        os.kill(os.getpid(), signal.SIGTERM)
        assert await service.exit_code == 1

    run(scenario())
    assert "3 requests had not finished" in capfd.readouterr().err


def test_a_second_signal_ends_it_at_once(tmp_path):
    async def scenario():
        service = Service(tmp_path, frontend=DEAF_TO_DRAIN)
        await service.ready
        pids = [service.pid(FRONTEND), service.pid(WORKER)]
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: service.supervisor._draining)
        service.now_s += 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert await service.exit_code == 128 + signal.SIGTERM
        assert all(gone(pid) for pid in pids)

    run(scenario())


def test_a_signal_that_is_delivered_twice_is_one_signal(tmp_path):
    async def scenario():
        service = Service(tmp_path)
        await service.ready
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: service.supervisor._draining or service.exit_code.done())
        os.kill(os.getpid(), signal.SIGTERM)
        assert await service.exit_code == 0

    run(scenario())


def test_a_front_end_that_never_says_drained_does_not_hold_the_service(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "DRAIN_GRACE_S", 0.0)

    async def scenario():
        service = Service(tmp_path, frontend=DEAF_TO_DRAIN, drain_timeout_s=0.0)
        await service.ready
        os.kill(os.getpid(), signal.SIGTERM)
        assert await service.exit_code == 1

    run(scenario())


def test_nothing_is_restarted_while_draining(tmp_path):
    async def scenario():
        service = Service(tmp_path, frontend=DEAF_TO_DRAIN)
        await service.ready
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: service.supervisor._draining)
        os.kill(service.pid(WORKER), signal.SIGKILL)
        await until(lambda: service.supervisor._roles[WORKER].child is None)
        os.kill(service.pid(FRONTEND), signal.SIGKILL)
        assert await service.exit_code == 1
        assert service.supervisor._roles[WORKER].child is None

    run(scenario())


def test_the_death_of_the_supervisor_is_the_death_of_its_children(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"")
    children = {FRONTEND: command(GOOD_FRONTEND), WORKER: command(GOOD_WORKER)}
    script = f"""
import asyncio
from service.config import ServeConfig
from service.supervisor import FRONTEND, WORKER, Supervisor

service = Supervisor(ServeConfig(({str(model)!r},)), {children!r})

async def main():
    task = asyncio.create_task(service.run())
    while not service._was_ready:
        await asyncio.sleep(0.005)
    print(service._roles[FRONTEND].child.pid, service._roles[WORKER].child.pid, flush=True)
    await task

asyncio.run(main())
"""

    async def scenario():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
        )
        await process.stdout.readline()
        pids = [int(word) for word in (await process.stdout.readline()).split()]
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
        process.kill()
        await process.wait()
        await until(lambda: all(gone(pid) for pid in pids))

    run(scenario())


def test_bad_configuration_is_told_whole_with_exit_code_2(capfd):
    assert supervisor.serve(ServeConfig(("/nowhere.onnx",), instances=0)) == 2
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_the_first_restart_is_at_once_and_the_rest_back_off_until_quiet():
    backoff = Backoff()
    assert [backoff.after_death(1000.0 + i) for i in range(10)] == [
        0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0
    ]  # fmt: skip
    assert backoff.after_death(1009.0 + supervisor.BACKOFF_FORGET_S) == 10.0
    assert backoff.after_death(1040.0 + supervisor.BACKOFF_FORGET_S) == 0.0


def test_the_ready_line_names_address_models_front_end_and_devices(tmp_path):
    config = ServeConfig(("m.onnx",), host="::1", grpc_port=1, metrics_port=2, frontend="grpcio")
    line = ready_line(config, [{"name": "m", "version": "1", "max_batch_size": 32}], ["cpu"])
    for word in ("[::1]:1", "http://[::1]:2/metrics", "m (max_batch_size 32)", "grpcio", "cpu"):
        assert word in line
