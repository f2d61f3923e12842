"""The child process of one instance of a python model, from the worker's side: one incarnation of it
(`InstanceProcess`), and the thread that keeps one alive (`Keeper`).

An incarnation is started, never forked, with a control socket and two memories (`python_child` has the
protocol). Whoever waits for it waits without the GIL, for its answer or for its death, whichever comes
first. Its death shows on its pidfd also when a process of its own still holds its socket. It has a process
group of its own, which dies with it.

    keeper    start -> wait until loaded -> publish -> wait for its death -> wait -> start ...
    launcher  Keeper.wait_up() -> InstanceProcess.execute(), under its lock

Deaths and delays. After a death the next incarnation starts at once, unless the dead one had not finished a
single batch: then the delay doubles, from BACKOFF_FIRST_S to BACKOFF_MAX_S. Loading has no time limit. A
launcher without a process waits for it, so that it takes no batches from those that can run them; it stops
waiting, and refuses batches, when a start has failed while no other instance of the model is up, and after
HOLD_S in any case.

PDEATHSIG means the death of the thread that started the child: that is the keeper's, which lives until its
child has ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from service.control import Channel, Message, ProtocolError
from service.engines.base import EngineError, ModelLoadError
from service.engines.python_memory import TensorMemory
from service.log import say
from service.process import describe_exit, python_module, start_child

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 30.0
HOLD_S = 60.0
FINALIZE_GRACE_S = 10.0
COMMAND = python_module("service.engines.python_child")


class ProcessEnded(Exception):
    """The child is gone, or is of no further use and was killed. The text says what its end was."""


class ExecutionTimeout(Exception):
    """The child did not answer in time, and was killed."""


def backoff_s(failures: int) -> float:
    """How long to wait before the next start, after so many incarnations in a row that did no work."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 20)) if failures else 0.0


class InstanceProcess:
    """One incarnation. `lock` is held by whoever uses it for a batch, and by whoever closes it.

    Attributes:
        batches: how many it has answered. inputs, outputs: the memories its tensors cross in. closed: it
        ended while its user waited for the lock.
    """

    def __init__(self, where: str, load: dict[str, Any]) -> None:
        self.where = where
        self.batches = 0
        self.closed = False
        self.lock = threading.Lock()
        self.inputs, self.outputs = TensorMemory.create("inputs"), TensorMemory.create("outputs")
        self._process, ours = start_child(COMMAND)
        self.pid = self._process.pid
        self._end_lock = threading.Lock()
        self._end = ""
        self._pidfd = os.pidfd_open(self.pid)
        self._channel = Channel(ours)
        self._poll = select.poll()
        self._poll.register(ours.fileno(), select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)
        body = {**load, "where": where, "parent": os.getpid()}
        self._channel.send("load", body, [self.inputs.fd, self.outputs.fd])

    def wait_loaded(self) -> None:
        """Waits as long as it takes. Raises ModelLoadError with what the model says, or how it ended."""
        try:
            answer = self._receive(math.inf)
        except ProcessEnded as error:
            raise ModelLoadError(f"its process ended while the model was loaded ({error})") from error
        if answer.kind != "loaded":
            raise ModelLoadError(answer.body["message"])

    def send_batch(self, rows: int, shapes: Sequence[Sequence[int] | None], sizes: Sequence[int]) -> bool:
        """Tells it to execute what lies in `inputs`. False when it is gone, and has seen nothing of it."""
        body = {"rows": rows, "capacity": self.inputs.capacity, "shapes": shapes, "sizes": sizes}
        return self._channel.send("execute", body)

    def answer(self, timeout_s: float) -> list[tuple[tuple[int, ...], int]]:
        """Waits for the end of the batch: shape and size in bytes of each tensor that lies in `outputs` now.

        Raises EngineError when the model failed, ProcessEnded, and ExecutionTimeout; after the last two the
        process has been killed.
        """
        answer = self._receive(timeout_s)
        self.batches += 1
        if answer.kind == "failed":
            raise EngineError(answer.body["message"])
        try:
            self.outputs.follow(answer.body["capacity"])
            shapes, sizes = answer.body["shapes"], answer.body["sizes"]
            return [(tuple(shape), size) for shape, size in zip(shapes, sizes, strict=True)]
        except (LookupError, TypeError, ValueError) as error:
            self.end()
            raise ProcessEnded(f"it answered {answer!r} and was ended") from error

    def _receive(self, timeout_s: float) -> Message:
        """The next message. Not for two threads at once."""
        end = time.monotonic() + timeout_s
        while True:
            left_ms = None if timeout_s == math.inf else max(0, math.ceil((end - time.monotonic()) * 1000))
            ready = [fd for fd, _ in self._poll.poll(left_ms)]
            if not ready:
                self.end()
                raise ExecutionTimeout
            if self._channel.fileno() not in ready:
                raise ProcessEnded(self.end())
            try:
                messages, there = self._channel.receive_ready()
            except ProtocolError as error:
                self.end()
                raise ProcessEnded(f"it sent what is not a message and was ended: {error}") from error
            if messages:
                return messages[0]
            if not there:
                raise ProcessEnded(self.end())

    def wait_ended(self) -> None:
        """Waits for its death, however it comes."""
        self._ends_within(math.inf)

    def _ends_within(self, limit_s: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if limit_s == math.inf else math.ceil(limit_s * 1000)))

    def end(self) -> str:
        """Kills it and its group where that is still to be done; says what its end was."""
        with self._end_lock:
            if not self._end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so that the number is still its own
                self._end = describe_exit(self._process.wait())
            return self._end

    @property
    def has_ended(self) -> bool:
        return bool(self._end)

    def finish(self, grace_s: float) -> None:
        """Lets the model finalize, and ends the process; at once when it is in the middle of a batch."""
        idle = self.lock.acquire(blocking=False)
        try:
            asked = idle and not self.closed and self._channel.send("finalize")
            if asked and not self._ends_within(grace_s):
                say(f"{self.where}: finalize took more than {grace_s:g} s; its process was killed")
            self.end()
        finally:
            if idle:
                self.lock.release()

    def close(self) -> None:
        """Frees everything of a process that has ended."""
        with self.lock:
            self.closed = True
            self._channel.close()
            os.close(self._pidfd)
            self.inputs.close()
            self.outputs.close()


class Keeper:
    """Keeps the process of one instance alive. `changed` is shared by the keepers of a model, and guards
    what they know of each other. `tell` is called after each start and each death.
    """

    def __init__(
        self, start: Callable[[], InstanceProcess], where: str, changed: threading.Condition
    ) -> None:
        self._start = start
        self._where = where
        self._changed = changed
        self.siblings: Sequence[Keeper] = (self,)
        self.tell: Callable[[], None] = lambda: None
        self._closing = threading.Event()
        self._current: InstanceProcess | None = None  # being loaded, or up
        self._up = False
        self._trouble = ""  # why the last start failed; empty again when one succeeds
        self.starts = 0
        self._thread = threading.Thread(target=self._keep, name=f"keeper: {where}", daemon=True)
        self._thread.start()

    def wait_first(self) -> None:
        """Waits until the first incarnation has loaded the model. Raises ModelLoadError."""
        with self._changed:
            self._changed.wait_for(lambda: self._up or self._trouble)
            if not self._up:
                raise ModelLoadError(self._trouble)

    def wait_up(self) -> InstanceProcess | None:
        """The process, waited for as long as that makes sense; None: refuse what came."""
        if self._up and (process := self._current) is not None:
            return process
        with self._changed:
            self._changed.wait_for(lambda: self._up or self._is_hopeless(), HOLD_S)
            return self._current if self._up else None

    def _is_hopeless(self) -> bool:
        alone = not any(keeper._up for keeper in self.siblings)
        return self._closing.is_set() or (bool(self._trouble) and alone)

    @property
    def is_up(self) -> bool:
        """Whether there is a process that has loaded the model."""
        return self._up

    @property
    def trouble(self) -> str:
        """Why there is no process, for a client."""
        return self._trouble or "its process is being started again"

    def lost(self, process: InstanceProcess) -> None:
        """Notes that a process has ended, also before its keeper has seen it."""
        with self._changed:
            if self._current is process:
                self._up = False

    def _keep(self) -> None:
        failures = 0
        while not self._closing.is_set():
            process = self._start_one()
            if process is None:
                failures += 1
            else:
                process.wait_ended()
                self._bury(process)
                failures = 0 if process.batches else failures + 1
            self._closing.wait(backoff_s(failures))

    def _start_one(self) -> InstanceProcess | None:
        """Starts an incarnation and publishes it; None when it did not come up."""
        try:
            process = self._start()
        except OSError as error:
            self._note(None, f"its process could not be started: {error}")
            return None
        with self._changed:
            self._current = process
            self.starts += 1
        if self._closing.is_set():  # close() may have looked before there was anything to end
            process.end()
        try:
            process.wait_loaded()
        except ModelLoadError as error:
            process.end()
            process.close()
            self._note(None, str(error))
            return None
        self._note(process, "")
        return process

    def _note(self, process: InstanceProcess | None, trouble: str) -> None:
        with self._changed:
            if trouble and self.starts > 1 and not self._closing.is_set():
                say(f"{self._where}: could not be started again: {trouble}")
            self._current, self._up, self._trouble = process, process is not None, trouble
            self._changed.notify_all()
        self.tell()

    def _bury(self, process: InstanceProcess) -> None:
        with self._changed:
            self._current, self._up = None, False
            self._changed.notify_all()
        self.tell()
        how = process.end()
        process.close()
        if not self._closing.is_set():
            say(f"{self._where}: its process ended ({how}); it is started again")

    def close(self) -> None:
        """Ends the process, with a chance for the model to finalize, and the thread."""
        with self._changed:
            self._closing.set()
            process, up = self._current, self._up
            self._changed.notify_all()
        if process is not None and up:
            process.finish(FINALIZE_GRACE_S)
        elif process is not None:
            process.end()
        self._thread.join()
