"""A thread that looks after batches that run for too long: a warning for one that is slow, the end of the
worker for one that hangs.

A model that hangs has its stream, and whoever waits for it, for ever: no call into an engine can be ended
from outside. So when a batch has run for its model's `execution_timeout_s` the process ends, with a line
that says why; the supervisor starts it again, and what was in it is answered UNAVAILABLE. A model in Python
has its own processes, which its engine ends one by one: the worker does not.

Only batches are watched, so loading and warm-up take the time they take. A batch that waits for room in the
output arena, because clients do not read, is not running meanwhile.

The thread sleeps until the first batch that runs can have come to its limit; a batch that starts meanwhile
cannot be there before the shortest limit from now. So no limit is missed, and an idle worker wakes every
ten seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastqueue import Running
from service.errors import EXIT_FAILED
from service.log import say

SECOND_NS = 1_000_000_000
LEAST_SLEEP_S = 0.01  # whatever limit somebody sets
SLOW_NS = 10 * SECOND_NS  # no batch is called slow before (fq_policy.h)


@dataclass(frozen=True)
class Watched:
    """A model, by its name for people. `limit_s`: None where its engine keeps the limit itself."""

    name: str
    limit_s: float | None


@dataclass(frozen=True)
class Findings:
    """What to do after a look: sentences to say, the one to end with ("": go on), when to look again."""

    warnings: tuple[str, ...]
    fatal: str
    next_s: float


def look(batches: Sequence[Running], models: Mapping[int, Watched]) -> Findings:
    """What is to be done about the batches that run now. A pure function."""
    warnings, fatal = [], ""
    limits_ns = {id: int(model.limit_s * 1e9) for id, model in models.items() if model.limit_s is not None}
    next_ns = min([SLOW_NS, *limits_ns.values()])
    for batch in batches:
        model = models.get(batch.model)
        if model is None:
            continue
        what = f"{model.name} has been executing a batch of {_rows(batch.rows)} for {_seconds(batch.age_ns)}"
        if batch.slow:
            expected = f"it was expected to take at most a twentieth of {_seconds(batch.slow_after_ns)}"
            warnings.append(f"{what}; {expected if batch.slow_after_ns > SLOW_NS else 'that is slow'}")
        elif batch.age_ns < batch.slow_after_ns:
            next_ns = min(next_ns, batch.slow_after_ns - batch.age_ns)
        if (limit_ns := limits_ns.get(batch.model)) is None:
            continue
        if batch.age_ns >= limit_ns:
            fatal = (
                f"{what} (execution_timeout_s is {model.limit_s:g}): the worker is ended and started again"
            )
        next_ns = min(next_ns, max(limit_ns - batch.age_ns, 0))
    return Findings(tuple(warnings), fatal, next_ns / 1e9)


def _rows(rows: int) -> str:
    return f"{rows} row{'s' if rows != 1 else ''}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.3g} s" if ns < 1000 * SECOND_NS else f"{ns // SECOND_NS} s"


def end_process(text: str) -> None:
    """Says why, and ends this process without a word to anybody else."""
    say(text)
    os._exit(EXIT_FAILED)


class Watch:
    """The thread. `running` is what runs now, `models` the models by id; both are asked at every look."""

    def __init__(
        self,
        running: Callable[[], Sequence[Running]],
        models: Callable[[], Mapping[int, Watched]],
        end: Callable[[str], None] = end_process,
    ) -> None:
        self._running = running
        self._models = models
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when it looks no more."""
        self._stopped.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join()

    def _run(self) -> None:
        next_s = 0.0
        while not self._stopped.wait(next_s):
            found = look(self._running(), self._models())
            for warning in found.warnings:
                say(f"warning: {warning}")
            if found.fatal:
                self._end(found.fatal)
                return
            next_s = max(found.next_s, LEAST_SLEEP_S)
