"""What a front end serves: models, the worker behind each, and whether they can be used now.

A worker says what it serves when its link becomes ready, and again whenever that changes; its models stay
in the catalog when it dies, since the next incarnation brings them back: a model that is known is
UNAVAILABLE meanwhile, not NOT_FOUND. The same is true of its counters, which are read from the last page it
had.

The catalog is written by one thread. Others (metrics) read it: every write replaces one tuple as a whole.
Names and versions are looked up by the codec's own table, so that a wrong one gets the same words everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastqueue import WorkerPage
from fastqueue.stats import ModelStats
from service.codec._codec import Spec, find
from service.errors import NOT_READY, Unavailable
from service.models.spec import ModelSpec

READY, UNAVAILABLE = "READY", "UNAVAILABLE"  # states that a worker tells of a version
WHY = {"LOADING": "it is being loaded", "UNLOADING": "it is being unloaded"}  # of others it gives the reason


States = dict[str, list[list[str]]]  # of each model: [version, state, reason] rows


class Served(NamedTuple):
    """What a worker tells of a model. `device`: the one it runs on, and its bytes there; None: the CPU."""

    id: int
    spec: ModelSpec
    device: int | None = None
    device_bytes: int = 0


@dataclass(frozen=True)
class Entry:
    """A loaded model.

    Attributes:
        id: of the model in its worker. worker: which worker serves it. codec_spec: the codec's form of
        `spec`. page: the worker's counters. device, device_bytes: as `Served` has them. available: its
        worker is there.
    """

    id: int
    worker: int
    spec: ModelSpec
    codec_spec: Spec
    page: WorkerPage
    device: int | None = None
    device_bytes: int = 0
    available: bool = True

    def stats(self) -> ModelStats | None:
        """The model's counters; None when the worker has none of it."""
        return self.page.stats_of(self.id)


class Catalog:
    """The models of a fixed number of workers."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._devices: dict[int, list[str]] = {}
        self._up: set[int] = set()
        self._pages: dict[int, WorkerPage] = {}
        self._states: dict[int, States] = {}
        self.entries: tuple[Entry, ...] = ()

    def worker_ready(
        self,
        worker: int,
        models: Sequence[Served],
        states: States,
        devices: list[str],
        page: WorkerPage,
    ) -> None:
        """A new incarnation of a worker serves these models in place of what it had."""
        self._pages[worker] = page
        self._states[worker] = dict(states)
        self.worker_serves(worker, models)
        self._devices[worker] = devices
        self._up.add(worker)

    def worker_serves(self, worker: int, models: Sequence[Served]) -> None:
        """The worker has loaded or unloaded models: these are what it serves now."""
        page = self._pages[worker]
        fresh = [
            Entry(id, worker, spec, Spec(spec, id, worker), page, device, device_bytes)
            for id, spec, device, device_bytes in models
        ]
        self.entries = (*(entry for entry in self.entries if entry.worker != worker), *fresh)

    def worker_tells(self, worker: int, model: str, versions: list[list[str]]) -> None:
        """The state of a model's versions has changed; none: the worker has forgotten the model."""
        states = self._states[worker]
        states.pop(model, None)
        if versions:
            states[model] = versions

    @property
    def states(self) -> States:
        """What is known of every model; a worker that has it, or had it last, knows best."""
        found: States = {}
        for worker in sorted(self._states):
            for model, rows in self._states[worker].items():
                if model not in found or any(row[1] != UNAVAILABLE for row in rows):
                    found[model] = rows
        return found

    def home_of(self, name: str) -> int | None:
        """The worker that has a model, or is loading or unloading it; None: none has."""
        for worker, states in self._states.items():
            if any(row[1] != UNAVAILABLE for row in states.get(name, ())):
                return worker
        return next((entry.worker for entry in self.entries if entry.spec.name == name), None)

    def is_there(self, worker: int) -> bool:
        """Whether a worker can be used now."""
        return worker in self._up

    def worker_gone(self, worker: int) -> None:
        """Its models are known and cannot be used."""
        self._up.discard(worker)
        self.entries = tuple(
            replace(entry, available=False) if entry.worker == worker else entry for entry in self.entries
        )

    @property
    def started(self) -> bool:
        """Whether every worker has been ready once: before that nobody knows what will be served."""
        return len(self._devices) == self._workers

    @property
    def ready(self) -> bool:
        """Whether every worker is there now."""
        return len(self._up) == self._workers

    @property
    def devices(self) -> list[str]:
        found = [device for worker in sorted(self._devices) for device in self._devices[worker]]
        return list(dict.fromkeys(found))  # workers without a device have the CPU

    def find(self, name: str, version: str) -> Entry:
        """The model of this name; version "" is the highest. Raises RequestError, or Unavailable before
        start.
        """
        if not self.started:
            raise Unavailable(NOT_READY)
        specs = [entry.codec_spec for entry in self.entries]
        return self.entries[find(specs, name, version, self.not_served())]

    def not_served(self) -> list[tuple[str, str, str]]:
        """(name, version, why) of each version that a worker has told of and does not serve."""
        return [
            (name, version, WHY.get(state, reason))
            for name, rows in self.states.items()
            for version, state, reason in rows
            if state != READY
        ]

    def select(self, name: str, version: str) -> list[Entry]:
        """All models; those of a name; or one version of it. Raises as `find` does when a name is not
        served.
        """
        if not name:
            return list(self.entries)
        one = self.find(name, version)
        return [one] if version else [entry for entry in self.entries if entry.spec.name == name]

    def is_up(self, entry: Entry) -> bool:
        """Whether the model can run now: its worker is there, and has not said that the model is down."""
        rows = self.states.get(entry.spec.name, ())
        return entry.available and not any(
            row[0] == entry.spec.version and row[1] == UNAVAILABLE for row in rows
        )

    @property
    def all_up(self) -> bool:
        """Whether every worker is there, and every model that it serves can run now."""
        return self.ready and all(self.is_up(entry) for entry in self.entries)

    def versions(self, name: str) -> list[str]:
        """The versions served under a name, lowest first."""
        return sorted((entry.spec.version for entry in self.entries if entry.spec.name == name), key=int)
