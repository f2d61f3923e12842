"""Who of a model's requests goes first, how many may wait and for how long, and how long a batch may run.

    config.pbtxt --scheduling_from--> Scheduling --spec--> the worker's queue, and the front end

`dynamic_batching` says it with `priority_levels`, `default_priority_level`, and a queue policy for all levels
(`default_queue_policy`) or one (`priority_queue_policy`); the parameter `execution_timeout_s` says the rest.

A queue time-out is the config's bound on waiting. A request's own `timeout` is the caller's bound on the
whole, as the gRPC deadline is: it counts beside the queue time-out, except where a policy has a time-out and
does not `allow_timeout_override`. What a caller asks for can so shorten the wait, never lengthen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_LEVELS = 32  # the queue's
EXECUTION_TIMEOUT = "execution_timeout_s"  # the name of the parameter in ModelConfig
DEFAULT_EXECUTION_TIMEOUT_S = 300.0
MAX_EXECUTION_TIMEOUT_S = 1e6
MAX_TIMEOUT_US = (1 << 63) // 1000 - 1  # what the queue's nanoseconds hold, nearly 300 years
_DELAY = 1  # TimeoutAction


@dataclass(frozen=True)
class QueuePolicy:
    """How the requests of one level wait.

    Attributes:
        timeout_us: how long one may wait, 0: without end. delay: one that has waited for so long goes behind
        the others of its level; otherwise it is refused. override: a request's own `timeout` counts too.
        max_queue_size: how many may wait, 0: any number.
    """

    timeout_us: int = 0
    delay: bool = False
    override: bool = True
    max_queue_size: int = 0


@dataclass(frozen=True)
class Scheduling:
    """Of one model.

    Attributes:
        levels: the policy of each, the highest first; one where the model has no priorities. default_level:
        of a request that asks for none, or for one that does not exist; from 1. execution_timeout_s: how long
        a batch may run.
    """

    levels: tuple[QueuePolicy, ...] = (QueuePolicy(),)
    default_level: int = 1
    execution_timeout_s: float = DEFAULT_EXECUTION_TIMEOUT_S

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Scheduling:
        """Of what dataclasses.asdict made."""
        levels = tuple(QueuePolicy(**level) for level in values["levels"])
        return cls(levels, values["default_level"], values["execution_timeout_s"])


def execution_timeout_s(text: str) -> float:
    """The parameter's value, in seconds. ValueError with a sentence for what is none."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_EXECUTION_TIMEOUT_S:
        limits = f"a number of seconds above 0, at most {MAX_EXECUTION_TIMEOUT_S:.0f}"
        raise ValueError(f"{EXECUTION_TIMEOUT} is '{text}'; expected {limits}")
    return seconds


def scheduling_from(config: Any, faults: list[str]) -> Scheduling:
    """What a ModelConfig says; a clause for each fault is added to `faults`."""
    seconds = DEFAULT_EXECUTION_TIMEOUT_S
    if EXECUTION_TIMEOUT in config.parameters:
        try:
            seconds = execution_timeout_s(config.parameters[EXECUTION_TIMEOUT].string_value)
        except ValueError as error:
            faults.append(f"parameter {error}")
    batching = config.dynamic_batching
    found = _level_faults(batching)
    faults += found
    if found:
        return Scheduling()
    default = _policy(batching.default_queue_policy) if batching.HasField("default_queue_policy") else None
    levels = [default or QueuePolicy()] * (batching.priority_levels or 1)
    for level, said in batching.priority_queue_policy.items():
        levels[level - 1] = _policy(said)
    return Scheduling(tuple(levels), batching.default_priority_level or 1, seconds)


def _policy(said: Any) -> QueuePolicy:
    timeout_us = min(said.default_timeout_microseconds, MAX_TIMEOUT_US)
    override = said.allow_timeout_override or not timeout_us
    return QueuePolicy(timeout_us, said.timeout_action == _DELAY, override, said.max_queue_size)


def _level_faults(batching: Any) -> list[str]:
    levels, default = batching.priority_levels, batching.default_priority_level
    said = sorted(batching.priority_queue_policy)
    if levels == 0:
        needy = {"default_priority_level": default, "priority_queue_policy": said}
        return [f"{name} needs priority_levels, which is 0" for name, value in needy.items() if value]
    faults = []
    if levels > MAX_LEVELS:
        faults.append(f"priority_levels must be between 0 and {MAX_LEVELS}, got {levels}")
    if not 1 <= default <= levels:
        faults.append(
            f"default_priority_level must be between 1 and {levels} (priority_levels), got {default}"
        )
    faults += [
        f"priority_queue_policy is for levels from 1 to {levels} (priority_levels), got {level}"
        for level in said
        if not 1 <= level <= levels
    ]
    if levels > 1 and batching.preserve_ordering:
        faults.append(f"preserve_ordering and {levels} priority_levels exclude each other")
    return faults
