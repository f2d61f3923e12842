"""What an engine is: it opens a model, describes it, and creates instances, each of which runs one batch at a
time.

    open_engine(path) -> Engine    spec, create_instance(index), close()
    Instance.execute(batch)        on the calling launcher's thread, start to end; answers the batch or raises

One batch, in an instance:

    1. batch.input_pointer(i): the input lies in one piece, use it there; 0: batch.gather(i, ...) into a
       buffer of the instance; then batch.mark_input_done()
    2. batch.reserve(row bytes): addresses in the output arena, before the run where every size is known from
       the spec (the model then writes straight into the arena), otherwise after it, and outputs are copied
    3. run; batch.mark_compute_done()
    4. batch.complete(shapes of the whole batch, in model order)

An instance never answers for a batch that failed: it raises EngineError, whose text reaches the client as
INTERNAL, and the launcher answers. An instance is used by one thread at a time; different instances of one
engine run at once.

Models that run on a device have contexts in place of instances: `service.cuda.model.DeviceModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from service.cuda.model import DeviceModel
from service.models.probe import Array
from service.models.spec import ModelSpec
from service.models.wanted import Wanted

if TYPE_CHECKING:
    from fastqueue import Batch

PLAN_SUFFIXES = (".plan", ".engine")  # of files with a TensorRT plan
TORCH_SUFFIXES = (".pt", ".pt2")  # of files with a program for torch


class ModelLoadError(Exception):
    """A model cannot be served. One sentence for a person: which file, what is wrong, what to do."""


class EngineError(Exception):
    """A batch failed in the model. The text reaches the client."""


class UnservedShape(EngineError):
    """The model does not take inputs of this batch's shape. All its requests have it: the callers' fault."""


class Instance(Protocol):
    """One execution slot of a model."""

    def execute(self, batch: Batch) -> None:
        """Runs a batch and completes it. Raises EngineError when the model failed; the batch is then open."""

    def close(self) -> None:
        """Frees buffers. Nothing is running."""


class Engine(Protocol):
    """A loaded model."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def sample(self) -> Sequence[Array]:
        """Inputs that the model runs on, in model order and in its form: a row or more, or one request where
        it does not batch; BF16 as its bits. Empty: none is known, and the model is not warmed up.
        """

    def create_instance(self, index: int) -> Instance:
        """Instance number `index`, from 0 to spec.instances - 1."""

    def close(self) -> None:
        """Frees the model. Its instances are closed already."""


AnyEngine = Engine | DeviceModel


@runtime_checkable
class MayBeDown(Protocol):
    """What an engine has besides, when its instances are processes that may all be gone for a while."""

    @property
    def down(self) -> str:
        """Why no instance can run a batch now; "" when one can."""

    def watch(self, changed: Callable[[], None]) -> None:
        """`changed` is called after every change of `down` from now on, on whatever thread."""


def why_down(engine: AnyEngine) -> str:
    """Why the engine cannot run a batch now; "" when it can."""
    return engine.down if isinstance(engine, MayBeDown) else ""


def open_engine(
    path: str, *, name: str, version: str = "1", wanted: Wanted | None = None, backend: str = ""
) -> AnyEngine:
    """Loads the model at `path` with the engine `backend`, or with the one for its kind of file.

    `wanted`: what the user says of it; a model that is something else is refused. Raises ModelLoadError.
    """
    if backend == "onnxruntime" or (not backend and path.lower().endswith(".onnx")):
        from service.engines.onnxruntime import open_onnx

        return open_onnx(path, name=name, version=version, wanted=wanted or Wanted())
    if backend == "tensorrt" or (not backend and path.lower().endswith(PLAN_SUFFIXES)):
        from service.engines.tensorrt import open_plan

        return open_plan(path, name=name, version=version, wanted=wanted or Wanted())
    if backend == "pytorch" or (not backend and path.lower().endswith(TORCH_SUFFIXES)):
        from service.engines.torch import open_torch

        return open_torch(path, name=name, version=version, wanted=wanted or Wanted())
    if backend == "python":
        from service.engines.python import open_python_model

        return open_python_model(path, name=name, version=version, wanted=wanted or Wanted())
    expected = "expected *.onnx, *.plan, *.pt or *.pt2"
    raise ModelLoadError(f"model '{name}' ({path}): no engine serves this kind of file; {expected}")
