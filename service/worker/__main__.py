"""The worker process: loads the models it was told to, then serves links until its supervisor lets go of
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from service.config import ServeConfig
from service.control import Channel
from service.engines.base import Engine, ModelLoadError, open_engine
from service.errors import EXIT_BAD_START, EXIT_OK, StartError
from service.log import say_exception
from service.models.modelconfig import Defaults
from service.models.repository import Found, find
from service.process import control_fd, die_with_parent
from service.worker.worker import Worker


def open_engines(config: ServeConfig) -> list[Engine]:
    """Loads every model of the configuration. Raises StartError with a sentence per model that fails."""
    defaults = Defaults(config.max_batch_size, config.max_batch_wait_us, config.instances)
    found, faults = find(config.model_paths, defaults)
    engines = []
    for model in found:
        try:
            engines.append(open_model(model))
        except StartError as error:
            faults.append(str(error))
    if faults:
        for engine in engines:
            engine.close()
        raise StartError("\n".join(faults))
    return engines


def open_model(model: Found) -> Engine:
    """Loads one version of a model. Raises StartError with one sentence."""
    try:
        return open_engine(
            model.path, name=model.name, version=model.version, wanted=model.wanted, backend=model.backend
        )
    except ModelLoadError as error:
        raise StartError(str(error)) from error
    except MemoryError as error:
        needs = "it needs more memory than there is, to load it or to try it out"
        raise StartError(f"model '{model.name}' ({model.path}) could not be loaded: {needs}") from error
    except Exception as error:
        say_exception(error)
        what = f"{type(error).__name__}: {error}"
        raise StartError(f"model '{model.name}' ({model.path}) could not be loaded: {what}") from error


def notes_on(worker: Worker) -> list[str]:
    """What the person who started the service should know about its models."""
    notes = []
    for spec in worker.specs:
        if spec.why_unbatched:
            notes.append(f"model '{spec.name}' is not batched: {spec.why_unbatched}")
        notes += [f"model '{spec.name}': {warning}" for warning in spec.warnings]
    return list(dict.fromkeys(notes))  # versions of one model have much in common


def main(arguments: Sequence[str], load: Callable[[ServeConfig], list[Engine]] = open_engines) -> int:
    """The life of a worker process; its exit code. `load` is where tests put engines of their own."""
    die_with_parent()
    control = Channel.from_fd(control_fd(arguments))
    configure = control.receive()
    if configure is None:
        return EXIT_OK
    config = ServeConfig.from_json(configure.body["config"])
    try:
        worker = Worker(load(config), config.output_arena_mb, config.spill_mb)
    except StartError as error:
        control.send("failed", {"message": str(error)})
        return EXIT_BAD_START
    worker.start()
    control.send("loaded", {"models": [spec.name for spec in worker.specs], "notes": notes_on(worker)})
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
