"""ModelInfer refused: a bad request is told what was wrong, and nothing of it reaches a model."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from scripted import affine, ints, two_in_two_out
from wire import SERVICE, infer_request, output, rows

from service._pb import inference as pb
from service.engines.base import EngineError


def request_with(change) -> pb.ModelInferRequest:
    request = infer_request("simple", INPUT0=ints(0), INPUT1=ints(100))
    change(request)
    return request


def set_typed(request) -> None:
    """Beside the raw contents that are there."""
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
    "typed contents beside raw ones": (set_typed, "INVALID_ARGUMENT", ["raw_input_contents"]),
    "unknown output": (
        lambda r: r.outputs.add(name="OUTPUT9"), "INVALID_ARGUMENT",
        ["unexpected inference output 'OUTPUT9' for model 'simple'"]),
    "classification": (
        lambda r: r.outputs.add(name="OUTPUT0").parameters["classification"].CopyFrom(
            pb.InferParameter(string_param="two")), "INVALID_ARGUMENT", ["classification"]),
    "shared memory": (
        lambda r: r.inputs[0].parameters["shared_memory_region"].CopyFrom(
            pb.InferParameter(string_param="region")),
        "INVALID_ARGUMENT|UNIMPLEMENTED", ["shared_memory_region"]),
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


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x2a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"]
)
def test_bytes_that_are_no_request_are_the_callers_fault(serve, data):
    _, wire = serve(affine())
    code, text = wire.error(data)
    assert code == "INVALID_ARGUMENT"
    assert text


LONG = "n" * 100_000


def refusals_of_long_words(wire) -> list[tuple[str, str]]:
    """Status and words of calls with much in them that a refusal quotes."""
    load = pb.RepositoryModelLoadRequest(model_name="affine")
    load.parameters[LONG].string_param = "x"
    check = health_pb2.HealthCheckRequest(service=LONG)
    found = []
    for path, message in ((f"{SERVICE}RepositoryModelLoad", load), ("/grpc.health.v1.Health/Check", check)):
        with pytest.raises(grpc.RpcError) as raised:
            wire.raw(path, message.SerializeToString())
        found.append((raised.value.code().name, raised.value.details()))
    return found


def test_a_refusal_of_long_words_is_one_that_clients_can_read(serve):
    _, wire = serve(affine())
    (load, why), (check, unknown) = refusals_of_long_words(wire)
    assert (load, check) == ("INVALID_ARGUMENT", "NOT_FOUND")
    assert why.startswith("parameter 'nnn") and why.endswith("nnn...")
    assert unknown.startswith("unknown service 'nnn") and unknown.endswith("nnn...")


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
