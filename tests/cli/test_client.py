"""The client library: arrays on the wire, streams, and what its errors say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from fake_server import FakeServer
from waiting import wait_until

from service._pb import inference as pb
from service.client import (
    AsyncClient,
    Client,
    ClientError,
    InferStream,
    InvalidTensor,
    RequestRefused,
    RpcFailed,
    Unreachable,
    infer_request,
    infer_result,
)
from service.client.stream import with_id
from service.client.tensors import NUMPY_OF

T = TypeVar("T")
X = np.array([[1, 2, 3, 4]], np.float32)
Y = np.array([[3, 5, 7, 9]], np.float32)


def with_client(url: str, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def go() -> T:
        async with AsyncClient(url) as client:
            return await work(client)

    return asyncio.run(go())


def echo(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    """The answer of a model that returns its inputs."""
    answer = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    for given in request.inputs:
        answer.outputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
    answer.raw_output_contents.extend(request.raw_input_contents)
    return answer


@pytest.mark.parametrize("datatype", sorted(set(NUMPY_OF) - {"BYTES"}))
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 0, 4)], ids=str)
def test_every_datatype_and_shape_survives_the_round_trip(datatype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(NUMPY_OF[datatype])
    request = infer_request("m", {"x": array})
    assert request.inputs[0].datatype == datatype and len(request.raw_input_contents[0]) == array.nbytes
    result = infer_result(echo(request)).outputs["x"]
    assert result.dtype == array.dtype and result.shape == shape
    np.testing.assert_array_equal(result, array)


def test_the_wire_is_little_endian_and_row_major_whatever_the_array_is() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    request = infer_request("m", {"x": array})
    assert list(request.inputs[0].shape) == [3, 2]
    assert request.raw_input_contents[0] == np.array([0, 3, 1, 4, 2, 5], "<f4").tobytes()


def test_the_request_carries_what_was_asked() -> None:
    request = infer_request("m", {}, version="3", request_id="id", outputs=["a", "b"], timeout_us=250)
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "id")
    assert [output.name for output in request.outputs] == ["a", "b"]
    assert request.parameters["timeout"].int64_param == 250
    assert "timeout" not in infer_request("m", {}).parameters


@pytest.mark.parametrize(
    "array", [np.array([1j]), np.array(["2026-01-01"], "datetime64[D]")], ids=["complex", "date"]
)
def test_an_array_without_a_protocol_datatype_is_refused(array: Any) -> None:
    with pytest.raises(InvalidTensor, match="tensor 'x' is a numpy .*, which has no protocol datatype"):
        infer_request("m", {"x": array})


def test_objects_that_are_no_strings_are_refused() -> None:
    with pytest.raises(InvalidTensor, match="tensor 'x': expected strings for BYTES, element 1 is a dict"):
        infer_request("m", {"x": np.array([b"a", {}])})


@pytest.mark.parametrize(
    "array",
    [
        np.array([[b"a", b""], [b"\xff\xfe", b"\0"]], object),
        np.array([["a", ""], ["\udcff\udcfe", "\0"]], object),
        np.array([], object),
        np.array([["a", ""], ["ccc", "d"]]),
        np.array([[b"a", b""], [b"ccc", b"d"]]).T,
    ],
    ids=["bytes", "text", "none", "numpy's text", "numpy's bytes"],
)
def test_strings_come_back_as_bytes(array: Any) -> None:
    request = infer_request("m", {"x": array})
    assert request.inputs[0].datatype == "BYTES"
    found = infer_result(echo(request)).outputs["x"]
    encoded = [e if isinstance(e, bytes) else e.encode("utf-8", "surrogateescape") for e in array.ravel()]
    assert found.shape == array.shape and found.ravel().tolist() == encoded


def test_an_answer_that_does_not_add_up_is_refused() -> None:
    answer = echo(infer_request("m", {"x": X}))
    answer.raw_output_contents[0] = b"short"
    with pytest.raises(InvalidTensor, match=r"output 'x' FP32\[1, 4\] should have 16 bytes, got 5"):
        infer_result(answer)
    del answer.raw_output_contents[:]
    with pytest.raises(InvalidTensor, match="1 outputs but 0 raw_output_contents"):
        infer_result(answer)
    answer = pb.ModelInferResponse(raw_output_contents=[b""])
    answer.outputs.add(name="s", datatype="BF16", shape=[0])
    with pytest.raises(InvalidTensor, match="tensor 's' has datatype BF16"):
        infer_result(answer)


@pytest.mark.parametrize(
    ("raw", "shape"),
    [(b"", [1]), (b"\1\0\0\0", [1]), (b"\0\0\0\0\0", [1]), (b"\0\0\0\0", [0]), (b"", [2**40])],
)
def test_strings_that_do_not_add_up_are_refused(raw: bytes, shape: list[int]) -> None:
    answer = pb.ModelInferResponse(raw_output_contents=[raw])
    answer.outputs.add(name="s", datatype="BYTES", shape=shape)
    with pytest.raises(InvalidTensor, match=r"output 's' BYTES\["):
        infer_result(answer)


def test_both_clients_infer(server: FakeServer) -> None:
    with Client(server.url) as client:
        np.testing.assert_array_equal(client.infer("affine", {"x": X}).outputs["y"], Y)
        assert client.server_metadata().name == "fake"
        assert client.model_ready("affine") and not client.model_ready("nothing")
    result = with_client(server.url, lambda client: client.infer("affine", {"x": X}, request_id="seven"))
    np.testing.assert_array_equal(result.outputs["y"], Y)
    assert result.id == "seven"


def test_an_error_of_the_server_keeps_its_code_and_text(server: FakeServer) -> None:
    with Client(server.url) as client, pytest.raises(RpcFailed) as caught:
        client.model_metadata("nothing")
    assert caught.value.code == "NOT_FOUND"
    assert caught.value.details == "Request for unknown model: 'nothing' is not found"


def test_nobody_there_is_another_error_than_unavailable(nobody: str) -> None:
    with Client(nobody) as client, pytest.raises(Unreachable, match=f"nothing answers at {nobody} .*refused"):
        client.server_metadata()


@pytest.mark.parametrize(
    "url",
    ["localhost", ":8001", "localhost:", "localhost:port", "http://localhost:8001", "unix:", "unix:///"],
)
def test_addresses_that_are_none_are_said_so(url: str) -> None:
    with pytest.raises(ClientError, match="--url is HOST:PORT .* or unix:FILE of a socket; got"):
        Client(url)


def test_a_path_that_no_socket_can_have_is_said_so() -> None:
    with pytest.raises(ClientError, match="a socket's path has at most 107 bytes; got 'unix:/xx"):
        Client("unix:/" + "x" * 107)
    Client("unix:///" + "x" * 106).close()


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("http://localhost:8001/", "localhost:8001"),
        ("unix://run/grpc.sock", "unix:/run/grpc.sock"),
        ("/run/grpc.sock", "unix:/run/grpc.sock"),
        ("./grpc.sock", "unix:./grpc.sock"),
    ],
)
def test_what_was_meant_is_offered(url: str, instead: str) -> None:
    with pytest.raises(ClientError, match=f"got '{url}', try '{instead}'$"):
        Client(url)


def test_loopback_ignores_a_proxy_in_the_environment(
    server: FakeServer, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://{nobody}")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Client(server.url) as client:
        assert client.server_metadata().name == "fake"


def test_an_id_behind_a_serialized_request_replaces_its_own() -> None:
    request = infer_request("m", {"x": X}, request_id="old").SerializeToString()
    merged = pb.ModelInferRequest.FromString(with_id(request, "new"))
    assert merged.id == "new" and merged.inputs[0].name == "x" and len(merged.raw_input_contents) == 1
    with pytest.raises(ValueError, match="at most 127 bytes was expected, got 128"):
        with_id(request, "x" * 128)


def rows(count: int) -> list[bytes]:
    return [infer_request("affine", {"x": X * number}).SerializeToString() for number in range(count)]


def test_answers_on_a_stream_find_their_requests_in_any_order(server: FakeServer) -> None:
    server.answer_in_order = False  # two and two, the second first

    async def work(client: AsyncClient) -> list[pb.ModelInferResponse]:
        async with InferStream(client) as stream:
            return await asyncio.gather(*(stream.infer(request) for request in rows(10)))

    for number, answer in enumerate(with_client(server.url, work)):
        np.testing.assert_array_equal(infer_result(answer).outputs["y"], 2 * number * X + 1)


def test_a_refused_request_fails_alone(server: FakeServer) -> None:
    server.refuse = lambda request: "not this one" if request.id == "2" else ""

    async def work(client: AsyncClient) -> list[pb.ModelInferResponse | BaseException]:
        async with InferStream(client) as stream:
            return await asyncio.gather(*(stream.infer(r) for r in rows(4)), return_exceptions=True)

    outcomes = with_client(server.url, work)
    assert [type(outcome) is RequestRefused for outcome in outcomes] == [False, True, False, False]
    assert str(outcomes[1]) == "not this one"


def test_an_error_that_names_no_request_is_the_oldest_ones(server: FakeServer) -> None:
    server.errors_name_their_request = False
    server.refuse = lambda request: "not this one" if request.id == "2" else ""

    async def work(client: AsyncClient) -> list[pb.ModelInferResponse | BaseException]:
        async with InferStream(client) as stream:
            return await asyncio.gather(*(stream.infer(r) for r in rows(4)), return_exceptions=True)

    assert [type(outcome) is RequestRefused for outcome in with_client(server.url, work)] == [
        False,
        True,
        False,
        False,
    ]


def test_a_stream_to_nobody_fails_every_request(nobody: str) -> None:
    async def work(client: AsyncClient) -> list[pb.ModelInferResponse | BaseException]:
        async with InferStream(client) as stream:
            first = await asyncio.gather(*(stream.infer(r) for r in rows(2)), return_exceptions=True)
            return first + await asyncio.gather(stream.infer(rows(1)[0]), return_exceptions=True)

    assert [type(outcome) for outcome in with_client(nobody, work)] == [Unreachable] * 3


def test_a_stream_that_the_server_drops_fails_what_is_unanswered(server: FakeServer) -> None:
    server.answer_in_order = False  # the first of two is held back

    async def work(client: AsyncClient) -> BaseException | pb.ModelInferResponse:
        async with InferStream(client) as stream:
            waiting = asyncio.create_task(stream.infer(rows(1)[0]))
            await asyncio.to_thread(wait_until, lambda: server.seen, "the request's arrival")
            await asyncio.to_thread(server.stop)
            (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
            return outcome

    outcome = with_client(server.url, work)
    assert isinstance(outcome, ClientError), outcome


def test_leaving_a_stream_by_an_exception_does_not_wait_for_answers(server: FakeServer) -> None:
    server.answer_in_order = server.ends_streams = False

    async def work(client: AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            async with InferStream(client) as stream:
                group.create_task(stream.infer(rows(1)[0]))
                await asyncio.to_thread(wait_until, lambda: server.seen, "the request's arrival")
                raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        with_client(server.url, work)
    assert caught.group_contains(ZeroDivisionError)
