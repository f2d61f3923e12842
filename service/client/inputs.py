"""A model's inputs from a file, or made up for a load test.

What a file may be: ``.npy`` (one array), ``.npz`` (arrays by input name), ``.json`` (a nested list, an
object of nested lists by input name, or the ``{"inputs": [...]}`` of the protocol's JSON form), and
anything else, whose bytes become the one input when their number fits its shape; an input of BYTES takes the
whole file as its one string.

An array that lacks the batch axis gets one of length 1. Numbers are converted where they fit (float64 to
FP32, integers in range); ``note`` is told whose values changed on the way, and what does not fit, such as
1e300 for FP32, is refused. Everything else is the server's to judge, which has the better messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.client.errors import ClientError, InvalidTensor
from service.client.tensors import Array, ModelInfo, TensorInfo, numpy_dtype, strings_of
from service.models.spec import MAX_RANK

Note = Callable[[str], None]  # told one sentence for each input whose values were rounded


def _no_note(text: str) -> None:
    """JSON's decimals have no type: the nearest value of the model's is what was asked for."""


def load_inputs(
    path: Path, model: ModelInfo, batched: bool, only: str | None = None, note: Note = _no_note
) -> dict[str, Array]:
    """Reads the inputs for one request from a file. ``only`` names the input that a nameless array is for.

    Raises ClientError for a file that cannot be read or does not fit. ``note`` is told what was rounded of
    arrays.
    """
    try:
        if path.suffix == ".npy":
            found: Mapping[str, Any] = {_single(model, only).name: np.load(path, allow_pickle=False)}
        elif path.suffix == ".npz":
            found = _from_npz(path, model, only)
        elif path.suffix == ".json":
            found = _from_json(json.loads(path.read_text()), model, only)
        else:
            tensor = _single(model, only)
            return {tensor.name: _from_bytes(path.name, path.read_bytes(), tensor)}
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise ClientError(f"cannot read inputs from '{path}': {_why(error)}") from None
    return _fitted(found, model, batched, _no_note if path.suffix == ".json" else note)


def _why(error: Exception) -> str:
    """In place of words that only the author of a program could use."""
    if isinstance(error, RecursionError):
        return f"its lists are nested too deep; a tensor has at most {MAX_RANK} dimensions"
    if isinstance(error, json.JSONDecodeError):
        return _why_no_json(error)
    if "Object arrays" in str(error):
        return (
            "it holds pickled Python objects, which could run any code when they are loaded; save numbers, "
            "or strings as array.astype('S')"
        )
    return "it is not in numpy's format" if "pickle" in str(error) else str(error)


def _why_no_json(error: json.JSONDecodeError) -> str:
    """Where it ends too early that is said, in place of a line behind the last one."""
    text = error.doc.rstrip()
    if not text:
        return "it is empty; expected JSON"
    where = f"line {error.lineno}, column {error.colno}"
    if error.msg.startswith("Unterminated string"):
        return f"it is no JSON: it ends within the string that begins at {where}"
    if error.pos >= len(text):
        return f"it is no JSON: it ends too early, on line {text.count(chr(10)) + 1}"
    return f"it is no JSON: {error.msg} at {where}"


def random_inputs(
    model: ModelInfo, batched: bool, rows: int, shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, Array]:
    """Made-up inputs of ``rows`` rows: floats in [0, 1), and 0 or 1 for strings and for integers, which are
    often indices.

    ``shapes`` gives the sizes of inputs that have dynamic ones, without the batch axis. Raises ClientError
    where a size is missing or contradicts the model.
    """
    source = np.random.default_rng(seed)
    unknown = set(shapes) - {tensor.name for tensor in model.inputs}
    if unknown:
        raise ClientError(f"--shape names {sorted(unknown)}, but the inputs are {_names(model)}")
    made = {}
    for tensor in model.inputs:
        shape = _concrete_shape(tensor, batched, rows, shapes.get(tensor.name))
        dtype = tensor.dtype()
        values = source.random(shape) if dtype.kind == "f" else source.integers(0, 2, shape)
        made[tensor.name] = np.asarray(values).astype("S" if dtype.kind == "O" else dtype)
    return made


def looks_batched(model: ModelInfo) -> bool:
    """A guess for servers without ModelConfig: every input has a first axis, and it is dynamic."""
    return bool(model.inputs) and all(tensor.shape[:1] == (-1,) for tensor in model.inputs)


def _concrete_shape(
    tensor: TensorInfo, batched: bool, rows: int, given: tuple[int, ...] | None
) -> tuple[int, ...]:
    dims = tensor.shape[1:] if batched else tensor.shape
    sizes = dims if given is None else given
    fits = len(sizes) == len(dims) and all(d in (-1, s) for s, d in zip(sizes, dims, strict=True))
    if not fits:
        raise ClientError(f"--shape {tensor.name} gives {list(sizes)}, the model has {list(dims)}")
    if any(size < 0 for size in sizes):
        example = ",".join(str(size) if size >= 0 else "8" for size in sizes)
        raise ClientError(
            f"input '{tensor.name}' has dynamic sizes {list(dims)}; say which, for example "
            f"--shape {tensor.name}:{example}"
        )
    return (rows, *sizes) if batched else tuple(sizes)


def _names(model: ModelInfo) -> str:
    return ", ".join(f"'{tensor.name}'" for tensor in model.inputs)


def _single(model: ModelInfo, only: str | None) -> TensorInfo:
    """The input that an array without a name is for."""
    if only is None and len(model.inputs) == 1:
        return model.inputs[0]
    if only is None:
        raise ClientError(
            f"model '{model.name}' has inputs {_names(model)}; give them by name (.npz or .json), "
            "or say which this file is for with --input NAME"
        )
    for tensor in model.inputs:
        if tensor.name == only:
            return tensor
    raise ClientError(f"model '{model.name}' has no input '{only}'; its inputs are {_names(model)}")


def _from_npz(path: Path, model: ModelInfo, only: str | None) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if list(arrays) == ["arr_0"]:  # numpy.savez(file, array): nameless
        return {_single(model, only).name: arrays["arr_0"]}
    return arrays


def _from_json(value: Any, model: ModelInfo, only: str | None) -> dict[str, Any]:
    if isinstance(value, dict) and isinstance(value.get("inputs"), list):
        return {entry["name"]: _from_json_tensor(entry) for entry in value["inputs"]}
    if isinstance(value, dict):
        return {name: _from_lists(data, name, model) for name, data in value.items()}
    name = _single(model, only).name
    return {name: _from_lists(value, name, model)}


def _from_lists(value: Any, name: str, model: ModelInfo) -> Array:
    """numpy's own arrays of text would lose zeros at the end of a string."""
    is_bytes = any(tensor.name == name and tensor.datatype == "BYTES" for tensor in model.inputs)
    return np.array(value, dtype=object) if is_bytes else np.asarray(value)


def _from_json_tensor(entry: Any) -> Array:
    try:
        dtype = numpy_dtype(entry["name"], entry["datatype"])
        return np.asarray(entry["data"], dtype=dtype).reshape(entry["shape"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"an entry of 'inputs' needs name, datatype, shape and data: {error!r}") from None


def _from_bytes(file_name: str, data: bytes, tensor: TensorInfo) -> Array:
    dtype = tensor.dtype()
    if tensor.datatype == "BYTES":
        return _one_string(file_name, data, tensor)
    fixed = [size for size in tensor.shape if size >= 0]
    unit = int(np.prod(fixed, dtype=np.int64)) * dtype.itemsize
    dynamic = len(tensor.shape) - len(fixed)
    count = len(data) // unit if unit else 0
    fits = unit > 0 and len(data) == count * unit and (count == 1 if dynamic == 0 else count > 0)
    if dynamic > 1 or not fits:
        wanted = f"exactly {unit}" if dynamic == 0 else f"a multiple of {unit}"
        reason = (
            "several dynamic sizes, so bytes alone do not say which" if dynamic > 1 else f"{wanted} bytes"
        )
        raise InvalidTensor(
            f"'{file_name}' has {len(data)} bytes; input '{tensor.name}' {tensor.datatype}"
            f"{list(tensor.shape)} takes {reason}. Use a .npy, .npz or .json file for arrays of other shapes"
        )
    shape = [count if size < 0 else size for size in tensor.shape]
    return np.frombuffer(data, dtype=dtype.newbyteorder("<")).reshape(shape)


def _one_string(file_name: str, data: bytes, tensor: TensorInfo) -> Array:
    shape = [1 if size < 0 else size for size in tensor.shape]
    if any(size != 1 for size in shape):
        raise InvalidTensor(
            f"'{file_name}' is one string; input '{tensor.name}' BYTES{list(tensor.shape)} takes "
            f"{int(np.prod(shape))}. Use a .json or .npy file for several"
        )
    one = np.empty(shape, object)
    one[...] = data
    return one


def _fitted(found: Mapping[str, Any], model: ModelInfo, batched: bool, note: Note) -> dict[str, Array]:
    known = {tensor.name: tensor for tensor in model.inputs}
    fitted = {}
    for name, value in found.items():
        array = np.asarray(value)
        tensor = known.get(name)
        if tensor is not None:
            array = _converted(array, tensor, note)
            if batched and array.ndim == len(tensor.shape) - 1:
                array = array[np.newaxis]
        fitted[name] = array
    return fitted


def _converted(array: Array, tensor: TensorInfo, note: Note) -> Array:
    want = tensor.dtype()
    if tensor.datatype == "BYTES":
        return strings_of(tensor.name, array)
    if array.dtype == want:
        return array
    if array.dtype.kind not in "iuf":
        needs = "booleans" if want.kind == "b" else "numbers"
        raise InvalidTensor(
            f"input '{tensor.name}' expects {needs} ({tensor.datatype}), the file has {_kind(array)}; "
            f"write them as {needs}, or convert them first, for example array.astype('{want}')"
        )
    if not (np.can_cast(array.dtype, want, "same_kind") or (array.dtype.kind in "iu" and want.kind in "iu")):
        raise InvalidTensor(
            f"input '{tensor.name}' is {tensor.datatype}, the file has {array.dtype}, which is not converted "
            f"unasked; convert it first, for example array.astype('{want}')"
        )
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        made = array.astype(want)
    beyond = _beyond(array, made)
    if beyond.any():
        raise InvalidTensor(
            f"input '{tensor.name}' is {tensor.datatype}, the file has {array.dtype} that do not fit, "
            f"such as {array[beyond][0]}; bring them into its range first"
        )
    if text := _rounding(array, made):
        note(f"input '{tensor.name}' is {tensor.datatype}, the file has {array.dtype}: {text}")
    return made


def _kind(array: Array) -> str:
    """What an array holds that is no number, with one of it where that helps."""
    if array.dtype.kind in "SU" and array.size:
        return f"text, such as {str(array.ravel()[0])[:40]!r}"
    return f"numpy {array.dtype}"


def _beyond(given: Array, made: Array) -> Array:
    """Where a value is outside of what its new type holds."""
    if made.dtype.kind == "f":
        return np.isinf(made) & ~np.isinf(given)
    limits, type_of = np.iinfo(made.dtype), np.iinfo(given.dtype)
    low, high = max(limits.min, type_of.min), min(limits.max, type_of.max)
    return (given < low) | (given > high)


def _rounding(given: Array, made: Array) -> str:
    """How many values of an array are others now, and the largest change; empty when none is."""
    if made.dtype.kind != "f" or np.can_cast(given.dtype, made.dtype, "safe"):
        return ""
    wide = given.dtype if given.dtype.kind == "f" else np.dtype(np.longdouble)
    exact, now = given.astype(wide), made.astype(wide)
    changed = (now != exact) & ~np.isnan(exact)
    if not changed.any():
        return ""
    most = float(np.abs(now[changed] - exact[changed]).max())
    return f"{int(changed.sum()):,} of {given.size:,} values were rounded, by {most:.2g} at most"
