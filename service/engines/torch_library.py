"""torch, the library: imported here alone, at the first use, and its words made ours."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from service.engines.base import ModelLoadError
from service.models.probe import Array, Shape
from service.models.spec import numpy_dtype

DTYPES = {  # of each datatype, by its name in torch
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
_DATATYPES = {f"torch.{name}": datatype for datatype, name in DTYPES.items()}
_MAX_TEXT = 400


@cache
def library() -> Any:
    """The module `torch`. Raises ModelLoadError where it is not installed; a failure is not remembered."""
    try:
        import torch
    except ImportError as error:
        raise ModelLoadError(
            f"torch is not installed, and its models need it ({error}): pip install 'headrace[torch]'"
        ) from error
    for noisy in ("torch.export", "torch.fx"):  # what they log is raised too
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    return torch


def moved(program: Any, device: str) -> Any:
    """An exported program on another of torch's devices: its weights, and what it makes as it runs."""
    library()
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


def dtype_of(datatype: str) -> Any:
    """torch's dtype of a datatype, which is one of DTYPES."""
    return getattr(library(), DTYPES[datatype])


def datatype_of(dtype: Any) -> str:
    """The datatype of torch's dtype; "" where there is none, as for complex numbers."""
    return _DATATYPES.get(str(dtype), "")


def host_dtype(datatype: str) -> np.dtype[Any]:
    """What numpy has in its place: BF16 as its bits."""
    return np.dtype("uint16") if datatype == "BF16" else numpy_dtype(datatype)


def tensor_at(address: int, shape: Shape, datatype: str, size: int) -> Any:
    """A tensor of a shape over the `size` bytes at an address of this process."""
    torch = library()
    if not size:
        return torch.empty(shape, dtype=dtype_of(datatype))
    memory = (ctypes.c_ubyte * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype_of(datatype)).view(shape)


def tensor_of(array: Array, datatype: str) -> Any:
    """A tensor with a copy of an array's elements; BF16 as its bits."""
    held = np.ascontiguousarray(array)
    return tensor_at(held.ctypes.data, array.shape, datatype, held.nbytes).clone()


def array_of(tensor: Any, datatype: str) -> Array:
    """A copy of a tensor's elements, which may lie on a device; BF16 as its bits."""
    here = tensor.detach().cpu().contiguous()
    array = np.empty(tuple(here.shape), host_dtype(datatype))
    ctypes.memmove(array.ctypes.data, here.data_ptr(), array.nbytes)
    return array


def clean(error: BaseException) -> str:
    """What an exception of torch says to somebody who has the model, not its source: one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):  # TorchScript's: what happened comes last
        lines = lines[-1:]
    text = lines[0] if lines else type(error).__name__
    text = text.removeprefix("RuntimeError: ").partition(" Exception raised from ")[0]
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def named(said: Sequence[str], own: Sequence[str]) -> list[str]:
    """The names of a model's tensors, in its order: `own`, or what the user calls them.

    Names that are the model's own are just these. Otherwise, as in Triton, NAME__0 is the first and so on, or
    the names are in the model's order where they do not end so.
    """
    names = list(own)
    if set(said) <= set(own):
        return names
    places = [_number(name) for name in said]
    if sorted(places) != list(range(len(said))):
        places = list(range(len(said)))
    for place, name in zip(places, said, strict=True):
        if place < len(names):
            names[place] = name
    return names


def _number(name: str) -> int:
    """The number behind a name's last two underscores; -1: there is none."""
    number = name.rpartition("__")[2] if "__" in name else ""
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else -1
