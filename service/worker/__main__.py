"""The worker process: loads the models it was told to, then serves links until its supervisor lets go of
it.

What it was told is its configuration, and in `kept` what a worker before it has left (`service.supervisor`):
the first one loads what the configuration says and fails with the first fault; another one loads what was
wanted last, by name, and goes on without what does not load any more. Without model control all is wanted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from service.config import ServeConfig
from service.control import Channel
from service.cuda.device import choose
from service.engines.base import AnyEngine
from service.errors import EXIT_BAD_START, EXIT_OK, StartError
from service.models.placement import THE_ONLY_WORKER, Placement
from service.models.repository import NO_OVERRIDE, Found, Override
from service.process import control_fd, die_with_parent
from service.worker.control import Keep, notes_on
from service.worker.library import Library, open_model
from service.worker.worker import Worker

IDS = 1 << 24  # of models, for each worker: no id is another worker's

Load = Callable[[ServeConfig], Sequence[AnyEngine]]


def nothing_kept(worker: int = 0) -> dict[str, Any]:
    """What the first worker of its number finds."""
    return {"models": None, "next_id": worker * IDS + 1}


def open_engines(config: ServeConfig) -> list[AnyEngine]:
    """Loads every model of the configuration. Raises StartError with a sentence per model that fails."""
    return Library(config).open_all()


def open_worker(
    config: ServeConfig,
    kept: dict[str, Any],
    keep: Keep,
    load: Load | None = None,
    open_one: Callable[[Found], AnyEngine] = open_model,
    placement: Placement = THE_ONLY_WORKER,
    process_fd: int | None = None,
) -> Worker:
    """A worker with what it has to serve. Raises StartError. `process_fd`: as `Worker`'s.

    `load` and `open_one` are where tests put engines of their own: all of them, or one version's.
    """
    choose(config.devices[placement.worker], config.streams)
    settings: dict[str, Any] = {"first_id": kept["next_id"], "keep": keep, "process_fd": process_fd}
    library = Library(config, open_one, placement)
    if not config.explicit:
        engines = load(config) if load else library.open_all()
        return Worker(engines, config.output_arena_mb, config.spill_mb, **settings)
    worker = Worker([], config.output_arena_mb, config.spill_mb, library=library, **settings)
    first = kept["models"] is None
    if first:
        wanted = dict.fromkeys(library.wanted_at_start(), NO_OVERRIDE)
    else:
        wanted = {name: Override(*override) for name, override in kept["models"].items()}
    worker.open_wanted(wanted, strict=first)
    return worker


def notes_about(worker: Worker) -> list[str]:
    """What the person who started the service should know about its models."""
    notes = [note for spec in worker.specs for note in notes_on(spec)]
    return list(dict.fromkeys(notes))  # versions of one model have much in common


def main(
    arguments: Sequence[str],
    load: Load | None = None,
    open_one: Callable[[Found], AnyEngine] = open_model,
) -> int:
    """The life of a worker process; its exit code."""
    die_with_parent()
    control = Channel.from_fd(control_fd(arguments))
    configure = control.receive()
    if configure is None:
        return EXIT_OK
    body = configure.body
    config = ServeConfig.from_json(body["config"])
    placement = Placement(body["worker"], body.get("homes", {}))
    kept = body.get("kept") or nothing_kept(placement.worker)

    def keep(what: dict[str, Any]) -> None:
        control.send("keep", what)

    try:
        worker = open_worker(config, kept, keep, load, open_one, placement, os.pidfd_open(os.getpid()))
    except StartError as error:
        control.send("failed", {"message": str(error)})
        return EXIT_BAD_START
    worker.start()
    control.send("loaded", {"models": [spec.name for spec in worker.specs], "notes": notes_about(worker)})
    while (message := control.receive()) is not None:
        if message.kind == "link":
            worker.open_link(Channel.from_fd(message.take_fds()[0]))
        elif message.kind == "stop":
            worker.stop()
            break
    return EXIT_OK


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(exit_code)  # launchers may be inside a model; whoever waited for them has gone
