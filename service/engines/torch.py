"""Models for torch: TorchScript and exported programs, on the worker's device or on the CPU.

    torch_library     torch itself, its datatypes and its words
    torch_program     a file's kind; a program, that runs on tensors
    torch_described   program, config and runs of it -> how it is served
    torch_host        on the CPU, with instances as ONNX Runtime's engine has them
    torch_device      on the device, through its executor

A model runs on the device where there is one, else on the CPU, and the log says why.
"""

from __future__ import annotations

from dataclasses import replace

from service.cuda.device import NO_DEVICE, chosen, the_device
from service.cuda.driver import DriverError, NoDriver
from service.engines.base import AnyEngine, ModelLoadError
from service.engines.bfloat16 import stored
from service.engines.torch_described import BACKEND, PLATFORM, described
from service.engines.torch_device import open_on_device
from service.engines.torch_host import Host, TorchEngine
from service.engines.torch_library import library
from service.engines.torch_program import kind_of, open_program
from service.models.wanted import Wanted, served


def open_torch(path: str, *, name: str, version: str, wanted: Wanted) -> AnyEngine:
    """Loads a model; parameters and errors as `service.engines.base.open_engine`."""
    where = f"model '{name}' ({path})"
    kind_of(path, where)  # before a device is made for nothing
    try:
        torch = library()
        device = the_device()
        if not torch.cuda.is_available():
            raise NoDriver(f"torch {torch.__version__} sees no CUDA device")
    except NoDriver as error:
        return _on_the_cpu(path, where, name, version, wanted, str(error))
    except (ModelLoadError, DriverError) as error:
        raise ModelLoadError(f"{where} was not loaded: {error}") from error
    return open_on_device(path, where, name, version, wanted, device)


def _on_the_cpu(path: str, where: str, name: str, version: str, wanted: Wanted, why: str) -> TorchEngine:
    """`why`: there is no device for it."""
    program = open_program(path, where)
    arguments, found = described(program, where, wanted, Host())
    if chosen() != NO_DEVICE:
        found = replace(found, warnings=(*found.warnings, f"it runs on the CPU: {why}"))
    spec, faults = served(
        wanted,
        found,
        name=name,
        version=version,
        platform=PLATFORM,
        backend=BACKEND,
        instances=wanted.instances,
    )
    if faults:
        raise ModelLoadError(f"{where} cannot be served: {'; '.join(faults)}")
    sample = [stored(array, t.datatype) for array, t in zip(found.sample, spec.inputs, strict=False)]
    return TorchEngine(program, arguments, spec, sample)
