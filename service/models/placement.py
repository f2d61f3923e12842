"""Which worker has which model, where there are several: each worker has a device, each model one worker.

    gpus of its config      a worker of one of these devices; it is refused where there is none
    nothing said            any worker
    among several           the one with the fewest models, then the first

All versions of a model are together. What is there when the service starts is placed once, so that a worker
that is started again has the models it had; a model that comes to the repositories later is the first
worker's, and one that a client loads is placed when it is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from service.config import ServeConfig
from service.models.modelconfig import ConfigFault, Defaults, parse_json, wanted_from
from service.models.repository import Found, UnknownModel, find_named, names


@dataclass(frozen=True)
class Placement:
    """What one worker knows of it: its own number, and the worker of each model that was placed."""

    worker: int = 0
    homes: Mapping[str, int] = field(default_factory=dict)

    def owns(self, name: str) -> bool:
        """Whether a model is this worker's."""
        return self.homes.get(name, 0) == self.worker


THE_ONLY_WORKER = Placement()


def misplaced(model: Found, device: int, devices: Sequence[int]) -> str:
    """Why a model that needs a device cannot run on this one, of all that the server has; "" where it can."""
    gpus = model.wanted.gpus
    if not model.on_device or not gpus or device in gpus:
        return ""
    said, has = ", ".join(map(str, gpus)), ",".join(map(str, devices))
    return f"its config says gpus {said}, and it would run on device {device} (--device {has})"


def home_for(gpus: Sequence[int], devices: Sequence[int], taken: Iterable[int]) -> int:
    """The worker for a model. `taken`: the worker of each model that has one."""
    counts = Counter(taken)
    fitting = [worker for worker, device in enumerate(devices) if device in gpus] or range(len(devices))
    return min(fitting, key=lambda worker: (counts[worker], worker))


def homes_of(config: ServeConfig) -> dict[str, int]:
    """The worker of each model that is there now, by name; empty where there is one worker."""
    homes: dict[str, int] = {}
    if len(config.devices) == 1:
        return homes
    for name in sorted(names(config.model_paths)):
        gpus = gpus_of(config.model_paths, name)
        homes[name] = home_for(gpus, config.devices, homes.values())
    return homes


def gpus_of(paths: Sequence[str], name: str, config: str = "") -> Sequence[int]:
    """The devices that a model's config names, or `config` in place of it (JSON); none where it has none, or
    cannot be read: whoever loads it says why.
    """
    try:
        if config:
            return wanted_from(parse_json(config), Defaults()).gpus
        found = find_named(paths, name, Defaults())
    except (UnknownModel, ConfigFault, OSError):
        return ()
    return found[-1].wanted.gpus if found[-1].on_device else ()
