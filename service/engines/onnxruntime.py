"""ONNX Runtime on the CPU: one session per model, run by all of its instances at once.

    open_onnx      session -> declared tensors -> derive (runs the model on test inputs) -> OnnxEngine
    OnnxInstance   one launcher's binding and buffers; nothing of it is shared

Threads. A session is safe to run from several threads, and its pool of worker threads is shared by them: an
instance's launcher takes part in its own run. So `cores - instances` pool threads make `cores` threads in
all, cores / instances for each instance when all are busy, and more for one that is alone. A session per
instance would hold the weights once per instance and give the same throughput: magika, two instances on two
cores, 394 runs/s and 33 MB with one session, 379 runs/s and 38 MB with two. Pool threads do not spin while
they wait (they would take the cores of the front end and of other models): magika on both cores costs 6.0 ms
of CPU a run instead of 7.6, at the same speed; a model of 40 us a run pays about 30 us for the wake-up.

Copies. An input that lies in the input arena in one aligned piece is used where it lies; otherwise its rows
are gathered once, into a buffer of the instance that keeps its address, so that the binding stays valid as
long as the shape stays the same. Outputs are written by the model straight into the output arena when every
size is known before the run and a run at load has shown that the sizes are true and that the bound addresses
are used (ONNX Runtime ignores the address of an output that is an input of the graph too). Otherwise ONNX
Runtime allocates them, and they are copied once.

Sizes. A model that runs only at some batch sizes (`ModelSpec.batch_sizes`) gets rows of zeros behind the
batch's own, in the instance's buffer, up to the next size; ONNX Runtime then allocates the outputs, of which
the batch's rows alone are copied out. Nobody outside the instance sees those rows.

Light models. A batch that the processor's caches do not hold is gathered and run in parts (`onnx_inputs`), on
one thread where more are not worth it (`onnx_threads`).

CPU per batch outside of the model is a handful of calls, whatever the batch's size; nothing here is per row.

Models with strings run another way (`onnx_strings`).

What is refused at load by name: sequences, maps, optional and sparse tensors.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from service.cores import available_cores
from service.engines.base import EngineError, ModelLoadError
from service.engines.bfloat16 import element_type, numbers_of, stored
from service.engines.onnx_inputs import Input, has_few_weights, rows_at_once
from service.engines.onnx_strings import StringInstance, as_text, check_shapes, has_strings, run_once
from service.engines.onnx_threads import lighter, longest_run
from service.engines.onnx_words import words_of
from service.models.derive import derive
from service.models.probe import Array, Declared, RunFailed, Shape
from service.models.spec import ModelSpec
from service.models.wanted import Wanted, asked_size, narrowed, served

if TYPE_CHECKING:
    from fastqueue import Batch

PLATFORM = "onnxruntime_onnx"
BACKEND = "onnxruntime"

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "BYTES",
}
MAX_INPUT_ELEMENTS = 2**31 - 1  # no message holds more, even of one byte each
_MAX_TEXT = 400
_FATAL = 4  # log severity: errors are raised, so that logging them would say everything twice


# ---- loading ----


def open_onnx(path: str, *, name: str, version: str, wanted: Wanted) -> OnnxEngine:
    """Loads an ONNX file; parameters and errors as `service.engines.base.open_engine`."""
    where = f"model '{name}' ({path})"
    threads = max(1, available_cores() - wanted.instances + 1)
    session = _open_session(path, where, threads)
    inputs, outputs = _declarations(session, where)
    inputs = _with_words(narrowed(inputs, wanted), path)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        try:
            return _run_once(session, inputs, outputs, arrays)
        except Exception as error:
            raise RunFailed(clean(error)) from error

    found = derive(inputs, outputs, run, asked_size(wanted, inputs), wanted.batch_sizes)
    spec, faults = served(
        wanted,
        replace(found, inputs=as_text(found.inputs)),
        name=name,
        version=version,
        platform=PLATFORM,
        backend=BACKEND,
        instances=wanted.instances,
    )
    if faults:
        raise ModelLoadError(f"{where} cannot be served: {'; '.join(faults)}")
    ahead = found.shapes_confirmed and all(tensor.row_bytes >= 0 for tensor in found.outputs)
    ahead = ahead and not has_strings(inputs)
    if ahead:
        ahead = _writes_where_bound(session, inputs, outputs, found.sample, run)
    held = [stored(array, tensor.datatype) for array, tensor in zip(found.sample, inputs, strict=False)]
    at_once = rows_at_once(spec) if ahead and has_few_weights(path) else 0
    if at_once and threads > 1:
        feed = longest_run(spec, min(at_once, spec.max_batch_size))
        session = lighter(session, lambda: _open_session(path, where, 1), feed)
    return OnnxEngine(session, spec, ahead, held, at_once)


def _open_session(path: str, where: str, threads: int) -> Any:
    try:
        with open(path, "rb") as file:
            if not file.read(1):
                raise ModelLoadError(f"{where} is an empty file; expected an ONNX model")
    except OSError as error:
        raise ModelLoadError(f"{where} cannot be read: {error.strerror}") from error
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read at import: later it has made its database in the home
    import onnxruntime as ort

    ort.set_default_logger_severity(_FATAL)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        advice = "check that the file is a complete ONNX model that this version can run"
        raise ModelLoadError(
            f"{where} was not loaded by ONNX Runtime {ort.__version__}: {clean(error)}; {advice}"
        ) from error


def _declarations(session: Any, where: str) -> tuple[list[Declared], list[Declared]]:
    """Inputs and outputs as the file declares them. Raises ModelLoadError with all that are not served."""
    faults: list[str] = []
    sides = []
    try:
        for kind, nodes in (("input", session.get_inputs()), ("output", session.get_outputs())):
            faults += [
                fault for node in nodes if (fault := _type_fault(kind, node) or _size_fault(kind, node))
            ]
            sides.append([Declared(n.name, _DATATYPES.get(n.type, ""), tuple(n.shape)) for n in nodes])
    except UnicodeDecodeError as error:
        what = "a name of its inputs, outputs or dimensions is not UTF-8 text; the file is damaged"
        raise ModelLoadError(f"{where} cannot be served: {what}") from error
    if {"BF16", "BYTES"} <= {tensor.datatype for side in sides for tensor in side}:
        faults.append("it has tensors of both BYTES and BF16; expected one of them at most")
    if faults:
        raise ModelLoadError(f"{where} cannot be served: {'; '.join(faults)}")
    return sides[0], sides[1]


def _type_fault(kind: str, node: Any) -> str:
    if node.type in _DATATYPES:
        return ""
    known = ", ".join(_DATATYPES.values())
    advice = "; export the model without ZipMap (skl2onnx: zipmap=False)" if "seq(map(" in node.type else ""
    return f"{kind} '{node.name}' has type {node.type}; expected a tensor of {known}{advice}"


def _with_words(inputs: Sequence[Declared], path: str) -> list[Declared]:
    """The inputs with what the model's file knows of strings, for the test runs."""
    words = words_of(path) if has_strings(inputs) else ()
    return [tensor._replace(words=words) if tensor.datatype == "BYTES" else tensor for tensor in inputs]


def _size_fault(kind: str, node: Any) -> str:
    least = prod(dim for dim in node.shape if isinstance(dim, int) and dim > 0)
    if kind == "output" or least <= MAX_INPUT_ELEMENTS:
        return ""
    shape = [dim if isinstance(dim, int) else -1 for dim in node.shape]
    most = f"a request has at most {MAX_INPUT_ELEMENTS} elements"
    return f"input '{node.name}' is declared as {shape}; {most}"


def _run_once(
    session: Any, inputs: Sequence[Declared], outputs: Sequence[Declared], arrays: Sequence[Array]
) -> Sequence[Array]:
    """A run on numpy arrays; those of BF16 are float32, of BYTES object arrays of `bytes`."""
    if has_strings((*inputs, *outputs)):
        return run_once(session, inputs, outputs, arrays)
    if not any(tensor.datatype == "BF16" for tensor in (*inputs, *outputs)):
        feed = {tensor.name: array for tensor, array in zip(inputs, arrays, strict=True)}
        return [np.asarray(array) for array in session.run(None, feed)]
    binding = session.io_binding()
    held = [stored(array, tensor.datatype) for tensor, array in zip(inputs, arrays, strict=True)]
    for tensor, array in zip(inputs, held, strict=True):
        kind = element_type(tensor.datatype)
        binding.bind_input(tensor.name, "cpu", 0, kind, array.shape, array.ctypes.data)
    for tensor in outputs:
        binding.bind_output(tensor.name, "cpu")
    session.run_with_iobinding(binding)
    return [numbers_of(value) for value in binding.get_outputs()]


def _writes_where_bound(
    session: Any, inputs: Sequence[Declared], outputs: Sequence[Declared], sample: Sequence[Array], run: Any
) -> bool:
    """Whether a run puts every output at the address it was bound to."""
    expected = zip(run(sample), outputs, strict=True)
    arrays = [np.empty_like(stored(array, tensor.datatype)) for array, tensor in expected]
    held = [stored(array, tensor.datatype) for array, tensor in zip(sample, inputs, strict=True)]
    binding = session.io_binding()
    for side, bind, values in (
        (inputs, binding.bind_input, held),
        (outputs, binding.bind_output, arrays),
    ):
        for tensor, array in zip(side, values, strict=True):
            bind(tensor.name, "cpu", 0, element_type(tensor.datatype), array.shape, array.ctypes.data)
    try:
        session.run_with_iobinding(binding)
    except Exception:
        return False
    pairs = zip(binding.get_outputs(), arrays, strict=True)
    return all(array.size == 0 or value.data_ptr() == array.ctypes.data for value, array in pairs)


# ---- running ----


class OnnxEngine:
    """A loaded ONNX model. `ahead`: outputs are reserved before the run and written there by the model."""

    def __init__(
        self, session: Any, spec: ModelSpec, ahead: bool, sample: Sequence[Array] = (), rows_at_once: int = 0
    ) -> None:
        self.spec = spec
        self.rows_at_once = rows_at_once
        self.sample = sample
        self.ahead = ahead
        self._session = session

    def create_instance(self, index: int) -> OnnxInstance | StringInstance:
        if self._session is None:
            raise RuntimeError(f"model '{self.spec.name}' is closed")
        if has_strings((*self.spec.inputs, *self.spec.outputs)):
            return StringInstance(self._session, self.spec, clean)
        return OnnxInstance(self._session, self.spec, self.ahead, self.rows_at_once)

    def close(self) -> None:
        self._session = None


class OnnxInstance:
    """One execution slot: a binding and, per input, a buffer that grows to the largest batch seen.

    `rows_at_once`: a larger batch is run in parts of as many rows; 0: as a whole, whatever its size.
    """

    def __init__(self, session: Any, spec: ModelSpec, ahead: bool, rows_at_once: int = 0) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._batches = spec.batches
        self._sizes = spec.batch_sizes
        self._rows_at_once = rows_at_once
        most = rows_at_once or max(spec.max_batch_size, *spec.batch_sizes, 1)
        self._inputs = [Input(i, tensor, most) for i, tensor in enumerate(spec.inputs)]
        self._outputs = [(tensor, element_type(tensor.datatype)) for tensor in spec.outputs]
        self._row_bytes = [tensor.row_bytes for tensor in spec.outputs]
        self._ahead = ahead

    def execute(self, batch: Batch) -> None:
        """Runs a batch and completes it. Raises EngineError when the model failed; the batch is then open."""
        if 0 < self._rows_at_once < batch.rows:
            self._run_in_parts(batch)
            return
        binding = self._binding
        size = self._size_for(batch.rows)
        for port in self._inputs:
            port.bind(binding, batch, size - batch.rows)
        batch.mark_input_done(size - batch.rows)
        if self._ahead and size == batch.rows:
            self._run_in_place(batch)
        else:
            self._run_and_copy(batch, size)

    def _size_for(self, rows: int) -> int:
        """How many rows the model runs for a batch of `rows`."""
        return next((size for size in self._sizes if size >= rows), rows)

    def _run_in_place(self, batch: Batch) -> None:
        rows = (batch.rows,) if self._batches else ()
        shapes = [rows + tensor.model_dims for tensor, _ in self._outputs]
        self._bind_outputs(shapes, batch.reserve(self._row_bytes) or ())
        if batch.rows:  # not every operator takes an empty batch, and there is nothing to compute
            self._run()
        batch.mark_compute_done()
        batch.complete(shapes)

    def _bind_outputs(self, shapes: Sequence[Shape], addresses: Sequence[int]) -> None:
        bind = self._binding.bind_output
        for (tensor, dtype), shape, address in zip(self._outputs, shapes, addresses, strict=True):
            bind(tensor.name, "cpu", 0, dtype, shape, address)

    def _run_in_parts(self, batch: Batch) -> None:
        """The time of all copies in but the first part's counts as compute."""
        addresses = batch.reserve(self._row_bytes) or ()
        for first in range(0, batch.rows, self._rows_at_once):
            rows = min(self._rows_at_once, batch.rows - first)
            for port in self._inputs:
                port.bind_rows(self._binding, batch, first, rows)
            if first == 0:
                batch.mark_input_done()
            parts = [at + first * size for at, size in zip(addresses, self._row_bytes, strict=True)]
            self._bind_outputs([(rows, *tensor.model_dims) for tensor, _ in self._outputs], parts)
            self._run()
        batch.mark_compute_done()
        batch.complete([(batch.rows, *tensor.model_dims) for tensor, _ in self._outputs])

    def _run_and_copy(self, batch: Batch, size: int) -> None:
        try:
            self._release_outputs()  # an output still bound would be written again, at its old size
            self._run()
            batch.mark_compute_done()
            self._copy_out(batch, size, self._binding.get_outputs())
        finally:
            self._release_outputs()

    def _copy_out(self, batch: Batch, size: int, values: Sequence[Any]) -> None:
        shapes: list[Shape] = [tuple(value.shape()) for value in values]
        check_shapes([tensor for tensor, _ in self._outputs], shapes, size if self._batches else None)
        if self._batches:
            shapes = [(batch.rows, *shape[1:]) for shape in shapes]
        sizes = [
            prod(shape[self._batches :]) * tensor.element_bytes
            for shape, (tensor, _) in zip(shapes, self._outputs, strict=True)
        ]
        addresses = batch.reserve(sizes)
        rows = batch.rows if self._batches else 1
        for value, size, address in zip(values, sizes, addresses or (), strict=True):
            if size * rows:
                ctypes.memmove(address, value.data_ptr(), size * rows)  # without the GIL
        batch.complete(shapes)

    def _run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise EngineError(clean(error)) from error

    def _release_outputs(self) -> None:
        for tensor, _ in self._outputs:
            self._binding.bind_output(tensor.name, "cpu")

    def close(self) -> None:
        self._binding = self._session = None
        self._inputs = []


# ---- what ONNX Runtime says ----

_NOISE = [
    re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"Error in execution: "),
    re.compile(r"\[\w+Error\] "),
    re.compile(r"/\S+\.(?:cc|cpp|h|hpp):\d+ [^()]*\([^()]*\)(?: const)? "),
    re.compile(r"Non-zero status code returned while "),
]
_WRONG_SHAPE = re.compile(
    r"provided for output '(?P<name>.*?)' .*?has shape {(?P<bound>[\d,]*)} "
    r"but the computed output shape for this run is {(?P<came>[\d,]*)}"
)


def clean(error: Exception) -> str:
    """What an exception of ONNX Runtime says to somebody who has the model, not its source: one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if match := _WRONG_SHAPE.search(text):
        return (
            f"output '{match['name']}' came out with shape [{match['came']}], expected [{match['bound']}]: "
            "its shape depends on the data"
        )
    for noise in _NOISE:
        text = noise.sub("", text)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
