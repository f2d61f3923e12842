"""What a worker can load: every model of the service's paths, by name, as it lies there when it is asked
for. What it loads without being asked is what was placed on it (`service.models.placement`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from service.config import EVERY_MODEL, ServeConfig
from service.engines.base import AnyEngine, ModelLoadError, open_engine
from service.errors import StartError
from service.log import say_exception
from service.models.modelconfig import ConfigFault, Defaults
from service.models.placement import THE_ONLY_WORKER, Placement, misplaced
from service.models.repository import (
    NO_OVERRIDE,
    Found,
    Override,
    UnknownModel,
    find,
    find_named,
    names,
)

POLL_FAILED = "failed to poll from model repository"
MAX_NAMED = 10  # of the models that are there, where one is not
MAX_NAME = 80  # characters of each


def open_model(model: Found) -> AnyEngine:
    """Loads one version of a model. Raises StartError with one sentence."""
    try:
        return open_engine(
            model.path, name=model.name, version=model.version, wanted=model.wanted, backend=model.backend
        )
    except StartError:
        raise
    except ModelLoadError as error:
        raise StartError(str(error)) from error
    except MemoryError as error:
        needs = "it needs more memory than there is, to load it or to try it out"
        raise StartError(f"model '{model.name}' ({model.path}) could not be loaded: {needs}") from error
    except Exception as error:
        say_exception(error)
        what = f"{type(error).__name__}: {error}"
        raise StartError(f"model '{model.name}' ({model.path}) could not be loaded: {what}") from error


class Library:
    """The models of a configuration, for the worker that `placement` names. `open_one` loads one version
    (tests have engines of their own).
    """

    def __init__(
        self,
        config: ServeConfig,
        open_one: Callable[[Found], AnyEngine] = open_model,
        placement: Placement = THE_ONLY_WORKER,
    ) -> None:
        self._placement = placement
        self._devices = config.devices
        self._paths = config.model_paths
        self._wanted = config.load_models
        self._defaults = Defaults(config.max_batch_size, config.max_batch_wait_us, config.instances)
        self._open_one = open_one

    def names(self) -> set[str]:
        """Every model that there is now."""
        return names(self._paths)

    def wanted_at_start(self) -> list[str]:
        """What --load-model names, as far as it is this worker's. Raises StartError when one is not there."""
        there = self.names()
        wanted = list(dict.fromkeys(self._wanted))
        if EVERY_MODEL in wanted:
            return [name for name in sorted(there) if self._placement.owns(name)]
        if missing := [name for name in wanted if name not in there]:
            raise StartError(f"--load-model {', '.join(missing)}: no such model; {_said(there)}")
        return [name for name in wanted if self._placement.owns(name)]

    def open_all(self) -> list[AnyEngine]:
        """Loads all that is this worker's. Raises StartError with a sentence per model that fails."""
        found, faults = find(self._paths, self._defaults)
        return self._open_found([model for model in found if self._placement.owns(model.name)], faults)

    def open(self, name: str, override: Override = NO_OVERRIDE) -> list[AnyEngine]:
        """Loads every version of a model that its policy serves. Raises StartError."""
        try:
            found = find_named(self._paths, name, self._defaults, override)
        except UnknownModel as error:
            why = f"there is no model '{name}'; {_said(self.names())}"
            raise StartError(f"{POLL_FAILED}: {why}") from error
        except ConfigFault as fault:
            raise StartError(f"model '{name}': {fault}") from fault
        except OSError as error:
            raise StartError(f"{POLL_FAILED}: {error.filename} cannot be read: {error.strerror}") from error
        return self._open_found(found, [])

    def _open_found(self, found: list[Found], faults: list[str]) -> list[AnyEngine]:
        engines: list[AnyEngine] = []
        first: StartError | None = None
        device = self._devices[self._placement.worker]
        for model in found:
            try:
                if why := misplaced(model, device, self._devices):
                    raise StartError(f"model '{model.name}': {why}")
                engines.append(self._open_one(model))
            except StartError as error:
                first = first or error
                faults.append(str(error))
        if faults:
            for engine in engines:
                engine.close()
            raise first if first and len(faults) == 1 else StartError("\n".join(faults))
        return engines


def _said(there: Collection[str]) -> str:
    """Which models there are, in words; of many the first ones and how many more."""
    named = [name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in sorted(there)[:MAX_NAMED]]
    more = f" and {len(there) - len(named)} more" if len(there) > len(named) else ""
    return f"there is {', '.join(named)}{more}" if named else "no model is there"
