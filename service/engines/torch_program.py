"""Files with a model for torch: TorchScript (torch.jit.save) and exported programs (torch.export.save).

    open_program    the file's kind, by what is in it -> Program
    Program         runs on tensors, in the model's order; knows of its inputs and outputs what the file says

An exported program says everything: names, datatypes, shapes, which dims are open and what binds them.
TorchScript says the names of its arguments and no more; a config must say the rest of its inputs.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from service.engines.base import EngineError, ModelLoadError
from service.engines.torch_library import clean, datatype_of, library, moved
from service.models.probe import Declared

SCRIPT, EXPORTED = "TorchScript", "exported program"
_MARKS = (  # files of an archive, below its first folder, by the kind of archive
    (
        "data/aotinductor/",
        "a compiled package (AOTInductor), which runs on the kind of machine it was made on",
    ),
    ("constants.pkl", SCRIPT),
    ("models/", EXPORTED),
    ("serialized_exported_program.json", EXPORTED),
    ("data.pkl", "weights, or a pickled module (torch.save)"),
)
_EXPECTED = "expected TorchScript (torch.jit.save) or an exported program (torch.export.save)"


@dataclass
class Program:
    """A model on one of torch's devices.

    Attributes:
        arguments: names of the inputs it must have; optional: of those it may have. inputs, outputs: as the
        file declares them, empty where it does not. most_rows: of a batch, where the file bounds it; 0: any.
        module: torch's object. keys: names of outputs, where they have such; known after a run at the latest.
    """

    kind: str
    module: Any
    call: Callable[[Any, Sequence[str], Sequence[Any]], Any]
    arguments: tuple[str, ...]
    optional: tuple[str, ...] = ()
    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()
    most_rows: int = 0
    keys: tuple[str, ...] = ()

    def run(self, arguments: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """The outputs for a tensor per argument, in the model's order. Raises whatever torch does."""
        with library().inference_mode():
            found = list(_flattened(self.call(self.module, arguments, tensors)))
        self.keys = tuple(key for key, _ in found)
        return [tensor for _, tensor in found]

    def close(self) -> None:
        self.module = None


def open_program(path: str, where: str, device: str = "cpu") -> Program:
    """Loads a file onto one of torch's devices. Raises ModelLoadError."""
    kind = kind_of(path, where)
    try:
        torch = library()
    except ModelLoadError as error:
        raise ModelLoadError(f"{where} was not loaded: {error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is of yesterday; how the file is read
            return (_script if kind == SCRIPT else _exported)(torch, path, device)
    except ModelLoadError as error:
        raise ModelLoadError(f"{where} cannot be served: {error}") from error
    except getattr(torch, "OutOfMemoryError", MemoryError):
        raise
    except Exception as error:
        advice = "check that the file is complete, and of a version that this one reads"
        raise ModelLoadError(
            f"{where} was not loaded by torch {torch.__version__} as {kind}: {clean(error)}; {advice}"
        ) from error


def kind_of(path: str, where: str) -> str:
    """SCRIPT or EXPORTED. Raises ModelLoadError for anything else; needs no torch."""
    try:
        if not Path(path).stat().st_size:
            raise ModelLoadError(f"{where} is an empty file; {_EXPECTED}")
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except OSError as error:
        raise ModelLoadError(f"{where} cannot be read: {error.strerror}") from error
    except zipfile.BadZipFile as error:
        raise ModelLoadError(f"{where} is no archive, as torch's files are; {_EXPECTED}") from error
    kind = next((kind for mark, kind in _MARKS if any(name.startswith(mark) for name in names)), "")
    if kind not in (SCRIPT, EXPORTED):
        raise ModelLoadError(f"{where} holds {kind or 'nothing that torch runs'}; {_EXPECTED}")
    return kind


def _flattened(result: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of what a model returned, with their names; those of a tuple or list have none."""
    if isinstance(result, library().Tensor):
        yield key, result
    elif isinstance(result, Mapping):
        for name, value in result.items():
            yield from _flattened(value, str(name))
    elif isinstance(result, tuple | list):
        for value in result:
            yield from _flattened(value)
    else:
        raise EngineError(f"it returned a {type(result).__name__}; expected tensors")


# ---- TorchScript ----


def _script(torch: Any, path: str, device: str) -> Program:
    module = torch.jit.load(path, map_location=device)  # constants too, which `to` would leave
    module.eval()
    if not hasattr(module, "forward"):
        raise ModelLoadError("it has no method forward, which is what is served")
    needed, optional = [], []
    for argument in module.forward.schema.arguments[1:]:
        is_tensor = str(argument.type) in ("Tensor", "Optional[Tensor]")
        if not argument.has_default_value():
            needed.append(argument.name)
            if not is_tensor:
                raise ModelLoadError(
                    f"its argument '{argument.name}' is of type {argument.type}; expected tensors"
                )
        elif is_tensor:
            optional.append(argument.name)
    return Program(SCRIPT, module, _call_script, tuple(needed), tuple(optional))


def _call_script(module: Any, arguments: Sequence[str], tensors: Sequence[Any]) -> Any:
    """Its optimizer would look at the first runs and compile in the next, on whatever stream that is."""
    library()._C._set_graph_executor_optimize(False)  # jit.optimized_execution, which puts it back
    return module(**dict(zip(arguments, tensors, strict=True)))


# ---- exported programs ----


def _exported(torch: Any, path: str, device: str) -> Program:
    with open(path, "rb") as file:
        program = torch.export.load(file)
    if device != "cpu":
        program = moved(program, device)
    return program_of(program)


def program_of(program: Any) -> Program:
    """What torch's ExportedProgram is as ours. Raises ModelLoadError for what is not served."""
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = [_declared("input", name, values) for name in signature.user_inputs]
    outputs = [_declared("output", name, values) for name in signature.user_outputs]
    keys = _keys_of(program.call_spec.out_spec, len(outputs))
    outputs = [tensor._replace(name=key) for tensor, key in zip(outputs, keys, strict=True)]
    return Program(
        EXPORTED,
        program.module(),
        partial(_call_exported, program.call_spec.in_spec),
        tuple(tensor.name for tensor in inputs),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        most_rows=_most_rows(program, inputs),
        keys=tuple(keys),
    )


def _call_exported(spec: Any, module: Any, arguments: Sequence[str], tensors: Sequence[Any]) -> Any:
    positional, named = library().utils._pytree.tree_unflatten(list(tensors), spec)
    return module(*positional, **named)


def _declared(kind: str, name: Any, values: Mapping[str, Any]) -> Declared:
    value = values.get(name) if isinstance(name, str) else None
    if value is None or not hasattr(value, "dtype"):
        raise ModelLoadError(f"its {kind} {name!r} is no tensor; expected tensors")
    datatype = datatype_of(value.dtype)
    if not datatype:
        raise ModelLoadError(f"its {kind} '{name}' is of {value.dtype}, which clients cannot send or read")
    return Declared(name, datatype, tuple(dim if isinstance(dim, int) else str(dim) for dim in value.shape))


def _keys_of(spec: Any, count: int) -> list[str]:
    """The names of outputs, where the model returns them by name; "" otherwise."""
    keys = list(spec.context) if spec.type is dict else []
    return [str(key) for key in keys] if len(keys) == count else [""] * count


def _most_rows(program: Any, inputs: Sequence[Declared]) -> int:
    """The bound on the symbol of axis 0; 0: there is none."""
    first = {tensor.shape[0] for tensor in inputs if tensor.shape}
    bounds = [limits.upper for symbol, limits in program.range_constraints.items() if str(symbol) in first]
    finite = [int(bound) for bound in bounds if getattr(bound, "is_Integer", False)]
    return min(finite, default=0)
