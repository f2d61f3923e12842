"""Plans of ONNX files that a repository has: built when they are loaded first, and kept.

A plan is kept under the hash of all that it depends on: the model, how it is to be built, TensorRT's version
and the device's name. So a model that is changed is built again, and one that is changed back is not. Whoever
comes while it is being built waits: a lock per plan, which ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.cuda.device import Device
from service.engines.base import ModelLoadError
from service.engines.tensorrt_build import build
from service.engines.tensorrt_options import BuildError, BuildOptions, Range
from service.engines.tensorrt_runtime import known
from service.log import say
from service.models.derive import DEFAULT_MAX_BATCH_SIZE
from service.models.wanted import Wanted

MB = 1 << 20


def plan_of(path: str, where: str, wanted: Wanted, device: Device) -> bytes:
    """The plan of an ONNX file. Raises ModelLoadError."""
    options = options_of(path, wanted)
    try:
        folder = cache_folder()
        kept = folder / f"{key_of(path, options, known().trt.__version__, device.name)}.plan"
        with locked(kept.with_suffix(".lock")):
            if not kept.exists():
                keep(kept, built(path, where, options, device))
            return kept.read_bytes()
    except BuildError as error:
        raise ModelLoadError(f"{where} was not loaded: {error}") from error
    except OSError as error:
        raise ModelLoadError(f"{where} was not loaded: {error.filename}: {error.strerror}") from error


def cache_folder() -> Path:
    """Where plans are kept: HEADRACE_PLANS, or headrace/plans in the user's cache."""
    said = os.environ.get("HEADRACE_PLANS")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(said) if said else Path(home) / "headrace" / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def options_of(path: str, wanted: Wanted) -> BuildOptions:
    """How a model's config wants its plan."""
    asked, most = wanted.building, wanted.max_batch_size
    if most is None:
        most = DEFAULT_MAX_BATCH_SIZE
    usual = min(asked.usual_rows or most, most)
    folder = Path(path).parent
    return BuildOptions(
        batch=(1, usual, most) if most else None,
        may_batch=True,
        shapes=shapes_of(wanted, (1, usual, most)) if most and wanted.firm else {},
        fp16="FP16" in asked.precisions,
        int8="INT8" in asked.precisions,
        calibration=str(folder / asked.calibration) if asked.calibration else "",
        workspace_mb=asked.workspace_bytes // MB,
        plugins=tuple(str(folder / name) for name in wanted.plugins),
    )


def shapes_of(wanted: Wanted, rows: tuple[int, int, int]) -> dict[str, Range]:
    """Of inputs whose sizes the config says in full: the model may leave them open."""
    least, usual, most = rows
    found = {}
    for tensor in wanted.inputs:
        dims = tensor.model_dims
        if dims is not None and all(dim >= 0 for dim in dims):
            found[tensor.name] = ((least, *dims), (usual, *dims), (most, *dims))
    return found


def key_of(path: str, options: BuildOptions, version: str, device: str) -> str:
    """The name of a plan: of all that it depends on. `device`: as in "cuda:0 NVIDIA H200"; any such one."""
    hashed = hashlib.sha256(repr((options, version, device.partition(" ")[2])).encode())
    for file in (path, options.calibration, *options.plugins):
        if file:
            hashed.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return hashed.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built(path: str, where: str, options: BuildOptions, device: Device) -> bytes:
    say(f"{where}: its plan is built on {device.name} now, and kept; that can take minutes")
    found = build(path, options)
    say(f"{where}: built by {found.version} in {found.seconds:.0f} s")
    return found.plan


def keep(path: Path, plan: bytes) -> None:
    """All of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(plan)
    os.replace(file.name, path)
