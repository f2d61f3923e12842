"""In which order a front end acts and speaks when a worker comes and goes: threads that serve requests must
never be behind what the service says of itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from fastqueue import BatchFormer
from service.control import AsyncChannel, socket_pair
from service.frontend.catalog import Catalog
from service.frontend.links import FDS_PER_LANE, Links
from service.models.spec import ModelSpec


class Order:
    """Lanes that write down what is done to them, and a catalog's readiness as it is said."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.catalog = Catalog()
        self.links = Links(self, self.catalog, lambda: self.did.append(f"ready: {self.catalog.all_up}"))

    def open_lanes(self) -> tuple[int, list[int]]:
        return 0, [0] * FDS_PER_LANE

    def attach_lanes(self, lane: int, page_fd: int, output_fd: int) -> None:
        self.did.append("attach")

    def close_lanes(self, lane: int) -> None:
        self.did.append("close")

    def free_lanes(self, lane: int) -> None:
        self.did.append("free")

    def set_models(self, models: list[tuple[int, int, ModelSpec]], known: list[tuple[str, str, str]]) -> None:
        self.did.append("set models")


async def one_life(order: Order, former: BatchFormer, process_fds: Sequence[int] = ()) -> None:
    """A worker that becomes ready, serves other models, says that one is down, and ends."""
    ours, theirs = socket_pair()
    serving = asyncio.create_task(order.links.serve(0, ours))
    worker = AsyncChannel(theirs)
    hello = await worker.receive()
    assert hello is not None and hello.kind == "hello"
    for fd in hello.take_fds():
        os.close(fd)
    body = {"models": [], "devices": ["CPU"], "states": {}}
    await worker.send("ready", body, [former.page_fd, former.output_fd, *process_fds])
    await worker.send("models", {"models": [], "swap": 1})
    await worker.send("state", {"model": "a", "versions": [["1", "UNAVAILABLE", "down"]]})
    swapped = await worker.receive()
    assert swapped is not None and swapped.kind == "swapped"
    worker.close()
    assert await serving == ""


def test_what_is_said_follows_what_is_done_when_it_is_good_and_comes_first_when_it_is_bad() -> None:
    order = Order()
    asyncio.run(one_life(order, BatchFormer(1)))
    ready = ["attach", "set models", "ready: True"]
    models = ["set models", "ready: True"]
    state = ["set models", "ready: True"]
    end = ["ready: False", "close", "free"]
    assert order.did == ready + models + state + end


def test_the_memory_of_a_worker_that_is_gone_is_free_when_its_process_has_ended() -> None:
    order, process = Order(), os.eventfd(0)

    async def scenario() -> None:
        await one_life(order, BatchFormer(1), [process])
        await asyncio.sleep(0)  # what is ready is looked at
        assert order.did[-1] == "close"
        os.eventfd_write(process, 1)
        async with asyncio.timeout(60):
            while order.did[-1] == "close":
                await asyncio.sleep(0)
        order.links.close()

    asyncio.run(scenario())
    assert order.did[-2:] == ["close", "free"]
    os.close(process)


def test_at_the_end_no_process_is_waited_for() -> None:
    order, (process, other_end) = Order(), os.pipe()

    async def scenario() -> None:
        await one_life(order, BatchFormer(1), [process])
        os.close(process)
        order.links.close()

    asyncio.run(scenario())
    assert order.did[-1] == "close"
    with pytest.raises(BrokenPipeError):  # nobody has the descriptor any more
        os.write(other_end, b"x")
    os.close(other_end)
