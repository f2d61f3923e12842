from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn, Self

from typing_extensions import Buffer

NEVER: int

class Completion(NamedTuple):
    slot: int
    status: int
    again: bool
    message: str
    outputs: list[tuple[tuple[int, ...], bytes]]
    batch: int
    batch_rows: int
    reason: int
    queue_ns: int
    input_ns: int
    compute_ns: int
    output_ns: int
    done_ns: int

class InputArena:
    @property
    def fd(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def __new__(cls, megabytes: int = 256, spill_mb: int = 0) -> Self: ...
    def check(self) -> int: ...
    def __reduce__(self) -> NoReturn: ...

class FrontLane:
    @property
    def fd(self) -> int: ...
    @property
    def eventfd(self) -> int: ...
    @property
    def fds(self) -> tuple[int, int, int]: ...
    @property
    def free_count(self) -> int: ...
    def __new__(cls, arena: InputArena, slots: int = 1024, eventfd: int | None = None) -> Self: ...
    def attach_worker(self, page_fd: int, output_fd: int) -> None: ...
    def submit(
        self,
        model: int,
        rows: int,
        tensors: Sequence[tuple[int, Iterable[int], Buffer] | tuple[int, Iterable[int], Buffer, Buffer]],
        deadline_ns: int | None = None,
        arrival_ns: int | None = None,
        priority: int = 0,
    ) -> int: ...
    def cancel(self, number: int) -> None: ...
    def poll(self) -> Completion | None: ...
    def arm(self) -> bool: ...
    def __reduce__(self) -> NoReturn: ...
