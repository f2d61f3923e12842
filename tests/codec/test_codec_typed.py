"""Typed contents: the C makes the bytes of them that numpy makes of what the protobuf library read.

Requests are written by hand, value by value, in every form: packed, alone, over-long, in several occurrences
of a field and of `contents` itself, between fields that nobody knows.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from codec_models import Model, Tensor
from codec_wire import BYTES, FIXED32, FIXED64, VARINT, data, group, number, tag, varint

from service._pb import inference
from service.codec import RequestError, _codec
from service.models.spec import numpy_dtype

CASES = int(os.environ.get("CODEC_CASES", "250"))
INVALID = 3
BITS32 = [0, 1, -1, 2, 127, 128, 255, 256, 2**31 - 1, -(2**31), 2**32 - 1, 2**33 + 5, -(2**40), 2**63 - 1]
# datatype: its field, and values that may be sent in it
FIELDS: dict[str, tuple[str, int]] = {
    "BOOL": ("bool_contents", 1),
    "INT8": ("int_contents", 2),
    "INT16": ("int_contents", 2),
    "INT32": ("int_contents", 2),
    "INT64": ("int64_contents", 3),
    "UINT8": ("uint_contents", 4),
    "UINT16": ("uint_contents", 4),
    "UINT32": ("uint_contents", 4),
    "UINT64": ("uint64_contents", 5),
    "FP32": ("fp32_contents", 6),
    "FP64": ("fp64_contents", 7),
}
LIMITS = {"INT8": (-128, 127), "INT16": (-(2**15), 2**15 - 1), "UINT8": (0, 255), "UINT16": (0, 2**16 - 1)}
FLOATS = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-40, 5e-324, 3.4028234663852886e38]


def model(datatype: str, **settings: Any) -> Model:
    return Model(inputs=(Tensor("A", datatype, (-1,)),), max_batch_size=0, **settings)


class Contents:
    """Writes values as InferInputTensor.contents, in a random form."""

    def __init__(self, random: Random, datatype: str) -> None:
        self.random = random
        self.datatype = datatype
        self.field = FIELDS[datatype][1]

    def value(self) -> bytes:
        """One value as it lies on the wire, without a tag."""
        if self.field >= 6:
            bits = self.random.choice([struct.pack("<d", x) for x in FLOATS] + [self.random.randbytes(8)])
            return bits if self.field == 7 else bits[4:] if self.random.random() < 0.9 else bits[:4]
        low, high = LIMITS.get(self.datatype, (None, None))
        value = self.random.choice(BITS32) if self.random.random() < 0.7 else self.random.getrandbits(64)
        if low is not None and high is not None:
            value = self.random.choice([low, high, 0, 1, self.random.randint(low, high)])
            value += self.random.choice([0, 0, 0, 2**32, 2**50])  # 32 bits are all that is read
        return varint(value, self.random.choice([0, 0, 0, 2, 10]))

    def alone(self, value: bytes) -> bytes:
        return tag(self.field, {6: FIXED32, 7: FIXED64}.get(self.field, VARINT)) + value

    def noise(self) -> bytes:
        """What nobody reads: unknown fields, and this one with a wire type it does not have."""
        wrong = tag(self.field, FIXED64 if self.field != 7 else FIXED32) + bytes(8 if self.field != 7 else 4)
        return self.random.choice([number(9, 3), data(15, b"xy"), group(11, number(1, 5)), wrong])

    def runs(self, values: Sequence[bytes]) -> list[bytes]:
        """The values in order, as fields of one or of several contents."""
        fields, rest = [], list(values)
        while rest or self.random.random() < 0.3:
            many = self.random.randint(0, min(len(rest), self.random.choice([1, 3, 50])))
            run, rest = rest[:many], rest[many:]
            if many == 1 and self.random.random() < 0.5:
                fields.append(self.alone(run[0]))
            else:
                fields.append(tag(self.field, BYTES) + varint(sum(map(len, run))) + b"".join(run))
            if self.random.random() < 0.1:
                fields.append(self.noise())
        return fields

    def tensor(self, values: Sequence[bytes]) -> bytes:
        """An InferInputTensor with the values spread over one or more `contents`."""
        contents, fields = [], self.runs(values)
        while fields or not contents:
            many = self.random.randint(0, len(fields))
            contents.append(data(5, b"".join(fields[:many])))
            fields = fields[many:]
        shape = data(3, varint(len(values)))
        other = [data(1, b"A"), data(2, self.datatype.encode()), shape, data(9, b"unknown")]
        for field in other:  # the order among the contents counts, that among the rest does not
            contents.insert(self.random.randint(0, len(contents)), field)
        return b"".join(contents)


def request(tensor: bytes) -> bytes:
    return data(1, b"m") + data(5, tensor)


def reference(wire: bytes, datatype: str) -> bytes:
    message = inference.ModelInferRequest.FromString(wire)
    values = getattr(message.inputs[0].contents, FIELDS[datatype][0])
    if datatype in ("FP32", "FP64"):  # not through Python's float, which would quiet a NaN
        again = message.inputs[0].contents.SerializeToString(deterministic=True)
        size, field = (4, 6) if datatype == "FP32" else (8, 7)
        head = tag(field, BYTES) + varint(len(values) * size)
        at = again.index(head) + len(head) if len(values) else len(again)
        return again[at : at + len(values) * size]
    return np.array(list(values), numpy_dtype(datatype)).tobytes()


@pytest.mark.parametrize("datatype", FIELDS)
def test_the_same_values_as_the_library(datatype: str) -> None:
    maker = Contents(Random(datatype), datatype)
    spec = model(datatype).spec()
    size = numpy_dtype(datatype).itemsize
    for _ in range(CASES):
        values = [maker.value() for _ in range(maker.random.choice([0, 1, 2, 5, 40, 200]))]
        wire = request(maker.tensor(values))
        want = reference(wire, datatype)
        assert len(want) == len(values) * size
        for piece in (1 << 20, size * maker.random.randint(1, 9)):
            assert _codec.validate(spec, wire, piece)["inputs"] == [want], wire.hex()


@pytest.mark.parametrize("datatype", FIELDS)
def test_what_the_library_writes(datatype: str) -> None:
    message = inference.ModelInferRequest(model_name="m")
    array = np.arange(100).astype(numpy_dtype(datatype))
    tensor = message.inputs.add(name="A", datatype=datatype, shape=[100])
    getattr(tensor.contents, FIELDS[datatype][0]).extend(array.tolist())
    bound = _codec.validate(model(datatype).spec(), message.SerializeToString())
    assert bound["inputs"] == [array.tobytes()]


def typed(datatype: str, **contents: Sequence[Any]) -> Any:
    message = inference.ModelInferRequest(model_name="m")
    count = len(next(iter(contents.values()), ()))
    tensor = message.inputs.add(name="A", datatype=datatype, shape=[count])
    tensor.contents.SetInParent()
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return message


def refused(message: Any, spec: Model) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        _codec.validate(spec.spec(), message.SerializeToString())
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_a_datatype_without_typed_contents_names_the_raw_ones(datatype: str) -> None:
    code, text = refused(typed(datatype, fp32_contents=[1.0]), model(datatype))
    assert code == INVALID
    assert text == (
        f"input 'A' for model 'm' has typed contents, which datatype {datatype} does not have: expected its "
        "data in raw_input_contents"
    )


@pytest.mark.parametrize("datatype", LIMITS)
def test_a_value_that_does_not_fit_is_refused_and_named(datatype: str) -> None:
    low, high = LIMITS[datatype]
    field = FIELDS[datatype][0]
    spec = model(datatype)
    for value in (high + 1, *([low - 1] if low else [])):
        code, text = refused(typed(datatype, **{field: [low, high, value, 0]}), spec)
        assert code == INVALID
        assert text == (
            f"input 'A' for model 'm': expected values that {datatype} can hold in {field}, got {value} as "
            "element 2"
        )


def test_contents_of_another_datatype_are_refused() -> None:
    code, text = refused(typed("FP32", int_contents=[1, 2]), model("FP32"))
    assert code == INVALID
    assert text == (
        "input 'A' for model 'm' has datatype FP32: expected its contents in fp32_contents, got 2 elements "
        "in int_contents"
    )
    both = typed("INT32", int_contents=[1, 2], bytes_contents=[b""])
    assert "1 elements in bytes_contents" in refused(both, model("INT32"))[1]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_the_number_of_elements_must_be_that_of_the_shape(count: int) -> None:
    message = typed("INT64", int64_contents=[7] * count)
    message.inputs[0].shape[:] = [4]
    assert refused(message, model("INT64")) == (
        INVALID,
        "input byte size mismatch for input 'A' for model 'm'. Expected 4 elements in int64_contents, got "
        f"{count}",
    )


def test_a_shape_whose_product_overflows_has_no_elements_that_fit() -> None:
    spec = Model(inputs=(Tensor("A", "FP64", (-1, -1, -1)),), max_batch_size=0)
    message = typed("FP64", fp64_contents=[])
    message.inputs[0].shape[:] = [2**62, 2**62, 2**62]
    assert refused(message, spec)[0] == INVALID


def test_nothing_where_the_shape_has_no_elements() -> None:
    spec = Model(inputs=(Tensor("A", "FP32", (-1, 16)),), max_batch_size=0)
    message = typed("FP32")
    message.inputs[0].shape[:] = [0, 16]
    assert _codec.validate(spec.spec(), message.SerializeToString())["inputs"] == [b""]


def test_each_input_in_the_models_order() -> None:
    spec = Model(inputs=(Tensor("A", "INT8", (2,)), Tensor("B", "FP32", (1,))))
    message = inference.ModelInferRequest(model_name="m")
    message.inputs.add(name="B", datatype="FP32", shape=[2, 1]).contents.fp32_contents.extend([1, 2])
    message.inputs.add(name="A", datatype="INT8", shape=[2, 2]).contents.int_contents.extend([1, -1, 3, -4])
    bound = _codec.validate(spec.spec(), message.SerializeToString())
    assert bound["rows"] == 2
    assert bound["inputs"] == [b"\x01\xff\x03\xfc", struct.pack("<ff", 1, 2)]


def test_typed_and_raw_in_one_request_are_refused() -> None:
    spec = Model(inputs=(Tensor("A", "FP32", (1,)), Tensor("B", "FP32", (1,))), max_batch_size=0)
    message = typed("FP32", fp32_contents=[1])
    message.inputs.add(name="B", datatype="FP32", shape=[1])
    assert refused(message, spec) == (
        INVALID,
        "unable to find data for input tensor 'B' for model 'm' in request: expected contents in every "
        "input, got none in this one",
    )
    message.raw_input_contents.append(bytes(4))
    assert refused(message, spec) == (
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'A' for model 'm'",
    )
