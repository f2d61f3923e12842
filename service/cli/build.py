"""``headrace build``: an ONNX file to a TensorRT plan, with the config to serve it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.common import examples, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.engines.tensorrt_build import Built, Progress
    from service.engines.tensorrt_options import BuildOptions, Range

EPILOG = examples(
    "headrace build model.onnx --batch 1,8,32                     # model.plan, for batches of 1 to 32",
    "headrace build model.onnx --batch 1,8,32 --fp16 -o models/resnet50/1/model.plan",
    "headrace build model.onnx --batch 1,8,32 --int8 --calibration images.npz",
    "headrace build text.onnx --min-shapes ids:1x1 --opt-shapes ids:8x128 --max-shapes ids:32x512",
    "headrace build model.onnx --batch 1,8,32 --compute-capability 8.9   # without a GPU",
)
SHAPES = "NAME:1x3x224x224,..."


def build(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.plan", show_default="beside the model", help="The plan."
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="MIN,OPT,MAX", help="Rows of a batch: the least, the usual, the most.")
    ] = "",
    min_rows: Annotated[int, typer.Option("--min", metavar="ROWS", help="The same, one by one.")] = 0,
    opt_rows: Annotated[int, typer.Option("--opt", metavar="ROWS")] = 0,
    max_rows: Annotated[int, typer.Option("--max", metavar="ROWS")] = 0,
    min_shapes: Annotated[
        str, typer.Option(metavar=SHAPES, help="Whole shapes, batch first, where other sizes are open too.")
    ] = "",
    opt_shapes: Annotated[str, typer.Option(metavar=SHAPES)] = "",
    max_shapes: Annotated[str, typer.Option(metavar=SHAPES)] = "",
    fp16: Annotated[
        bool, typer.Option("--fp16", help="Layers may be computed in FP16 (TensorRT 10).")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Layers may be computed in INT8: from Q/DQ nodes, or with --calibration."
        ),
    ] = False,
    calibration: Annotated[
        str,
        typer.Option(
            metavar="DATA", help="Inputs to find ranges with: .npz, an array of rows per input, or .npy."
        ),
    ] = "",
    workspace: Annotated[
        int, typer.Option(metavar="MB", help="Device memory a layer may take; 0: all there is.")
    ] = 0,
    timing_cache: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default="beside the plan", help="What was timed; the next build uses it."
        ),
    ] = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="LIB", help="A library with layers of your own; more than once."),
    ] = None,
    compute_capability: Annotated[
        str,
        typer.Option(metavar="8.9", help="Build with TensorRT-RTX for such devices; needs no GPU here."),
    ] = "",
) -> None:
    """Build a TensorRT plan from an ONNX model, and a config.pbtxt to serve it with.

    A plan runs on the kind of device and the version of TensorRT that it was built with, so build where you
    serve. Ctrl-C ends the build.
    """
    from service.engines.tensorrt_options import BuildError, BuildOptions

    plan = output or model.with_suffix(".plan")
    try:
        options = BuildOptions(
            batch=rows_of(batch, (min_rows, opt_rows, max_rows)),
            shapes=shapes_of(min_shapes, opt_shapes, max_shapes),
            fp16=fp16,
            int8=int8,
            calibration=calibration,
            calibration_cache=f"{plan}.calibration" if calibration else "",
            workspace_mb=workspace,
            timing_cache=f"{plan}.timing" if timing_cache is None else timing_cache,
            plugins=tuple(plugin or ()),
            compute_capability=compute_capability,
        )
        if not plan.parent.is_dir():
            raise BuildError(f"the folder of {plan} is not there; make it first: mkdir -p {plan.parent}")
        built = _built(str(model), options)
    except BuildError as error:
        fail(str(error), 2)
    plan.write_bytes(built.plan)
    for line in [*summary(plan, built), config_beside(plan, built)]:
        typer.echo(line)


def rows_of(batch: str, one_by_one: Sequence[int]) -> tuple[int, int, int] | None:
    """The least, usual and largest batch. Raises BuildError."""
    from service.engines.tensorrt_options import BuildError

    if batch and any(one_by_one):
        raise BuildError("--batch says all of --min, --opt and --max; give one or the other")
    if not batch and not any(one_by_one):
        return None
    try:
        rows = [int(part) for part in batch.split(",")] if batch else list(one_by_one)
    except ValueError:
        rows = []
    if len(rows) == 1:
        rows *= 3
    if len(rows) != 3 or not 1 <= rows[0] <= rows[1] <= rows[2]:
        got = f"--batch {batch}" if batch else "--min {} --opt {} --max {}".format(*one_by_one)
        raise BuildError(f"expected 1 <= min <= opt <= max, as in --batch 1,8,32, got {got}")
    return rows[0], rows[1], rows[2]


def shapes_of(least: str, usual: str, most: str) -> dict[str, Range]:
    """Ranges by input. Raises BuildError."""
    from service.engines.tensorrt_options import BuildError

    flags = {"--min-shapes": least, "--opt-shapes": usual, "--max-shapes": most}
    parsed = [_parsed(flag, text) for flag, text in flags.items()]
    for name in dict.fromkeys(name for shapes in parsed for name in shapes):
        for flag, shapes in zip(flags, parsed, strict=True):
            if name not in shapes:
                raise BuildError(f"input '{name}' has no shape in {flag}; all three are needed")
    return {name: (parsed[0][name], parsed[1][name], parsed[2][name]) for name in parsed[0]}


def _parsed(flag: str, text: str) -> dict[str, tuple[int, ...]]:
    from service.engines.tensorrt_options import BuildError

    found = {}
    for part in filter(None, text.split(",")):
        name, colon, dims = part.rpartition(":")
        sizes = dims.split("x")
        if not colon or not name or not all(size.isdecimal() for size in sizes):
            raise BuildError(f"{flag}: expected NAME:1x3x224x224, got '{part}'")
        found[name] = tuple(int(size) for size in sizes)
    return found


# ---- while it is built ----


def _built(model: str, options: BuildOptions) -> Built:
    """Builds in a thread of its own: this one must hear Ctrl-C, and TensorRT holds its own for minutes."""
    from service.engines.tensorrt_build import build
    from service.engines.tensorrt_options import BuildError

    result: list[Built | BaseException] = []

    def run(progress: Progress) -> None:
        try:
            result.append(build(model, options, progress))
        except BaseException as error:
            result.append(error)

    with shown() as bars:
        thread = threading.Thread(target=run, args=(bars,), name="build", daemon=True)
        thread.start()
        while thread.is_alive():
            try:
                thread.join(0.2)
            except KeyboardInterrupt:
                bars.ended = True
    (found,) = result
    if bars.ended:
        fail("the build was ended; nothing was written", 1)
    if isinstance(found, BuildError):
        raise found
    if isinstance(found, BaseException):
        raise found
    return found


class Bars:
    """The phases of a build as bars, the ones that go on."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._tasks: dict[str, Any] = {}
        self.ended = False

    def start(self, phase: str, parent: str, steps: int) -> None:
        self._tasks[phase] = self._display.add_task(phase, total=steps)

    def step(self, phase: str, done: int) -> bool:
        if phase in self._tasks:
            self._display.update(self._tasks[phase], completed=done)
        return not self.ended

    def finish(self, phase: str) -> None:
        if phase in self._tasks:
            self._display.remove_task(self._tasks.pop(phase))


@contextmanager
def shown() -> Iterator[Bars]:
    """Bars on a terminal; in a pipe nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    out = Console(stderr=True)
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as display:
        yield Bars(display)


# ---- what was built ----


def summary(plan: Path, built: Built) -> list[str]:
    """What a person wants to know of a plan."""
    precisions = ", ".join(f"{count} {name}" for name, count in sorted(built.precisions.items()))
    lines = [
        f"{plan}: {len(built.plan) / 1e6:.1f} MB, built by {built.version} in {built.seconds:.1f} s",
        f"layers: {built.layers} ({precisions})",
    ]
    if built.calibration_batches:
        lines.append(f"calibration: {built.calibration_batches} batches were read")
    return [*lines, *(f"note: {note}" for note in built.notes)]


def config_beside(plan: Path, built: Built) -> str:
    """Writes config.pbtxt, unless there is one: where a repository has it, else beside the plan. Says so."""
    folder = plan.absolute().parent
    path = (folder.parent if folder.name.isdecimal() else folder) / "config.pbtxt"
    if path.exists():
        return f"{path} is there already, and was left as it is"
    path.write_text(config_of(built))
    return f"{path}: written"


def config_of(built: Built) -> str:
    """A config.pbtxt that says what the plan is."""
    lines = ['platform: "tensorrt_plan"', f"max_batch_size: {built.max_batch_size}"]
    for side, tensors in (("input", built.inputs), ("output", built.outputs)):
        for tensor in tensors:
            dims = tensor.dims[1:] if built.max_batch_size else tensor.dims
            lines += [
                f"{side} {{",
                f'  name: "{tensor.name}"',
                f"  data_type: TYPE_{tensor.datatype}",
                f"  dims: {list(dims)}",
                "}",
            ]
    return "\n".join(lines) + "\n"
