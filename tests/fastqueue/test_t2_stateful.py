"""The queue against a model of it: whatever is sent, cancelled, run, failed, read or cut off, in any order,
every request gets exactly one completion with the right rows, and all memory comes back."""

from __future__ import annotations

import os

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from queue_rig import MS, Rig

from fastqueue import Batch, FrontLane, InputArena, Level
from fastqueue.errors import QueueFull

pytestmark = pytest.mark.t2

OK, CANCELLED, DEADLINE, EXHAUSTED, INTERNAL = 0, 1, 4, 8, 13
LEVELS = [Level(), Level(timeout_ns=4 * MS), Level(timeout_ns=2 * MS, delay=True), Level(max_queue=2)]


class Queue(RuleBasedStateMachine):
    slots_in_flight = Bundle("slots_in_flight")

    @initialize(
        max_batch=st.integers(1, 9), slots=st.sampled_from([1, 4, 16]), wait_ms=st.sampled_from([0, 0, 3])
    )
    def start(self, max_batch: int, slots: int, wait_ms: int) -> None:
        self.rig = Rig(
            max_batch=max_batch,
            slots=slots,
            max_wait_ns=wait_ms * MS,
            output_mb=1,
            arena_mb=2,
            output_row_bytes=[-1],
            levels=LEVELS,
            default_level=1,
        )
        self.expected: dict[int, set[int]] = {}  # slot: statuses that may come
        self.batches: list[Batch] = []

    @rule(
        target=slots_in_flight,
        rows=st.integers(0, 20),
        width=st.sampled_from([4, 4, 6]),
        ttl=st.none() | st.integers(1, 9),
        priority=st.integers(0, 5),
    )
    def submit(self, rows: int, width: int, ttl: int | None, priority: int) -> int:
        deadline = None if ttl is None else self.rig.now + ttl * MS
        free = self.rig.lane.free_count
        try:
            slot = self.rig.submit(rows, width=width, deadline_ns=deadline, priority=priority)
        except QueueFull:
            assert free == 0
            return -1
        assert slot not in self.expected, "a slot is out once"
        level = LEVELS[priority - 1 if 1 <= priority <= len(LEVELS) else 1]
        self.expected[slot] = {OK}
        if ttl is not None or (level.timeout_ns and not level.delay):
            self.expected[slot].add(DEADLINE)
        if level.max_queue:
            self.expected[slot].add(EXHAUSTED)
        return slot

    @rule(slot=slots_in_flight)
    def cancel(self, slot: int) -> None:
        if slot in self.expected:
            self.rig.lane.cancel(slot)
            self.expected[slot].add(CANCELLED)

    @rule(ms=st.integers(1, 5))
    def time_passes(self, ms: int) -> None:
        self.rig.clock(self.rig.now + ms * MS)

    @rule()
    def step(self) -> None:
        self.rig.step()

    @rule()
    def launch(self) -> None:
        batch = self.rig.launch()
        if batch is not None and batch.check():
            assert batch.request_count > 0
            self.batches.append(batch)

    @rule()
    def compute(self) -> None:
        if self.batches:
            self.rig.compute(self.batches.pop(0))

    @rule(slots=consumes(slots_in_flight))
    def fail(self, slots: int) -> None:
        if self.batches:
            self.batches.pop(0).fail(INTERNAL, "the engine broke")
            for statuses in self.expected.values():
                statuses.add(INTERNAL)

    @rule()
    def read(self) -> None:
        for slot, completion in self.rig.poll().items():
            allowed = self.expected.pop(slot)
            assert completion.status in allowed, completion
            assert bool(completion.outputs) == (completion.status == OK)

    @invariant()
    def bookkeeping_holds(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.former.check() == 0
            assert self.rig.arena.check() == 0

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for batch in self.batches:
            self.rig.compute(batch)
        self.rig.clock(self.rig.now + 100 * MS)
        while self.expected:
            before = len(self.expected)
            self.rig.run_all()
            self.read()
            assert len(self.expected) < before, f"never completed: {self.expected}"
        self.rig.assert_clean()


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=int(os.environ.get("FQ_EXAMPLES", "150")), stateful_step_count=60, deadline=None
)


class Death(RuleBasedStateMachine):
    """Front ends come and go on one worker: whatever they left behind is gone with them."""

    @initialize()
    def start(self) -> None:
        self.rig = Rig(max_batch=4, slots=16, output_mb=1)
        self.others: list[tuple[int, FrontLane]] = []
        self.batches: list[Batch] = []

    @rule()
    def attach(self) -> None:
        if len(self.others) < 5:
            lane = FrontLane(InputArena(1), 16)
            number = self.rig.former.attach_lane(*lane.fds)
            lane.attach_worker(self.rig.former.page_fd, self.rig.former.output_fd)
            self.others.append((number, lane))

    @rule(which=st.integers(0, 4), rows=st.integers(1, 6))
    def submit(self, which: int, rows: int) -> None:
        if which < len(self.others) and self.others[which][1].free_count:
            x = np.zeros((rows, 4), np.float32)
            self.others[which][1].submit(1, rows, [(0, x.shape, x)], None, self.rig.now)

    @rule()
    def run(self) -> None:
        while (batch := self.rig.launch()) is not None:
            if batch.check():
                self.rig.compute(batch)

    @rule(which=st.integers(0, 4))
    def read(self, which: int) -> None:
        if which < len(self.others):
            while (completion := self.others[which][1].poll()) is not None:
                assert completion.status == OK

    @rule(which=st.integers(0, 4))
    def die(self, which: int) -> None:
        if which < len(self.others):
            self.run_closed()
            number, _ = self.others.pop(which)
            self.rig.former.detach_lane(number)

    def run_closed(self) -> None:
        """A detach waits for what is launched or closed; here no launcher thread runs it meanwhile."""
        while (batch := self.rig.former.try_batch(self.rig.streams[0])) is not None:
            if batch.check():
                self.rig.compute(batch)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        while self.others:
            self.die(0)
        self.rig.assert_clean()


TestDeath = Death.TestCase
TestDeath.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
