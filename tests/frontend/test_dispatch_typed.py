"""Typed contents through a real queue: decoded straight into the input arena, also where it is in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dispatch_rig import MIB, Rig, arrays, model, request, response, row

from service._pb import inference
from service.frontend._dispatch import RequestError

M = model(outputs=("Y",))
INVALID, EXHAUSTED = 3, 8


def typed(spec: Any, *values: Any, id: str = "") -> bytes:
    """As dispatch_rig.request, with the values in fp32_contents."""
    message = inference.ModelInferRequest(model_name=spec.name, id=id)
    for tensor, array in zip(spec.inputs, values, strict=True):
        made = message.inputs.add(name=tensor.name, datatype="FP32", shape=array.shape)
        made.contents.fp32_contents.extend(array.ravel().tolist())
    wire: bytes = message.SerializeToString()
    return wire


def test_typed_and_raw_requests_share_a_batch() -> None:
    rig = Rig()
    lane = rig.worker(M)
    first, _ = rig.submit(typed(M, row(1, 2), id="typed"))
    second, _ = rig.submit(request(M, row(3, 4)))
    assert rig.workers[lane].run() == 1
    answers = rig.drain()
    np.testing.assert_array_equal(arrays(response(answers[first][1]))["Y"], row(1, 2))
    np.testing.assert_array_equal(arrays(response(answers[second][1]))["Y"], row(3, 4))
    assert response(answers[first][1]).id == "typed"
    assert rig.at_rest()


def test_a_typed_tensor_in_several_pieces_of_the_arena() -> None:
    """Every second of many small requests is let go, so that the large one finds no room in one piece."""
    rig = Rig(arena_mb=4, slots=64)
    lane = rig.worker(M)
    others = [model("other", outputs=("Y",)), model("another", outputs=("Y",))]  # one may have half the arena
    blocks = rig.worker(*others, output_mb=8)
    filler = np.zeros((1, 65000), np.float32)  # nearly a block of 256 KB each
    tokens = [rig.submit(request(others[i // 6], filler))[1] for i in range(12)]
    for handle in tokens[::2]:
        rig.dispatcher.cancel(handle)
    worker = rig.workers[blocks]
    worker.former.step()
    rig.drain()
    values = np.arange(2 * 100_001, dtype=np.float32).reshape(2, -1)
    token, _ = rig.submit(typed(M, values))
    batch = rig.workers[lane].take(1)
    assert batch is not None and batch.check()
    assert batch.input_pointer(0) == 0, "it lies in one piece, so this test says nothing"
    rig.workers[lane].execute(batch, M)
    code, payload = rig.drain()[token]
    assert code == 0
    np.testing.assert_array_equal(arrays(response(payload))["Y"], values)
    rig.run()
    assert rig.at_rest()


def test_a_typed_request_that_never_fits_is_refused_before_it_is_decoded() -> None:
    rig = Rig(arena_mb=1)
    rig.worker(M)
    with pytest.raises(RequestError) as caught:
        rig.submit(typed(M, np.zeros((1, MIB // 4), np.float32)))
    assert caught.value.code == EXHAUSTED
    assert "--arena-mb" in caught.value.message
    assert rig.at_rest()


def test_an_id_of_more_than_64_kb_is_refused() -> None:
    rig = Rig()
    rig.worker(M)
    with pytest.raises(RequestError) as caught:
        rig.submit(request(M, row(1), id="x" * 65537))
    assert (caught.value.code, caught.value.message) == (
        INVALID,
        "expected an id of at most 65536 bytes, got 65537",
    )
    assert rig.at_rest()
