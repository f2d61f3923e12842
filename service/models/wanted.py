"""What a user wants of a model beyond its file, as plain data, and whether the model agrees.

    config.pbtxt --modelconfig.py--> Wanted --engine--> narrowed, asked_size      before the model is tried
                                                        disagreements, as_served  afterwards; `served` is
                                                        both, for an engine that derives its specs

Every engine goes through these, so that a config means the same whatever runs the model. The user's
dims prevail where the model leaves a size open, never where it does not. Until `as_served` a TensorSpec has
the model's dims alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from service.models.building import Building
from service.models.derive import Derived
from service.models.probe import Declared, is_dynamic
from service.models.scheduling import Scheduling
from service.models.spec import ModelSpec, TensorSpec


@dataclass(frozen=True)
class WantedTensor:
    """What a config says of an input or output; an empty datatype, and dims of None, say nothing.

    `dims`, `reshape` and `labels` as in TensorSpec; a reshape comes with dims.
    """

    name: str
    datatype: str = ""
    dims: tuple[int, ...] | None = None
    reshape: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()

    @property
    def model_dims(self) -> tuple[int, ...] | None:
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True)
class Wanted:
    """What a user wants of one model.

    Attributes:
        max_batch_size: rows of a batch at most; 0: no batching; None: derived. firm: a model that cannot do
        `max_batch_size` is refused, instead of served with less. batch_sizes: sizes that the engine may run,
        ascending; empty: every size. max_batch_wait_us, instances: as in ModelSpec. warnings: sentences about
        the config for the log. config_json, scheduling: as in ModelSpec. says_instances: `instances`
        is not a default. gpu_memory_limit: bytes that a model may take of a device; 0: no limit. plugins:
        libraries of a plan's own layers, by their names in its folder. building: how a plan is made of an
        ONNX file. gpus: the devices that it may run on, by their numbers; none: any.
    """

    max_batch_size: int | None = None
    firm: bool = False
    batch_sizes: tuple[int, ...] = ()
    inputs: tuple[WantedTensor, ...] = ()
    outputs: tuple[WantedTensor, ...] = ()
    max_batch_wait_us: int = 0
    instances: int = 1
    says_instances: bool = False
    warnings: tuple[str, ...] = ()
    config_json: str = ""
    scheduling: Scheduling = Scheduling()
    gpu_memory_limit: int = 0
    plugins: tuple[str, ...] = ()
    building: Building = Building()
    gpus: tuple[int, ...] = ()


def asked_size(wanted: Wanted, inputs: Sequence[Declared]) -> int | None:
    """The max_batch_size to try. Dims that include the batch axis turn batching off, as they do in Triton."""
    if wanted.firm:
        return wanted.max_batch_size
    ranks = {tensor.name: len(tensor.shape) for tensor in inputs}
    full = any(
        tensor.model_dims and len(tensor.model_dims) == ranks.get(tensor.name) for tensor in wanted.inputs
    )
    return 0 if full and not wanted.batch_sizes else wanted.max_batch_size


def narrowed(inputs: Sequence[Declared], wanted: Wanted) -> list[Declared]:
    """The declared inputs with the sizes that the user gives in place of dynamic ones."""
    said = {tensor.name: dims for tensor in wanted.inputs if (dims := tensor.model_dims)}
    return [_narrowed(tensor, said[tensor.name]) if tensor.name in said else tensor for tensor in inputs]


def _narrowed(tensor: Declared, dims: tuple[int, ...]) -> Declared:
    axes = len(tensor.shape) - len(dims)  # 1: the dims are without the batch axis
    if axes not in (0, 1):
        return tensor  # a disagreement, which is said when all is known
    sizes = tuple(
        said if is_dynamic(dim) and said >= 0 else dim
        for dim, said in zip(tensor.shape[axes:], dims, strict=True)
    )
    return tensor._replace(shape=tensor.shape[:axes] + sizes)


def served(
    wanted: Wanted,
    found: Derived,
    *,
    name: str,
    version: str,
    platform: str,
    backend: str,
    instances: int,
) -> tuple[ModelSpec, list[str]]:
    """The spec of a derived model, and why it cannot be served: one clause each, empty when it can."""
    spec = ModelSpec(
        name=name,
        version=version,
        platform=platform,
        backend=backend,
        max_batch_size=found.max_batch_size,
        inputs=found.inputs,
        outputs=found.outputs,
        max_batch_wait_us=wanted.max_batch_wait_us,
        instances=instances,
        why_unbatched=found.why_unbatched,
        warnings=wanted.warnings + found.warnings,
        batch_sizes=found.batch_sizes,
        config_json=wanted.config_json,
        scheduling=wanted.scheduling,
    )
    as_said = as_served(wanted, spec)
    return as_said, as_said.faults() + disagreements(wanted, spec)


def disagreements(wanted: Wanted, spec: ModelSpec) -> list[str]:
    """Where the loaded model is not what the user says it is: one clause each, with both values."""
    found = _batch_faults(wanted, spec)
    for kind, said, tensors in (
        ("input", wanted.inputs, spec.inputs),
        ("output", wanted.outputs, spec.outputs),
    ):
        by_name = {tensor.name: tensor for tensor in tensors}
        for tensor in said:
            if tensor.name not in by_name:
                known = ", ".join(f"'{name}'" for name in by_name)
                found.append(f"the config has an {kind} '{tensor.name}', the model has {known}")
                continue
            model = by_name[tensor.name]
            if tensor.datatype not in ("", model.datatype):
                said_type = f"the config says {tensor.datatype}, the model has {model.datatype}"
                found.append(f"{kind} '{tensor.name}': {said_type}")
            if not _dims_agree(tensor.model_dims, model.dims, loose=kind == "output"):
                found.append(f"{kind} '{tensor.name}': {_dims_fault(tensor, model.dims, spec)}")
    return found


def as_served(wanted: Wanted, spec: ModelSpec) -> ModelSpec:
    """The spec with its tensors in the form that the user gives them on the wire, and with their labels."""
    inputs, outputs = _as_served(wanted.inputs, spec.inputs), _as_served(wanted.outputs, spec.outputs)
    return replace(spec, inputs=inputs, outputs=outputs)


def _as_served(said: Sequence[WantedTensor], tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    by_name = {tensor.name: tensor for tensor in said}
    nothing = WantedTensor("")
    return tuple(_one_as_served(by_name.get(tensor.name, nothing), tensor) for tensor in tensors)


def _one_as_served(said: WantedTensor, tensor: TensorSpec) -> TensorSpec:
    if said.dims is not None and said.reshape is not None:
        tensor = replace(tensor, dims=said.dims, reshape=said.reshape)
    if not said.labels:
        return tensor
    classes = prod(tensor.dims) if tensor.is_fixed else len(said.labels)
    return replace(tensor, labels=said.labels[:classes])


def _batch_faults(wanted: Wanted, spec: ModelSpec) -> list[str]:
    if (wanted.firm and wanted.max_batch_size or wanted.batch_sizes) and not spec.batches:
        return [f"the config wants batches, but the model cannot batch: {spec.why_unbatched}"]
    if wanted.firm and wanted.max_batch_size != spec.max_batch_size:
        most = f"the largest batch that the model takes has {spec.max_batch_size} rows"
        return [f"the config says max_batch_size {wanted.max_batch_size}, but {most}"]
    return []


def _dims_agree(said: tuple[int, ...] | None, dims: tuple[int, ...], loose: bool) -> bool:
    """`loose`: where the model leaves a size open, the config may name one."""
    if said is None or said == dims:
        return True
    pairs = zip(said, dims, strict=False)
    return loose and len(said) == len(dims) and all(a == b or b < 0 for a, b in pairs)


def _dims_fault(said: WantedTensor, dims: tuple[int, ...], spec: ModelSpec) -> str:
    axis = "without the batch axis" if spec.batches else f"and is not batched: {spec.why_unbatched}"
    what = "dims" if said.reshape is None else "reshape"
    return f"the config says {what} {list(said.model_dims or ())}, the model has {list(dims)} ({axis})"
