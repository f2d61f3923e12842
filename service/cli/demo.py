"""``headrace demo``: the real service, a real model, and the files that are there."""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import Column, console, examples, fail, print_table, program_name

if TYPE_CHECKING:
    from rich.console import Console

    from service._pb import inference as pb
    from service.demo.classify import Result
    from service.demo.model import FileTypeModel

EPILOG = examples(
    "headrace demo                     # the files under the current folder",
    "headrace demo ~/Downloads /etc    # other ones",
    "headrace demo --all > types.txt   # every file, in a pipe without colours",
)

SERVED_AS = "file_types"
STREAMS = 16
WINDOW = 1  # requests in flight on each stream
_HEAD, _TAIL, _TYPES = 20, 5, 15


def demo(
    path: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH ...]", help="Files and folders. Left out: this folder.", show_default=False
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every file, however many there are.")
    ] = False,
) -> None:
    """Classify files by content, through the whole service.

    Starts 'headrace serve' with the file-type model of the magika package, sends every file under PATH
    through ModelStreamInfer on 16 streams at once, and shows what the model said and which batches were
    formed. Folders that begin with a dot, virtual environments and build outputs are left out.
    """
    from service.demo.model import DemoModelError, find_model
    from service.demo.walk import files_under

    try:
        model = find_model()
        files = list(files_under(path or [Path(".")]))
    except (DemoModelError, FileNotFoundError) as error:
        fail(str(error))
    if not files:
        fail(f"there are no files under {' '.join(map(str, path or [Path('.')]))}")
    out = console()
    results, statistics = _classify(files, model)
    results.sort(key=lambda result: result.path)
    _print_files(out, results, model, everything)
    _print_service(out, results, statistics)
    _print_next(out, model)


def _classify(files: Sequence[Path], model: FileTypeModel) -> tuple[list[Result], pb.ModelStatistics | None]:
    """Runs the service and sends it the files. Ctrl-C ends it early, with what there is."""
    from service.client import ClientError
    from service.demo.server import ServerFailed, running

    results: list[Result] = []
    statistics = None
    try:
        with _progress(len(files)) as (say, advance), running(model.path, SERVED_AS) as server:
            say("classifying")

            def on_result(result: Result) -> None:
                results.append(result)
                advance()

            statistics = asyncio.run(_stream(server.url, files, model, on_result))
            say("stopping the service")
    except KeyboardInterrupt:
        print(f"headrace: stopped after {len(results)} of {len(files)} files", file=sys.stderr)
    except (ServerFailed, ClientError) as error:
        fail(str(error))
    return results, statistics


async def _stream(
    url: str, files: Sequence[Path], model: FileTypeModel, on_result: Callable[[Result], None]
) -> pb.ModelStatistics | None:
    from service.client import AsyncClient
    from service.demo.classify import MODEL, batches_formed, classify

    rows = 0

    def count(result: Result) -> None:
        nonlocal rows
        rows += result.source == MODEL
        on_result(result)

    async with AsyncClient(url) as client:
        await classify(client, SERVED_AS, model, files, STREAMS, WINDOW, count)
        return await batches_formed(client, SERVED_AS, rows)


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A progress bar on standard error, at a terminal only: how to say what happens, and to count."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=bar, transient=True, disable=not bar.is_terminal) as progress:
        task = progress.add_task("starting the service", total=total)
        yield (
            lambda text: progress.update(task, description=text),
            lambda: progress.advance(task),
        )


def _print_files(out: Console, results: Sequence[Result], model: FileTypeModel, everything: bool) -> None:
    rows = [_row(result, model) for result in results]
    columns = [Column("file"), Column("type", style="bold"), Column("confidence", right=True), Column("note")]
    if not any(row[-1] for row in rows):
        columns.pop()
        rows = [row[:-1] for row in rows]
    shown = len(rows) if everything or len(rows) <= 2 * _HEAD else _HEAD
    print_table(out, columns, rows[:shown])
    if shown == len(rows):
        return
    out.print(f"... {len(rows) - shown - _TAIL:,} more (--all lists them)")
    print_table(out, columns, rows[-_TAIL:])
    _print_types(out, results)


def _row(result: Result, model: FileTypeModel) -> list[str]:
    """The model's label, and what the magika tool would rather say where it does not trust the model."""
    from service.demo.classify import BY_RULE, FAILED

    if result.source == FAILED:
        return [str(result.path), "-", "-", result.label]
    if result.source == BY_RULE:
        return [str(result.path), result.label, "-", "too short for the model: by rule"]
    trusted = model.trusted_label(result.label, result.confidence)
    note = f"magika would say {trusted}" if trusted != result.label else ""
    return [str(result.path), result.label, f"{result.confidence:.1%}", note]


def _print_types(out: Console, results: Sequence[Result]) -> None:
    from service.demo.classify import FAILED

    types = Counter(result.label for result in results if result.source != FAILED)
    rows = [[label, f"{count:,}"] for label, count in types.most_common(_TYPES)]
    rest = types.total() - sum(count for _, count in types.most_common(_TYPES))
    if rest:
        rows.append([f"{len(types) - _TYPES} other types", f"{rest:,}"])
    out.print()
    print_table(out, [Column("type", style="bold"), Column("files", right=True)], rows)


def _print_service(out: Console, results: Sequence[Result], statistics: pb.ModelStatistics | None) -> None:
    from service.demo.classify import BY_RULE, FAILED

    asked = sorted(result.latency_ns for result in results if result.latency_ns)
    counts = Counter(result.source for result in results)
    out.print()
    out.print(
        f"{len(results):,} files: {len(asked):,} through the model, {counts[BY_RULE]:,} by rule, "
        f"{counts[FAILED]:,} could not be read or were refused."
    )
    if statistics is not None and statistics.execution_count:
        mean = statistics.inference_count / statistics.execution_count
        largest = max((entry.batch_size for entry in statistics.batch_stats), default=0)
        out.print(
            f"Batches formed: {statistics.execution_count:,} of {mean:.1f} rows on average, {largest} at most"
        )
        out.print(f"  (requests of one row each; {STREAMS} streams with {WINDOW} in flight on each).")
    if asked:
        p50, p99 = (asked[max(0, math.ceil(share * len(asked)) - 1)] / 1e6 for share in (0.50, 0.99))
        out.print(f"Latency of a request: p50 {p50:.1f} ms, p99 {p99:.1f} ms.")


def _print_next(out: Console, model: FileTypeModel) -> None:
    out.print(_NEXT.format(program=program_name(), path=model.path, row=model.row_size), markup=False)


_NEXT = """
How to go on

  Serve this model again, under its file's name, or one of your own:
      {program} serve {path}

  Then, in another terminal, see what is served and put it under load:
      {program} models
      {program} bench model -c 64

  And from Python, with the client you may have already (pip install 'tritonclient[grpc]'):
      import numpy as np, tritonclient.grpc as grpc
      x = grpc.InferInput("bytes", [1, {row}], "INT32")
      x.set_data_from_numpy(np.full((1, {row}), 256, np.int32))
      print(grpc.InferenceServerClient("localhost:8001").infer("model", [x]).as_numpy("target_label"))"""
