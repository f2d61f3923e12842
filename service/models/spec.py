"""What every part of the service knows about a model: one frozen ModelSpec, made once when the model loads.

    engine --load--> ModelSpec --JSON, control socket and link--> front end: codec's blob, metadata, config

The worker's engine makes it; nobody changes it afterwards. This file depends on the plain data of
`scheduling`, and on numpy only where somebody asks for a dtype, so that any process may import it at little
cost.

The batch axis is not in the dims of a model that batches (`max_batch_size` > 0): a TensorSpec describes one
row. ModelConfig says dims in just that form, ModelMetadata says shapes with a leading -1 instead; clients
(perf_analyzer among them) drop that first dimension, so the two must not be mixed up. A model that does not
batch has its full shapes in both. A dim of -1 may have any size, also 0.

A config may give a tensor another form on the wire than the model has (`reshape`): clients, ModelMetadata and
the dims of ModelConfig have the wire's, the queue and the engines the model's, and the codec translates. The
elements are the same in the same order. So what stands between two dims of -1, which are matched in order,
must have the same number of elements on both sides; [1] and [] are the usual pair, for a scalar per row.

Limits (MAX_INPUTS, MAX_OUTPUTS, MAX_RANK) are those of the C codec and of the queue's slots, where they are
sizes of arrays; `ModelSpec.faults` says which a model exceeds, and its load is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from service.models.scheduling import Scheduling

if TYPE_CHECKING:
    import numpy as np

MAX_INPUTS = 64
MAX_OUTPUTS = 64
MAX_RANK = 8  # with the batch axis
DYNAMIC = -1
ALLOWED_BATCH_SIZES = "allowed_batch_sizes"  # the name of the parameter in ModelConfig


class Datatype(NamedTuple):
    """A row of the datatype table.

    Attributes:
        name: as requests say it. numpy: name of the numpy dtype; empty where numpy has none. element_bytes:
        0 where elements differ in size. config: the name in ModelConfig, whose only oddity is BYTES.
    """

    name: str
    numpy: str
    element_bytes: int
    config: str


DATATYPES: dict[str, Datatype] = {
    row.name: row
    for row in (
        Datatype("BOOL", "bool", 1, "TYPE_BOOL"),
        Datatype("UINT8", "uint8", 1, "TYPE_UINT8"),
        Datatype("UINT16", "uint16", 2, "TYPE_UINT16"),
        Datatype("UINT32", "uint32", 4, "TYPE_UINT32"),
        Datatype("UINT64", "uint64", 8, "TYPE_UINT64"),
        Datatype("INT8", "int8", 1, "TYPE_INT8"),
        Datatype("INT16", "int16", 2, "TYPE_INT16"),
        Datatype("INT32", "int32", 4, "TYPE_INT32"),
        Datatype("INT64", "int64", 8, "TYPE_INT64"),
        Datatype("FP16", "float16", 2, "TYPE_FP16"),
        Datatype("FP32", "float32", 4, "TYPE_FP32"),
        Datatype("FP64", "float64", 8, "TYPE_FP64"),
        Datatype("BYTES", "object", 0, "TYPE_STRING"),
        Datatype("BF16", "", 2, "TYPE_BF16"),
    )
}

_BY_NUMPY = {row.numpy: row.name for row in DATATYPES.values() if row.numpy}
_BY_CONFIG = {row.config: row.name for row in DATATYPES.values()}


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of an OIP datatype ("FP32"). BYTES is `object`. ValueError when it has none (BF16)."""
    import numpy as np

    row = DATATYPES.get(datatype)
    if row is None or not row.numpy:
        known = ", ".join(name for name, known in DATATYPES.items() if known.numpy)
        raise ValueError(f"datatype {datatype} has no numpy dtype; expected one of {known}")
    return np.dtype(row.numpy)


def datatype_of_numpy(dtype: np.dtype[Any]) -> str:
    """The OIP datatype of a numpy dtype; numpy's strings ("S3", "U3") are BYTES. ValueError for others."""
    if dtype.kind in "SU":
        return "BYTES"
    name = _BY_NUMPY.get(dtype.name)
    if name is None:
        known = ", ".join(_BY_NUMPY)
        raise ValueError(f"numpy dtype {dtype} has no datatype on the wire; expected one of {known}")
    return name


def datatype_of_config(config_name: str) -> str:
    """The OIP datatype of a ModelConfig name ("TYPE_FP32"). ValueError for others."""
    name = _BY_CONFIG.get(config_name)
    if name is None:
        raise ValueError(f"data_type {config_name} is unknown; expected one of {', '.join(_BY_CONFIG)}")
    return name


@dataclass(frozen=True)
class TensorSpec:
    """An input or output.

    Attributes:
        datatype: an OIP name, a key of DATATYPES. dims: on the wire, without the batch axis where the model
        batches; -1 is dynamic. reshape: the model's dims where they are others; None: they are `dims`.
        labels: of an output's classes, by their indexes; bytes that are not UTF-8 as surrogates.
        text: an input of BYTES whose elements have to be UTF-8, which the codec checks.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    text: bool = False

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dims that the model sees, as engines do."""
        return self.dims if self.reshape is None else self.reshape

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; 0 where elements differ in size (BYTES)."""
        return DATATYPES[self.datatype].element_bytes

    @property
    def is_fixed(self) -> bool:
        """Whether every dim is known before a request comes."""
        return all(dim >= 0 for dim in self.dims)

    @property
    def row_bytes(self) -> int:
        """Bytes per row (of the whole tensor where the model does not batch); -1: not known beforehand."""
        if not self.is_fixed or self.element_bytes == 0:
            return -1
        return self.element_bytes * prod(self.dims)


@dataclass(frozen=True)
class ModelSpec:
    """A model as clients see it, and how it is run.

    Attributes:
        version: a number above 0, as text. max_batch_size: rows of a batch at most; 0: the model does not
        batch. max_batch_wait_us: how long the oldest request may wait for company once a launch slot is free.
        instances: execution slots. why_unbatched: one clause, for the log, where max_batch_size is 0.
        warnings: sentences for the log on what the user should know about this model. batch_sizes: the sizes
        that the engine runs, ascending, to which it pads smaller batches; empty: every size. config_json: the
        user's ModelConfig, as JSON with the names of the proto; empty where there is none. scheduling: who
        goes first, who may wait, and how long a batch may run.
    """

    name: str
    version: str
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_wait_us: int = 0
    instances: int = 1
    why_unbatched: str = ""
    warnings: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    config_json: str = ""
    scheduling: Scheduling = Scheduling()

    @property
    def batches(self) -> bool:
        return self.max_batch_size > 0

    def faults(self) -> list[str]:
        """What of this spec the service cannot serve, one clause each; empty when it can."""
        found = []
        if not self.version.isdecimal() or int(self.version) < 1:
            found.append(f"version '{self.version}' is not a number above 0")
        found += _count_faults("input", self.inputs, MAX_INPUTS)
        found += _count_faults("output", self.outputs, MAX_OUTPUTS)
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            for tensor in tensors:
                found += [f"{kind} '{tensor.name}' {fault}" for fault in _tensor_faults(tensor, self.batches)]
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """The inverse of to_json. Raises TypeError on a field this version does not have."""
        values = json.loads(text)
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise TypeError(f"unknown fields of a model spec {sorted(unknown)}")
        values["inputs"] = _tensors_from(values["inputs"])
        values["outputs"] = _tensors_from(values["outputs"])
        values["warnings"] = tuple(values.get("warnings", ()))
        values["batch_sizes"] = tuple(values.get("batch_sizes", ()))
        if "scheduling" in values:
            values["scheduling"] = Scheduling.from_json(values["scheduling"])
        return cls(**values)


def _tensors_from(rows: Iterable[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(**{key: _frozen(value) for key, value in row.items()}) for row in rows)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _count_faults(kind: str, tensors: tuple[TensorSpec, ...], most: int) -> list[str]:
    found = []
    if not 1 <= len(tensors) <= most:
        found.append(f"it has {len(tensors)} {kind}s; between 1 and {most} are served")
    names = [tensor.name for tensor in tensors]
    found += [f"{kind} name '{name}' comes twice" for name in sorted(set(names)) if names.count(name) > 1]
    return found


def _tensor_faults(tensor: TensorSpec, batches: bool) -> list[str]:
    found = []
    if not tensor.name:
        found.append("has no name")
    if tensor.datatype not in DATATYPES:
        found.append(f"has the unknown datatype {tensor.datatype}")
    rank = max(len(tensor.dims), len(tensor.model_dims)) + batches
    if rank > MAX_RANK:
        found.append(f"has {rank} dimensions; at most {MAX_RANK} are served")
    if any(dim < DYNAMIC for dim in tensor.dims):
        found.append(f"has dims {list(tensor.dims)}; a dim is -1 (dynamic) or a size")
    if fault := reshape_fault(tensor.dims, tensor.model_dims):
        found.append(fault)
    return found


def reshape_fault(dims: Sequence[int], reshape: Sequence[int]) -> str:
    """One clause on why `dims` cannot be reshaped to `reshape`; empty when they can."""
    here, there = _element_counts(dims), _element_counts(reshape)
    if here == there:
        return ""
    what = f"has dims {list(dims)} and reshape {list(reshape)}; expected as many"
    if len(here) != len(there):
        return f"{what} dims of -1 in both, got {len(here) - 1} and {len(there) - 1}"
    between = " between the dims of -1" if len(here) > 1 else ""
    (number, got) = next((a, b) for a, b in zip(here, there, strict=True) if a != b)
    return f"{what} elements in both{between}, got {number} and {got}"


def _element_counts(dims: Sequence[int]) -> list[int]:
    """Elements of what stands before, between and behind the dims of -1."""
    counts = [1]
    for dim in dims:
        if dim == DYNAMIC:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


# ---- what ModelMetadata and ModelConfig say, as plain data with the fields' names ----


def metadata(spec: ModelSpec, versions: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of ModelMetadataResponse. `versions`: all that are served (default: the spec's own)."""
    return {
        "name": spec.name,
        "versions": list(versions) or [spec.version],
        "platform": spec.platform,
        "inputs": [_tensor_metadata(tensor, spec.batches) for tensor in spec.inputs],
        "outputs": [_tensor_metadata(tensor, spec.batches) for tensor in spec.outputs],
    }


def _tensor_metadata(tensor: TensorSpec, batches: bool) -> dict[str, Any]:
    shape = [DYNAMIC, *tensor.dims] if batches else list(tensor.dims)
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}


def config(spec: ModelSpec, device: int | None = None) -> dict[str, Any]:
    """The fields of ModelConfig; enum values by name, so that json_format.ParseDict takes it as it is.

    What the user's config says stands as it was said; what it left out is what was derived. `device`: which
    one the model runs on; None: the CPU.
    """
    fields_of: dict[str, Any] = json.loads(spec.config_json or "{}")
    fields_of |= {
        "name": spec.name,
        "platform": spec.platform,
        "backend": spec.backend,
        "max_batch_size": spec.max_batch_size,
        "input": _tensors_config(fields_of.get("input", []), spec.inputs),
        "output": _tensors_config(fields_of.get("output", []), spec.outputs),
    }
    fields_of.setdefault("version_policy", {"latest": {"num_versions": 1}})
    fields_of["instance_group"] = _instance_groups(spec, fields_of.get("instance_group", []), device)
    if spec.batches:
        waits = {"max_queue_delay_microseconds": spec.max_batch_wait_us}
        fields_of.setdefault("dynamic_batching", waits)
    if spec.batch_sizes:
        sizes = {"string_value": ",".join(map(str, spec.batch_sizes))}
        fields_of.setdefault("parameters", {}).setdefault(ALLOWED_BATCH_SIZES, sizes)
    return fields_of


def _instance_groups(spec: ModelSpec, said: list[dict[str, Any]], device: int | None) -> list[dict[str, Any]]:
    """Where the model runs is the truth, also where the user left the kind open or named several devices."""
    group = {"name": f"{spec.name}_0", "kind": "KIND_CPU", "count": spec.instances}
    groups = said or [group]
    if device is None:
        return groups
    return [{"count": 1, **group, "kind": "KIND_GPU", "gpus": [device]} for group in groups]


def _tensors_config(said: Sequence[dict[str, Any]], tensors: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """What the user said of each tensor, on top of what the model says, in the model's order."""
    by_name = {tensor["name"]: tensor for tensor in said}
    return [{**_tensor_config(tensor), **by_name.get(tensor.name, {})} for tensor in tensors]


def _tensor_config(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": DATATYPES[tensor.datatype].config, "dims": list(tensor.dims)}
