"""Random traffic through one front-end thread and two workers: every token is told once, with its data."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from dispatch_rig import Rig, arrays, model, request, response

from service.frontend._dispatch import RequestError

DEADLINE, EXHAUSTED = 4, 8
A, B = model("a"), model("b", max_batch_size=0)


class Traffic:
    """What the clients know: who still waits, and what each should get."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(arena_mb=1, slots=16)
        self.lanes = [self.rig.worker(A), self.rig.worker(B)]
        self.waiting: dict[int, tuple[int, float]] = {}
        self.answered = self.refused = self.expired = 0

    def send(self) -> None:
        value = self.random.randrange(1000)
        values = np.full((self.random.randint(1, 6), self.random.choice([1, 3, 500])), value, "<f4")
        wire = request(A, values) if self.random.random() < 0.5 else request(B, values[0])
        at = None if self.random.random() < 0.5 else self.rig.now + self.random.randint(1, 2000)
        try:
            token, handle = self.rig.submit(wire, deadline_ns=at)
        except RequestError as error:
            assert error.code == EXHAUSTED
            self.refused += 1
        else:
            self.waiting[token] = (handle, value)

    def cancel(self) -> None:
        if self.waiting:
            handle, _ = self.waiting.pop(self.random.choice(list(self.waiting)))
            self.rig.dispatcher.cancel(handle)

    def pass_time(self) -> None:
        self.rig.pass_time(self.random.randint(1, 1000))

    def work(self) -> None:
        self.rig.workers[self.random.choice(self.lanes)].run()

    def drain(self) -> None:
        for token, (code, payload) in self.rig.drain().items():
            _, value = self.waiting.pop(token)
            self.answered += code == 0
            self.expired += code == DEADLINE
            assert code in (0, DEADLINE)
            assert code or (arrays(response(payload))["Y"] == value).all()


@pytest.mark.parametrize("seed", range(5))
def test_every_token_is_told_just_once(seed: int) -> None:
    traffic = Traffic(seed)
    steps = [traffic.send] * 10 + [traffic.cancel, traffic.pass_time, traffic.work, traffic.drain]
    for _ in range(1200):
        traffic.random.choice(steps)()
        assert traffic.rig.dispatcher.check() == 0
    for worker in traffic.rig.workers.values():
        worker.run()
    traffic.drain()
    assert traffic.waiting == {} and traffic.rig.at_rest()
    assert min(traffic.answered, traffic.refused, traffic.expired) > 10, "the traffic should meet everything"
