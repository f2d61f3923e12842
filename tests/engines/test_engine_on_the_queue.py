"""The onnxruntime engine on fastqueue's own batches: requests joined, split, whole, of dynamic length."""

from __future__ import annotations

from pathlib import Path

import engine_models as models
import numpy as np
import pytest
from engine_queue import OnnxQueue as Queue


def floats(rows: int, width: int, start: int) -> np.ndarray:
    return np.arange(start, start + rows * width, dtype=np.float32).reshape(rows, width)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("sizes", [[1], [1] * 20, [3, 1, 2, 8, 1], [30], [1, 19, 1], [8, 8]])
def test_every_request_gets_its_own_rows(path: Path, sizes: list[int]) -> None:
    queue = Queue(models.affine(path, inner=5), max_batch_size=8)
    sent = {queue.submit(x): x for x in (floats(rows, 5, 1000 * n) for n, rows in enumerate(sizes))}
    batches = queue.run()
    assert sum(batches) == sum(sizes) and max(batches) <= 8
    answers = queue.answers()
    assert answers.keys() == sent.keys()
    for slot, x in sent.items():
        assert np.array_equal(answers[slot][0], 2 * x + 1)


def test_requests_without_rows_alone_and_among_others(path: Path) -> None:
    queue = Queue(models.affine(path, inner=5), max_batch_size=8)
    for sizes in ([0], [2, 0, 3]):
        sent = {queue.submit(x): x for x in (floats(rows, 5, 1000 * n) for n, rows in enumerate(sizes))}
        assert queue.run() == [sum(sizes)]
        answers = queue.answers()
        for slot, x in sent.items():
            assert answers[slot][0].shape == x.shape
            assert np.array_equal(answers[slot][0], 2 * x + 1)


def test_outputs_of_different_datatypes_are_cut_apart_right(path: Path) -> None:
    queue = Queue(models.two_by_two(path))
    sent = {}
    for number in range(9):
        a = floats(1 + number % 3, 2, number)
        b = np.arange(3 * len(a), dtype=np.int64).reshape(-1, 3) - number
        sent[queue.submit(a, b)] = (a, b)
    queue.run()
    answers = queue.answers()
    for slot, (a, b) in sent.items():
        assert np.array_equal(answers[slot][0], a.sum(axis=1, keepdims=True, dtype=np.float64))
        assert np.array_equal(answers[slot][1], b > 2)


def test_lengths_that_differ_are_batched_apart(path: Path) -> None:
    queue = Queue(models.doubled_length(path))
    sent = {queue.submit(x): x for x in (floats(1, 3 + n % 2, 10 * n) for n in range(10))}
    queue.run()
    answers = queue.answers()
    for slot, x in sent.items():
        assert np.array_equal(answers[slot][0], np.concatenate([x, x], axis=1))


def test_a_model_that_does_not_batch(path: Path) -> None:
    queue = Queue(models.affine(path), max_batch_size=0)
    sent = {queue.submit(x): x for x in (floats(n, 16, 10 * n) for n in (1, 4, 2))}
    assert queue.run() == [1, 1, 1]
    answers = queue.answers()
    for slot, x in sent.items():
        assert np.array_equal(answers[slot][0], 2 * x + 1)


def test_an_output_of_more_dimensions_than_are_served(path: Path) -> None:
    queue = Queue(models.reshaped(path))
    queue.submit(np.ones(1, np.float32), np.ones(20, np.int64))
    queue.run()
    failed = queue.lane.poll()
    assert failed is not None
    assert failed.message == "output 'y' came out with 20 dimensions, at most 8 are served"
    good = queue.submit(np.ones(4, np.float32), np.array([2, 2], np.int64))
    queue.run()
    assert queue.answers()[good][0].shape == (2, 2)


def test_a_batch_that_fails_leaves_the_queue_whole(path: Path) -> None:
    queue = Queue(models.lookup(path, words=3, length=2))
    queue.submit(np.array([[0, 9]], np.int64))
    queue.run()
    failed = queue.lane.poll()
    assert failed is not None and failed.status == 13 and "out of data bounds" in failed.message
    good = queue.submit(np.array([[0, 2]], np.int64))
    queue.run()
    assert queue.answers()[good][0].tolist() == [[0.0, 20.0]]
    assert queue.former.check() == 0
