"""Every RPC that is not Infer: what a client learns of the server, its models and its health."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from scripted import ScriptedEngine, affine, model_spec, tensor
from waiting import LIMIT_S
from wire import SERVICE, infer_request, rows

from service._pb import inference as pb
from service.frontend.rpcs import CONTROL, EXTENSIONS, NOT_BUILT, UNARY

HEALTH = "/grpc.health.v1.Health/"


def failure(call, *arguments) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    return caught.value.code().name, caught.value.details()


def health(wire, service: str = "") -> str:
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    answer = health_pb2.HealthCheckResponse.FromString(wire.raw(f"{HEALTH}Check", request))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_a_ready_server_is_live_and_ready(serve):
    _, wire = serve(affine())
    assert wire.call("ServerLive").live
    assert wire.call("ServerReady").ready
    assert health(wire) == "SERVING"
    assert health(wire, "inference.GRPCInferenceService") == "SERVING"


def test_a_server_without_its_worker_is_live_and_not_ready(serve):
    _, wire = serve()
    assert wire.call("ServerLive").live
    assert not wire.call("ServerReady").ready
    assert health(wire) == "NOT_SERVING"
    code, text = wire.error(infer_request("affine", x=rows(1)))
    assert (code, text) == ("UNAVAILABLE", "Server not ready")
    assert not wire.call("ModelReady", pb.ModelReadyRequest(name="affine")).ready
    metadata = failure(wire.call, "ModelMetadata", pb.ModelMetadataRequest(name="affine"))
    assert metadata == ("UNAVAILABLE", "Server not ready")


def test_server_metadata_names_the_server_and_only_what_is_built(serve):
    _, wire = serve(affine())
    metadata = wire.call("ServerMetadata")
    assert metadata.name == "headrace"
    assert metadata.version
    assert (
        tuple(metadata.extensions)
        == EXTENSIONS
        == (
            "classification",
            "model_repository",
            "model_repository(unload_dependents)",
            "model_configuration",
            "statistics",
            "binary_tensor_data",
        )
    )


def test_the_server_can_be_called_otherwise(serve):
    _, wire = serve(affine(), server_name="triton")
    assert wire.call("ServerMetadata").name == "triton"


def test_model_metadata_has_the_batch_axis_and_config_has_not(serve):
    _, wire = serve(affine(width=3, max_batch_size=5, max_batch_wait_us=70, instances=2))
    metadata = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="affine"))
    assert (metadata.name, list(metadata.versions), metadata.platform) == (
        "affine",
        ["1"],
        "onnxruntime_onnx",
    )
    (x,), (y,) = metadata.inputs, metadata.outputs
    assert (x.name, x.datatype, list(x.shape)) == ("x", "FP32", [-1, 3])
    assert (y.name, y.datatype, list(y.shape)) == ("y", "FP32", [-1, 3])
    config = wire.call("ModelConfig", pb.ModelConfigRequest(name="affine", version="1")).config
    assert (config.name, config.max_batch_size, config.backend) == ("affine", 5, "onnxruntime")
    assert (config.input[0].name, list(config.input[0].dims), config.input[0].data_type) == ("x", [3], 11)
    assert (config.output[0].name, list(config.output[0].dims)) == ("y", [3])
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == 70
    assert config.instance_group[0].count == 2


def test_a_model_that_does_not_batch_has_its_full_shape_in_both(serve):
    spec = model_spec("whole", [tensor("x", "FP32", 2, -1)], [tensor("y", "FP32", -1)], max_batch_size=0)
    _, wire = serve(ScriptedEngine(spec, lambda x: [x.sum(axis=0)]))
    metadata = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="whole"))
    assert list(metadata.inputs[0].shape) == [2, -1]
    config = wire.call("ModelConfig", pb.ModelConfigRequest(name="whole")).config
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [2, -1]
    assert not config.HasField("dynamic_batching")


def test_a_model_is_ready_by_name_and_version_and_an_unknown_one_is_not(serve):
    _, wire = serve(affine())
    asked = [("affine", ""), ("affine", "1"), ("affine", "2"), ("affine", "x"), ("other", ""), ("", "")]
    answers = [wire.call("ModelReady", pb.ModelReadyRequest(name=n, version=v)).ready for n, v in asked]
    assert answers == [True, True, False, False, False, False]


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
@pytest.mark.parametrize(
    ("name", "version", "code", "words"),
    [
        ("other", "", "NOT_FOUND", "Request for unknown model: 'other' is not found"),
        ("affine", "2", "NOT_FOUND", "Request for unknown model: 'affine' version 2 is not found"),
        ("affine", "latest", "INVALID_ARGUMENT", "latest"),
    ],
)
def test_an_unknown_model_or_version_is_named(serve, method, name, version, code, words):
    _, wire = serve(affine())
    request = getattr(pb, f"{method}Request")(name=name, version=version)
    got, text = failure(wire.call, method, request)
    assert got == code
    assert words in text


@pytest.mark.parametrize("method", sorted(NOT_BUILT))
def test_what_is_not_built_says_so_in_a_sentence(serve, method):
    _, wire = serve(affine())
    code, text = failure(wire.call, method)
    assert code == "UNIMPLEMENTED"
    assert method in text
    assert "not built" in text


def test_every_method_of_the_protocol_is_built_or_says_that_it_is_not():
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    assert set(UNARY) | set(CONTROL) | set(NOT_BUILT) | {"ModelInfer", "ModelStreamInfer"} == methods
    assert len(UNARY) + len(CONTROL) + len(NOT_BUILT) + 2 == len(methods)


def test_a_method_nobody_knows_is_unimplemented(serve):
    _, wire = serve(affine())
    assert failure(wire.raw, f"{SERVICE}ModelGuess", b"")[0] == "UNIMPLEMENTED"
    assert failure(wire.raw, "/no.such.Service/Method", b"")[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize("method", sorted(UNARY | CONTROL))
def test_bytes_that_are_no_message_are_the_callers_fault(serve, method):
    _, wire = serve(affine())
    code, text = failure(wire.raw, f"{SERVICE}{method}", b"\x0a\xff")
    assert code == "INVALID_ARGUMENT"
    assert f"{method}Request" in text


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        *(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            for version in ("v1", "v1alpha")
        ),
    ],
)
def test_bytes_that_are_no_message_of_a_standard_service_are_the_callers_fault(serve, path):
    _, wire = serve(affine())
    with pytest.raises(grpc.RpcError) as raised:
        list(wire.channel.stream_stream(path)(iter([b"\x0a\xff"]), timeout=60))
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "no message of this method" in raised.value.details()


def test_statistics_count_rows_batches_and_requests(serve):
    engine = affine()
    _, wire = serve(engine, affine("other"))
    for count in (1, 3, 3):
        wire.infer(infer_request("affine", x=rows(count)))
    (stats,) = wire.call("ModelStatistics", pb.ModelStatisticsRequest(name="affine")).model_stats
    assert (stats.name, stats.version, stats.inference_count, stats.execution_count) == ("affine", "1", 7, 3)
    phases = stats.inference_stats
    for phase in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert getattr(phases, phase).count == 3
    assert phases.success.ns >= phases.queue.ns + phases.compute_infer.ns > 0
    assert phases.fail.count == phases.cache_hit.count == phases.cache_miss.count == 0
    assert {size.batch_size: size.compute_infer.count for size in stats.batch_stats} == {1: 1, 3: 2}
    assert stats.last_inference > 1_500_000_000_000  # milliseconds of this century


def test_statistics_without_a_name_are_of_all_models(serve):
    _, wire = serve(affine("one"), affine("two"))
    stats = wire.call("ModelStatistics").model_stats
    assert sorted((row.name, row.version, row.inference_count) for row in stats) == [
        ("one", "1", 0),
        ("two", "1", 0),
    ]


def test_a_failed_request_is_counted_as_one(serve, capfd):
    engine = affine()
    engine.compute = lambda x: [x][:0]
    _, wire = serve(engine)
    assert wire.error(infer_request("affine", x=rows(2)))[0] == "INTERNAL"
    (stats,) = wire.call("ModelStatistics", pb.ModelStatisticsRequest(name="affine")).model_stats
    assert stats.inference_stats.fail.count == 1
    assert stats.inference_stats.success.count == 0


def test_health_of_an_unknown_service_is_not_found(serve):
    _, wire = serve(affine())
    code, text = failure(health, wire, "no.such.Service")
    assert code == "NOT_FOUND"
    assert "no.such.Service" in text


def test_a_health_watch_follows_readiness_and_ends_with_the_server(serve):
    service, wire = serve()
    request = health_pb2.HealthCheckRequest().SerializeToString()
    watch = wire.channel.unary_stream(f"{HEALTH}Watch")(request, timeout=LIMIT_S)

    def seen() -> str:
        status = health_pb2.HealthCheckResponse.FromString(next(watch)).status
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)

    assert seen() == "NOT_SERVING"
    service.start_worker([affine()])
    assert seen() == "SERVING"
    service.drain()
    assert seen() == "NOT_SERVING"
    with pytest.raises((StopIteration, grpc.RpcError)):
        next(watch)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_shows_the_services_and_their_messages(serve, version):
    _, wire = serve(affine())
    method = wire.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="inference.GRPCInferenceService.ModelInfer"
        ),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="inference.GRPCInferenceService.NoMethod"
        ),
    ]
    services, ours, health_file, of_method, *nothing = method(iter(asked), timeout=LIMIT_S)
    names = {service.name for service in services.list_services_response.service}
    assert {"inference.GRPCInferenceService", "headrace.v1.BatchInference", "grpc.health.v1.Health"} <= names
    files = b"".join(ours.file_descriptor_response.file_descriptor_proto)
    assert b"ModelStreamInfer" in files
    assert b"ModelDynamicBatching" in files
    assert health_file.file_descriptor_response.file_descriptor_proto
    assert of_method.file_descriptor_response == ours.file_descriptor_response
    for answer in nothing:
        assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
