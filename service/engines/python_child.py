"""The child process of one instance of a python model: imports the user's `model.py` and runs its class.

    load {parent, where, file, config, max_batch_size, inputs, outputs} + [input memfd, output memfd]
                                              -> loaded {} | failed {message}, and the process ends
    execute {rows, capacity, shapes, sizes}   -> done {capacity, shapes, sizes} | failed {message}
    finalize {}                               the last word; the process ends when the model has finalized

`capacity` is how large the memory of the inputs, or of the outputs, is by now; shapes and sizes (in bytes)
are of the whole batch, in model order, and the sizes say where each tensor lies (`python_memory`). No tensor
of numbers is copied on its way in: the model sees arrays on the shared memory, its own until execute returns.
Its outputs are checked against the model's configuration and copied once, into the memory for outputs.
`python_tensors` says what BYTES and BF16 are to it.

Whatever the model raises fails the batch, also SystemExit: the process goes on. What it prints goes to the
service's log, which is standard error; a traceback goes there too. The process ends with the worker: the
kernel kills it (PDEATHSIG), and where that was set too late, `parent` is no longer its parent.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO, cast

import numpy as np

from service.control import Channel, Message
from service.engines.python_memory import TensorMemory, layout
from service.engines.python_tensors import (
    Held,
    WrongElement,
    held,
    input_of,
    may_be,
    put,
    seen_dtype,
    size_of,
)
from service.errors import EXIT_BAD_START, EXIT_OK
from service.log import one_line, say, say_exception
from service.models.spec import DYNAMIC, TensorSpec
from service.process import control_fd, die_with_parent

CLASS = "Model"
MAX_TEXT = 1000

Array = np.ndarray[Any, Any]


class WrongAnswer(Exception):
    """What execute returned is not what the model's configuration says. One clause."""


def load_model(file: str, config: dict[str, Any]) -> Any:
    """An initialized object of the file's class. Raises whatever goes wrong there, and TypeError."""
    spec = importlib.util.spec_from_file_location("model", file)
    if spec is None or spec.loader is None:
        raise TypeError(f"{file} is not a Python file")
    sys.path.insert(0, os.path.dirname(file))  # as when a script is run: its own modules beside it
    sys.dont_write_bytecode = True  # a model's folder is the user's
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    spec.loader.exec_module(module)
    cls = getattr(module, CLASS, None)
    if not isinstance(cls, type):
        raise TypeError(f"it has no class '{CLASS}'")
    if not callable(getattr(cls, "execute", None)):
        raise TypeError(f"its class '{CLASS}' has no method 'execute'")
    model = cls()
    if hasattr(model, "initialize"):
        model.initialize(config)
    return model


class Host:
    """The model in this process, and the memory its tensors are in."""

    def __init__(self, load: Message) -> None:
        body = load.body
        input_fd, output_fd = load.take_fds()
        self._where = body["where"]
        self._input_memory, self._output_memory = TensorMemory(input_fd), TensorMemory(output_fd)
        self._inputs = [(name, datatype) for name, datatype in body["inputs"]]
        self._outputs = [TensorSpec(name, datatype, tuple(dims)) for name, datatype, dims in body["outputs"]]
        self._names = {tensor.name for tensor in self._outputs}
        self._batches = body["max_batch_size"] > 0
        self._model = load_model(body["file"], body["config"])

    def run(self, message: Message) -> tuple[str, dict[str, Any]]:
        """Executes a batch: kind and body of what to answer. Raises nothing."""
        try:
            answer = self._model.execute(self._views(message.body))
            arrays = self._checked(answer, message.body["rows"])
            return "done", self._put(arrays, message.body["rows"])
        except WrongAnswer as error:
            return "failed", {"message": describe("a wrong answer", error)}
        except BaseException as error:
            say(f"{self._where}: execute failed")
            say_exception(error)
            return "failed", {"message": describe(type(error).__name__, error)}

    def finalize(self) -> None:
        """The model's last act. Nobody waits for an answer, so that its failure is only said in the log."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            say(f"{self._where}: finalize failed")
            say_exception(error)

    def _views(self, body: dict[str, Any]) -> dict[str, Array]:
        memory, sizes = self._input_memory, body["sizes"]
        memory.follow(body["capacity"])
        offsets, _ = layout(sizes)
        places = zip(self._inputs, offsets, sizes, body["shapes"], strict=True)
        return {
            name: input_of(memory, offset, size, shape, datatype)
            for (name, datatype), offset, size, shape in places
        }

    def _checked(self, answer: Any, rows: int) -> list[Array]:
        """The outputs in model order. Raises WrongAnswer."""
        if not isinstance(answer, dict):
            raise WrongAnswer(f"execute returned {_kind(answer)}; expected a dict of name to numpy array")
        if extra := [name for name in answer if name not in self._names]:
            known = ", ".join(f"'{tensor.name}'" for tensor in self._outputs)
            raise WrongAnswer(f"output {extra[0]!r} is not an output of the model; expected {known}")
        return [self._checked_output(tensor, answer, rows) for tensor in self._outputs]

    def _checked_output(self, tensor: TensorSpec, answer: dict[str, Any], rows: int) -> Array:
        what = f"output '{tensor.name}'"
        if tensor.name not in answer:
            came = ", ".join(f"'{name}'" for name in answer) or "nothing"
            raise WrongAnswer(f"{what} is missing; got {came}")
        array, dtype = answer[tensor.name], seen_dtype(tensor.datatype)
        if isinstance(array, (np.generic, bytes, str)):  # arithmetic on a scalar array makes one of these
            array = np.asarray(array, seen_dtype("BYTES") if isinstance(array, (bytes, str)) else None)
        if not isinstance(array, np.ndarray):
            raise WrongAnswer(f"{what} is {_kind(array)}; expected a numpy array of {dtype}")
        if not may_be(array, tensor.datatype):
            raise WrongAnswer(f"{what} has dtype {array.dtype}; expected {dtype} ({tensor.datatype})")
        expected = (rows, *tensor.dims) if self._batches else tensor.dims
        if self._batches and array.ndim and array.shape[0] != rows:
            came = f"has {array.shape[0]} rows (shape {list(array.shape)})"
            raise WrongAnswer(f"{what} {came}; expected {rows}, as many as the inputs")
        if not _fits(array.shape, expected):
            raise WrongAnswer(f"{what} has shape {list(array.shape)}; expected {list(expected)}")
        return array

    def _put(self, arrays: Sequence[Array], rows: int) -> dict[str, Any]:
        """Writes the outputs into their memory; what to say of them. Raises WrongAnswer."""
        values = [self._held(*pair, rows) for pair in zip(self._outputs, arrays, strict=True)]
        memory, sizes = self._output_memory, [size_of(value) for value in values]
        offsets, total = layout(sizes)
        memory.grow(total)
        for value, offset in zip(values, offsets, strict=True):
            put(memory, offset, value)
        return {"shapes": [array.shape for array in arrays], "sizes": sizes, "capacity": memory.capacity}

    def _held(self, tensor: TensorSpec, array: Array, rows: int) -> Held:
        try:
            return held(array, tensor.datatype, rows if self._batches else 1)
        except WrongElement as error:
            raise WrongAnswer(f"output '{tensor.name}' {error}") from error


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    return len(shape) == len(expected) and all(
        came == wanted or wanted == DYNAMIC for came, wanted in zip(shape, expected, strict=True)
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def describe(what: str, error: BaseException) -> str:
    """One line for a client: what it was, and what it says."""
    try:
        said = str(error)
    except Exception:  # its __str__ is the user's, too
        said = ""
    text = one_line(f"{what}: {said}" if said else what)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def _say_to_the_log() -> None:
    """Standard output becomes standard error, line by line: what a crash leaves unsaid is half a line."""
    os.dup2(2, 1)
    cast(TextIO, sys.stdout).reconfigure(line_buffering=True)  # type: ignore[attr-defined]


def main(arguments: Sequence[str]) -> int:
    """The life of a child process; its exit code."""
    die_with_parent()
    fd = control_fd(arguments)
    os.set_inheritable(fd, False)  # what the model starts has no part in this
    channel = Channel.from_fd(fd)
    load = channel.receive()
    if load is None or load.body["parent"] != os.getppid():
        return EXIT_OK
    _say_to_the_log()
    try:
        host = Host(load)
    except BaseException as error:
        say(f"{load.body['where']}: could not be loaded")
        say_exception(error)
        channel.send("failed", {"message": describe(type(error).__name__, error)})
        return EXIT_BAD_START
    channel.send("loaded")
    while (message := channel.receive()) is not None:
        if message.kind == "finalize":
            host.finalize()
            break
        channel.send(*host.run(message))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
