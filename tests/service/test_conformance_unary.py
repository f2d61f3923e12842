"""ModelInfer: right answers, batches as they should be formed, and a refusal that says what was wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from scripted import ScriptedEngine, affine, ints, model_spec, tensor, two_in_two_out
from waiting import wait_until
from wire import Wire, done_response, hold, infer_request, output, queue, rows, status_of

from service.engines.base import EngineError

# ---- answers ----


def test_an_answer_has_names_version_id_and_raw_contents_only(serve):
    _, wire = serve(affine())
    x = rows(2)
    response = wire.infer(infer_request("affine", x=x, id="ü-7\n"))
    assert (response.model_name, response.model_version, response.id) == ("affine", "1", "ü-7\n")
    (y,) = response.outputs
    assert (y.name, y.datatype, list(y.shape)) == ("y", "FP32", [2, 4])
    assert not y.HasField("contents")
    assert len(response.raw_output_contents) == 1
    assert np.array_equal(output(response), 2 * x + 1)
    assert not response.parameters


def test_outputs_come_as_asked_for_and_all_of_them_when_none_is(serve):
    _, wire = serve(two_in_two_out())
    a, b = ints(0), ints(100)
    everything = wire.infer(infer_request("simple", INPUT0=a, INPUT1=b))
    assert [out.name for out in everything.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert np.array_equal(output(everything, 0, np.int32), a + b)
    assert np.array_equal(output(everything, 1, np.int32), a - b)
    one = wire.infer(infer_request("simple", INPUT0=a, INPUT1=b, outputs=["OUTPUT1"]))
    assert [out.name for out in one.outputs] == ["OUTPUT1"]
    assert len(one.raw_output_contents) == 1
    assert np.array_equal(output(one, 0, np.int32), a - b)
    turned = wire.infer(infer_request("simple", INPUT0=a, INPUT1=b, outputs=["OUTPUT1", "OUTPUT0"]))
    assert [out.name for out in turned.outputs] == ["OUTPUT1", "OUTPUT0"]
    assert np.array_equal(output(turned, 1, np.int32), a + b)


def test_inputs_may_come_in_any_order(serve):
    _, wire = serve(two_in_two_out())
    a, b = ints(0), ints(100)
    response = wire.infer(infer_request("simple", INPUT1=b, INPUT0=a))
    assert np.array_equal(output(response, 1, np.int32), a - b)


@pytest.mark.parametrize("version", ["", "1"])
def test_a_version_may_be_named(serve, version):
    _, wire = serve(affine())
    assert wire.infer(infer_request("affine", x=rows(1), version=version)).model_version == "1"


@pytest.mark.parametrize(
    "datatype",
    [
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP16",
        "FP32",
        "FP64",
    ],
)
def test_every_numeric_datatype_goes_through_bit_for_bit(serve, datatype):
    spec = model_spec("same", [tensor("x", datatype, 8)], [tensor("y", datatype, 8)])
    _, wire = serve(ScriptedEngine(spec, lambda x: [x]))
    bits = np.arange(64, dtype=np.uint8) * 5
    dtype = np.dtype(
        {"BOOL": "bool", "FP16": "f2", "FP32": "f4", "FP64": "f8"}.get(datatype, datatype.lower())
    )
    x = (bits[:8] % 2).astype(bool) if datatype == "BOOL" else bits[: 8 * dtype.itemsize].view(dtype)
    request = infer_request("same", x=x.reshape(1, 8))
    response = wire.infer(request)
    assert response.outputs[0].datatype == datatype
    assert response.raw_output_contents[0] == request.raw_input_contents[0]


def test_a_model_that_does_not_batch_takes_its_shape_as_it_is(serve):
    spec = model_spec("whole", [tensor("x", "FP32", 2, -1)], [tensor("y", "FP32", -1)], max_batch_size=0)
    _, wire = serve(ScriptedEngine(spec, lambda x: [x.sum(axis=0)]))
    x = rows(2, width=5)
    assert np.array_equal(output(wire.infer(infer_request("whole", x=x))), x.sum(axis=0))


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 16)])
def test_tensors_without_elements_are_legal_where_the_shape_allows(serve, shape):
    dims = [-1] * len(shape)
    x, y = tensor("x", "FP32", *dims), tensor("y", "FP32", *dims)
    spec = model_spec("empty", [x], [y], max_batch_size=0)
    _, wire = serve(ScriptedEngine(spec, lambda x: [x]))
    response = wire.infer(infer_request("empty", x=np.zeros(shape, np.float32)))
    assert list(response.outputs[0].shape) == list(shape)
    assert list(response.raw_output_contents) == [b""]


def test_empty_rows_keep_their_place_beside_rows_with_elements(serve):
    inputs = [tensor("x", "FP32", 4), tensor("note", "FP32", -1)]
    spec = model_spec("noted", inputs, [tensor("y", "FP32", 4)])
    engine = ScriptedEngine(spec, lambda x, note: [2 * x + 1])
    service, wire = serve(engine)
    nothing = np.zeros((1, 0), np.float32)
    first = hold(engine, wire, infer_request("noted", x=rows(1), note=nothing))
    requests = [infer_request("noted", x=rows(1, 10.0 * i), note=nothing) for i in range(8)]
    futures = queue(service, wire, requests)
    engine.gate.open()
    for i, future in enumerate(futures):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 10.0 * i) + 1)
    assert status_of(first) == "OK"
    assert engine.batches == [1, 8]


def test_requests_without_rows_are_answered_beside_those_with_some(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    sent = [rows(count, 10.0 * i) for i, count in enumerate((2, 0, 3, 0))]
    futures = queue(service, wire, [infer_request("affine", x=x) for x in sent])
    engine.gate.open()
    for x, future in zip(sent, futures, strict=True):
        response = done_response(future)
        assert list(response.outputs[0].shape) == list(x.shape)
        assert response.raw_output_contents[0] == (2 * x + 1).tobytes()
    assert status_of(first) == "OK"
    assert engine.batches == [1, 5]


def test_a_message_of_many_megabytes_goes_both_ways(serve):
    _, wire = serve(affine(width=1 << 20), arena_mb=64, output_arena_mb=64)
    x = np.arange(2 << 20, dtype=np.float32).reshape(2, 1 << 20)
    assert np.array_equal(output(wire.infer(infer_request("affine", x=x))), 2 * x + 1)


# ---- batches ----


def test_a_backlog_runs_in_full_batches(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    futures = queue(service, wire, [infer_request("affine", x=rows(1, 100.0 * i)) for i in range(64)])
    engine.gate.open()
    for i, future in enumerate(futures):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 100.0 * i) + 1)
    assert status_of(first) == "OK"
    assert engine.batches == [1] + [8] * 8


def test_rows_are_counted_and_not_requests(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    futures = queue(service, wire, [infer_request("affine", x=rows(3, 100.0 * i)) for i in range(3)])
    engine.gate.open()
    for i, future in enumerate(futures):
        assert np.array_equal(output(done_response(future)), 2 * rows(3, 100.0 * i) + 1)
    assert status_of(first) == "OK"
    assert engine.batches == [1, 6, 3]


def test_a_request_beyond_the_maximum_is_split_and_joined_in_order(serve):
    engine = affine()
    _, wire = serve(engine)
    x = rows(20)
    response = wire.infer(infer_request("affine", x=x))
    assert list(response.outputs[0].shape) == [20, 4]
    assert np.array_equal(output(response), 2 * x + 1)
    assert sorted(engine.batches) == [4, 8, 8]


def test_an_error_in_one_part_fails_the_whole_request(serve):
    engine = affine()
    _, wire = serve(engine)

    def compute(x):
        if (x == 19 * 4).any():
            raise EngineError("the last rows are bad")
        return [x]

    engine.compute = compute
    assert wire.error(infer_request("affine", x=rows(20))) == ("INTERNAL", "the last rows are bad")


def test_cancelling_a_split_request_stops_the_parts_that_have_not_run(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    future = wire.infer_later(infer_request("affine", x=rows(32)))
    engine.gate.wait_until_held()
    future.cancel()
    wait_until(lambda: service.in_flight == 0, "the cancelled request gone")
    engine.gate.open()
    wire.infer(infer_request("affine", x=rows(1)))
    assert engine.batches == [8, 1]


# ---- many at once ----


def test_answers_never_cross_between_callers(serve):
    """16 callers, each with rows that only it has, on two models at once."""
    service, wire = serve(affine("even"), affine("odd", instances=2))
    wrong: list[str] = []

    def caller(number: int) -> None:
        own = Wire(service.address)
        for turn in range(60):
            x = rows(1 + turn % 3, 1000.0 * number + 10 * turn)
            response = own.infer(infer_request(("even", "odd")[turn % 2], x=x, id=f"{number}-{turn}"))
            if response.id != f"{number}-{turn}" or not np.array_equal(output(response), 2 * x + 1):
                wrong.append(response.id)
        own.close()

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
    counted = {
        row.name: row.inference_stats.success.count for row in wire.call("ModelStatistics").model_stats
    }
    assert counted == {"even": 480, "odd": 480}
