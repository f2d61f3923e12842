"""Many files through ModelStreamInfer at once.

Each of N streams takes the next file as soon as it has room for one more request; reading happens in
threads, so that a slow disk holds up one request and not all. A file that cannot be read, or whose request
is refused, is a result too, with the reason in place of a label.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service._pb import inference as pb
from service.client import AsyncClient, InferStream, RequestRefused, infer_request, infer_result
from service.demo.features import examine
from service.demo.model import FileTypeModel

_READINGS = 20
_BETWEEN_READINGS_S = 0.02

BY_RULE = "rule"
MODEL = "model"
FAILED = "failed"


@dataclass(frozen=True)
class Result:
    """What came of one file: a label, how sure the model is (0 to 1), who said so (MODEL, BY_RULE, FAILED).

    ``latency_ns`` is from the request's write to its answer; 0 where the service was not asked.
    """

    path: Path
    label: str
    confidence: float
    source: str
    latency_ns: int = 0


async def classify(
    client: AsyncClient,
    served_as: str,
    model: FileTypeModel,
    files: Iterable[Path],
    streams: int,
    window: int,
    on_result: Callable[[Result], None],
) -> None:
    """Classifies files over ``streams`` streams with ``window`` requests in flight on each.

    ``on_result`` is called for each file as soon as it is done. Raises ClientError when the service is gone.
    """
    turn = iter(files)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(_one_stream(client, served_as, model, turn, window, on_result))
    except BaseExceptionGroup as group_of_errors:
        raise _first(group_of_errors) from None


def _first(error: BaseException) -> BaseException:
    """When the service goes away every stream says so; one of them is enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _one_stream(
    client: AsyncClient,
    served_as: str,
    model: FileTypeModel,
    files: Iterator[Path],
    window: int,
    on_result: Callable[[Result], None],
) -> None:
    async with InferStream(client) as stream:

        async def lane() -> None:
            for path in files:
                on_result(await _one_file(stream, served_as, model, path))

        async with asyncio.TaskGroup() as group:
            for _ in range(window):
                group.create_task(lane())


async def _one_file(stream: InferStream, served_as: str, model: FileTypeModel, path: Path) -> Result:
    try:
        found = await asyncio.to_thread(examine, path, model)
    except OSError as error:
        return Result(path, error.strerror or str(error), 0.0, FAILED)
    if isinstance(found, str):
        return Result(path, found, 1.0, BY_RULE)
    request = infer_request(served_as, {"bytes": found.reshape(1, -1)}).SerializeToString()
    try:
        return await _ask(stream, request, model, path)
    except RequestRefused as error:
        return Result(path, str(error), 0.0, FAILED)


async def _ask(stream: InferStream, request: bytes, model: FileTypeModel, path: Path) -> Result:
    started = time.monotonic_ns()
    response = await stream.infer(request)
    took = time.monotonic_ns() - started
    (scores,) = infer_result(response).outputs["target_label"]
    best = int(np.argmax(scores))
    return Result(path, model.labels[best], float(scores[best]), MODEL, took)


async def batches_formed(client: AsyncClient, served_as: str, at_least: int) -> pb.ModelStatistics | None:
    """The model's statistics once they cover ``at_least`` rows, or after a bounded number of readings.

    Whoever counts is not whoever answers, so the counters may trail the last answer. None: it keeps none.
    """
    for _ in range(_READINGS):
        found = next(iter(await client.model_statistics(served_as)), None)
        if found is None or found.inference_count >= at_least:
            break
        await asyncio.sleep(_BETWEEN_READINGS_S)
    return found
