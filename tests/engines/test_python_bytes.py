"""BYTES and BF16 in Python models, on fastqueue's own batches."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from engine_queue import objects
from python_rig import Rig

from service.models.spec import TensorSpec

IDENTITY = """
    class Model:
        def execute(self, inputs):
            return {"y": inputs["x"]}
"""
BYTES_IN, BYTES_OUT = (TensorSpec("x", "BYTES", (-1,)),), (TensorSpec("y", "BYTES", (-1,)),)
ONE_IN, ONE_OUT = (TensorSpec("x", "BYTES", (1,)),), (TensorSpec("y", "BYTES", (1,)),)
AWKWARD = [b"", b"\0", b"a\0b\0", b"\xff\xfe", "\N{SNOWMAN}".encode(), b"x" * 70_000]


def words(rows: int, width: int, seed: int) -> np.ndarray:
    rng = random.Random(seed)
    elements = [rng.choice(AWKWARD[:5]) + rng.randbytes(rng.randrange(40)) for _ in range(rows * width)]
    return objects(elements, (rows, width))


def answering(expression: str) -> str:
    """A model with this output."""
    return f"""
    import numpy as np
    class Model:
        def execute(self, inputs):
            x = inputs["x"]
            return {{"y": {expression}}}
"""


def as_objects(elements: str) -> str:
    """A model with an object array of one element per row."""
    return f"""
    import numpy as np
    class Model:
        def execute(self, inputs):
            y = np.empty((len(inputs["x"]), 1), object)
            y[:, 0] = {elements}
            return {{"y": y}}
"""


@pytest.mark.parametrize("sizes", [[1], [3, 1, 2, 8, 1], [30], [1, 19, 1], [2, 0, 3]])
def test_every_request_gets_its_own_elements(tmp_path: Path, sizes: list[int]) -> None:
    with Rig(tmp_path, IDENTITY, BYTES_IN, BYTES_OUT) as rig:
        sent = {rig.submit(x): x for x in (words(rows, 2, seed) for seed, rows in enumerate(sizes))}
        batches = rig.run()
        assert sum(batches) == sum(sizes) and max(batches) <= 8
        answers = rig.answers()
        assert answers.keys() == sent.keys()
        for slot, x in sent.items():
            assert answers[slot][0].shape == x.shape and answers[slot][0].tolist() == x.tolist()
        assert rig.former.check() == 0


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    with Rig(tmp_path, IDENTITY, BYTES_IN, BYTES_OUT) as rig:
        x = objects(AWKWARD * 2, (2, 6))
        assert rig.infer(x)[0].tolist() == x.tolist()
        assert rig.infer(objects([], (3, 0)))[0].shape == (3, 0)


def test_what_the_model_sees(tmp_path: Path) -> None:
    source = """
        class Model:
            def execute(self, inputs):
                x = inputs["x"]
                assert x.dtype == object and x.shape == (2, 3), x
                assert all(type(element) is bytes for element in x.ravel())
                x[:] = b"the array is its own"
                return {"y": x}
    """
    with Rig(tmp_path, source, BYTES_IN, BYTES_OUT) as rig:
        assert set(rig.infer(words(2, 3, 1))[0].ravel()) == {b"the array is its own"}


def test_a_model_that_does_not_batch(tmp_path: Path) -> None:
    with Rig(tmp_path, IDENTITY, BYTES_IN, BYTES_OUT, max_batch_size=0) as rig:
        sent = {rig.submit(x): x for x in (words(1, n, n)[0] for n in (1, 4, 0, 2))}
        assert rig.run() == [1, 1, 1, 1]
        answers = rig.answers()
        for slot, x in sent.items():
            assert answers[slot][0].tolist() == x.tolist()


@pytest.mark.parametrize("expression", ["x + x", "np.asarray(x + x)", "(x + x).decode()", "np.bytes_(x + x)"])
def test_a_scalar(tmp_path: Path, expression: str) -> None:
    """numpy gives the element where arithmetic would give an array without dimensions."""
    x, y = TensorSpec("x", "BYTES", ()), TensorSpec("y", "BYTES", ())
    with Rig(tmp_path, answering(expression), [x], [y], max_batch_size=0) as rig:
        assert rig.infer(objects([b"abc"], ()))[0].tolist() == b"abcabc"


def test_a_scalar_where_none_is_due(tmp_path: Path) -> None:
    with Rig(tmp_path, answering("b'abc'"), ONE_IN, ONE_OUT) as rig:
        assert "output 'y' has shape []; expected [2, 1]" in rig.failure(words(2, 1, 0))[1]


def test_beside_numbers_of_every_size(tmp_path: Path) -> None:
    """Where a tensor lies in memory depends on the sizes of those before it."""
    source = """
        import numpy as np
        class Model:
            def execute(self, inputs):
                lengths = np.array([[len(e) for e in row] for row in inputs["x"]], np.int8)
                return {"lengths": lengths, "x2": inputs["x"] + inputs["x"], "n2": 2 * inputs["n"]}
    """
    inputs = [TensorSpec("n", "FP64", (3,)), TensorSpec("x", "BYTES", (2,))]
    outputs = [
        TensorSpec("lengths", "INT8", (2,)),
        TensorSpec("x2", "BYTES", (2,)),
        TensorSpec("n2", "FP64", (3,)),
    ]
    with Rig(tmp_path, source, inputs, outputs) as rig:
        sent = {}
        for seed, rows in enumerate((1, 3, 2, 20)):
            n, x = np.arange(3.0 * rows).reshape(rows, 3), words(rows, 2, seed)
            sent[rig.submit(n, x)] = n, x
        rig.run()
        answers = rig.answers()
        for slot, (n, x) in sent.items():
            lengths, twice, doubled = answers[slot]
            assert lengths.tolist() == [[len(e) for e in row] for row in x]
            assert twice.tolist() == (x + x).tolist() and np.array_equal(doubled, 2 * n)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('np.array([["a"], ["b\\u2603"]], object)', [[b"a"], [b"b\xe2\x98\x83"]]),
        ('np.array([[b"a"], ["b"]], object)', [[b"a"], [b"b"]]),
        ('np.array([["a"], ["b\\u2603"]])', [[b"a"], [b"b\xe2\x98\x83"]]),
        ('np.array([[b"a"], [b"\\xff\\0c"]])', [[b"a"], [b"\xff\0c"]]),
        ('np.array([[np.str_("a")], [np.bytes_(b"b")]], object)', [[b"a"], [b"b"]]),
        ("x[:, ::-1][:, :1]", [[b"2"], [b"4"]]),
    ],
)
def test_what_a_model_may_return(tmp_path: Path, expression: str, expected: list) -> None:
    with Rig(tmp_path, answering(expression), BYTES_IN, ONE_OUT) as rig:
        assert rig.infer(objects([b"1", b"2", b"3", b"4"], (2, 2)))[0].tolist() == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (as_objects("[b'a', 7, b'c']"), "output 'y' has int 7 at [1, 0]; expected bytes or str (BYTES)"),
        (
            as_objects("[b'a', b'b', None]"),
            "output 'y' has NoneType None at [2, 0]; expected bytes or str (BYTES)",
        ),
        (as_objects("[bytearray(100), b'', b'']"), "output 'y' has bytearray bytearray(b'"),
        (
            as_objects(r"['\ud800', '', '']"),
            "output 'y' has a str at [0, 0] that UTF-8 cannot encode (surrogates",
        ),
        (answering("np.ones((3, 1))"), "output 'y' has dtype float64; expected object (BYTES)"),
        (answering("x[:2]"), "output 'y' has 2 rows (shape [2, 1]); expected 3, as many as the inputs"),
        (answering("[b'a'] * 3"), "output 'y' is a list; expected a numpy array of object"),
    ],
)
def test_what_it_may_not(tmp_path: Path, source: str, message: str) -> None:
    with Rig(tmp_path, source, ONE_IN, ONE_OUT) as rig:
        status, text = rig.failure(words(3, 1, 0))
        assert status == 13 and text.startswith(f"model 'm' failed: a wrong answer: {message}")
        assert len(text) < 200


def test_requests_without_rows(tmp_path: Path) -> None:
    """Outputs of known shape: the model is not asked; the size of a row of BYTES is not needed."""
    with Rig(tmp_path, answering("1 / 0"), ONE_IN, ONE_OUT) as rig:
        assert rig.infer(words(0, 1, 0))[0].shape == (0, 1)


def test_an_answer_without_elements(tmp_path: Path) -> None:
    with Rig(tmp_path, answering("x[:, :0]"), BYTES_IN, BYTES_OUT) as rig:
        assert rig.infer(words(3, 2, 0))[0].shape == (3, 0)


def test_an_answer_much_larger_than_the_request(tmp_path: Path) -> None:
    with Rig(tmp_path, answering("x * 30_000"), ONE_IN, ONE_OUT) as rig:
        x = objects([b"ab", b"", b"c"], (3, 1))
        assert rig.infer(x)[0].tolist() == [[b"ab" * 30_000], [b""], [b"c" * 30_000]]


def test_an_answer_that_cannot_fit_names_the_setting(tmp_path: Path) -> None:
    with Rig(tmp_path, answering("x * (20 << 20)"), ONE_IN, ONE_OUT) as rig:
        status, text = rig.failure(objects([b"a"], (1, 1)))
        assert status == 8 and "--output-arena-mb" in text
        assert rig.former.check() == 0


def test_ends_of_rows_that_lie_end_the_child_and_no_other_process(tmp_path: Path) -> None:
    """The model writes over the memory of its outputs once they are there, as one that runs wild would."""
    source = """
        import sys
        child = sys.modules["__main__"]
        class Model:
            def execute(self, inputs):
                put = child.put
                def lie(memory, offset, value):
                    put(memory, offset, value)
                    memory.view(offset, (2,), value.row_ends.dtype)[:] = (1 << 40, 1 << 40)
                child.put = lie
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source, ONE_IN, ONE_OUT) as rig:
        status, text = rig.failure(words(2, 1, 0))
        assert status == 14 and "it answered with rows of BYTES that end at" in text
        assert rig.former.check() == 0


def test_bf16_is_float32_to_the_model(tmp_path: Path) -> None:
    tensors = (TensorSpec("x", "BF16", (2,)),), (TensorSpec("y", "BF16", (2,)),)
    source = """
        import numpy as np
        class Model:
            def execute(self, inputs):
                x = inputs["x"]
                assert x.dtype == np.float32, x.dtype
                return {"y": x / np.float32(3)}
    """
    with Rig(tmp_path, source, *tensors) as rig:
        one, third, minus_two, minus_two_thirds = 0x3F80, 0x3EAB, 0xC000, 0xBF2B
        x = np.array([[one, minus_two]] * 3, np.uint16)
        assert rig.infer(x)[0].tolist() == [[third, minus_two_thirds]] * 3


def test_every_bf16_comes_back(tmp_path: Path) -> None:
    tensors = (TensorSpec("x", "BF16", (-1,)),), (TensorSpec("y", "BF16", (-1,)),)
    every = np.arange(1 << 16, dtype=np.uint16).reshape(2, -1)
    with Rig(tmp_path, IDENTITY, *tensors) as rig:
        assert np.array_equal(rig.infer(every)[0], every)


def test_a_bf16_answer_of_another_dtype(tmp_path: Path) -> None:
    tensors = (TensorSpec("x", "BF16", (2,)),), (TensorSpec("y", "BF16", (2,)),)
    with Rig(tmp_path, answering("x.astype(np.float64)"), *tensors) as rig:
        _, text = rig.failure(np.zeros((1, 2), np.uint16))
        assert text.endswith("output 'y' has dtype float64; expected float32 (BF16)")
