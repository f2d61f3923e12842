"""Requests, configs and model files that are nearly right: each made from one source of randomness."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from service._pb import inference as pb

NAMES = ["plus", "x", "y", "", "nope", "größe", "\0", "x" * 300, "PLUS", "../plus"]
VERSIONS = ["", "1", "2", "-1", "01", "x", "99999999999999999999"]
DATATYPES = ["FP32", "FP32", "FP32", "INT32", "BYTES", "BF16", "FP16", "BOOL", "UINT64", "fp32", "", "FP33"]
SIZES = [1, 2, 3, 4, 4, 4, 8, 0, -1, 33, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)]
PARAMETERS = [
    "priority", "timeout", "classification", "headrace_unordered", "sequence_id", "sequence_start",
    "binary_data", "shared_memory_region", "shared_memory_byte_size", "triton_x", "",
]  # fmt: skip
NUMBERS = [0, 1, -1, 7, 1000, 1 << 20, 1 << 31, (1 << 63) - 1, -(1 << 63)]
FIELDS = {
    "bool_contents": [True, False], "int_contents": [0, 1, -1, 300, 2**31 - 1], "int64_contents": NUMBERS,
    "uint_contents": [0, 2**32 - 1], "uint64_contents": [0, 2**64 - 1], "fp32_contents": [0.0, 1.5],
    "fp64_contents": [0.0, 1e300, float("inf")], "bytes_contents": [b"", b"ab", b"\xff" * 9],
}  # fmt: skip


def damaged(random: Random, data: bytes, most: int = 8) -> bytes:
    """`data` with bits flipped, and bytes put in, left out, moved, or cut off."""
    out = bytearray(data)
    for _ in range(random.randint(1, most)):
        at = random.randrange(len(out) + 1)
        kind = random.randrange(6)
        if kind <= 1 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif kind == 2 and at < len(out):
            out[at] = random.choice([0, 0x7F, 0x80, 0xFF, random.randrange(256)])
        elif kind == 3:
            out[at:at] = random.randbytes(random.randint(1, 9))
        elif kind == 4:
            del out[at : at + random.randint(1, 9)]
        elif random.random() < 0.2:
            del out[at:]
        else:
            out[at:at] = out[: random.randint(0, 40)]
    return bytes(out)


class Requests:
    """ModelInferRequests over the model `plus` (x FP32 [4] -> y), on the wire."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def infer(self) -> bytes:
        request = self._plain()
        for _ in range(self.random.choice([0, 1, 1, 2, 4])):
            self.random.choice([self._name, self._tensor, self._raw, self._typed, self._parameter,
                                self._output, self._repeat])(request)  # fmt: skip
        data = request.SerializeToString()
        return damaged(self.random, data) if self.random.random() < 0.3 else data

    def _plain(self) -> Any:
        rows = self.random.choice([1, 1, 2, 8, 33])
        request = pb.ModelInferRequest(model_name="plus", id=self.random.choice(["", "7", "ü" * 40]))
        request.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
        request.raw_input_contents.append(struct.pack("<4f", 1, 2, 3, 4) * rows)
        return request

    def _name(self, request: Any) -> None:
        if self.random.random() < 0.5:
            request.model_name = self.random.choice(NAMES)
        else:
            request.model_version = self.random.choice(VERSIONS)

    def _tensor(self, request: Any) -> None:
        for tensor in request.inputs:
            kind = self.random.randrange(3)
            if kind == 0:
                tensor.name = self.random.choice(NAMES)
            elif kind == 1:
                tensor.datatype = self.random.choice(DATATYPES)
            else:
                rank = self.random.choice([0, 1, 2, 2, 3, 9, 70])
                tensor.shape[:] = [self.random.choice(SIZES) for _ in range(rank)]

    def _raw(self, request: Any) -> None:
        length = self.random.choice([0, 1, 4, 15, 16, 17, 64, 5000])
        raw = self.random.randbytes(length)
        if request.raw_input_contents and self.random.random() < 0.7:
            request.raw_input_contents[0] = raw
        else:
            request.raw_input_contents.append(raw)

    def _typed(self, request: Any) -> None:
        if self.random.random() < 0.7:
            del request.raw_input_contents[:]
        for tensor in request.inputs:
            field = self.random.choice(list(FIELDS))
            count = self.random.choice([0, 1, 4, 4, 8, 100])
            getattr(tensor.contents, field).extend(self.random.choices(FIELDS[field], k=count))

    def _parameter(self, request: Any) -> None:
        places = [request, *request.inputs, *request.outputs]
        value = self.random.choice(places).parameters[self.random.choice(PARAMETERS)]
        kind = self.random.randrange(6)
        if kind == 0:
            value.bool_param = self.random.random() < 0.5
        elif kind == 1:
            value.int64_param = self.random.choice(NUMBERS)
        elif kind == 2:
            value.string_param = self.random.choice(NAMES)
        elif kind == 3:
            value.double_param = self.random.choice([0.0, -1.0, 1e300, float("nan")])
        elif kind == 4:
            value.uint64_param = self.random.choice([0, 1, 1 << 32, (1 << 64) - 1])

    def _output(self, request: Any) -> None:
        for _ in range(self.random.choice([1, 1, 2, 70])):
            request.outputs.add(name=self.random.choice(["y", "y", "x", "", "nope"]))

    def _repeat(self, request: Any) -> None:
        if request.inputs:
            request.inputs.add().CopyFrom(request.inputs[0])

    def control(self, method: str) -> bytes:
        """A request of any other call."""
        message = getattr(pb, f"{method}Request")()
        for field in message.DESCRIPTOR.fields:
            if field.type == field.TYPE_STRING and not field.is_repeated and self.random.random() < 0.7:
                setattr(message, field.name, self.random.choice(NAMES + VERSIONS))
        data = message.SerializeToString()
        return damaged(self.random, data) if self.random.random() < 0.4 else data


WORDS = [
    "max_batch_size", "input", "output", "name", "data_type", "dims", "instance_group", "count", "parameters",
    "key", "value", "string_value", "allowed_batch_sizes", "version_policy", "latest", "num_versions",
    "specific", "versions", "all", "dynamic_batching", "max_queue_delay_microseconds", "preferred_batch_size",
    "platform", "backend", "default_model_filename", "optimization", "sequence_batching", "TYPE_FP32",
    "TYPE_STRING", "KIND_CPU", "model_warmup", "reshape", "shape", "{", "}", "[", "]", ":", ",", "#", "\n",
    '"x"', '"y"', "'", "0", "-1", "1", "4", "8", "1e9", "999999999999999999999", "true", "onnxruntime",
    '"onnxruntime"', '"python"', '"../../etc/passwd"', "priority_levels", "max_queue_size", "\\x00", "Inf",
]  # fmt: skip
CONFIGS = [
    'max_batch_size: 8\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]\ninstance_group [ { count: 2 } ]\n',
    "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }\n",
    'parameters { key: "allowed_batch_sizes" value { string_value: "1,4,8" } }\nversion_policy { all { } }\n',
    'version_policy: { specific: { versions: [ 1 ] } }\nbackend: "onnxruntime"\nmax_batch_size: 0\n',
]


def config(random: Random) -> bytes:
    """A config.pbtxt of the model, damaged in its words or in its bytes."""
    text = random.choice(CONFIGS)
    if random.random() < 0.3:
        return damaged(random, text.encode())
    words = text.replace("\n", " \n ").split(" ")
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(words))
        kind = random.randrange(4)
        if kind == 0:
            words[at] = random.choice(WORDS)
        elif kind == 1:
            words.insert(at, random.choice(WORDS))
        elif kind == 2:
            del words[at]
        else:
            other = random.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        words = words or [""]
    return " ".join(words).encode()


OPERATORS = [
    "Add",
    "Mul",
    "Div",
    "MatMul",
    "Conv",
    "Reshape",
    "Expand",
    "Gather",
    "Identity",
    "If",
    "Loop",
    "Nope",
    "",
]


def model_file(random: Random, whole: bytes) -> bytes:
    """An ONNX file with something wrong in what it says, in its bytes, or in both."""
    from onnx import ModelProto

    model = ModelProto.FromString(whole)
    if random.random() < 0.6:
        for _ in range(random.randint(1, 3)):
            random.choice([_node, _dims, _weights, _header, _names])(random, model)
        whole = model.SerializeToString()
        if random.random() < 0.7:
            return whole
    return damaged(random, whole, 4)


def _node(random: Random, model: Any) -> None:
    node = random.choice(model.graph.node)
    kind = random.randrange(4)
    if kind == 0:
        node.op_type = random.choice(OPERATORS)
    elif kind == 1:
        node.attribute.add(
            name=random.choice(["axis", "axes", "to", "perm", "group"]), i=random.choice(NUMBERS), type=2
        )
    elif kind == 2:
        model.graph.node.add().CopyFrom(node)  # its output is written twice
    else:
        node.input.append(random.choice(["y", "x", "one", "nope", ""]))


def _dims(random: Random, model: Any) -> None:
    tensor = random.choice([*model.graph.input, *model.graph.output]).type.tensor_type
    kind = random.randrange(3)
    if kind == 0:
        tensor.elem_type = random.randrange(0, 24)
    elif kind == 1:
        tensor.shape.dim.add(dim_value=random.choice(SIZES))
    elif tensor.shape.dim:
        random.choice(tensor.shape.dim).dim_value = random.choice(SIZES)


def _weights(random: Random, model: Any) -> None:
    weights = random.choice(model.graph.initializer)
    kind = random.randrange(4)
    if kind == 0:
        weights.dims.append(random.choice(SIZES))
    elif kind == 1:
        weights.raw_data = random.randbytes(random.choice([0, 1, 3, 8, 4096]))
    elif kind == 2:
        weights.data_type = random.randrange(0, 24)
    else:
        weights.data_location = 1
        weights.external_data.add(key="location", value=random.choice(["../../../etc/passwd", "no", "", "."]))


def _header(random: Random, model: Any) -> None:
    model.ir_version = random.choice([*NUMBERS, 3, 9, 10, 13])
    model.opset_import[0].version = random.choice([*NUMBERS, 7, 13, 17, 99])
    model.opset_import[0].domain = random.choice(["", "", "ai.onnx.ml", "com.microsoft", "nope"])


def _names(random: Random, model: Any) -> None:
    place = random.choice([*model.graph.input, *model.graph.output, *model.graph.initializer])
    place.name = random.choice(NAMES)
