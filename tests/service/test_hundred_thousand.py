"""100,000 requests through the real service, 64 in flight, each with rows of its own: every answer is
bitwise the one to its own question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from wire import SERVICE, infer_request, output

from service._pb import inference as pb
from service.demo.server import running

REQUESTS = 100_000
UNARY = 32  # callers with one call in flight each
STREAMS, WINDOW = 8, 4
WIDTH = 4


def affine(path: Path) -> Path:
    """y = 2x + 1."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy")
    nodes = [helper.make_node("Mul", ["x", "two"], ["m"]), helper.make_node("Add", ["m", "one"], ["y"])]
    constants = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [v]) for name, v in (("two", 2.0), ("one", 1.0))
    ]
    graph = helper.make_graph(nodes, "affine", [x], [y], constants)
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


class Asked:
    """Hands out numbered requests, and knows which answers were right."""

    def __init__(self) -> None:
        self.sent = 0
        self.right = 0
        self.wrong: list[str] = []

    def next(self) -> tuple[np.ndarray, bytes] | None:
        """Rows that no other request has, and the message; None when all have been handed out."""
        if self.sent == REQUESTS:
            return None
        number = self.sent
        self.sent += 1
        x = np.float32(number) + np.arange(WIDTH * (1 + number % 3), dtype=np.float32).reshape(-1, WIDTH) / 16
        return x, infer_request("affine", x=x, id=str(number)).SerializeToString()

    def check(self, x: np.ndarray, response: pb.ModelInferResponse) -> None:
        if np.array_equal(output(response), 2 * x + 1):
            self.right += 1
        else:
            self.wrong.append(response.id)


async def call_by_call(channel: grpc.aio.Channel, asked: Asked) -> None:
    infer = channel.unary_unary(SERVICE + "ModelInfer")
    while (question := asked.next()) is not None:
        asked.check(question[0], pb.ModelInferResponse.FromString(await infer(question[1])))


async def on_a_stream(channel: grpc.aio.Channel, asked: Asked) -> None:
    window = asyncio.Semaphore(WINDOW)
    waiting: list[np.ndarray] = []

    async def questions() -> AsyncIterator[bytes]:
        while (question := asked.next()) is not None:
            await window.acquire()
            waiting.append(question[0])
            yield question[1]

    async for data in channel.stream_stream(SERVICE + "ModelStreamInfer")(questions()):
        message = pb.ModelStreamInferResponse.FromString(data)
        assert not message.error_message
        asked.check(waiting.pop(0), message.infer_response)  # answers come in the order of requests
        window.release()


async def ask(url: str) -> Asked:
    asked = Asked()
    async with grpc.aio.insecure_channel(url) as channel, asyncio.TaskGroup() as group:
        for _ in range(UNARY):
            group.create_task(call_by_call(channel, asked))
        for _ in range(STREAMS):
            group.create_task(on_a_stream(channel, asked))
    return asked


async def statistics(url: str) -> pb.ModelStatistics:
    async with grpc.aio.insecure_channel(url) as channel:
        request = pb.ModelStatisticsRequest(name="affine").SerializeToString()
        data = await channel.unary_unary(SERVICE + "ModelStatistics")(request)
        return pb.ModelStatisticsResponse.FromString(data).model_stats[0]


@pytest.mark.slow
def test_no_answer_crosses_in_100_000_requests(tmp_path: Path) -> None:
    with running(affine(tmp_path / "affine.onnx"), "affine", ["--max-batch-size", "8"]) as server:
        asked = asyncio.run(ask(server.url))
        found = asyncio.run(statistics(server.url))
    assert asked.wrong == []
    assert asked.right == REQUESTS
    assert found.inference_stats.success.count == REQUESTS
    assert found.inference_stats.fail.count == 0
    assert found.inference_count == sum(1 + number % 3 for number in range(REQUESTS))
    assert found.execution_count < found.inference_count
    assert max(entry.batch_size for entry in found.batch_stats) <= 8
