"""What clients are told when a batch fails on a device, and which code they get."""

from __future__ import annotations

import pytest

from service.cuda.driver import DriverError
from service.engines.base import EngineError, UnservedShape
from service.errors import Code
from service.worker.launcher import describe_failure


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            DriverError(2, "CUDA_ERROR_OUT_OF_MEMORY", "allocating 3 MB"),
            Code.RESOURCE_EXHAUSTED,
            "no more memory",
        ),
        (DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "copying"), Code.UNAVAILABLE, "its device was lost"),
        (DriverError(1, "CUDA_ERROR_INVALID_VALUE", "copying"), Code.INTERNAL, "failed on its device"),
        (UnservedShape("17 rows, 16 at most"), Code.INVALID_ARGUMENT, "17 rows"),
        (EngineError("it fell over"), Code.INTERNAL, "it fell over"),
    ],
)
def test_what_a_failed_batch_is_answered(error: Exception, code: Code, words: str) -> None:
    found, message = describe_failure(error, "resnet")
    assert found == code
    assert words in message
