"""Reshaped outputs: clients get the form of the config, whatever form the model has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dispatch_rig import Rig, arrays, model, request, response, row

from service.models.spec import ModelSpec, TensorSpec

INTERNAL = 13


def spec_of(output: TensorSpec, max_batch_size: int = 4) -> ModelSpec:
    return replace(model(outputs=("Y",), max_batch_size=max_batch_size), outputs=(output,))


@pytest.mark.parametrize(
    ("dims", "reshape", "shape"),
    [
        ((2, -1), (2, -1), (2, 3)),
        ((6,), (2, 3), (6,)),
        ((1, 2, -1), (2, -1), (1, 2, 3)),
        ((2, -1, 1), (2, -1), (2, 3, 1)),
        ((-1, -1, 1), (-1, -1), (2, 3, 1)),
    ],
)
@pytest.mark.parametrize("batch", [0, 4])
def test_an_answer_has_the_form_on_the_wire(dims, reshape, shape, batch: int) -> None:
    x = TensorSpec("X", "FP32", (-1, -1))
    spec = replace(spec_of(TensorSpec("Y", "FP32", dims, reshape), batch), inputs=(x,))
    rows = (10,) if batch else ()  # in three parts
    sent = np.arange(60 if batch else 6, dtype="<f4").reshape(*rows, 2, 3)
    rig = Rig()
    rig.worker(spec)
    token, _ = rig.submit(request(spec, sent))
    code, payload = rig.run()[token]
    assert code == 0
    answer = arrays(response(payload))["Y"]
    assert answer.shape == (*rows, *shape)
    np.testing.assert_array_equal(answer.ravel(), sent.ravel())
    assert rig.at_rest()


def test_scalars_per_row() -> None:
    scalar = TensorSpec("X", "FP32", (1,), ())
    spec = replace(spec_of(replace(scalar, name="Y")), inputs=(scalar,))
    rig = Rig()
    rig.worker(spec)
    sent = {rig.submit(request(spec, row(i)))[0]: i for i in range(3)}
    answers = rig.run()
    for token, i in sent.items():
        np.testing.assert_array_equal(arrays(response(answers[token][1]))["Y"], row(i))
    assert rig.at_rest()


@pytest.mark.parametrize("came", [row(1, 2, 3), row(1)])
def test_an_answer_in_another_form_is_an_error_that_says_both(came) -> None:
    spec = spec_of(TensorSpec("Y", "FP32", (2, 1), (2,)))
    rig = Rig()
    rig.worker(spec)
    token, _ = rig.submit(request(spec, came))
    code, text = rig.run()[token]
    assert code == INTERNAL
    expected = f"output 'Y' of model 'm' came out as [1,{came.size}], expected [2] behind the rows"
    assert text.decode() == f"{expected}, the reshape in its config"
    assert rig.at_rest()
