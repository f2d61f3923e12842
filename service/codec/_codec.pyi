from collections.abc import Iterable
from typing import Any

from service.models.spec import ModelSpec

MAX_TENSORS: int
MAX_RANK: int

class Spec:
    def __init__(self, model: ModelSpec, id: int = 1, worker: int = 0) -> None: ...

class Response:
    def __init__(
        self,
        *,
        stream: bool = False,
        final: bool | None = None,
        error: bytes = b"",
        model_name: bytes = b"",
        model_version: bytes = b"",
        id: bytes = b"",
        outputs: list[tuple[bytes, bytes, tuple[int, ...], bytes]] = ...,
    ) -> None: ...
    def encode(self) -> bytes: ...
    def segments(self) -> tuple[list[bytes], int]: ...

def scan(message: bytes) -> dict[str, Any]: ...
def find_raw(head: bytes) -> int: ...
def validate(spec: Spec, message: bytes, piece: int = ...) -> dict[str, Any]: ...
def find(specs: list[Spec], name: str, version: str, known: Iterable[tuple[str, str, str]] = ...) -> int: ...
def repeat(spec: Spec | None, message: bytes, times: int) -> None: ...
