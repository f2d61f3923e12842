"""ONNX models with strings, on fastqueue's own batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import engine_models as models
import numpy as np
import pytest
from engine_queue import OnnxQueue, objects

from service.engines.onnx_words import words_of

T, h = models.T, models.h
AWKWARD = [b"", b"\0", b"a\0b\0", "\N{SNOWMAN}".encode(), b"x" * 70_000, b"b'a'"]


class Queue(OnnxQueue):
    def infer(self, *inputs: np.ndarray) -> list[list]:
        """The outputs of one request, alone in its batch, as lists."""
        slot = self.submit(*inputs)
        self.run()
        return [output.tolist() for output in self.answers()[slot]]

    def failure(self, *inputs: np.ndarray) -> tuple[int, str]:
        self.submit(*inputs)
        self.run()
        done = self.lane.poll()
        assert done is not None and done.status != 0 and self.former.check() == 0
        return done.status, done.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def column(*elements: bytes) -> np.ndarray:
    return objects(elements, (len(elements), 1))


@pytest.mark.parametrize("sizes", [[1], [3, 1, 2, 8, 1], [30], [1, 19, 1], [2, 0, 3]])
def test_every_request_gets_its_own_elements(path: Path, sizes: list[int]) -> None:
    queue = Queue(models.strings_and_numbers(path), max_batch_size=8)
    sent = {}
    for number, rows in enumerate(sizes):
        s = objects([b"%d" % (number * 10**k) for k in range(2 * rows)], (rows, 2))
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) + number
        sent[queue.submit(s, x)] = s, x
    batches = queue.run()
    assert sum(batches) == sum(sizes) and max(batches) <= 8
    answers = queue.answers()
    assert answers.keys() == sent.keys()
    for slot, (s, x) in sent.items():
        assert answers[slot][0].tolist() == s.tolist() and np.array_equal(answers[slot][1], 2 * x)
    assert queue.former.check() == 0


def test_text_comes_back_as_it_was(path: Path) -> None:
    queue = Queue(models.strings(path))
    assert queue.spec.max_batch_size == 32 and queue.spec.outputs[0].datatype == "BYTES"
    x = objects(AWKWARD, (3, 2))
    assert queue.infer(x) == [x.tolist()]


def test_inputs_are_text_to_the_front_end_and_nothing_else_is(path: Path) -> None:
    spec = Queue(models.strings_and_numbers(path)).spec
    assert [tensor.text for tensor in (*spec.inputs, *spec.outputs)] == [True, False, False, False]


def test_a_request_without_rows(path: Path) -> None:
    queue = Queue(models.strings(path))
    slot = queue.submit(objects([], (0, 2)))
    queue.run()
    assert queue.answers()[slot][0].shape == (0, 2)


def test_a_model_that_does_not_batch(path: Path) -> None:
    queue = Queue(models.strings(path, ["n"]), max_batch_size=0)
    sent = {queue.submit(x): x for x in (objects(AWKWARD[:n], (n,)) for n in (1, 4, 0, 6))}
    assert queue.run() == [1, 1, 1, 1]
    answers = queue.answers()
    for slot, x in sent.items():
        assert answers[slot][0].tolist() == x.tolist()


def test_strings_to_numbers_and_back(path: Path) -> None:
    queue = Queue(models.labels(path))
    assert queue.spec.max_batch_size == 32  # by its own words; made-up ones are all the same to it
    assert queue.infer(column(b"dog", "snow-\N{SNOWMAN}".encode(), b"ca", b"cat")) == [[[2], [3], [-1], [1]]]
    queue = Queue(models.names(path))
    assert queue.spec.max_batch_size == 32
    assert queue.infer(np.array([[2], [7], [1]])) == [[[b"dog"], [b""], [b"cat"]]]


def test_a_vocabulary_batches_by_its_own_words(path: Path) -> None:
    queue = Queue(models.counted_words(path))
    assert queue.spec.max_batch_size == 32
    x = objects([b"red", b"red", b"blue", b"a", b"b", b"green"], (2, 3))
    assert queue.infer(x) == [[[2, 0, 1], [0, 1, 0]]]


def test_numbers_as_text(path: Path) -> None:
    models.save(
        path,
        [h.make_node("Cast", ["x"], ["y"], to=models.F)],
        [("x", T.STRING, ["N", 2])],
        [("y", models.F, ["N", 2])],
    )
    queue = Queue(str(path))
    assert queue.spec.max_batch_size == 32
    assert queue.infer(objects([b"1.5", b"-2", b"1e3", b"0"], (2, 2))) == [[[1.5, -2], [1000, 0]]]
    status, text = queue.failure(objects([b"1", b"one"], (1, 2)))
    assert status == 13 and "ONNXRuntimeError" not in text and "\n" not in text


def test_rows_that_are_filtered_do_not_batch(path: Path) -> None:
    """StringNormalizer leaves stopwords out, and takes one row alone."""
    node = h.make_node(
        "StringNormalizer", ["x"], ["y"], locale="C", case_change_action="UPPER", stopwords=["the"]
    )
    models.save(path, [node], [("x", T.STRING, ["n"])], [("y", T.STRING, ["m"])])
    queue = Queue(str(path))
    assert queue.spec.max_batch_size == 0 and "output 'y'" in queue.spec.why_unbatched
    assert queue.infer(objects([b"the", b"red", b"the", b"dog"], (4,))) == [[b"RED", b"DOG"]]


def test_rows_that_are_mixed_do_not_batch(path: Path) -> None:
    """Every row is the one before it: alone, that is itself."""
    rolled = [
        h.make_node("Slice", ["x", "last", "end", "axis"], ["tail"]),
        h.make_node("Slice", ["x", "axis", "last", "axis"], ["head"]),
        h.make_node("Concat", ["tail", "head"], ["y"], axis=0),
    ]
    x, y = ("x", T.STRING, ["N", 2]), ("y", T.STRING, ["N", 2])
    numbers = {"last": np.array([-1]), "end": np.array([1 << 40]), "axis": np.array([0])}
    queue = Queue(models.save(path, rolled, [x], [y], **numbers), max_batch_size=8)
    assert queue.spec.max_batch_size == 0
    assert queue.spec.why_unbatched.startswith("a row of output 'y' differs")


@pytest.mark.parametrize("rows", [1, 3, 4, 0])
def test_padding_is_empty_strings_that_nobody_sees(path: Path, rows: int) -> None:
    queue = Queue(models.labels(path, axis0=4))
    assert queue.spec.batch_sizes == (4,)
    assert queue.infer(column(*[b"dog"] * rows)) == [[[2]] * rows]


def test_sizes_of_the_users_choice(path: Path) -> None:
    queue = Queue(models.strings_and_numbers(path), batch_sizes=(2, 8))
    for rows in (1, 2, 5, 8):
        s, x = objects([b"%d" % k for k in range(2 * rows)], (rows, 2)), np.ones((rows, 3), np.float32)
        assert queue.infer(s, x) == [s.tolist(), (2 * x).tolist()]


def test_an_input_that_is_not_text_is_named_by_its_place(path: Path) -> None:
    queue = Queue(models.strings(path))
    status, text = queue.failure(objects([b"a", b"b", b"c", b"d\xff"], (2, 2)))
    assert status == 13
    assert text == (
        "input 'x' has bytes at [1, 1] that are not UTF-8 (byte 1: invalid start byte); "
        "expected text, as all strings of ONNX are"
    )
    assert queue.infer(objects([b"a", b"b"], (1, 2))) == [[[b"a", b"b"]]]


def test_an_output_that_is_not_text_is_shown(path: Path) -> None:
    queue = Queue(models.names(path, b"\xffcat"), max_batch_size=8)
    status, text = queue.failure(np.array([[1]]))
    assert status == 13
    assert text == r"output 'y' has the string b'\xffcat'; expected UTF-8, as all strings of ONNX are"
    assert queue.infer(np.array([[2]])) == [[[b"dog"]]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (models.labels, ["cat", "dog", "snow-\N{SNOWMAN}"]),
        (models.counted_words, ["red", "green", "blue"]),
        (models.strings, []),
        (models.affine, []),
    ],
)
def test_the_words_of_a_file(path: Path, make: Callable[[Path], str], words: list[str]) -> None:
    assert words_of(make(path)) == tuple(word.encode() for word in words)


def test_words_of_constants_and_of_subgraphs(path: Path) -> None:
    string = h.make_tensor("s", T.STRING, [2], [b"in a tensor", b"\xff no text"])
    inner = h.make_graph(
        [h.make_node("Constant", [], ["c"], value=string)],
        "g",
        [],
        [h.make_tensor_value_info("c", T.STRING, [2])],
    )
    nodes = [h.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)]
    models.save(
        path,
        nodes,
        [("x", T.BOOL, [])],
        [("y", T.STRING, [2])],
        w=np.array(["in an initializer", ""], object),
    )
    assert words_of(str(path)) == (b"in a tensor", b"in an initializer")


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_file_that_is_cut_off_ends_the_walk(path: Path, cut: int) -> None:
    whole = Path(models.labels(path)).read_bytes()
    path.write_bytes(whole[: len(whole) - cut] or b"\0")
    assert set(words_of(str(path))) <= {b"cat", b"dog", "snow-\N{SNOWMAN}".encode()}
