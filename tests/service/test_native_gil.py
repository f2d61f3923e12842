"""The native front end does not need its process's GIL to answer inferences."""

from __future__ import annotations

import fcntl
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lifecycle import HERE, Server
from waiting import LIMIT_S
from wire import Wire, infer_request, output, rows

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)


def check(wire: Wire, number: int) -> None:
    x = rows(2, 10.0 * number)
    assert (output(wire.infer(infer_request("affine", x=x))) == 2 * x + 1).all()
    stream = wire.stream().send(infer_request("affine", x=x, id=str(number))).half_close()
    (answer,) = stream.rest()
    assert answer.infer_response.id == str(number)
    assert (output(answer.infer_response) == 2 * x + 1).all()


def test_inferences_are_answered_while_the_gil_is_held(tmp_path: Path, frontend: str) -> None:
    lock = tmp_path / "gil"
    lock.touch()
    script = [str(HERE / "gil_holder.py"), str(lock)]
    with Server(tmp_path, frontend=frontend, frontend_command=script) as server, open(lock) as held:
        old = Wire(server.address)
        check(old, 0)
        with ThreadPoolExecutor(1) as pool:
            fcntl.flock(held, fcntl.LOCK_EX)
            server.child("gil_holder.py").send_signal(signal.SIGUSR1)
            python = pool.submit(old.call, "ServerLive")  # a method in Python
            new = Wire(server.address)
            for number in range(1, 101):
                check(old, number)
                check(new, number)
            assert not python.done(), "the GIL was held all the time"
            fcntl.flock(held, fcntl.LOCK_UN)
            assert python.result(LIMIT_S).live
        old.close()
        new.close()
