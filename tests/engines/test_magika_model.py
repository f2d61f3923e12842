"""The model of the demo, as its package ships it: it batches, and batches agree with single rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_fakes import FakeBatch

from service.engines.onnxruntime import OnnxEngine, open_onnx
from service.models.wanted import Wanted

magika = pytest.importorskip("magika", reason="needs magika (the extra `demo`)")


@pytest.fixture(scope="module")
def engine() -> OnnxEngine:
    (path,) = (Path(magika.__file__).parent / "models").glob("*/model.onnx")
    return open_onnx(str(path), name="magika", version="1", wanted=Wanted())


def windows(rows: int) -> np.ndarray:
    """Features of the right kind: the start and the end of some texts and of noise."""
    random = np.random.default_rng(7)
    lines = [b"import os\n", b"#include <stdio.h>\n", b'{"a": [1, 2]}, ', b"<p>water</p>\n", b"SELECT 1;\n"]
    texts = [line * 100 for line in lines]
    texts += [random.integers(0, 256, 4096).astype(np.uint8).tobytes() for _ in range(rows)]
    padded = [(text[:1024].ljust(1024), text[-1024:].rjust(1024)) for text in texts[:rows]]
    return np.array([[*start, *end] for start, end in padded], np.int32)


def test_it_batches_and_its_outputs_go_straight_to_the_arena(engine: OnnxEngine) -> None:
    assert (engine.spec.max_batch_size, engine.ahead) == (32, True)
    assert (engine.spec.inputs[0].datatype, engine.spec.inputs[0].dims) == ("INT32", (2048,))
    assert (engine.spec.outputs[0].datatype, engine.spec.outputs[0].dims) == ("FP32", (214,))
    assert engine.spec.warnings == ()


@pytest.mark.parametrize("rows", [2, 8, 32])
def test_a_batch_agrees_with_single_rows(engine: OnnxEngine, rows: int) -> None:
    instance, x = engine.create_instance(0), windows(rows)
    together = FakeBatch(*[[row[None]] for row in x])
    instance.execute(together)  # type: ignore[arg-type]
    scores = together.output(0, np.float32)
    for row, got in zip(x, scores, strict=True):
        alone = FakeBatch([row[None]])
        instance.execute(alone)  # type: ignore[arg-type]
        expected = alone.output(0, np.float32)[0]
        assert got.argmax() == expected.argmax()
        assert np.abs(got - expected).max() < 1e-2  # 8e-3 was seen on 512 files of all kinds
