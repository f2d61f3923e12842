"""A model's config.pbtxt: parsed strictly, every field accounted for, turned into what the engine is to do.

    text --parse--> ModelConfig --faults, warnings--> wanted_from --> Wanted (for the engine)
                                                                  --> config_json (for the ModelConfig RPC)

A config must not be obeyed in part without a word. So every field that a file can set is in one of three
tables below, by its path:

    SERVED    does here what it says
    HINTS     changes speed at most: a warning says that it is not used
    anything else changes answers, or who gets them: the model is refused, and the field named

A field counts as set when its value is not the default, so that a config which spells out every default
loads. `max_batch_size: 0` is an exception: it turns batching off, where an absent one leaves it to the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor

from service._pb import model_config as pb
from service.config import MAX_BATCH_SIZE, MAX_BATCH_WAIT_US, MAX_INSTANCES
from service.models.building import PARAMETERS as BUILDING
from service.models.building import building_from
from service.models.device_memory import GPU_MEMORY_LIMIT, memory_limit_from
from service.models.plugins import PLUGINS, plugins_from
from service.models.scheduling import EXECUTION_TIMEOUT, scheduling_from
from service.models.spec import ALLOWED_BATCH_SIZES, datatype_of_config, reshape_fault
from service.models.wanted import Wanted, WantedTensor

LONG_WAIT_US = 1_000_000
PLATFORMS = {  # of each backend
    "onnxruntime": "onnxruntime_onnx",
    "tensorrt": "tensorrt_plan",
    "pytorch": "pytorch_libtorch",
    "python": "python",
}
MODEL_FILES = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "python": "model.py",
}

SERVED = frozenset(
    [
        "name",
        "platform",
        "backend",
        "max_batch_size",
        "default_model_filename",
        "model_warmup",
        "version_policy",
        "parameters",
        "input.name",
        "input.data_type",
        "input.dims",
        "input.reshape",
        "output.name",
        "output.data_type",
        "output.dims",
        "output.reshape",
        "output.label_filename",
        "instance_group.name",
        "instance_group.count",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy",
        "dynamic_batching.priority_queue_policy",
    ]
)
HINTS = frozenset(
    [
        "runtime",
        "optimization",
        "cc_model_filenames",
        "metric_tags",
        "model_metrics",
        "input.format",
        "instance_group.kind",
        "instance_group.gpus",
        "instance_group.rate_limiter",
        "instance_group.secondary_devices",
        "instance_group.profile",
        "instance_group.host_policy",
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.preserve_ordering",
    ]
)
LOOKED_INTO = frozenset(["input", "output", "instance_group", "dynamic_batching"])
REFUSED_IF_PRESENT = frozenset(["sequence_batching", "ensemble_scheduling"])
_AUTO, _CPU, _GPU = (pb.ModelInstanceGroup.Kind.Value(f"KIND_{kind}") for kind in ("AUTO", "CPU", "GPU"))
_KNOWN_PARAMETERS = frozenset([ALLOWED_BATCH_SIZES, EXECUTION_TIMEOUT])
_OF_DEVICES = frozenset([GPU_MEMORY_LIMIT, PLUGINS, *BUILDING])  # of models on a device besides
ON_DEVICES = frozenset(["tensorrt", "pytorch"])  # backends whose models run on one


class ConfigFault(Exception):
    """A config.pbtxt that cannot be used. One sentence, without the file's name."""


@dataclass(frozen=True)
class Parsed:
    """A config as it was written. `says_batch_size`: max_batch_size is there, also as 0."""

    message: Any
    says_batch_size: bool


@dataclass(frozen=True)
class Defaults:
    """What holds where a config says nothing: the flags of the command line."""

    max_batch_size: int | None = None
    max_batch_wait_us: int = 0
    instances: int | None = None


def parse(data: bytes) -> Parsed:
    """Reads a config.pbtxt. Raises ConfigFault with the line of what is not understood."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigFault(f"line {line} is not UTF-8 text; expected protobuf text format") from error
    message = pb.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ConfigFault(_parse_fault(error)) from error
    except ValueError as error:  # the library's own, for a number that no enum can have
        value = str(error).rpartition(" ")[2]
        line = text.count("\n", 0, max(0, text.find(value))) + 1
        raise ConfigFault(f"line {line}: {error}; expected a value that the field can have") from error
    except RecursionError as error:
        raise ConfigFault("it is nested too deeply; expected the fields of ModelConfig") from error
    return Parsed(message, "max_batch_size" in _tokens(text))


def parse_json(text: str) -> Parsed:
    """Reads a ModelConfig in JSON, with the names of the proto or in camel case; numbers may be text.

    Raises ConfigFault.
    """
    message = pb.ModelConfig()
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ConfigFault(f"expected a JSON object with the fields of ModelConfig, got {text[:80]!r}")
        json_format.ParseDict(values, message)
    except (ValueError, json_format.ParseError) as error:
        raise ConfigFault(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ConfigFault("it is nested too deeply; expected the fields of ModelConfig") from error
    return Parsed(message, bool({"max_batch_size", "maxBatchSize"} & values.keys()))


def _parse_fault(error: text_format.ParseError) -> str:
    what = re.sub(r"^\d+:\d+ : ", "", " ".join(str(error).split()))
    return f"line {error.GetLine()}, column {error.GetColumn()}: {what}"


def _tokens(text: str) -> set[str]:
    """The words of a text that parses; one inside a string keeps its quotes, and a comment has none."""
    tokenizer = text_format.Tokenizer(text.splitlines())
    found = set()
    while not tokenizer.AtEnd():
        found.add(tokenizer.token)
        tokenizer.NextToken()
    return found


# ---- which fields are set ----


def set_fields(message: Any) -> Iterator[str]:
    """Paths of the fields that are set, as in the tables: one level deep where LOOKED_INTO says so."""
    for field, value in message.ListFields():
        if field.name not in LOOKED_INTO:
            if field.name in REFUSED_IF_PRESENT or _says_something(field, value):
                yield field.name
            continue
        for inner in value if field.is_repeated else [value]:
            for inner_field, inner_value in inner.ListFields():
                path = f"{field.name}.{inner_field.name}"
                if path in REFUSED_IF_PRESENT or _says_something(inner_field, inner_value):
                    yield path


def _says_something(field: FieldDescriptor, value: Any) -> bool:
    """Whether a field that ListFields names has a value of its own, however deep."""
    if field.message_type is None or field.is_repeated:
        return True
    return any(_says_something(inner, value) for inner, value in value.ListFields())


def refusals(config: Any) -> list[str]:
    """A clause for each field that changes answers and is not served."""
    paths = dict.fromkeys(path for path in set_fields(config) if path not in SERVED | HINTS)
    found = [_leaf(path, config) for path in paths]
    warmed = [tensor for entry in config.model_warmup for tensor in entry.inputs.values()]
    if any(tensor.HasField("input_data_file") for tensor in warmed):
        found.append("model_warmup.inputs.input_data_file")
    return [f"'{path}' is not served yet" for path in found]


def _leaf(path: str, config: Any) -> str:
    """The path down to the field that says something, where there is one way only."""
    if path in ("model_transaction_policy", "response_cache"):
        ((field, _),) = getattr(config, path).ListFields()
        return f"{path}.{field.name}"
    return path


def runs_on_device(config: Any) -> bool:
    """Whether the config names a backend, or a platform, whose models run on a device."""
    platforms = {PLATFORMS[backend] for backend in ON_DEVICES & PLATFORMS.keys()}
    return config.backend in ON_DEVICES or config.platform in platforms


def _hint(path: str) -> str:
    return f"'{path}' in config.pbtxt is a hint that this server does not use"


def _unused(parameter: str) -> str:
    return f"parameter '{parameter}' in config.pbtxt is not one that this server uses"


def for_device(wanted: Wanted) -> Wanted:
    """Of a model that turns out to run on a device, where its config does not say so: what is of no use on a
    CPU is of use there.
    """
    used = {_hint("instance_group.gpus"), _hint("instance_group.kind")}
    used |= {_unused(parameter) for parameter in _OF_DEVICES}
    return replace(wanted, warnings=tuple(text for text in wanted.warnings if text not in used))


def warnings(config: Any) -> list[str]:
    """A sentence for each hint, and for what looks like a slip."""
    on_device = runs_on_device(config)
    kinds = {group.kind for group in config.instance_group}
    said = [path for path in dict.fromkeys(set_fields(config)) if path in HINTS]
    if kinds <= {_AUTO, _GPU if on_device else _CPU} and "instance_group.kind" in said:
        said.remove("instance_group.kind")
    if on_device and "instance_group.gpus" in said:
        said.remove("instance_group.gpus")
    found = [_hint(path) for path in said]
    is_python = "python" in (config.backend, config.platform)  # its parameters are its own
    known = _KNOWN_PARAMETERS | (_OF_DEVICES if on_device else set())
    for name in sorted(set() if is_python else set(config.parameters) - known):
        found.append(_unused(name))
    for entry in config.model_warmup:
        if not entry.batch_size:
            found.append(f"model_warmup '{entry.name}' has batch_size 0 and is left out")
    wait_us = config.dynamic_batching.max_queue_delay_microseconds
    if wait_us > LONG_WAIT_US:
        found.append(
            f"max_queue_delay_microseconds is {wait_us}, which is {wait_us / 1e6:g} s: "
            "every request on an idle model may wait that long; is the unit what you expect?"
        )
    return found


# ---- what the engine is to do ----


def wanted_from(parsed: Parsed, defaults: Defaults) -> Wanted:
    """What the config asks of the engine. Raises ConfigFault with everything that is wrong."""
    config = parsed.message
    faults = refusals(config)
    faults += _number_faults(config)
    sizes = _batch_sizes(config, faults)
    inputs, outputs = _tensors("input", config.input, faults), _tensors("output", config.output, faults)
    scheduling = scheduling_from(config, faults)
    memory_limit, plugins = memory_limit_from(config, faults), plugins_from(config, faults)
    building = building_from(config, faults)
    if faults:
        raise ConfigFault("; ".join(faults))
    counts = [group.count or 1 for group in config.instance_group]
    said = config.max_batch_size if parsed.says_batch_size else None
    waits = config.HasField("dynamic_batching")
    wait_us = config.dynamic_batching.max_queue_delay_microseconds if waits else defaults.max_batch_wait_us
    return Wanted(
        max_batch_size=defaults.max_batch_size if said is None and not sizes else said,
        firm=said is not None,
        batch_sizes=sizes,
        inputs=inputs,
        outputs=outputs,
        max_batch_wait_us=wait_us,
        instances=sum(counts) or defaults.instances or 1,
        says_instances=bool(counts) or defaults.instances is not None,
        warnings=tuple(warnings(config)),
        config_json=json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True)),
        scheduling=scheduling,
        gpu_memory_limit=memory_limit,
        plugins=plugins,
        building=building,
        gpus=tuple(dict.fromkeys(gpu for group in config.instance_group for gpu in group.gpus)),
    )


def _number_faults(config: Any) -> list[str]:
    instances = sum(group.count or 1 for group in config.instance_group)
    bounds = [
        ("max_batch_size", config.max_batch_size, 0, MAX_BATCH_SIZE),
        ("max_queue_delay_microseconds", config.dynamic_batching.max_queue_delay_microseconds, 0,
         MAX_BATCH_WAIT_US),
        ("the sum of instance_group.count", instances, 0, MAX_INSTANCES),
        *(("instance_group.count", group.count, 0, MAX_INSTANCES) for group in config.instance_group),
    ]  # fmt: skip
    return [
        f"{what} must be between {low} and {high}, got {value}"
        for what, value, low, high in dict.fromkeys(bounds)
        if not low <= value <= high
    ]


def _batch_sizes(config: Any, faults: list[str]) -> tuple[int, ...]:
    if ALLOWED_BATCH_SIZES not in config.parameters:
        return ()
    text = config.parameters[ALLOWED_BATCH_SIZES].string_value
    sizes = [int(part) if re.fullmatch(r"\s*[0-9]{1,9}\s*", part) else 0 for part in text.split(",")]
    if not all(1 <= size <= MAX_BATCH_SIZE for size in sizes):
        expected = f"expected numbers from 1 to {MAX_BATCH_SIZE} with commas, such as '1,4,8'"
        faults.append(f"parameter {ALLOWED_BATCH_SIZES} is '{text}'; {expected}")
        return ()
    return tuple(sorted(set(sizes)))


def _tensors(kind: str, tensors: Any, faults: list[str]) -> tuple[WantedTensor, ...]:
    names = [tensor.name for tensor in tensors]
    if "" in names:
        faults.append(f"{kind} number {names.index('') + 1} has no name")
    faults += [f"{kind} '{name}' comes twice" for name in sorted(set(names)) if names.count(name) > 1]
    found = []
    for tensor in tensors:
        faults += [f"{kind} '{tensor.name}' {fault}" for fault in _dims_faults(tensor)]
        try:
            said = pb.DataType.Name(tensor.data_type)
        except ValueError:
            said = str(tensor.data_type)
        try:
            datatype = datatype_of_config(said) if tensor.data_type else ""
        except ValueError as error:
            faults.append(f"{kind} '{tensor.name}': {error}")
            continue
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        found.append(WantedTensor(tensor.name, datatype, tuple(tensor.dims) or None, reshape))
    return tuple(found)


def _dims_faults(tensor: Any) -> list[str]:
    """One clause each on dims and reshape of an input or output."""
    found = [
        f"has {what} {list(dims)}; a dim is -1 (any size) or at least 1"
        for what, dims in (("dims", tensor.dims), ("reshape", tensor.reshape.shape))
        if any(dim < -1 or dim == 0 for dim in dims)
    ]
    if found or not tensor.HasField("reshape"):
        return found
    if not tensor.dims:
        return [f"has reshape {list(tensor.reshape.shape)} and no dims; expected dims, as clients send them"]
    fault = reshape_fault(tensor.dims, tensor.reshape.shape)
    return [fault] if fault else []
