"""Models written in Python: a user's class, each instance in a child process of its own.

    <version>/model.py     class Model: initialize(config), execute(inputs) -> outputs, finalize()

    open_python       starts the process of every instance, and waits until each has loaded the model;
                      open_python_model is the same by a config.pbtxt
    PythonInstance    one launcher's side: gather -> child executes -> reserve, copy -> complete
    python_process    the child as the worker holds it, and the thread that restarts it
    python_child      what runs in it
    python_memory     the shared memory that tensors cross in

A process per instance, because a model in Python holds its interpreter's lock: in the worker it would stop
every other model and the links, and two instances would be one. The launcher waits for the child without
the worker's lock. No tensor is pickled: the batch is gathered straight into memory that the child sees as
numpy arrays, and its outputs are copied twice, by the child into the memory for outputs and by the launcher
into the output arena. The child could write into the arena itself, but then a model that runs wild would
have everybody's answers within reach; the copy costs 0.1 us per KB.

What becomes of a batch that goes wrong:

    execute raises                         INTERNAL with the exception's class and text; the child goes on
    the answer is not as configured        INTERNAL, naming the output, what was expected and what came
    the child ends, however                UNAVAILABLE: most of the batch are innocent, a retry is right
    execution_timeout_s has passed         DEADLINE_EXCEEDED naming it; the child is killed
    the child cannot be started again      UNAVAILABLE with what its last start said

Only the batch that the instance held is concerned, and the child is started again (`python_process`). While
no instance has a child the model is `down`, and is not called ready.
Every datatype is served; `python_tensors` says what BYTES and BF16 are to the model. What a child says of
where its outputs lie is checked before anything there is read: a child that lies is ended.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import memmove
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from service.engines.base import EngineError, ModelLoadError
from service.engines.python_memory import TensorMemory, layout
from service.engines.python_process import ExecutionTimeout, InstanceProcess, Keeper, ProcessEnded
from service.engines.strings import ROW_END_BYTES
from service.errors import Code
from service.models.scheduling import (
    DEFAULT_EXECUTION_TIMEOUT_S,
    EXECUTION_TIMEOUT,
    execution_timeout_s,
)
from service.models.spec import ALLOWED_BATCH_SIZES, ModelSpec, TensorSpec
from service.models.wanted import Wanted, WantedTensor

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fastqueue import Batch

PLATFORM = "python"
BACKEND = "python"
ANY_SIZE = f"parameter '{ALLOWED_BATCH_SIZES}' is not used: a Python model gets batches as they are"


# ---- loading ----


def open_python_model(path: str, *, name: str, version: str, wanted: Wanted) -> PythonEngine:
    """Loads a model file by what its config.pbtxt says; there is nothing to derive. Raises ModelLoadError."""
    faults = [
        f"{kind} '{tensor.name}' needs a data_type and dims in config.pbtxt: a Python file does not say them"
        for kind, tensors in (("input", wanted.inputs), ("output", wanted.outputs))
        for tensor in tensors
        if not tensor.datatype or tensor.dims is None
    ]
    if not wanted.inputs or not wanted.outputs:
        faults.append("config.pbtxt must name its inputs and outputs: a Python file does not say them")
    if faults:
        raise ModelLoadError(f"model '{name}' ({path}) cannot be served: {'; '.join(faults)}")
    size = (wanted.max_batch_size or 0) if wanted.firm else 0
    said = json.loads(wanted.config_json or "{}").get("parameters", {})
    spec = ModelSpec(
        name=name,
        version=version,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=size,
        inputs=_tensors(wanted.inputs),
        outputs=_tensors(wanted.outputs),
        max_batch_wait_us=wanted.max_batch_wait_us,
        instances=wanted.instances,
        why_unbatched="" if size else "config.pbtxt has no max_batch_size above 0",
        warnings=wanted.warnings + (ANY_SIZE,) * bool(wanted.batch_sizes),
        config_json=wanted.config_json,
        scheduling=wanted.scheduling,
    )
    return open_python(path, spec, {key: value.get("string_value", "") for key, value in said.items()})


def _tensors(wanted: Sequence[WantedTensor]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tensor.name, tensor.datatype, tensor.dims or (), tensor.reshape, tensor.labels)
        for tensor in wanted
    )


def open_python(path: str, spec: ModelSpec, parameters: Mapping[str, str] | None = None) -> PythonEngine:
    """Loads the model file at `path`, whose configuration is `spec`, in `spec.instances` processes.

    `parameters`: the configuration's, which the model gets too; `execution_timeout_s` among them is ours.
    Raises ModelLoadError.
    """
    where = f"model '{spec.name}' ({path})"
    parameters = dict(parameters or {})
    if not os.path.isfile(path):
        raise ModelLoadError(f"{where} cannot be read: expected a file with a class 'Model'")
    if faults := spec.faults():
        raise ModelLoadError(f"{where} cannot be served: {'; '.join(faults)}")
    try:
        timeout_s = execution_timeout_s(parameters.get(EXECUTION_TIMEOUT, str(DEFAULT_EXECUTION_TIMEOUT_S)))
    except ValueError as error:
        raise ModelLoadError(f"{where}: {error}") from error
    load = load_message(os.path.abspath(path), spec, parameters)
    engine = PythonEngine(spec, load, timeout_s)
    try:
        engine.wait_loaded()
    except ModelLoadError as error:
        engine.close()
        raise ModelLoadError(f"{where} was not loaded: {error}") from error
    return engine


def load_message(file: str, spec: ModelSpec, parameters: Mapping[str, str]) -> dict[str, Any]:
    """What a child is told first. `config` is what the model's initialize gets."""

    def described(tensors: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [{"name": t.name, "datatype": t.datatype, "dims": list(t.model_dims)} for t in tensors]

    return {
        "file": file,
        "max_batch_size": spec.max_batch_size,
        "inputs": [(tensor.name, tensor.datatype) for tensor in spec.inputs],
        "outputs": [(tensor.name, tensor.datatype, tensor.model_dims) for tensor in spec.outputs],
        "config": {
            "name": spec.name,
            "version": spec.version,
            "parameters": dict(parameters),
            "inputs": described(spec.inputs),
            "outputs": described(spec.outputs),
            "max_batch_size": spec.max_batch_size,
            "directory": os.path.dirname(file),
        },
    }


# ---- running ----


class PythonEngine:
    """A Python model and the processes of its instances. Its `execute` is for clients alone: no sample."""

    sample = ()

    def __init__(self, spec: ModelSpec, load: dict[str, Any], timeout_s: float) -> None:
        self.spec = spec
        self.timeout_s = timeout_s
        changed = threading.Condition()
        self._keepers = []
        for index in range(spec.instances):
            where = f"model '{spec.name}' version {spec.version} instance {index}"
            self._keepers.append(Keeper(partial(InstanceProcess, where, load), where, changed))
        for keeper in self._keepers:
            keeper.siblings = self._keepers

    def wait_loaded(self) -> None:
        """Waits until every instance is up. Raises ModelLoadError."""
        for keeper in self._keepers:
            keeper.wait_first()

    @property
    def down(self) -> str:
        """Why no instance has a process now; "" when one has."""
        if any(keeper.is_up for keeper in self._keepers):
            return ""
        return self._keepers[0].trouble

    def watch(self, changed: Callable[[], None]) -> None:
        """`changed` is called after every start and every death of a process, by its keeper."""
        for keeper in self._keepers:
            keeper.tell = changed

    def create_instance(self, index: int) -> PythonInstance:
        return PythonInstance(self.spec, self._keepers[index], self.timeout_s)

    def close(self) -> None:
        """Ends every process, all at once: each may take its time to finalize."""
        closers = [threading.Thread(target=keeper.close) for keeper in self._keepers]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


class PythonInstance:
    """One execution slot: hands batches to its process. Its process ends with it, or with the engine."""

    def __init__(self, spec: ModelSpec, keeper: Keeper, timeout_s: float) -> None:
        self._spec = spec
        self._keeper = keeper
        self._timeout_s = timeout_s
        self._name = f"model '{spec.name}'"
        self._fixed_outputs = all(tensor.is_fixed for tensor in spec.outputs)

    def execute(self, batch: Batch) -> None:
        """Runs a batch, and answers it unless EngineError is raised: the model failed."""
        if batch.rows == 0 and self._fixed_outputs:  # not every model takes an empty batch
            self._answer_without_rows(batch)
            return
        while (process := self._keeper.wait_up()) is not None:
            with process.lock:
                done = not process.closed and self._run(process, batch)
            if process.has_ended:
                self._keeper.lost(process)
            if done:
                self._keeper.wait_up()  # until there is a process again, other instances take all batches
                return
        batch.fail(Code.UNAVAILABLE, f"{self._name} is down: {self._keeper.trouble}")

    def _run(self, process: InstanceProcess, batch: Batch) -> bool:
        """Runs a batch in a process; False when the process had gone before it saw the batch."""
        if not process.send_batch(batch.rows, *self._gather(process, batch)):
            process.end()
            return False
        batch.mark_input_done()
        try:
            answer = process.answer(self._timeout_s)
            pieces = self._pieces(process, batch, answer)
        except EngineError as error:
            raise EngineError(f"{self._name} failed: {error}") from None
        except ExecutionTimeout:
            what = f"did not finish {_rows(batch)} within {EXECUTION_TIMEOUT} = {self._timeout_s:g} s"
            what = f"{self._name} {what}; its process is started again"
            batch.fail(Code.DEADLINE_EXCEEDED, what)
        except ProcessEnded as error:
            what = f"lost its process in the middle of {_rows(batch)} ({error}); it is started again"
            batch.fail(Code.UNAVAILABLE, f"{self._name} {what}")
        else:
            batch.mark_compute_done()
            self._copy_out(process, batch, pieces)
            batch.complete([shape for shape, _ in answer])
        return True

    def _gather(
        self, process: InstanceProcess, batch: Batch
    ) -> tuple[list[tuple[int, ...] | None], list[int]]:
        """Puts the batch into the process's memory: shapes and sizes of its inputs."""
        memory, count = process.inputs, len(self._spec.inputs)
        sizes = [batch.input_bytes(index) for index in range(count)]
        offsets, total = layout(sizes)
        memory.grow(total)
        for index, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
            if size:
                batch.gather(index, memory.address + offset, size)
        return [batch.input_shape(index) for index in range(count)], sizes

    def _pieces(
        self, process: InstanceProcess, batch: Batch, answer: Sequence[tuple[tuple[int, ...], int]]
    ) -> list[_Piece]:
        """Where the outputs are in the process's memory. Raises ProcessEnded when that cannot be."""
        offsets, total = layout(size for _, size in answer)
        rows = batch.rows if self._spec.batches else 1
        try:
            if total > process.outputs.capacity:
                raise ValueError(f"{total} bytes of outputs in a memory of {process.outputs.capacity}")
            return [
                _bytes_piece(process.outputs, offset, size, rows)
                if tensor.element_bytes == 0
                else _piece(prod(shape[self._spec.batches :]) * tensor.element_bytes, offset, size, rows)
                for tensor, (shape, size), offset in zip(self._spec.outputs, answer, offsets, strict=True)
            ]
        except (TypeError, ValueError) as error:
            process.end()
            raise ProcessEnded(f"it answered with {error} and was ended") from error

    def _copy_out(self, process: InstanceProcess, batch: Batch, pieces: Sequence[_Piece]) -> None:
        addresses = batch.reserve([piece.row_sizes for piece in pieces])
        for address, piece in zip(addresses or (), pieces, strict=True):
            if piece.size:
                memmove(address, process.outputs.address + piece.offset, piece.size)  # without the GIL

    def _answer_without_rows(self, batch: Batch) -> None:
        batch.mark_input_done()
        batch.reserve([0] * len(self._spec.outputs))
        batch.mark_compute_done()
        batch.complete([(0, *tensor.model_dims) for tensor in self._spec.outputs])

    def close(self) -> None:
        self._keeper.close()


class _Piece(NamedTuple):
    """An output: its bytes per row, or the ends of its rows; and where all of them are."""

    row_sizes: int | Buffer
    offset: int
    size: int


def _piece(row_bytes: int, offset: int, size: int, rows: int) -> _Piece:
    if row_bytes * rows != size:
        raise ValueError(f"{rows} rows of {row_bytes} bytes in {size}")
    return _Piece(row_bytes, offset, size)


def _bytes_piece(memory: TensorMemory, offset: int, size: int, rows: int) -> _Piece:
    """The ends are copied before they are looked at: the memory is the child's."""
    if ROW_END_BYTES * rows > size:
        raise ValueError(f"{size} bytes for {rows} rows of BYTES")
    ends = memory.view(offset, (rows,), np.dtype(np.uint64)).copy()
    if np.any(ends[1:] < ends[:-1]) or ROW_END_BYTES * rows + int(max(ends, default=0)) != size:
        raise ValueError(f"rows of BYTES that end at {ends[:4].tolist()} in {size} bytes")
    return _Piece(ends.data, offset + ends.nbytes, size - ends.nbytes)


def _rows(batch: Batch) -> str:
    return f"a batch of {batch.rows} row{'s' if batch.rows != 1 else ''}"
