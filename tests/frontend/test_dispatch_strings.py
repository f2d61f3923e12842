"""BYTES through a real queue: rows of any size, in and out of batches, in parts and pieces, and empty."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
import pytest
from dispatch_rig import MIB, Rig, Worker, model, refused, response

from fastqueue import Batch
from service._pb import inference
from service.models.spec import ModelSpec, TensorSpec

INVALID, EXHAUSTED = 3, 8
Rows = Sequence[Sequence[bytes]]

# T is S with every string turned round, M the N of the row.
M = ModelSpec(
    name="m",
    version="1",
    platform="test",
    backend="test",
    max_batch_size=4,
    inputs=(TensorSpec("S", "BYTES", (-1,)), TensorSpec("N", "FP32", (1,))),
    outputs=(TensorSpec("T", "BYTES", (-1,)), TensorSpec("M", "FP32", (1,))),
)
PLAIN = replace(
    M,
    name="plain",
    max_batch_size=0,
    inputs=(TensorSpec("S", "BYTES", (-1, -1)),),
    outputs=(TensorSpec("T", "BYTES", (-1, -1)),),
)


def wire_form(strings: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def strings_in(payload: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(payload):
        (length,) = struct.unpack_from("<I", payload, at)
        found.append(payload[at + 4 : at + 4 + length])
        at += 4 + length
    return found


class Turner(Worker):
    """Turns strings round. It finds the rows by counting elements, as an engine does."""

    def execute(self, batch: Batch, spec: ModelSpec) -> None:
        shape = batch.input_shape(0)
        assert shape is not None
        strings = strings_in(self.bytes_of(batch, 0))
        assert len(strings) == int(np.prod(shape))
        turned = [wire_form([string[::-1]]) for string in strings]
        outputs = [b"".join(turned)]
        sizes: list[Any] = [len(outputs[0])]
        if spec.max_batch_size:
            each = len(strings) // max(1, shape[0])
            rows = [len(b"".join(turned[i * each : i * each + each])) for i in range(shape[0])]
            outputs.append(self.bytes_of(batch, 1))
            sizes = [np.array(list(accumulate(rows)), np.uint64), 4]
        addresses = batch.reserve(sizes, wait=False)
        assert addresses is not None
        for address, output in zip(addresses, outputs, strict=True):
            ctypes.memmove(address, output, len(output))
        batch.complete([shape, (shape[0], 1)][: len(outputs)])

    @staticmethod
    def bytes_of(batch: Batch, index: int) -> bytes:
        size = batch.input_bytes(index)
        memory = ctypes.create_string_buffer(size + 1)
        batch.gather(index, ctypes.addressof(memory), size)
        return memory.raw[:size]


def request(rows: Rows, first: float = 0, typed: bool = False, each: int | None = None) -> bytes:
    """For M: rows of `each` strings, and the numbers from `first`."""
    message = inference.ModelInferRequest(model_name="m")
    each = len(rows[0]) if each is None else each
    strings = [string for row in rows for string in row]
    numbers = np.arange(first, first + len(rows), dtype="<f4")
    text = message.inputs.add(name="S", datatype="BYTES", shape=[len(rows), each])
    number = message.inputs.add(name="N", datatype="FP32", shape=[len(rows), 1])
    if typed:
        text.contents.SetInParent()
        text.contents.bytes_contents.extend(strings)
        number.contents.SetInParent()
        number.contents.fp32_contents.extend(numbers.tolist())
    else:
        message.raw_input_contents.extend([wire_form(strings), numbers.tobytes()])
    return bytes(message.SerializeToString())


def check(answer: tuple[int, bytes], rows: Rows, first: float = 0) -> None:
    """The answer to `request(rows, first)`."""
    code, payload = answer
    assert code == 0, payload
    message = response(payload)
    assert [(o.name, o.datatype, o.shape[0]) for o in message.outputs] == [
        ("T", "BYTES", len(rows)),
        ("M", "FP32", len(rows)),
    ]
    text, numbers = message.raw_output_contents
    assert text == wire_form([string[::-1] for row in rows for string in row])
    assert np.frombuffer(numbers, "<f4").tolist() == [first + i for i in range(len(rows))]
    assert not any(output.HasField("contents") for output in message.outputs)


def some_rows(seed: int, rows: int, each: int = 2, longest: int = 40) -> Rows:
    random = Random(seed)
    return [[random.randbytes(random.randrange(longest)) for _ in range(each)] for _ in range(rows)]


def served(**settings: Any) -> Rig:
    rig = Rig(**settings)
    rig.worker(M, kind=Turner)
    return rig


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
@pytest.mark.parametrize("rows", [[[b"\xff\xfe"]], [[b""]], [[b"", b"a\0b", b""], [b"x" * 70, b"", b"\0"]]])
def test_strings_come_back_as_bytes(rows: Rows, typed: bool) -> None:
    rig = served()
    token, _ = rig.submit(request(rows, typed=typed))
    check(rig.run()[token], rows)
    assert rig.at_rest()


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [3, 1], [2, 2, 3, 1], [4, 4]])
def test_requests_share_a_batch_and_each_gets_its_own_rows(sizes: list[int]) -> None:
    rig = served()
    sent = {}
    for i, size in enumerate(sizes):
        rows = some_rows(i, size)
        sent[rig.submit(request(rows, 10 * i, typed=i % 2 == 0))[0]] = (rows, 10 * i)
    assert rig.workers[0].run() == sum(sizes) // 4
    answers = rig.drain()
    for token, (rows, first) in sent.items():
        check(answers[token], rows, first)
    assert rig.at_rest()


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
@pytest.mark.parametrize("sizes", [[10], [3, 9, 2], [5, 6, 7]])
def test_more_rows_than_a_batch_come_back_joined_in_order(sizes: list[int], typed: bool) -> None:
    rig = served()
    sent = {}
    for i, size in enumerate(sizes):
        rows = some_rows(i, size, each=3)
        sent[rig.submit(request(rows, 100 * i, typed=typed))[0]] = (rows, 100 * i)
    answers = rig.run()
    for token, (rows, first) in sent.items():
        check(answers[token], rows, first)
    assert rig.at_rest()


@pytest.mark.parametrize(("rows", "each"), [(0, 1), (0, 0), (1, 0), (4, 0), (9, 0)])
def test_no_strings_are_an_empty_entry_that_is_there(rows: int, each: int) -> None:
    rig = served()
    token, _ = rig.submit(request([[]] * rows, each=each))
    code, payload = rig.run()[token]
    message = response(payload)
    assert code == 0
    assert list(message.outputs[0].shape) == [rows, each]
    assert message.raw_output_contents[0] == b""
    assert len(message.raw_output_contents) == 2
    assert rig.at_rest()


def test_rows_without_strings_batch_beside_others_that_have_some() -> None:
    """They differ in shape, so each has a batch of its own, and nothing moves."""
    rig = served()
    empty, _ = rig.submit(request([[], []], each=0))
    rows = some_rows(1, 2)
    full, _ = rig.submit(request(rows))
    answers = rig.run()
    check(answers[empty], [[], []])
    check(answers[full], rows)
    assert rig.at_rest()


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
def test_a_model_that_does_not_batch(typed: bool) -> None:
    rig = Rig()
    rig.worker(PLAIN, kind=Turner)
    for shape in ([2, 3], [0, 3], [3, 0], [1, 1]):
        strings = some_rows(7, 1, each=shape[0] * shape[1])[0]
        message = inference.ModelInferRequest(model_name="plain")
        tensor = message.inputs.add(name="S", datatype="BYTES", shape=shape)
        if typed:
            tensor.contents.SetInParent()
            tensor.contents.bytes_contents.extend(strings)
        else:
            message.raw_input_contents.append(wire_form(strings))
        token, _ = rig.submit(message.SerializeToString())
        answer = response(rig.run()[token][1])
        assert list(answer.outputs[0].shape) == shape
        assert list(answer.raw_output_contents) == [wire_form([string[::-1] for string in strings])]
    assert rig.at_rest()


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
def test_strings_and_row_ends_in_many_pieces_of_the_arena(typed: bool) -> None:
    """Every second block of the arena is taken: strings and the table of ends are cut at odd places."""
    rig = Rig(arena_mb=8, slots=64)
    spec = replace(M, max_batch_size=4096)
    rig.worker(spec, output_mb=8, kind=Turner)
    others = [model("other", outputs=("Y",)), model("another", outputs=("Y",))]  # one may have half the arena
    blocks = rig.worker(*others, output_mb=8)
    filler = inference.ModelInferRequest(model_name="other")
    filler.inputs.add(name="X", datatype="FP32", shape=[1, 65000])
    filler.raw_input_contents.append(bytes(4 * 65000))
    handles = []
    for i in range(24):
        filler.model_name = others[i // 12].name
        handles.append(rig.submit(filler.SerializeToString())[1])
    for handle in handles[::2]:
        rig.dispatcher.cancel(handle)
    rig.workers[blocks].former.step()
    rig.drain()
    rows = some_rows(5, 60_000, each=1, longest=23)
    token, _ = rig.submit(request(rows, typed=typed))
    spread = rig.workers[0].take(1)
    assert spread is not None and spread.check()
    rig.workers[0].execute(spread, spec)
    check(rig.run()[token], rows)
    assert rig.at_rest()


def test_the_form_in_the_arena_is_what_counts_against_its_size() -> None:
    """300,000 empty strings are 600 KB as typed contents, but 1.2 MB behind their lengths."""
    rig = served(arena_mb=1)
    error = refused(rig, request([[b""] * 300_000], typed=True))
    assert error.code == EXHAUSTED and not error.transient
    assert "--arena-mb" in error.message and "1200" in error.message
    assert rig.at_rest()


def test_strings_that_do_not_add_up_are_refused_and_nothing_is_held() -> None:
    rig = served()
    message = inference.ModelInferRequest.FromString(request([[b"ab"], [b"c"]]))
    message.raw_input_contents[0] += b"\0"
    error = refused(rig, message.SerializeToString())
    assert error.code == INVALID
    assert error.message == (
        "incomplete string length indicator for inference input 'S' for model 'm', expecting 4 bytes but "
        "only 1 bytes available for element 2"
    )
    assert rig.at_rest()


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_of_strings(seed: int) -> None:
    """Requests of every size and form, some cancelled, through batches of whatever waits."""
    random, rig = Random(seed), served(slots=16)
    waiting: dict[int, tuple[Rows, int]] = {}
    for number in range(300):
        if rig.dispatcher.outstanding == 16 or random.random() < 0.2:
            for token, answer in rig.run().items():
                check(answer, *waiting.pop(token))
            assert waiting == {} and rig.at_rest()
        rows = some_rows(number, random.randint(1, 11), each=random.choice([1, 1, 2, 3]))
        token, handle = rig.submit(request(rows, number, typed=random.random() < 0.5))
        waiting[token] = (rows, number)
        if random.random() < 0.1:
            rig.dispatcher.cancel(handle)
            del waiting[token]
            rig.workers[0].run()
    for token, answer in rig.run().items():
        check(answer, *waiting.pop(token))
    assert waiting == {} and rig.at_rest()


def test_a_large_string_beside_small_ones() -> None:
    rig = served(arena_mb=16)
    rig.worker(replace(M, name="big"), output_mb=8, kind=Turner)
    rows = [[b"small"], [Random(1).randbytes(3 * MIB)], [b""], [b"end"]]
    message = inference.ModelInferRequest.FromString(request(rows))
    message.model_name = "big"
    token, _ = rig.submit(message.SerializeToString())
    check(rig.run()[token], rows)
    assert rig.at_rest()
