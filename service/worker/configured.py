"""The warm-up that a model's config asks for (`model_warmup`), as batches that instances can run.

Each entry is one row of every input, zeros or random values, that comes `batch_size` times in one batch;
the batch runs `count` times on every instance. As in Triton an entry with batch_size 0 is left out, dims are
those of clients, without the batch axis, and what does not fit the model keeps it from being served.

Random values are those of `headrace bench`: floats in [0, 1), and 0 or 1 for strings and for integers, which
are often indices. They are the same at each start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from service.errors import StartError
from service.models.spec import DATATYPES, DYNAMIC, ModelSpec, TensorSpec, numpy_dtype

MOST_BYTES = 256 << 20  # of a batch's inputs: an input arena usually is no larger
MOST_RUNS = 10_000
_KINDS = ("zero_data", "random_data")
_BYTES_OF_A_STRING = 5  # on the wire: its length, and one character


@dataclass(frozen=True)
class Configured:
    """An entry of `model_warmup`. `rows`: one array per input, in model order and in its form (BF16 as its
    bits), of one row, or of one request where the model does not batch.
    """

    name: str
    rows: tuple[Any, ...]
    size: int
    count: int


def configured_warm_ups(spec: ModelSpec) -> list[Configured]:
    """What the user's config asks for, in its order. Raises StartError where it does not fit the model."""
    entries = json.loads(spec.config_json or "{}").get("model_warmup", [])
    return [_configured(spec, entry) for entry in entries if entry.get("batch_size", 0)]


def _configured(spec: ModelSpec, entry: dict[str, Any]) -> Configured:
    name, inputs = entry.get("name", ""), entry.get("inputs", {})
    size, count = entry["batch_size"], entry.get("count", 0) or 1
    faults = _number_faults(spec, size, count) + _name_faults(spec, inputs)
    if not faults:
        faults = [fault for tensor in spec.inputs for fault in _input_faults(tensor, inputs[tensor.name])]
    if not faults:
        shapes = [_model_shape(tensor, _dims(inputs[tensor.name])) for tensor in spec.inputs]
        faults = _size_faults(spec, shapes, size)
    if faults:
        where = f"model '{spec.name}' version {spec.version} cannot be served: model_warmup '{name}'"
        raise StartError(f"{where} {'; it '.join(faults)}")
    source = np.random.default_rng(0)
    rows = [
        _values(tensor, (1, *shape) if spec.batches else shape, _is_random(inputs[tensor.name]), source)
        for tensor, shape in zip(spec.inputs, shapes, strict=True)
    ]
    return Configured(name, tuple(rows), size, count)


def _dims(said: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(dim) for dim in said.get("dims", ()))  # JSON has int64 as text


def _is_random(said: dict[str, Any]) -> bool:
    return bool(said.get("random_data", False))


def _number_faults(spec: ModelSpec, size: int, count: int) -> list[str]:
    found = []
    most = max(1, spec.max_batch_size)
    if size > most:
        why = f"max_batch_size {most}" if spec.batches else "a model that does not batch"
        found.append(f"has batch_size {size}; expected at most {most}, for {why}")
    if count > MOST_RUNS:
        found.append(f"has count {count}; expected at most {MOST_RUNS}")
    return found


def _name_faults(spec: ModelSpec, inputs: dict[str, Any]) -> list[str]:
    known = [tensor.name for tensor in spec.inputs]
    if set(known) == inputs.keys():
        return []
    return [f"has the inputs {sorted(inputs)}; expected every input of the model: {sorted(known)}"]


def _input_faults(tensor: TensorSpec, said: dict[str, Any]) -> list[str]:
    found, here = [], f"has input '{tensor.name}' with"
    expected = DATATYPES[tensor.datatype].config
    if (datatype := said.get("data_type", "TYPE_INVALID")) != expected:
        found.append(f"{here} data_type {datatype}; expected {expected}")
    dims = _dims(said)
    fits = len(dims) == len(tensor.dims) and all(
        size >= 0 and dim in (DYNAMIC, size) for size, dim in zip(dims, tensor.dims, strict=True)
    )
    if not fits:
        found.append(f"{here} dims {list(dims)}; expected sizes for {list(tensor.dims)}")
    if not any(said.get(kind) for kind in _KINDS):
        found.append(f"{here} no data; expected {' or '.join(f'{kind}: true' for kind in _KINDS)}")
    return found


def _model_shape(tensor: TensorSpec, dims: Sequence[int]) -> tuple[int, ...]:
    """The model's form of `dims`, which fit those of clients: dims of -1 are matched in order."""
    dynamic = iter([size for size, dim in zip(dims, tensor.dims, strict=True) if dim == DYNAMIC])
    return tuple(next(dynamic) if dim == DYNAMIC else dim for dim in tensor.model_dims)


def _size_faults(spec: ModelSpec, shapes: Sequence[Sequence[int]], size: int) -> list[str]:
    row_bytes = sum(
        prod(shape) * (tensor.element_bytes or _BYTES_OF_A_STRING)
        for tensor, shape in zip(spec.inputs, shapes, strict=True)
    )
    if row_bytes * size <= MOST_BYTES:
        return []
    return [f"has inputs of {row_bytes * size} bytes; expected at most {MOST_BYTES}"]


def _values(tensor: TensorSpec, shape: tuple[int, ...], random: bool, source: np.random.Generator) -> Any:
    if tensor.datatype == "BYTES":
        values = np.full(shape, b"", object)
        values.flat[:] = [b"%d" % bit for bit in source.integers(0, 2, values.size)] if random else b""
        return values
    if tensor.datatype == "BF16":
        numbers = (source.random(shape) if random else np.zeros(shape)).astype(np.float32)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    dtype = numpy_dtype(tensor.datatype)
    if not random:
        return np.zeros(shape, dtype)
    return (source.random(shape) if dtype.kind == "f" else source.integers(0, 2, shape)).astype(dtype)
