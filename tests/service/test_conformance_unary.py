"""ModelInfer: right answers, batches as they should be formed, and a refusal that says what was wrong."""

from __future__ import annotations

import threading

import grpc
import numpy as np
import pytest
from scripted import ScriptedEngine, affine, model_spec, tensor
from wire import Wire, done_response, infer_request, output, rows, status_of, wait_until

from service._pb import inference as pb
from service.engines.base import EngineError


def two_in_two_out(**settings) -> ScriptedEngine:
    """sum and difference of two INT32 rows of 16, as Triton's example model."""
    inputs = [tensor("INPUT0", "INT32", 16), tensor("INPUT1", "INT32", 16)]
    outputs = [tensor("OUTPUT0", "INT32", 16), tensor("OUTPUT1", "INT32", 16)]
    return ScriptedEngine(model_spec("simple", inputs, outputs, **settings), lambda a, b: [a + b, a - b])


def ints(first: int, count: int = 1) -> np.ndarray:
    return np.arange(first, first + 16 * count, dtype=np.int32).reshape(count, 16)


def hold(service, engine: ScriptedEngine, wire: Wire, request) -> object:
    """Shuts the engine's gate and puts one request into it, so that what follows has to queue."""
    engine.gate.shut()
    first = wire.infer_later(request)
    engine.gate.wait_until_held()
    return first


def queue(service, wire: Wire, requests) -> list:
    """Sends requests that have to wait; returns when all of them are with the worker."""
    before = service.in_flight
    futures = [wire.infer_later(request) for request in requests]
    wait_until(lambda: service.in_flight == before + len(futures), "everything in flight")
    return futures


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
    "datatype", ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]
)
def test_every_numeric_datatype_goes_through_bit_for_bit(serve, datatype):
    spec = model_spec("same", [tensor("x", datatype, 8)], [tensor("y", datatype, 8)])
    _, wire = serve(ScriptedEngine(spec, lambda x: [x]))
    bits = np.arange(64, dtype=np.uint8) * 5
    dtype = np.dtype({"BOOL": "bool", "FP16": "f2", "FP32": "f4", "FP64": "f8"}.get(datatype, datatype.lower()))
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
    spec = model_spec("empty", [tensor("x", "FP32", *[-1] * len(shape))], [tensor("y", "FP32", *[-1] * len(shape))],
                      max_batch_size=0)  # fmt: skip
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
    first = hold(service, engine, wire, infer_request("noted", x=rows(1), note=nothing))
    requests = [infer_request("noted", x=rows(1, 10.0 * i), note=nothing) for i in range(8)]
    futures = queue(service, wire, requests)
    engine.gate.open()
    for i, future in enumerate(futures):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 10.0 * i) + 1)
    assert status_of(first) == "OK"
    assert engine.batches == [1, 8]


def test_a_message_of_many_megabytes_goes_both_ways(serve):
    _, wire = serve(affine(width=1 << 20), arena_mb=64, output_arena_mb=64)
    x = np.arange(2 << 20, dtype=np.float32).reshape(2, 1 << 20)
    assert np.array_equal(output(wire.infer(infer_request("affine", x=x))), 2 * x + 1)


# ---- batches ----


def test_a_backlog_runs_in_full_batches(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    futures = queue(service, wire, [infer_request("affine", x=rows(1, 100.0 * i)) for i in range(64)])
    engine.gate.open()
    for i, future in enumerate(futures):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 100.0 * i) + 1)
    assert status_of(first) == "OK"
    assert engine.batches == [1] + [8] * 8


def test_rows_are_counted_and_not_requests(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
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


# ---- refusals ----


def request_with(change) -> pb.ModelInferRequest:
    request = infer_request("simple", INPUT0=ints(0), INPUT1=ints(100))
    change(request)
    return request


def set_typed(request) -> None:
    del request.raw_input_contents[:]
    for tensor_ in request.inputs:
        tensor_.contents.int_contents.extend(range(16))


REFUSALS = {
    "unknown model": (lambda r: setattr(r, "model_name", "other"), "NOT_FOUND", ["unknown model: 'other'"]),
    "unknown version": (lambda r: setattr(r, "model_version", "9"), "NOT_FOUND", ["'simple' version 9"]),
    "version that is no number": (lambda r: setattr(r, "model_version", "new"), "INVALID_ARGUMENT", ["new"]),
    "unknown input": (
        lambda r: setattr(r.inputs[1], "name", "INPUT9"), "INVALID_ARGUMENT", ["INPUT9", "simple"]),
    "missing input": (
        lambda r: (r.inputs.pop(), r.raw_input_contents.pop()), "INVALID_ARGUMENT",
        ["expected 2 inputs but got 1 inputs for model 'simple'"]),
    "input given twice": (
        lambda r: setattr(r.inputs[1], "name", "INPUT0"), "INVALID_ARGUMENT", ["INPUT0"]),
    "one input too many": (
        lambda r: (r.inputs.add(name="INPUT2", datatype="INT32", shape=[1, 16]),
                   r.raw_input_contents.append(bytes(64))), "INVALID_ARGUMENT",
        ["expected 2 inputs but got 3 inputs for model 'simple'"]),
    "wrong datatype": (
        lambda r: setattr(r.inputs[0], "datatype", "FP32"), "INVALID_ARGUMENT",
        ["inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'"]),
    "datatype nobody has": (
        lambda r: setattr(r.inputs[0], "datatype", "FP7"), "INVALID_ARGUMENT", ["INPUT0", "FP7", "INT32"]),
    "wrong shape": (
        lambda r: r.inputs[0].shape.__setitem__(1, 15), "INVALID_ARGUMENT",
        ["unexpected shape for input 'INPUT0' for model 'simple'", "[-1,16]", "[1,15]"]),
    "wrong rank": (
        lambda r: r.inputs[0].shape.append(1), "INVALID_ARGUMENT", ["INPUT0", "[-1,16]", "[1,16,1]"]),
    "negative size": (
        lambda r: r.inputs[0].shape.__setitem__(0, -1), "INVALID_ARGUMENT", ["INPUT0", "-1"]),
    "inputs that disagree on rows": (
        lambda r: (r.inputs[1].shape.__setitem__(0, 2), r.raw_input_contents.__setitem__(1, bytes(128))),
        "INVALID_ARGUMENT", ["INPUT", "1", "2"]),
    "too few bytes": (
        lambda r: r.raw_input_contents.__setitem__(1, bytes(60)), "INVALID_ARGUMENT",
        ["input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 64, got 60"]),
    "too many bytes": (
        lambda r: r.raw_input_contents.__setitem__(1, bytes(65)), "INVALID_ARGUMENT",
        ["'INPUT1'", "Expected 64, got 65"]),
    "a raw entry missing": (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", ["INPUT1"]),
    "a raw entry left over": (lambda r: r.raw_input_contents.append(b"x"), "INVALID_ARGUMENT", ["3", "2"]),
    "typed contents": (set_typed, "INVALID_ARGUMENT|UNIMPLEMENTED", ["raw_input_contents"]),
    "unknown output": (
        lambda r: r.outputs.add(name="OUTPUT9"), "INVALID_ARGUMENT",
        ["unexpected inference output 'OUTPUT9' for model 'simple'"]),
    "classification": (
        lambda r: r.outputs.add(name="OUTPUT0").parameters["classification"].CopyFrom(
            pb.InferParameter(int64_param=2)), "INVALID_ARGUMENT|UNIMPLEMENTED", ["classification"]),
    "shared memory": (
        lambda r: r.inputs[0].parameters["shared_memory_region"].CopyFrom(
            pb.InferParameter(string_param="region")), "INVALID_ARGUMENT|UNIMPLEMENTED", ["shared_memory_region"]),
    "sequence": (
        lambda r: r.parameters["sequence_id"].CopyFrom(pb.InferParameter(int64_param=7)),
        "INVALID_ARGUMENT|UNIMPLEMENTED", ["sequence_id"]),
    "a reserved parameter": (
        lambda r: r.parameters["triton_magic"].CopyFrom(pb.InferParameter(bool_param=True)),
        "INVALID_ARGUMENT", ["triton_magic"]),
    "a timeout of the wrong type": (
        lambda r: r.parameters["timeout"].CopyFrom(pb.InferParameter(string_param="5")),
        "INVALID_ARGUMENT", ["timeout"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSALS)
def test_a_bad_request_is_told_what_was_expected_and_what_came(serve, fault):
    engine = two_in_two_out()
    service, wire = serve(engine)
    change, codes, words = REFUSALS[fault]
    code, text = wire.error(request_with(change))
    assert code in codes.split("|"), text
    for word in words:
        assert word in text
    assert engine.batches == []
    assert service.in_flight == 0
    assert wire.infer(request_with(lambda r: None)).model_name == "simple"


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x2a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"])
def test_bytes_that_are_no_request_are_the_callers_fault(serve, data):
    _, wire = serve(affine())
    code, text = wire.error(data)
    assert code == "INVALID_ARGUMENT"
    assert text


def test_an_empty_request_is_for_no_model(serve):
    _, wire = serve(affine())
    assert wire.error(b"")[0] == "NOT_FOUND"


def test_a_model_that_fails_says_why_and_goes_on(serve, capfd):
    engine = affine()
    _, wire = serve(engine)
    healthy = engine.compute

    def fail(x):
        raise EngineError("the model is unwell")

    engine.compute = fail
    assert wire.error(infer_request("affine", x=rows(1))) == ("INTERNAL", "the model is unwell")
    engine.compute = healthy
    assert np.array_equal(output(wire.infer(infer_request("affine", x=rows(1)))), 2 * rows(1) + 1)


# ---- time and room ----


def test_a_timeout_is_answered_while_the_model_is_busy(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    late = infer_request("affine", x=rows(1))
    late.parameters["timeout"].int64_param = 20_000
    code, text = wire.error(late)
    assert code == "DEADLINE_EXCEEDED"
    assert text
    engine.gate.open()
    assert status_of(first) == "OK"
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"
    assert engine.batches == [1, 1]


def test_a_grpc_deadline_frees_what_the_request_held(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    late = wire.infer_later(infer_request("affine", x=rows(1)), timeout_s=0.05)
    assert status_of(late) == "DEADLINE_EXCEEDED"
    wait_until(lambda: service.in_flight == 1, "the late request gone")
    engine.gate.open()
    assert status_of(first) == "OK"
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"
    assert engine.batches == [1, 1]


def test_a_deadline_in_a_hundred_years_does_no_harm(serve):
    _, wire = serve(affine())
    future = wire.infer_later(infer_request("affine", x=rows(1)), timeout_s=5e9)
    assert status_of(future) == "OK"


def test_a_cancelled_call_is_dropped_from_the_queue(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    second, third = queue(service, wire, [infer_request("affine", x=rows(1))] * 2)
    second.cancel()
    wait_until(lambda: service.in_flight == 2, "the cancelled request gone")
    engine.gate.open()
    assert [status_of(future) for future in (first, second, third)] == ["OK", "CANCELLED", "OK"]
    assert engine.batches == [1, 1]


def test_a_full_queue_refuses_with_a_hint_when_to_come_back(serve):
    engine = affine()
    service, wire = serve(engine, slots_per_lane=4)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1))] * 3)
    refused = wire.infer_later(infer_request("affine", x=rows(1)))
    assert status_of(refused) == "RESOURCE_EXHAUSTED"
    assert "--slots-per-lane" in refused.details()
    assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"] == "100"
    engine.gate.open()
    assert [status_of(future) for future in (first, *queued)] == ["OK"] * 4


def test_a_full_arena_refuses_and_recovers(serve):
    engine = affine(width=1 << 16)
    service, wire = serve(engine, arena_mb=1)
    request = infer_request("affine", x=rows(1, width=1 << 16))
    first = hold(service, engine, wire, request)
    refused = []
    while not refused:
        future = wire.infer_later(request)
        wait_until(lambda f=future, n=service.in_flight: f.done() or service.in_flight > n, "an answer or a place")
        refused = [future] if future.done() else []
    assert status_of(refused[0]) == "RESOURCE_EXHAUSTED"
    assert "--arena-mb" in refused[0].details()
    engine.gate.open()
    wait_until(lambda: service.in_flight == 0, "the queue empty")
    assert status_of(first) == "OK"
    assert status_of(wire.infer_later(request)) == "OK"


def test_a_request_larger_than_the_arena_names_the_setting(serve):
    _, wire = serve(affine(width=1 << 19), arena_mb=1)
    code, text = wire.error(infer_request("affine", x=rows(1, width=1 << 19)))
    assert code == "RESOURCE_EXHAUSTED"
    assert "--arena-mb" in text


# ---- the worker's death, and the end ----


def test_a_lost_worker_answers_at_once_and_the_next_one_serves(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1))] * 10)
    service.cut_link()
    for future in (first, *queued):
        assert status_of(future) == "UNAVAILABLE"
        assert "try later" in future.details()
    assert not wire.call("ServerReady").ready
    assert not wire.call("ModelReady", pb.ModelReadyRequest(name="affine")).ready
    code, text = wire.error(infer_request("affine", x=rows(1)))
    assert code == "UNAVAILABLE"
    assert "affine" in text
    assert wire.error(infer_request("other", x=rows(1)))[0] == "NOT_FOUND"
    with pytest.raises(grpc.RpcError, match="not at ready state"):
        wire.call("ModelMetadata", pb.ModelMetadataRequest(name="affine"))
    engine.gate.open()
    service.stop_worker()
    service.start_worker([affine()])
    assert wire.call("ServerReady").ready
    assert np.array_equal(output(wire.infer(infer_request("affine", x=rows(1)))), 2 * rows(1) + 1)


def test_draining_finishes_what_is_accepted_and_refuses_what_is_new(serve):
    engine = affine()
    service, wire = serve(engine)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1, 10.0 * i)) for i in range(20)])
    service.begin_drain()
    assert not wire.call("ServerReady").ready
    assert wire.call("ServerLive").live
    expected = "GRPC server is shutting down and has stopped accepting new requests."
    assert wire.error(infer_request("affine", x=rows(1))) == ("UNAVAILABLE", expected)
    engine.gate.open()
    assert status_of(first) == "OK"
    for i, future in enumerate(queued):
        assert np.array_equal(output(done_response(future)), 2 * rows(1, 10.0 * i) + 1)


def test_a_drain_that_runs_out_of_time_says_how_many_were_left(serve):
    engine = affine()
    service, wire = serve(engine, drain_timeout_s=0.05)
    first = hold(service, engine, wire, infer_request("affine", x=rows(1)))
    queued = queue(service, wire, [infer_request("affine", x=rows(1))] * 2)
    assert service.drain() == 3
    assert {status_of(future) for future in (first, *queued)} <= {"UNAVAILABLE", "CANCELLED"}


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
    counted = {row.name: row.inference_stats.success.count for row in wire.call("ModelStatistics").model_stats}
    assert counted == {"even": 480, "odd": 480}
