"""The examples of Python models: as a user would serve them, from the folder where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from engine_fakes import FakeBatch
from engine_queue import ModelQueue, objects

from service.engines.python import PythonInstance, open_python_model
from service.models import modelconfig
from service.worker.launcher import run_batch

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python_models"


@contextmanager
def example(name: str) -> Iterator[PythonInstance]:
    text = (FOLDER / name / "config.pbtxt").read_bytes()
    wanted = modelconfig.wanted_from(modelconfig.parse(text), modelconfig.Defaults())
    engine = open_python_model(str(FOLDER / name / "1" / "model.py"), name=name, version="1", wanted=wanted)
    instance = engine.create_instance(0)
    try:
        yield instance
    finally:
        instance.close()
        engine.close()


@pytest.mark.parametrize("shape", [(480, 640), (640, 480), (224, 224), (100, 100), (1, 7)])
def test_images_of_any_size_become_normalized_planes(shape: tuple[int, int]) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, *shape, 3), np.uint8)
    with example("image_normalizer") as instance:
        batch = FakeBatch([images[:1]], [images[1:]])
        instance.execute(batch)
    pixels = batch.output(0, np.float32)
    height, width = shape
    side, middle = min(shape), ((height - min(shape)) // 2, (width - min(shape)) // 2)
    for row, y, x in [(0, 0, 0), (2, 223, 223), (1, 100, 31)]:
        ys, xs = (
            int((place + 0.5) * side / 224) + start for place, start in zip((y, x), middle, strict=True)
        )
        expected = (images[row, ys, xs] / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        np.testing.assert_allclose(pixels[row, :, y, x], expected, rtol=1e-5, atol=1e-6)


def test_a_classifier_that_is_trained_when_it_is_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    table = np.loadtxt(FOLDER / "nearest_centroid/1/measurements.csv", delimiter=",", skiprows=1)
    features, labels = table[:, :4].astype(np.float32), table[:, 4].astype(np.int64)
    with example("nearest_centroid") as instance:
        batch = FakeBatch([features])
        instance.execute(batch)
    assert np.mean(batch.output(0, np.int64)[:, 0] == labels) > 0.95
    distances = batch.output(1, np.float64)
    assert np.array_equal(distances.argmin(axis=1), batch.output(0, np.int64)[:, 0])
    means = np.stack([table[labels == label, :4].mean(axis=0) for label in range(3)])
    np.testing.assert_allclose(distances[0], np.linalg.norm(features[0] - means, axis=1))
    assert "60 measurements of 3 classes" in capfd.readouterr().err


def test_texts_become_ids_and_masks() -> None:
    texts = ["The trains are running, slowly!", "", "caf\u00e9 \N{SNOWMAN} quux", "hello " * 50]
    ends = ["[SEP]"] + ["[PAD]"] * 32
    expected = [
        ["[CLS]", "the", "train", "##s", "are", "run", "##ning", ",", "slow", "##ly", "!", *ends],
        ["[CLS]", *ends],
        ["[CLS]", "caf\u00e9", "[UNK]", "[UNK]", *ends],
        ["[CLS]", *["hello"] * 30, *ends],
    ]
    vocabulary = (FOLDER / "tokenizer/1/vocabulary.txt").read_text("utf-8").split()
    with example("tokenizer") as instance:
        queue = ModelQueue(instance._spec)
        slot = queue.submit(objects([text.encode() for text in texts], (4, 1)))
        queue.former.step()
        batch = queue.former.try_batch(queue.streams[0])
        assert batch is not None and batch.check()
        run_batch(batch, instance, "tokenizer")
    ids, mask, tokens = queue.answers()[slot]
    assert [[token.decode() for token in row] for row in tokens] == [row[:32] for row in expected]
    assert [[vocabulary[number] for number in row] for row in ids] == [row[:32] for row in expected]
    assert mask.tolist() == [[int(token != "[PAD]") for token in row[:32]] for row in expected]
