"""Memory that TensorRT asks for: counted while a model is loaded, of the model's pool afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from device_models import MB

from service.cuda.device import the_device
from service.cuda.driver import api, check
from service.cuda.memory import ModelMemory
from service.engines.tensorrt_runtime import Allocator, Words

LIMIT = 64 * MB


class Model:
    """What a model has of its device."""

    def __init__(self) -> None:
        self.memory: ModelMemory = the_device().model_memory("m", LIMIT)
        self.words = Words()
        self.allocator = Allocator(self.memory, self.words)
        self.stream = the_device().new_stream()

    def close(self) -> None:
        check(api().cuStreamSynchronize(self.stream), "waiting until what was freed on it is free")
        self.allocator.close()
        self.memory.close()
        check(api().cuStreamDestroy(self.stream), "ending a stream")


@pytest.fixture
def model(fake: ctypes.CDLL) -> Iterator[Model]:
    found = Model()
    yield found
    found.close()


def test_what_a_load_takes_is_counted_and_is_not_the_pools(model: Model) -> None:
    with model.memory.loading():
        weights = model.allocator.allocate(8 * MB, 0)
        model.allocator.serving = True
        context = model.allocator.allocate(2 * MB, 0)  # a context is made when the model serves already
    assert weights and context
    assert model.memory.loaded_bytes == 10 * MB
    assert model.memory.pool.reserved_bytes == 0
    assert model.allocator.free(context, 0) and model.allocator.free(weights, 0)


@pytest.mark.parametrize("named", [False, True])
def test_what_is_taken_afterwards_is_the_pools_with_or_without_a_stream(model: Model, named: bool) -> None:
    model.allocator.serving = True
    stream = model.stream if named else 0
    address = model.allocator.allocate(8 * MB, stream)
    assert address
    assert model.memory.pool.reserved_bytes >= 8 * MB
    assert model.allocator.allocate(LIMIT, stream) is None
    assert "from a pool of 64 MB" in model.words.last()
    assert model.allocator.free(address, 0)  # the driver of the tests hears of the default stream
    assert model.allocator.free(address, stream) is False, "it is not there any more"


def test_what_it_does_not_know_is_not_given_back(model: Model) -> None:
    model.allocator.serving = True
    assert not model.allocator.free(0x1000, 0)
