"""The unmodified tritonclient against the service: what its users do on the first day."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc as triton
from lifecycle import Server
from scripted import ScriptedEngine, affine, model_spec, tensor
from tritonclient.utils import InferenceServerException
from waiting import LIMIT_S, wait_until
from wire import rows


@pytest.fixture
def client(serve):
    clients = []

    def connect(*engines, **settings):
        service, _ = serve(*engines, **settings)
        clients.append(triton.InferenceServerClient(service.address))
        return service, clients[-1]

    yield connect
    for one in clients:
        one.close()


def infer_input(x: np.ndarray, name: str = "x", datatype: str = "FP32") -> triton.InferInput:
    value = triton.InferInput(name, x.shape, datatype)
    value.set_data_from_numpy(x)
    return value


def test_server_and_model_questions(client):
    _, c = client(affine(max_batch_size=5))
    assert c.is_server_live()
    assert c.is_server_ready()
    assert c.is_model_ready("affine")
    assert not c.is_model_ready("other")
    assert c.get_server_metadata().name == "headrace"
    assert c.get_model_metadata("affine").inputs[0].shape == [-1, 4]
    assert c.get_model_config("affine", as_json=True)["config"]["max_batch_size"] == 5
    c.infer("affine", [infer_input(rows(2))])
    statistics = c.get_inference_statistics("affine", as_json=True)["model_stats"][0]
    assert (statistics["inference_count"], statistics["execution_count"]) == ("2", "1")


def test_infer_with_and_without_named_outputs(client):
    _, c = client(affine())
    x = rows(3)
    assert np.array_equal(c.infer("affine", [infer_input(x)], request_id="7").as_numpy("y"), 2 * x + 1)
    wanted = [triton.InferRequestedOutput("y")]
    result = c.infer("affine", [infer_input(x)], outputs=wanted, model_version="1", request_id="8")
    assert result.get_response().id == "8"
    assert np.array_equal(result.as_numpy("y"), 2 * x + 1)


def test_fp16_and_bool(client):
    spec = model_spec("mixed", [tensor("h", "FP16", 3), tensor("b", "BOOL", 3)],
                      [tensor("h2", "FP16", 3), tensor("nb", "BOOL", 3)])  # fmt: skip
    _, c = client(ScriptedEngine(spec, lambda h, b: [h * 2, ~b]))
    h = np.array([[0.5, -0.0, 1024]], np.float16)
    b = np.array([[True, False, True]])
    result = c.infer("mixed", [infer_input(h, "h", "FP16"), infer_input(b, "b", "BOOL")])
    assert np.array_equal(result.as_numpy("h2"), h * 2)
    assert np.array_equal(result.as_numpy("nb"), ~b)


def test_strings(client):
    spec = model_spec("same", [tensor("s", "BYTES", -1)], [tensor("t", "BYTES", -1)], max_batch_size=4)
    engine = ScriptedEngine(spec, lambda s: [s])
    _, c = client(engine)
    s = np.array([[b"\xff\xfe", "größe".encode()], [b"", b"a\0b"]] * 5, np.object_)
    result = c.infer("same", [infer_input(s, "s", "BYTES")])
    assert np.array_equal(result.as_numpy("t"), s)
    assert sorted(engine.batches) == [2, 4, 4]
    assert c.infer("same", [infer_input(s[:4, :0], "s", "BYTES")]).as_numpy("t").shape == (4, 0)


def test_async_infer_calls_back(client):
    _, c = client(affine())
    answers: SimpleQueue = SimpleQueue()
    for i in range(50):
        c.async_infer(
            "affine",
            [infer_input(rows(1, i))],
            lambda result, error: answers.put((result, error)),
            request_id=str(i),
        )
    for _ in range(50):
        result, error = answers.get(timeout=LIMIT_S)
        assert error is None
        assert np.array_equal(result.as_numpy("y"), 2 * rows(1, int(result.get_response().id)) + 1)


@pytest.mark.parametrize(
    ("model", "change", "status", "words"),
    [
        ("other", {}, "NOT_FOUND", "Request for unknown model"),
        ("affine", {"model_version": "3"}, "NOT_FOUND", "version 3"),
        ("affine", {"inputs": [infer_input(rows(1), "z")]}, "INVALID_ARGUMENT", "z"),
        ("affine", {"inputs": [infer_input(rows(1, width=5))]}, "INVALID_ARGUMENT", "[1,5]"),
        (
            "affine",
            {"inputs": [infer_input(rows(1).astype(np.int32), "x", "INT32")]},
            "INVALID_ARGUMENT",
            "INT32",
        ),
        ("affine", {"outputs": [triton.InferRequestedOutput("z")]}, "INVALID_ARGUMENT", "'z'"),
    ],
)
def test_errors_have_their_status_and_words(client, model, change, status, words):
    _, c = client(affine())
    with pytest.raises(InferenceServerException) as caught:
        c.infer(model, **{"inputs": [infer_input(rows(1))], **change})
    assert caught.value.status() == f"StatusCode.{status}"
    assert words in caught.value.message()


def test_a_timeout_in_microseconds(client):
    engine = affine()
    _, c = client(engine)
    engine.gate.shut()
    with pytest.raises(InferenceServerException) as caught:
        c.infer("affine", [infer_input(rows(1))], timeout=20_000)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_custom_parameters_and_priority_are_accepted(client):
    _, c = client(affine())
    x = rows(1)
    result = c.infer("affine", [infer_input(x)], priority=1, parameters={"who": "me", "n": 3, "on": True})
    assert np.array_equal(result.as_numpy("y"), 2 * x + 1)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client, algorithm):
    _, c = client(affine())
    x = rows(2)
    result = c.infer("affine", [infer_input(x)], compression_algorithm=algorithm)
    assert np.array_equal(result.as_numpy("y"), 2 * x + 1)


@pytest.mark.parametrize("pending", [0, 1, 100])
def test_stop_stream_returns_with_everything_answered(client, pending):
    engine = affine()
    service, c = client(engine)
    answers: SimpleQueue = SimpleQueue()
    c.start_stream(lambda result, error: answers.put((result, error)))
    engine.gate.shut()
    for i in range(pending):
        c.async_stream_infer("affine", [infer_input(rows(1, i))], request_id=str(i))
    wait_until(lambda: service.in_flight == min(pending, 64), "all pending")
    engine.gate.open()
    c.stop_stream(cancel_requests=False)
    for i in range(pending):
        result, error = answers.get(timeout=LIMIT_S)
        assert error is None
        assert result.get_response().id == str(i)
        assert np.array_equal(result.as_numpy("y"), 2 * rows(1, i) + 1)
    assert answers.empty()


def test_stop_stream_with_cancel_drops_what_is_pending(client):
    engine = affine()
    service, c = client(engine)
    c.start_stream(lambda result, error: None)
    engine.gate.shut()
    for _ in range(20):
        c.async_stream_infer("affine", [infer_input(rows(1))])
    wait_until(lambda: service.in_flight == 20, "all pending")
    c.stop_stream(cancel_requests=True)
    wait_until(lambda: service.in_flight == 0, "all dropped")


def test_a_stream_error_comes_to_the_callback_and_the_stream_goes_on(client):
    _, c = client(affine())
    answers: SimpleQueue = SimpleQueue()
    c.start_stream(lambda result, error: answers.put((result, error)))
    c.async_stream_infer("other", [infer_input(rows(1))], request_id="1")
    c.async_stream_infer("affine", [infer_input(rows(1))], request_id="2")
    result, error = answers.get(timeout=LIMIT_S)
    assert result is None
    assert "Request for unknown model" in error.message()
    result, error = answers.get(timeout=LIMIT_S)
    assert error is None
    assert result.get_response().id == "2"
    c.stop_stream()


def test_the_asyncio_client(tmp_path, frontend):
    """In a process of its own server: two grpc.aio loops in one process disturb each other."""
    import tritonclient.grpc.aio as triton_aio

    async def talk(url: str) -> None:
        async with triton_aio.InferenceServerClient(url) as c:
            assert await c.is_model_ready("affine")
            results = await asyncio.gather(
                *(c.infer("affine", [infer_input(rows(1, i))], request_id=str(i)) for i in range(32))
            )
            for i, result in enumerate(results):
                assert result.get_response().id == str(i)
                assert np.array_equal(result.as_numpy("y"), 2 * rows(1, i) + 1)
            with pytest.raises(InferenceServerException, match="unknown model"):
                await c.infer("other", [infer_input(rows(1))])

            async def requests():
                for i in range(32):
                    yield {"model_name": "affine", "inputs": [infer_input(rows(1, i))], "request_id": str(i)}

            seen = []
            async for result, error in c.stream_infer(requests()):
                assert error is None
                seen.append(result.get_response().id)
            assert seen == [str(i) for i in range(32)]

    with Server(tmp_path, frontend=frontend) as server:
        asyncio.run(asyncio.wait_for(talk(server.address), LIMIT_S))


@pytest.mark.parametrize(
    "order", ["import tritonclient.grpc, service._pb", "import service._pb, tritonclient.grpc"]
)
def test_both_packages_import_in_one_process_in_either_order(order):
    done = subprocess.run(
        [sys.executable, "-P", "-c", order], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
