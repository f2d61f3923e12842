"""Our messages and tritonclient's live in one process, in either order, and read each other's bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2, service_pb2

from service._pb import POOL, inference, model_config

OURS, THEIRS = "import service._pb as ours", "import tritonclient.grpc as theirs"
PROBE = "assert ours.inference.ModelInferRequest is not theirs.service_pb2.ModelInferRequest; print('both')"


def run_python(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_both_import_in_one_process(order: tuple[str, str]) -> None:
    program = "; ".join([*order, PROBE])
    assert run_python("-W", "error", "-c", program) == (0, "both\n", "")


def test_the_default_pool_is_left_alone() -> None:
    program = (
        "import service._pb; from google.protobuf import descriptor_pool\n"
        "try: descriptor_pool.Default().FindFileByName('inference.proto')\n"
        "except KeyError: print('not there')"
    )
    assert run_python("-c", program) == (0, "not there\n", "")
    assert POOL is not descriptor_pool.Default()


def fill_infer_request(pb: Any) -> Message:
    request = pb.ModelInferRequest(model_name="m", id="\u00e9", raw_input_contents=[b"\0\1", b""])
    tensor = request.inputs.add(name="x", datatype="INT8", shape=[1, 2])
    tensor.parameters["shared_memory_offset"].int64_param = -1
    request.outputs.add(name="y").parameters["classification"].int64_param = 3
    request.parameters["priority"].uint64_param = 2**64 - 1
    request.parameters["share"].double_param = 0.5
    return request


def fill_stream_response(pb: Any) -> Message:
    response = pb.ModelStreamInferResponse(error_message="expected 2 rows")
    response.infer_response.id = "7"
    response.infer_response.outputs.add(name="y").contents.fp32_contents.extend([1.5, float("inf")])
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


def fill_config_response(pb: Any) -> Message:
    response = pb.ModelConfigResponse()
    config = response.config
    config.name, config.max_batch_size, config.backend = "m", 8, "onnxruntime"
    config.input.add(name="x", data_type=model_config_pb2.TYPE_FP32, dims=[-1, 3])
    config.instance_group.add(count=2, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    config.dynamic_batching.priority_queue_policy[2].timeout_action = model_config_pb2.ModelQueuePolicy.DELAY
    config.model_warmup.add(count=1).inputs["x"].random_data = True
    return response


def fill_statistics(pb: Any) -> Message:
    response = pb.ModelStatisticsResponse()
    stats = response.model_stats.add(name="m", inference_count=12, execution_count=3)
    stats.inference_stats.queue.ns = 5
    stats.batch_stats.add(batch_size=4).compute_infer.count = 3
    stats.response_stats["0"].cancel.count = 1
    return response


FILLS = [fill_infer_request, fill_stream_response, fill_config_response, fill_statistics]


@pytest.mark.parametrize("fill", FILLS)
def test_bytes_are_the_same_on_both_sides(fill: Callable[[ModuleType], Message]) -> None:
    ours, theirs = fill(inference), fill(service_pb2)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    read_back = type(ours).FromString(theirs.SerializeToString())
    assert read_back == ours
    assert str(read_back) == str(theirs), "same names, same values"


def test_a_client_skips_what_only_we_send() -> None:
    ours = inference.ModelMetadataResponse(name="m", properties={"vendor": "headrace"})
    theirs = service_pb2.ModelMetadataResponse.FromString(ours.SerializeToString())
    assert theirs.name == "m"


def test_enums_are_exported_as_generated_code_would() -> None:
    assert model_config.TYPE_STRING == model_config.DataType.Value("TYPE_STRING") == 13
    assert model_config.ModelInstanceGroup.KIND_CPU == 2
    assert inference.ModelInferRequest.InferInputTensor(name="x").name == "x"
