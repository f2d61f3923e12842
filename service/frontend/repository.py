"""Model control as clients see it: RepositoryIndex, RepositoryModelLoad and RepositoryModelUnload.

The front end checks what was asked, puts files that came with a load into a folder of their own, and asks the
worker (`service.frontend.links`), which loads, swaps and drains. What lies in the repositories is read
here, anew for every index; what is loaded, and why not, is what the worker has told.

Where there are several workers a model stays with the one that has it; another one goes to a device that its
config names, or to the worker with the fewest models (`service.models.placement`).

    file:<version>/<name>   becomes <folder>/<worker>/<random>/<version>/<name>, which the worker removes when
                            the model is unloaded or replaced; until the worker is asked it is removed here
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service._pb import inference as pb
from service.config import ServeConfig
from service.errors import SHUTTING_DOWN, InternalError, InvalidRequest, NotBuilt, Overloaded, Unavailable
from service.frontend.catalog import READY, UNAVAILABLE, Catalog
from service.frontend.links import Link, Links, gone
from service.models.placement import gpus_of, home_for
from service.models.repository import MAX_CONFIG_BYTES, names

MAX_LOADS = 64  # in progress or waiting their turn
MAX_NAME_BYTES = 255  # of a model or a file, as file systems have it
FILE = "file:"
NOT_LOADED = "not loaded"
WORKER_AWAY = "its worker is starting again"
NOT_EXPLICIT = (
    "explicit model load / unload is not allowed if polling is enabled. This server serves the models that "
    "it found when it was started, no others; one started with --model-control-mode explicit lets clients "
    "load and unload"
)


class Repository:
    """One front end's. `folder`: where files that come with a load may lie; `is_draining`: take nothing
    new.
    """

    def __init__(
        self,
        config: ServeConfig,
        catalog: Catalog,
        links: Links,
        folder: str,
        is_draining: Callable[[], bool],
    ) -> None:
        self._paths = config.model_paths
        self._explicit = config.explicit
        self._catalog = catalog
        self._links = links
        self._folder = folder
        self._is_draining = is_draining
        self._devices = config.devices
        self._calls = 0
        self._asked: list[tuple[str, int]] = []  # model and worker of each call in progress

    async def index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Every model that is there or loaded: a row per version that was loaded once, else one without a
        version.
        """
        _check_no_repository(request.repository_name)
        there = await asyncio.to_thread(names, self._paths)
        response = pb.RepositoryIndexResponse()
        for name in sorted(there | self._catalog.states.keys()):
            for version, state, reason in self._states(name):
                if state == READY or not request.ready:
                    response.models.add(name=name, version=version, state=state, reason=reason)
        return response

    def _states(self, name: str) -> list[list[str]]:
        rows = self._catalog.states.get(name) or [["", UNAVAILABLE, NOT_LOADED]]
        home = self._catalog.home_of(name)
        if self._catalog.is_there(home) if home is not None else self._catalog.ready:
            return rows
        return [row if row[1] == UNAVAILABLE else [row[0], UNAVAILABLE, WORKER_AWAY] for row in rows]

    async def load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Loads a model, or loads it again; returns when it serves."""
        name, config, files = checked_load(request)
        with self._call(request.repository_name, name):
            worker = await self._worker_for(name, config)
            with self._asking(name, worker):
                link = self._links.current(worker)
                folder = await self._write(link, name, files) if files else ""
                await self._links.ask(link, "load", {"model": name, "config": config, "folder": folder})
        return pb.RepositoryModelLoadResponse()

    async def unload(self, request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        """Unloads a model; returns when all it had accepted is answered and it is gone."""
        name = request.model_name
        checked_unload(request)
        with self._call(request.repository_name, name):
            worker = self._home_of(name) or 0
            with self._asking(name, worker):
                await self._links.ask(self._links.current(worker), "unload", {"model": name})
        return pb.RepositoryModelUnloadResponse()

    @contextmanager
    def _call(self, repository: str, name: str) -> Iterator[None]:
        """A load or unload in progress, if it may begin."""
        _check_no_repository(repository)
        if not self._explicit:
            raise Unavailable(NOT_EXPLICIT)
        if not name:
            raise InvalidRequest("model_name is empty; expected the name of a model")
        if self._is_draining():
            raise Unavailable(SHUTTING_DOWN)
        if self._calls >= MAX_LOADS:
            raise Overloaded(f"{self._calls} loads and unloads are in progress, as many as may be; try later")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @contextmanager
    def _asking(self, name: str, worker: int) -> Iterator[None]:
        """Meanwhile whatever else is asked of the model goes to the same worker."""
        self._asked.append((name, worker))
        try:
            yield
        finally:
            self._asked.remove((name, worker))

    def _home_of(self, name: str) -> int | None:
        """The worker that has a model, or was asked for it."""
        asked = next((worker for model, worker in self._asked if model == name), None)
        return self._catalog.home_of(name) if asked is None else asked

    async def _worker_for(self, name: str, config: str) -> int:
        """The worker that is to load a model. Raises ServiceError where it is on another device than its
        config, or the one that came with the load, says.
        """
        if len(self._devices) == 1:
            return 0
        gpus = await asyncio.to_thread(gpus_of, self._paths, name, config)
        home = self._home_of(name)
        if home is None:
            taken = [entry.worker for entry in self._catalog.entries] + [worker for _, worker in self._asked]
            return home_for(gpus, self._devices, taken)
        if gpus and self._devices[home] not in gpus:
            said = ", ".join(map(str, gpus))
            what = f"it is served on device {self._devices[home]}, and its config says gpus {said}"
            raise InternalError(f"failed to load '{name}', {what}: unload it first")
        return home

    async def _write(self, link: Link, name: str, files: Mapping[str, bytes]) -> str:
        """Writes the files that a model is to be loaded from; the folder."""
        home = os.path.join(self._folder, str(link.worker))
        writing = asyncio.ensure_future(asyncio.to_thread(write_files, home, files))
        try:
            folder = await asyncio.shield(writing)
        except OSError as error:
            raise poll_failed(name, f"its files cannot be written: {error.strerror}") from error
        except asyncio.CancelledError:
            writing.add_done_callback(_remove_written)
            raise
        if self._links.current(link.worker) is not link:  # whoever starts a worker empties the folder
            shutil.rmtree(folder, ignore_errors=True)
            raise gone("load")
        return folder


def _remove_written(writing: asyncio.Future[str]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        shutil.rmtree(writing.result(), ignore_errors=True)


def _check_no_repository(name: str) -> None:
    if name:
        raise NotBuilt("'repository_name' specification is not supported; leave it out: all are looked at")


def poll_failed(name: str, why: str) -> InternalError:
    """In the words that Triton has for a model whose files are not in order."""
    return InternalError(f"failed to load '{name}', failed to poll from model repository: {why}")


def checked_load(request: pb.RepositoryModelLoadRequest) -> tuple[str, str, dict[str, bytes]]:
    """Name, config and files of a load. Raises ServiceError."""
    name, config, files = request.model_name, "", {}
    for key, value in request.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if key == "config":
            config = _config(name, value, kind)
        elif key.startswith(FILE):
            if kind != "bytes_param":
                raise InvalidRequest(f"parameter '{key}': expected bytes_param, got {kind}")
            files[key] = value.bytes_param
        else:
            raise InvalidRequest(
                f"parameter '{key}' is unknown; expected 'config' or 'file:<version>/<name>'"
            )
    if len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
        raise poll_failed(name[:80], "it cannot be the name of a model")
    if files and not config:
        raise InvalidRequest("Load parameter 'config' must be specified for model file override")
    return name, config, {_file_path(name, key): data for key, data in files.items()}


def _config(name: str, value: Any, kind: str | None) -> str:
    if kind != "string_param":
        raise InvalidRequest(f"parameter 'config': expected string_param, got {kind}")
    if len(value.string_param.encode()) > MAX_CONFIG_BYTES:
        raise InvalidRequest(
            f"failed to load '{name}', its 'config' has more than {MAX_CONFIG_BYTES >> 10} KiB"
        )
    return str(value.string_param)


def _file_path(name: str, key: str) -> str:
    path = key.removeprefix(FILE)
    parts = path.split("/")
    fits = all(part not in ("", ".", "..") and len(os.fsencode(part)) <= MAX_NAME_BYTES for part in parts)
    if len(parts) < 2 or not fits or "\0" in path:
        raise poll_failed(
            name, f"'{key[:80]}' is no file of a model; expected 'file:<version>/<name>', inside its folder"
        )
    return path


def checked_unload(request: pb.RepositoryModelUnloadRequest) -> None:
    """Raises InvalidRequest. `unload_dependents` changes nothing: no model here is made of others."""
    for key, value in request.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if key != "unload_dependents":
            raise InvalidRequest(f"parameter '{key}' is unknown; expected 'unload_dependents'")
        if kind != "bool_param":
            raise InvalidRequest(f"parameter '{key}': expected bool_param, got {kind}")


def write_files(folder: str, files: Mapping[str, bytes]) -> str:
    """Writes files, by their paths, into a new folder in `folder` that this user alone can read. Raises
    OSError, and then has left nothing.
    """
    home = tempfile.mkdtemp(dir=folder)
    try:
        for path, data in files.items():
            file = Path(home, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    except OSError:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return home
