"""The process behind `headrace serve`: starts the others, restarts what dies, drains, gives the exit code.

    supervisor --control--> front end       starting --ready--> serving --SIGTERM--> draining --> exit 0
               --control--> worker 0           |                                        |
    front end <----link---> worker 0           +--a child cannot start--> exit 2        +--2nd signal--> exit

There is a worker for each device (`--device`), with models of its own: `service.models.placement` says which,
once, before they start. What is said below of the worker holds for each by itself; when one dies, the others
serve on.

What is said on a control socket (`service.control`), in the order of a life:

    to a child      configure {config, worker, homes, kept, folder}     first, always
                    link {worker, link} + [socket]      one end of a new link; the other child gets the other
                    drain {}                            front end: refuse what is new, finish what is accepted
                    stop {}                             worker: close the models, and exit
    from the worker     keep {models, next_id}          what its successor gets as `kept`: the models that
                                                        are wanted by now, and the next model's id
                        loaded {models}                 its models are in memory
    from the front end  listening {grpc_port, metrics_port}
                        ready {models} | not_ready {}   as the truth changes
                        link_ended {link, why}          its end of a link is at an end; why: "" or a fault
                        drained {unfinished}            its last word
    from either     failed {message}                    it cannot start, and why; it then exits

A link belongs to one incarnation of the front end and one of the worker. Whenever one of the two is started
anew, both get the ends of a new socket pair, and each has seen the death of its peer as the end of file of
the old one. The supervisor keeps no end: nobody but the peers holds a link open. A link that ends while both
live is a fault that would last for ever: before the service was ready it ends it, later it costs the worker.

Model control is between the front end and the worker, on their link. The supervisor only remembers what is
wanted (`keep` comes before a client is told that it was done), and gives the front end a private `folder`
for files that clients send with a model, with a folder for each worker in it. What lies there and nobody
wants any more is removed before the worker starts, and all of it at the end.

A child that dies is started again: at once the first time, then after a delay that doubles up to
BACKOFF_MAX_S and is forgotten after BACKOFF_FORGET_S without a death. Before the service has been ready
once, a child that says `failed` or dies ends the service with exit code 2 instead: trying again would only
hide the reason.

Everything that happens (a message, a death, a signal, a timer) becomes one entry of one queue, handled in
order by one task: there is no other concurrency here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from service.config import ServeConfig
from service.control import Message, ProtocolError, socket_pair
from service.errors import EXIT_BAD_START, EXIT_FAILED, EXIT_OK, ConfigError
from service.log import one_line, say
from service.models.placement import homes_of
from service.process import Child, python_module, raise_descriptor_limit

FRONTEND = "front end"
WORKER = "worker 0"
COMMANDS: Mapping[str, Sequence[str]] = {
    FRONTEND: python_module("service.frontend"),
    WORKER: python_module("service.worker"),
}
LINK_GRACE_S = 2.0  # how long after a link's end its peers may take to be seen to have died
STOP_GRACE_S = 5.0  # how long a worker may take to close its models
EXIT_GRACE_S = 2.0  # how long a child may take to exit once its control socket is closed
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0
BACKOFF_FORGET_S = 30.0
# A signal that follows sooner is the same one, delivered twice: `timeout` and other wrappers send theirs to
# the process and to its group.
SAME_SIGNAL_S = 0.5
DRAIN_GRACE_S = 5.0  # what a front end may take beyond the drain time-out to say so

Event = Callable[[], Awaitable[None]]


def serve(config: ServeConfig, commands: Mapping[str, Sequence[str]] = COMMANDS) -> int:
    """Runs the service until it is told to end; returns the exit code. Call it in the main thread.

    `commands` are the children's command lines, to which `--control-fd N` is added.
    """
    try:
        config.check()
    except ConfigError as error:
        for fault in error.faults:
            say(fault)
        return EXIT_BAD_START
    raise_descriptor_limit()
    return asyncio.run(run_to_the_end(Supervisor(config, commands)))


async def run_to_the_end(supervisor: Supervisor) -> int:
    """Runs it; from its end to the process's, signals change nothing any more: the exit code stands."""
    try:
        return await supervisor.run()
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(signum)
            signal.signal(signum, signal.SIG_IGN)


class Backoff:
    """How long to wait before the next start of one child."""

    def __init__(self) -> None:
        self._deaths = 0
        self._last_death_s = 0.0

    def after_death(self, now_s: float) -> float:
        """Seconds from now to the next start. `now_s` never decreases."""
        if now_s - self._last_death_s > BACKOFF_FORGET_S:
            self._deaths = 0
        self._last_death_s = now_s
        self._deaths += 1
        if self._deaths == 1:
            return 0.0
        return float(min(BACKOFF_FIRST_S * 2 ** min(self._deaths - 2, 16), BACKOFF_MAX_S))


@dataclass
class Role:
    """A place that one child at a time fills. `worker`: its number; None of the front end. `kept`, `link`: of
    a worker, what it has said last to keep, and the number of its newest link.
    """

    name: str
    command: Sequence[str]
    worker: int | None = None
    child: Child | None = None
    kept: dict[str, Any] | None = None
    link: int = 0
    backoff: Backoff = field(default_factory=Backoff)


class Supervisor:
    """One service. `run` is its whole life."""

    def __init__(
        self,
        config: ServeConfig,
        commands: Mapping[str, Sequence[str]] = COMMANDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._clock = clock
        self._frontend = Role(FRONTEND, commands[FRONTEND])
        self._workers = [
            Role(f"worker {number}", commands[WORKER], number) for number in range(len(config.devices))
        ]
        self._roles = {role.name: role for role in (self._frontend, *self._workers)}
        self._homes: dict[str, int] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._link = 0  # number of the newest link
        self._folder = ""
        self._exit_code: int | None = None
        self._was_ready = False
        self._draining = False
        self._draining_since_s = 0.0

    async def run(self) -> int:
        """Starts the children and handles events until there is an exit code; leaves no child behind."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._post, self._on_signal, signum)
        self._homes = homes_of(self._config)
        if self._config.explicit:
            self._folder = tempfile.mkdtemp(prefix="headrace-models-")
        try:
            for role in self._roles.values():
                await self._start(role)
            while self._exit_code is None:
                event = await self._events.get()
                await event()
            return self._exit_code
        finally:
            await self._end_children()
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _post(self, handler: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self._events.put_nowait(partial(handler, *arguments))

    # Children: start, listen, bury.

    async def _start(self, role: Role) -> None:
        if self._exit_code is not None or self._draining:
            return
        if role.worker is not None and self._folder:
            clear_folder(os.path.join(self._folder, str(role.worker)), role.kept)
        child = role.child = Child(role.command)
        task = asyncio.create_task(self._listen(role, child))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        body = {"config": self._config.to_json(), "worker": role.worker or 0, "homes": self._homes,
                "kept": role.kept, "folder": self._folder}  # fmt: skip
        await child.channel.send("configure", body)
        for worker in self._workers if role.worker is None else [role]:
            await self._make_link(worker)

    async def _make_link(self, worker: Role) -> None:
        if self._frontend.child is None or worker.child is None:
            return
        ends = (self._frontend.child, worker.child)
        worker.link = self._link = self._link + 1
        for child, sock in zip(ends, socket_pair(), strict=True):
            await child.channel.send("link", {"worker": worker.worker, "link": worker.link}, [sock.fileno()])
            sock.close()

    async def _listen(self, role: Role, child: Child) -> None:
        """Turns what a child says into events, and the end of its control socket into its end."""
        try:
            while (message := await child.channel.receive()) is not None:
                self._post(self._on_message, role, message)
        except ProtocolError as error:
            say(f"the {role.name} (process {child.pid}) made no sense and is restarted: {error}")
        how = await child.end(EXIT_GRACE_S)
        child.channel.close()
        self._post(self._on_death, role, child, how)

    async def _on_death(self, role: Role, child: Child, how: str) -> None:
        role.child = None
        if self._draining:
            if role is self._frontend:
                self._finish(EXIT_FAILED, f"the front end ended with {how} before it had drained")
            return
        if not self._was_ready:
            self._finish(EXIT_BAD_START, f"the {role.name} ended with {how} while starting")
            return
        delay_s = role.backoff.after_death(self._clock())
        when = f"in {delay_s:g} s" if delay_s else "at once"
        say(f"the {role.name} (process {child.pid}) ended with {how}; it is started again {when}")
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._post, self._start, role)
        else:
            await self._start(role)

    async def _end_children(self) -> None:
        """Ends what is left. Whatever deserved to finish has finished before; models may say a last word."""
        workers = [role.child for role in self._workers if role.child is not None]
        if self._frontend.child is not None:
            self._frontend.child.kill()
        for child in workers:
            if self._exit_code == EXIT_OK:
                await child.channel.send("stop")
            else:
                child.kill()
        await asyncio.gather(*(child.end(STOP_GRACE_S) for child in workers))
        await asyncio.gather(*self._tasks)

    # What children say.

    async def _on_message(self, role: Role, message: Message) -> None:
        handler = self._handlers().get(message.kind)
        if handler is None:
            say(f"the {role.name} said '{message.kind}', which nobody here understands")
        else:
            await handler(role, message.body)

    def _handlers(self) -> dict[str, Callable[[Role, dict[str, Any]], Awaitable[None]]]:
        return {
            "failed": self._on_failed,
            "keep": self._on_keep,
            "loaded": self._on_loaded,
            "listening": self._on_listening,
            "ready": self._on_ready,
            "not_ready": self._on_not_ready,
            "link_ended": self._on_link_ended,
            "drained": self._on_drained,
        }

    async def _on_failed(self, role: Role, body: dict[str, Any]) -> None:
        if self._was_ready:
            say(f"the {role.name} cannot start again yet: {body['message']}")
        else:
            self._finish(EXIT_BAD_START, body["message"])

    async def _on_keep(self, role: Role, body: dict[str, Any]) -> None:
        role.kept = body

    async def _on_loaded(self, role: Role, body: dict[str, Any]) -> None:
        for line in body.get("notes", []):
            say(line)

    async def _on_listening(self, role: Role, body: dict[str, Any]) -> None:
        # A front end that is started again must be found where the first one was.
        self._config = replace(self._config, grpc_port=body["grpc_port"], metrics_port=body["metrics_port"])

    async def _on_ready(self, role: Role, body: dict[str, Any]) -> None:
        if self._was_ready:
            say("ready again")
            return
        self._was_ready = True
        with contextlib.suppress(OSError):  # nobody reads our standard output: no reason not to serve
            print(one_line(ready_line(self._config, body["models"], body["devices"])), flush=True)
        tell_ready_fd(self._config, body["models"])

    async def _on_not_ready(self, role: Role, body: dict[str, Any]) -> None:
        if not self._draining:
            say("not ready")

    async def _on_link_ended(self, role: Role, body: dict[str, Any]) -> None:
        handler = partial(self._on_link_missed, body["link"], body["why"])
        asyncio.get_running_loop().call_later(LINK_GRACE_S, self._post, handler)

    async def _on_link_missed(self, link: int, why: str) -> None:
        """A while after a link has ended: a death would have brought a newer one."""
        role = next((role for role in self._workers if role.link == link), None)
        if role is None or role.child is None or self._draining:
            return
        text = f"the link between the front end and {role.name} ended" + (f": {why}" if why else "")
        if self._was_ready:
            say(f"{text}; the worker is started again")
            role.child.kill()
        else:
            self._finish(EXIT_BAD_START, text)

    async def _on_drained(self, role: Role, body: dict[str, Any]) -> None:
        unfinished = body["unfinished"]
        if unfinished:
            took = f"{self._config.drain_timeout_s:g} s"
            self._finish(EXIT_FAILED, f"{unfinished} requests had not finished {took} after the signal")
        else:
            self._finish(EXIT_OK)

    # The end.

    async def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        frontend = self._frontend.child
        if self._draining:
            if self._clock() - self._draining_since_s > SAME_SIGNAL_S:
                self._finish(128 + signum, f"second signal ({name}): ending at once")
        elif not self._was_ready or frontend is None:
            self._finish(EXIT_OK)
        else:
            self._draining = True
            self._draining_since_s = self._clock()
            say(f"{name}: finishing accepted requests, for at most {self._config.drain_timeout_s:g} s")
            await frontend.channel.send("drain")
            limit_s = self._config.drain_timeout_s + DRAIN_GRACE_S
            asyncio.get_running_loop().call_later(limit_s, self._post, self._on_drain_overrun)

    async def _on_drain_overrun(self) -> None:
        self._finish(EXIT_FAILED, "the front end did not finish draining")

    def _finish(self, exit_code: int, text: str = "") -> None:
        if self._exit_code is None:
            self._exit_code = exit_code
            for line in text.splitlines():
                say(line)


def ready_line(config: ServeConfig, models: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> str:
    """The one line a person waits for. `models` are {name, version, max_batch_size}."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    names = [m["name"] for m in models]
    several = {name for name in names if names.count(name) > 1}
    named = ", ".join(
        f"{m['name']}{' version ' + m['version'] if m['name'] in several else ''} "
        f"(max_batch_size {m['max_batch_size']})"
        for m in models
    )
    named = named or "none"
    file = f" and unix:{config.grpc_unix_socket}" if config.grpc_unix_socket else ""
    return (
        f"headrace ready: grpc {host}:{config.grpc_port}{file}, "
        f"metrics http://{host}:{config.metrics_port}/metrics, models {named}, "
        f"front end {config.frontend}, devices {', '.join(devices)}"
    )


def clear_folder(folder: str, kept: Mapping[str, Any] | None) -> None:
    """Makes a worker's `folder`, or removes what lies there and is no model's that is kept."""
    os.makedirs(folder, exist_ok=True)
    wanted = {override[1] for override in (kept or {}).get("models", {}).values()}
    for entry in list(os.scandir(folder)):
        if entry.path not in wanted:
            shutil.rmtree(entry.path, ignore_errors=True)


def tell_ready_fd(config: ServeConfig, models: Sequence[Mapping[str, Any]]) -> None:
    """Writes the JSON line that scripts wait for, and closes the descriptor."""
    if config.ready_fd is None:
        return
    ports = {"grpc_port": config.grpc_port, "metrics_port": config.metrics_port}
    line = json.dumps({**ports, "models": list(models)}) + "\n"
    try:
        with os.fdopen(config.ready_fd, "w") as file:
            file.write(line)
    except OSError as error:
        say(f"--ready-fd {config.ready_fd}: {error.strerror}")
