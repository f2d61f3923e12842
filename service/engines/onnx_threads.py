"""How many threads a light model runs on.

ONNX Runtime divides a run among the threads of the session's pool, and each part has to be handed over
and waited for. A model of few weights whose longest run is over in a millisecond or so gains little from
that and pays for it with every run: y = 2x + 1 on 32 rows of 602 KB costs 205 us of CPU a row on two
threads and 185 on one (AMD EPYC). So such a model has both kinds of session for a moment at load, and
keeps the one of one thread unless the other is worth having.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from service.engines.bfloat16 import element_type
from service.models.spec import ModelSpec

WORTH_S = 1e-3  # what threads must save of the longest run
HEAVY_S = 10e-3  # a run of this time is not looked at further: it is worth its threads
RUNS = 3

Clock = Callable[[], float]


def lighter(
    many: Any, open_one: Callable[[], Any], feed: Mapping[str, Any], clock: Clock = time.perf_counter
) -> Any:
    """The session to keep: `many`, of several threads, or that of one, which is opened if it may be better.

    `many` also when `feed` cannot be run: it may be zeros that the model does not take.
    """
    try:
        if run_s(many, feed, clock) > HEAVY_S:
            return many
        one = open_one()
        run_s(one, feed, clock)  # the first run is slower than the others
        saved_s = shortest_s(one, feed, clock) - shortest_s(many, feed, clock)
    except Exception:
        return many
    return one if saved_s < WORTH_S else many


def shortest_s(session: Any, feed: Mapping[str, Any], clock: Clock) -> float:
    """A run's time when nothing else comes between, in seconds."""
    return min(run_s(session, feed, clock) for _ in range(RUNS))


def run_s(session: Any, feed: Mapping[str, Any], clock: Clock) -> float:
    start = clock()
    session.run(None, feed)
    return clock() - start


def longest_run(spec: ModelSpec, rows: int) -> dict[str, Any]:
    """Inputs of `rows` rows of zeros. Every size is one that the model declares."""
    return {
        tensor.name: np.zeros((rows, *tensor.model_dims), element_type(tensor.datatype))
        for tensor in spec.inputs
    }
