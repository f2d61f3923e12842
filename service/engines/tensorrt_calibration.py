"""Ranges of INT8 from data: TensorRT's entropy calibrator, and a cache of what it found.

A cache is used again only for the same model, data, TensorRT and algorithm, by their hash; any other is said
to be another's, and the ranges are found anew. The calibrator is TensorRT 10's: 11 has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from service.cuda.device import the_device
from service.cuda.driver import api, check
from service.engines.tensorrt_options import Tensor
from service.models.spec import numpy_dtype

ROWS = 8  # of a calibration batch, at most
ALGORITHM = "entropy2"


class CalibrationError(Exception):
    """The data cannot be used; the text says why."""


class Calibration:
    """Data for one build. `cache`: a file to keep what was found in; empty: none."""

    def __init__(self, model: str, data: str, cache: str, version: str, inputs: Mapping[str, Tensor]) -> None:
        self._arrays = arrays_of(data, inputs)
        self._cache = Path(cache) if cache else None
        self._key = key_of(model, data, version)
        count = len(next(iter(self._arrays.values())))
        self._rows = min(ROWS, count)
        self._left = count // self._rows
        self._addresses: dict[str, int] = {}
        self._stream = 0  # made with the first batch
        self.batches_read = 0
        self.notes: list[str] = []

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an input, in a calibration batch."""
        return (self._rows, *self._arrays[name].shape[1:])

    def calibrator_of(self, trt: Any) -> Any:
        """What TensorRT asks for data."""
        calibration = self

        class Calibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.IInt8EntropyCalibrator2.__init__(self)

            def get_batch_size(self) -> int:
                return calibration._rows

            def get_batch(self, names: Sequence[str]) -> list[int] | None:
                return calibration._next(names)

            def read_calibration_cache(self) -> bytes | None:
                return calibration._kept()

            def write_calibration_cache(self, cache: Any) -> None:
                calibration._keep(bytes(cache))

        return Calibrator()

    def _next(self, names: Sequence[str]) -> list[int] | None:
        """Addresses of the next batch, on the device; None at the end."""
        if not self._left:
            return None
        self._left -= 1
        at = self.batches_read * self._rows
        self.batches_read += 1
        self._stream = self._stream or the_device().new_stream()
        found = []
        for name in names:
            rows = np.ascontiguousarray(self._arrays[name][at : at + self._rows])
            if name not in self._addresses:
                self._addresses[name] = int(check(api().cuMemAlloc(rows.nbytes), "taking memory"))
            copied = api().cuMemcpyHtoDAsync(
                self._addresses[name], rows.ctypes.data, rows.nbytes, self._stream
            )
            check(copied, "copying calibration data")
            check(api().cuStreamSynchronize(self._stream), "copying calibration data")
            found.append(self._addresses[name])
        return found

    def _kept(self) -> bytes | None:
        if self._cache is None or not self._cache.is_file():
            return None
        head, _, body = self._cache.read_bytes().partition(b"\n")
        if head.decode(errors="replace") == json.dumps(self._key):
            return body
        self.notes.append(
            f"{self._cache} is of another model, data or TensorRT: not used, and the ranges were found anew"
        )
        return None

    def _keep(self, found: bytes) -> None:
        if self._cache is not None:
            self._cache.write_bytes(json.dumps(self._key).encode() + b"\n" + found)

    def close(self) -> None:
        """The build is over."""
        for address in self._addresses.values():
            check(api().cuMemFree(address), "freeing memory")
        self._addresses.clear()
        if self._stream:
            check(api().cuStreamDestroy(self._stream), "ending a stream")
            self._stream = 0


def key_of(model: str, data: str, version: str) -> dict[str, str]:
    """What a cache is good for."""
    return {
        "model": hashlib.sha256(Path(model).read_bytes()).hexdigest(),
        "data": hashlib.sha256(Path(data).read_bytes()).hexdigest(),
        "library": version,
        "algorithm": ALGORITHM,
    }


def arrays_of(data: str, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """An array of rows per input. Raises CalibrationError."""
    try:
        loaded = np.load(data, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CalibrationError(f"calibration data {data} cannot be read: {error}") from error
    if isinstance(loaded, np.ndarray):
        if len(inputs) != 1:
            raise CalibrationError(
                f"{data} has one array, and the model has the inputs {', '.join(inputs)}: save a .npz with "
                "one for each"
            )
        found = {next(iter(inputs)): loaded}
    else:
        found = {name: loaded[name] for name in loaded.files}
    _check(data, found, inputs)
    return {name: found[name] for name in inputs}


def _check(data: str, found: Mapping[str, np.ndarray[Any, Any]], inputs: Mapping[str, Tensor]) -> None:
    if missing := [name for name in inputs if name not in found]:
        raise CalibrationError(f"{data} has no array '{missing[0]}'; it has {', '.join(found)}")
    for name, tensor in inputs.items():
        array, dtype = found[name], np.dtype(numpy_dtype(tensor.datatype))
        fits = array.ndim == len(tensor.dims) and all(
            dim in (-1, size) for dim, size in zip(tensor.dims[1:], array.shape[1:], strict=True)
        )
        if array.dtype != dtype or not fits or not len(array):
            raise CalibrationError(
                f"{data}: input '{name}' is {tensor.datatype} {list(tensor.dims)}, and its data "
                f"{array.dtype} {list(array.shape)}"
            )
    if len({len(found[name]) for name in inputs}) > 1:
        raise CalibrationError(f"{data}: every input needs the same number of rows")
