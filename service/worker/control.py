"""Models by name, loaded and unloaded while others are served.

    load     open (slow, off everybody's way) -> ids, launchers -> swap the table -> done -> old ids drain
    unload   swap the table -> the old ids drain, and are freed -> done

What is asked of one model is done in the order it came, by a thread that lives as long as there is
something to do; different models do not wait for each other, but no more than LOADS_AT_ONCE are opened at a
time. While a model is loaded again its old versions serve, and go on serving when that fails: no request
fails of a reload.

States, as RepositoryIndex tells them: of a version READY while it serves, UNLOADING while it drains,
UNAVAILABLE with a reason otherwise, also while it serves and its engine is down (a Python model whose
processes are being started again); LOADING is a model of which no version serves yet.

What is wanted, each model with its override, is told (`keep`) before anything is served otherwise. It
outlives this process: whoever comes after it loads the same. There a model that does not load any more
keeps nobody down; it stays wanted. `folder`s of overrides belong to this class from the call on, and are
removed when nothing wants them any more.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from service.cuda.memory import NoRoom
from service.engines.base import AnyEngine, MayBeDown, why_down
from service.errors import Code, StartError
from service.log import say, say_exception
from service.models.repository import NO_OVERRIDE, Override
from service.models.spec import ModelSpec
from service.worker.library import Library
from service.worker.links import Links
from service.worker.models import LoadedModel, Models, check_room

LOADS_AT_ONCE = 4  # as Triton's --model-load-thread-count

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
UNLOADED = "unloaded"

Done = Callable[[Code, str], None]
Keep = Callable[[dict[str, Any]], None]


class Control:
    """The models of one worker. `keep` is told what must outlive it; `library` None: nothing is loaded."""

    def __init__(self, models: Models, links: Links, library: Library | None, keep: Keep) -> None:
        self._models = models
        self._links = links
        self._library = library
        self._keep = keep
        self._opening = threading.Semaphore(LOADS_AT_ONCE)
        self._showing = threading.Lock()  # what was found last is told last
        self._lock = threading.Lock()  # guards what follows
        self._served: dict[str, list[LoadedModel]] = {}
        self._draining: dict[str, list[LoadedModel]] = {}
        self._wanted: dict[str, Override] = {}
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        self._threads: set[threading.Thread] = set()
        self._closing = False

    # At the start.

    def adopt(self, engines: Iterable[AnyEngine]) -> None:
        """Serves these from now on. Raises StartError; what was not taken over is closed then."""
        engines = list(engines)
        self._check_room(engines, ())
        by_name: dict[str, list[AnyEngine]] = {}
        for engine in engines:
            by_name.setdefault(engine.spec.name, []).append(engine)
        self._serve({name: self._add(group) for name, group in by_name.items()}, {})

    def open_wanted(self, wanted: Mapping[str, Override], strict: bool) -> None:
        """Loads what is wanted, before anything else is asked. `strict`: StartError when one of them fails;
        otherwise it is said, and the others serve.
        """
        added: dict[str, list[LoadedModel]] = {}
        faults: list[str] = []
        for name, override in wanted.items():
            try:
                added[name] = self._open(name, override, added)
            except Exception as error:
                if not isinstance(error, StartError):
                    say_exception(error)
                faults.append(str(error))
                self._links.tell_state(name, [["", UNAVAILABLE, str(error)]])
        self._serve(added, wanted)
        if faults and strict:
            raise StartError("\n".join(faults))
        for fault in faults:
            say(f"not loaded again: {fault}")

    def _serve(self, added: Mapping[str, list[LoadedModel]], wanted: Mapping[str, Override]) -> None:
        with self._lock:
            self._served.update(added)
            self._wanted.update(wanted)
            self._tell_wanted()
        self._links.swap([model for models in added.values() for model in models])
        for name in added:
            self._show(name)

    # Calls.

    def load(self, name: str, override: Override, done: Done) -> None:
        """Loads a model, or loads it again. `done` is told how it went, on another thread."""
        self._submit(name, lambda: self._run(lambda: self._load(name, override, done), done))

    def unload(self, name: str, done: Done) -> None:
        """Unloads a model; one that is not loaded is unloaded already."""
        self._submit(name, lambda: self._run(lambda: self._unload(name, done), done))

    def _submit(self, name: str, job: Callable[[], None]) -> None:
        with self._lock:
            if name in self._queues:
                self._queues[name].append(job)
                return
            self._queues[name] = deque([job])
            thread = threading.Thread(target=self._work, args=(name,), name=f"control: {name}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self, name: str) -> None:
        while True:
            with self._lock:
                queue = self._queues[name]
                if not queue:
                    del self._queues[name]
                    self._threads.discard(threading.current_thread())
                    return
                job = queue.popleft()
            job()

    def _run(self, job: Callable[[], None], done: Done) -> None:
        if self._closing:
            done(Code.UNAVAILABLE, "the worker is ending")
            return
        try:
            job()
        except Exception as error:
            say_exception(error)
            done(Code.INTERNAL, f"{type(error).__name__}: {error}")

    def _load(self, name: str, override: Override, done: Done) -> None:
        before = self._links.state(name)
        old = self._served.get(name, [])
        if not old:
            self._links.tell_state(name, [["", LOADING, ""]])
        try:
            added = self._open(name, override)
        except Exception as error:
            if not isinstance(error, StartError):
                say_exception(error)
            self._load_failed(name, override, str(error), before)
            code = Code.RESOURCE_EXHAUSTED if isinstance(error, NoRoom) else Code.INTERNAL
            done(code, f"failed to load '{name}', {error}")
            return
        for note in dict.fromkeys(note for model in added for note in notes_on(model.engine.spec)):
            say(note)
        with self._lock:
            replaced = self._wanted.get(name, NO_OVERRIDE)
            self._served[name], self._wanted[name] = added, override
            self._tell_wanted()
        self._links.swap(added, old)
        self._draining[name] = old
        self._show(name)
        done(Code.OK, "")
        self._drain(name)
        self._show(name)
        self._remove_folder(replaced)

    def _open(
        self, name: str, override: Override, beside: Mapping[str, list[LoadedModel]] | None = None
    ) -> list[LoadedModel]:
        """Opens and adds the versions of a model; nobody is told. `beside`: what will be served, too, by
        name. Raises StartError, or whatever a model raises.
        """
        if self._library is None:
            raise StartError("this server serves the models it was started with")
        with self._opening:
            engines = self._library.open(name, override)
            self._check_room(engines, self._beside(name) if beside is None else beside.values())
            added = self._add(engines)
        return added

    def _beside(self, name: str) -> list[list[LoadedModel]]:
        with self._lock:
            return [models for other, models in self._served.items() if other != name]

    @staticmethod
    def _check_room(engines: Sequence[AnyEngine], beside: Iterable[list[LoadedModel]]) -> None:
        """Raises StartError, and closes the engines, when there is no room for them."""
        try:
            check_room([*(model.engine for models in beside for model in models), *engines])
        except StartError:
            for engine in engines:
                engine.close()
            raise

    def _add(self, engines: Sequence[AnyEngine]) -> list[LoadedModel]:
        added: list[LoadedModel] = []
        try:
            for engine in engines:
                added.append(self._models.add(engine))
                if isinstance(engine, MayBeDown):
                    engine.watch(partial(self._show_served, engine.spec.name))
        except BaseException:
            for model in added:
                self._models.remove(model)
            for engine in engines[len(added) + 1 :]:
                engine.close()
            raise
        return added

    def _load_failed(self, name: str, override: Override, why: str, before: list[list[str]]) -> None:
        if override.folder:
            shutil.rmtree(override.folder, ignore_errors=True)
        if name in self._served:
            return
        known = self._library is not None and name in self._library.names()
        states = [[version, UNAVAILABLE, why] for version, _, _ in before] or [["", UNAVAILABLE, why]]
        self._links.tell_state(name, states if known else [])

    def _unload(self, name: str, done: Done) -> None:
        with self._lock:
            old = self._draining[name] = self._served.pop(name, [])
            replaced = self._wanted.pop(name, NO_OVERRIDE)
            self._tell_wanted()
        if old:
            self._show(name)
            self._links.swap([], old)
        self._drain(name)
        states = [[model.engine.spec.version, UNAVAILABLE, UNLOADED] for model in old]
        if not old and self._links.state(name):
            states = [[version, UNAVAILABLE, UNLOADED] for version, _, _ in self._links.state(name)]
        self._links.tell_state(name, states)
        self._remove_folder(replaced)
        self._forget_what_is_gone(name)
        done(Code.OK, "")

    def _drain(self, name: str) -> None:
        for model in self._draining[name]:
            self._models.remove(model)
        del self._draining[name]

    def _show(self, name: str) -> None:
        """Tells the states of a model that is served, and of versions of it that drain."""
        with self._showing:
            self._links.tell_state(name, self._states(name))

    def _show_served(self, name: str) -> None:
        """The same, unless the model is not served (yet, or any more): whoever loads or unloads it tells."""
        with self._showing:
            if name in self._served:
                self._links.tell_state(name, self._states(name))

    def _states(self, name: str) -> list[list[str]]:
        states = {model.engine.spec.version: [UNLOADING, ""] for model in self._draining.get(name, [])}
        for model in self._served.get(name, []):
            why = why_down(model.engine)
            states[model.engine.spec.version] = [UNAVAILABLE if why else READY, why]
        return [[version, *states[version]] for version in sorted(states, key=int)]

    def _forget_what_is_gone(self, name: str) -> None:
        """A model that is neither served nor in the repositories has no state: nothing grows with names."""
        there = self._library.names() if self._library is not None else set()
        with self._lock:
            busy = {other for other in self._queues if other != name}
            kept = there | set(self._wanted) | busy
        for gone in self._links.states().keys() - kept:
            self._links.tell_state(gone, [])

    def _tell_wanted(self) -> None:
        models = {name: [override.config, override.folder] for name, override in self._wanted.items()}
        self._keep({"models": models, "next_id": self._models.next_id})

    def _remove_folder(self, override: Override) -> None:
        if override.folder and override.folder not in {kept.folder for kept in self._wanted.values()}:
            shutil.rmtree(override.folder, ignore_errors=True)

    # The end.

    def stop(self) -> None:
        """Waits for what is being done; what waits its turn is refused. The links have ended."""
        with self._lock:
            self._closing = True
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Frees everything that is still served. The former has closed, and its launchers have left."""
        for models in self._served.values():
            for model in models:
                self._models.free(model)
        self._served = {}


def notes_on(spec: ModelSpec) -> list[str]:
    """What the person who started the service should know about a model."""
    why = [f"model '{spec.name}' is not batched: {spec.why_unbatched}"] if spec.why_unbatched else []
    return why + [f"model '{spec.name}': {warning}" for warning in spec.warnings]
