"""The loop of one stream's thread: take the next batch, run it, and answer it whatever happens.

A batch that was launched is always answered: by the engine (`batch.complete`), or here, with the engine's
error. An exception fails the batch it came from and nothing else; the next batch finds the launcher as
before.
"""

from __future__ import annotations

from fastqueue import Batch, BatchFormer, QueueError
from fastqueue.errors import OutputTooLarge, QueueFull
from service.cuda.driver import OUT_OF_MEMORY, DriverError
from service.engines.base import EngineError, Instance, UnservedShape
from service.errors import Code
from service.log import say_exception


def run_stream(former: BatchFormer, stream: int, instance: Instance, model: str) -> None:
    """Runs batches until the stream is removed or the former closes. The wait is without the GIL."""
    while (batch := former.next_batch(stream)) is not None:
        if batch.check():
            run_batch(batch, instance, model)


def run_batch(batch: Batch, instance: Instance, model: str) -> None:
    """Executes one batch. Raises nothing: what goes wrong is the batch's answer."""
    try:
        instance.execute(batch)
    except Exception as error:
        answer_failure(batch, error, model)
    else:
        answer_if_open(batch, Code.INTERNAL, f"model '{model}' returned without an answer")


def answer_failure(batch: Batch, error: Exception, model: str) -> None:
    """Fails the batch with what was raised while it was run, unless it was answered before."""
    code, message = describe_failure(error, model)
    answer_if_open(batch, code, message, again=isinstance(error, QueueFull))


def answer_if_open(batch: Batch, code: Code, message: str, again: bool = False) -> None:
    """Fails the batch, unless the engine has answered it. `again`: its clients may come back later."""
    try:
        batch.fail(code, message, again)
    except QueueError:
        pass  # the usual case: the batch is done


def describe_failure(error: Exception, model: str) -> tuple[Code, str]:
    """What the clients of a failed batch are told. What no engine foresaw also leaves a traceback here."""
    if isinstance(error, EngineError):
        return Code.INVALID_ARGUMENT if isinstance(error, UnservedShape) else Code.INTERNAL, str(error)
    if isinstance(error, DriverError):
        return _device_failure(error, model)
    if isinstance(error, OutputTooLarge | QueueFull):
        return Code.RESOURCE_EXHAUSTED, f"model '{model}': {error}"
    say_exception(error)
    return Code.INTERNAL, f"model '{model}' failed: {type(error).__name__}: {error}"


def _device_failure(error: DriverError, model: str) -> tuple[Code, str]:
    if error.code == OUT_OF_MEMORY:
        return Code.RESOURCE_EXHAUSTED, f"model '{model}' has no more memory on its device: {error}"
    if error.is_sticky:
        return Code.UNAVAILABLE, f"model '{model}': its device was lost: {error}"
    return Code.INTERNAL, f"model '{model}' failed on its device: {error}"
