from typing import NamedTuple, NoReturn, Self

NEVER: int
REASONS: tuple[str, ...]

class Step(NamedTuple):
    closes: bool
    rows: int
    reason: str | None
    until_ns: int

class Count(NamedTuple):
    count: int  # type: ignore[assignment]  # hides tuple.count, on purpose: it is the protocol's word
    ns: int

class SizeStats(NamedTuple):
    rows: int
    executions: int
    input_ns: int
    compute_ns: int
    output_ns: int

class ModelStats(NamedTuple):
    model: int
    rows: int
    executions: int
    last_unix_ms: int
    success: Count
    fail: Count
    queue: Count
    input: Count
    compute: Count
    output: Count
    cancelled: int
    expired: int
    slow: int
    pending_rows: int
    padding_rows: int
    engine: tuple[int, ...]
    reasons: dict[str, int]
    sizes: list[SizeStats]

def next_step(
    *,
    now: int,
    rows: int,
    requests: int,
    full: bool,
    oldest_ns: int,
    max_batch: int,
    max_wait_ns: int = 0,
    head_start_ns: int = 0,
    deadline_ns: int = ...,
    predicted_ns: int = 0,
    idle: int = 0,
    behind: int = 0,
    end_ns: int = ...,
) -> Step: ...

class WorkerPage:
    def __new__(cls, fd: int) -> Self: ...
    def stats(self) -> list[ModelStats]: ...
    def stats_of(self, id: int) -> ModelStats | None: ...
    def __reduce__(self) -> NoReturn: ...
