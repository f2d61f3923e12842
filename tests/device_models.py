"""Models for a device that compute y = 2x + 1 over FP32, on whatever device the test has.

`Compute` is how: a kernel in PTX on a real one (tests/gpu), a host function on the driver of the tests
(tests/cuda). What is around it is the same, so the same tests say the same of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from service.client import Client
from service.config import ServeConfig
from service.cuda.device import the_device
from service.cuda.driver import api, check
from service.cuda.model import UNBATCHED, Place, Settled, Shape
from service.engines.base import EngineError, UnservedShape
from service.models.spec import ModelSpec, TensorSpec

MB = 1 << 20


class Compute(Protocol):
    """Enqueues y = 2x + 1 for `count` floats at two addresses of the device, with the place's scratch."""

    def enqueue(self, stream: int, x: int, y: int, count: int, place: Place) -> None: ...

    def close(self) -> None: ...


class AffineModel:
    """A DeviceModel. `dims` with -1 make it one whose shapes are the batch's; `weights` bytes lie on the
    device as long as it lives; `most_rows` is what its context takes.
    """

    def __init__(
        self,
        compute: Callable[[], Compute],
        name: str = "affine",
        *,
        dims: tuple[int, ...] = (4,),
        sizes: tuple[int, ...] = (1, 4, 8),
        capturable: bool = True,
        scratch_bytes: int = MB,
        weights: int = 3 * MB,
        limit: int = 0,
        instances: int = 4,
        settling: bool = False,
        workspace: int = 0,
        longest: int = 1 << 20,
        config_json: str = "",
    ) -> None:
        tensors = [(TensorSpec(which, "FP32", dims),) for which in "xy"]
        most = sizes[-1]
        self.spec = ModelSpec(
            name, "1", "test", "test", most, *tensors, instances=instances, config_json=config_json
        )
        row = (1, *dims) if sizes != UNBATCHED else dims
        self.sample = [np.ones([8 if dim < 0 else dim for dim in row], np.float32)]
        self.sizes = sizes
        self.capturable = capturable and -1 not in dims
        self.scratch_bytes = scratch_bytes
        self.settling = settling
        self.workspace = workspace
        self.longest = longest
        self.memory = the_device().model_memory(name, limit)
        self.ran: list[Shape] = []  # what was enqueued, captures too
        self.fails = ""  # what enqueue raises
        self._weights = 0
        with self.memory.loading():
            self.memory.require(weights)
            self._weights = int(check(api().cuMemAlloc(weights), "weights")) if weights else 0
            self.compute = compute()

    def open_context(self, place: Place) -> AffineContext:
        return AffineContext(self, place)

    def close(self) -> None:
        if the_device().broken:
            return
        self.compute.close()
        if self._weights:
            check(api().cuMemFree(self._weights), "weights")
        self.memory.close()


class AffineContext:
    def __init__(self, model: AffineModel, place: Place) -> None:
        self._model = model
        self._place = place
        self._shape: Shape = ()
        self._x = self._y = 0
        self._own = 0

    def prepare(self, shapes: Sequence[Shape], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        (self._shape,), (self._x,), (self._y,) = shapes, inputs, outputs
        if prod(self._shape) > self._model.longest:
            raise UnservedShape(f"expected at most {self._model.longest} values, got {list(self._shape)}")

    def output_shapes(self) -> Sequence[Shape]:
        return [(self._shape[0], *[-1] * (len(self._shape) - 1))] if self._model.settling else [self._shape]

    def settled_shapes(self) -> Sequence[Settled]:
        return [Settled(self._shape, self._y)]

    def enqueue(self, stream: int) -> None:
        if self._model.fails:
            raise EngineError(self._model.fails)
        if self._model.settling:
            self._find_own(stream)
        self._model.ran.append(self._shape)
        count, pool = prod(self._shape), self._model.memory.pool if self._model.workspace else None
        inner = pool.allocate(self._model.workspace, stream) if pool else 0
        self._model.compute.enqueue(stream, self._x, self._y, count, self._place)
        if pool:
            pool.free(inner, stream)

    def _find_own(self, stream: int) -> None:
        """An output whose size depends on data is the engine's to find memory for."""
        pool = self._model.memory.pool
        if self._own:
            pool.free(self._own, stream)
        self._y = self._own = pool.allocate(4 * prod(self._shape), stream)

    def close(self) -> None:
        if self._own:
            self._model.memory.pool.free(self._own, self._place.stream)


# ---- what clients see, the same on every device ----


def device_config(**settings: Any) -> ServeConfig:
    sizes = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}
    return ServeConfig((), **{**sizes, **settings})


REQUESTS = 10_000  # of a thread, at most
ROWS = 8  # of a request, at most


def rows_of(thread: int, number: int, shape: Shape) -> np.ndarray[Any, Any]:
    """Rows of which no value is at its place in any other row, nor in any other request; 2x + 1 is exact."""
    rows, columns = shape[0], prod(shape[1:])
    first = (thread * REQUESTS + number) * ROWS + np.arange(rows, dtype=np.int32)[:, None]
    values = (first + np.arange(columns, dtype=np.int32)) % (1 << 22)
    return values.astype(np.float32).reshape(shape)


def ask_from_threads(
    address: str, models: Sequence[str], threads: int = 8, requests: int = 100, width: int = 4
) -> list[str]:
    """Every thread asks the models in turn, 1 to 8 rows at a time; a sentence for each wrong answer."""
    wrong: list[str] = []

    def ask(thread: int) -> None:
        with Client(address) as client:
            for number in range(requests):
                model = models[(thread + number) % len(models)]
                x = rows_of(thread, number, (1 + (thread + number) % ROWS, width))
                try:
                    y = client.infer(model, {"x": x}).outputs["y"]
                except Exception as error:
                    wrong.append(f"thread {thread}, request {number}: {error}")
                    continue
                if not np.array_equal(y, 2 * x + 1):
                    wrong.append(f"thread {thread}, request {number}: a wrong answer")

    running = [threading.Thread(target=ask, args=(thread,)) for thread in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return wrong
