"""What the front-end thread's loop does with answers whose clients have left; the dispatcher is a list."""

from __future__ import annotations

import asyncio
import os

from service.frontend.grpcio.calls import Calls
from service.models.spec import ModelSpec


class Scripted:
    """A dispatcher that answers what it is told to."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.answers: list[tuple[int, int, bytes, bool]] = []
        self.tokens: list[int] = []
        self.arms = 0

    def eventfd(self) -> int:
        return self.fd

    def submit(self, request: bytes, token: int, deadline_ns: int | None, stream: bool) -> int:
        self.tokens.append(token)
        return token

    def drain(self) -> list[tuple[int, int, bytes, bool]]:
        answers, self.answers = self.answers, []
        return answers

    def arm(self) -> bool:
        self.arms += 1
        return True

    def next_deadline(self) -> int | None:
        return None

    def cancel(self, handle: int) -> None:
        raise AssertionError("the answer was first")

    def close_lane(self, lane: int) -> list[int]:
        return self.tokens

    def set_models(self, models: list[tuple[int, int, ModelSpec]], known: object = ()) -> None:
        pass


class Broken:
    def set_result(self, answer: tuple[int, int, bytes, bool]) -> None:
        raise RuntimeError("a defect")


def test_a_sink_that_takes_nothing_costs_nobody_else_an_answer(capfd) -> None:
    async def scenario() -> None:
        dispatcher = Scripted()
        calls = Calls(dispatcher)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        cancelled, waiting = loop.create_future(), loop.create_future()
        tickets = [calls.submit(b"", sink, None, False) for sink in (cancelled, Broken(), waiting)]
        cancelled.cancel()  # as gRPC does it: the handler that calls `cancel` has not run yet
        armed = dispatcher.arms
        dispatcher.answers = [(token, 0, b"answer", False) for token, _ in tickets]
        os.eventfd_write(dispatcher.fd, 1)
        assert await asyncio.wait_for(waiting, 60) == (tickets[2][0], 0, b"answer", False)
        assert calls.in_flight == 0
        assert dispatcher.arms > armed, "the next answer will wake the loop"
        calls.cancel(tickets[0])
        calls.close()
        os.close(dispatcher.fd)

    asyncio.run(scenario())
    assert "a defect" in capfd.readouterr().err


def test_a_lane_that_closes_tells_everybody_who_is_still_there() -> None:
    async def scenario() -> None:
        dispatcher = Scripted()
        calls = Calls(dispatcher)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        cancelled, waiting = loop.create_future(), loop.create_future()
        for sink in (cancelled, waiting):
            calls.submit(b"", sink, None, False)
        cancelled.cancel()
        calls.close_lanes(0)
        assert (await asyncio.wait_for(waiting, 60))[1] == 14
        calls.close()
        os.close(dispatcher.fd)

    asyncio.run(scenario())
