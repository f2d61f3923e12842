"""What a health watcher is told when the server changes and ends in one turn of its loop."""

from __future__ import annotations

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from service.frontend.grpcio.standard import Health


def status(message: bytes) -> int:
    return health_pb2.HealthCheckResponse.FromString(message).status


def test_the_last_change_is_told_before_the_end():
    async def scenario() -> None:
        ready = True
        health = Health(lambda: ready)
        watch = health.watch(b"", None)
        assert status(await anext(watch)) == health_pb2.HealthCheckResponse.SERVING
        last = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        ready = False
        health.changed()
        health.close()
        assert status(await last) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    asyncio.run(asyncio.wait_for(scenario(), 60))
