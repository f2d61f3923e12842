"""The ``headrace`` command: one file per subcommand, and ``common`` for what they share.

Nothing heavy is imported until a subcommand runs, so that ``--help`` is there at once. Exit codes: 0 done,
1 it did not work (no server, a refused request, a failed service), 2 it was asked wrongly (flags,
configuration, model file).
"""

from __future__ import annotations

from typing import Annotated

import typer

from service import __version__
from service.cli import bench, build, demo, doctor, infer, models, serve
from service.cli.common import examples, paragraphs
from service.cli.whole_names import Command

__all__ = ["app", "main"]

app = typer.Typer(
    name="headrace",
    help="Serve a model over gRPC, with batches formed while requests are still arriving, and talk to it.",
    epilog=examples(
        "headrace demo                        # see it work: classify the files around you",
        "headrace serve model.onnx            # serve a model of your own on port 8001",
        "headrace infer model input.npy       # send it one request",
        "headrace bench model -c 64           # and then a lot of them",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options before a subcommand."""


for _command, _epilog in (
    (serve.serve, serve.EPILOG),
    (demo.demo, demo.EPILOG),
    (infer.infer, infer.EPILOG),
    (models.models, models.EPILOG),
    (bench.bench, bench.EPILOG),
    (build.build, build.EPILOG),
    (doctor.doctor, doctor.EPILOG),
):
    app.command(cls=Command, help=paragraphs(_command.__doc__), epilog=_epilog)(_command)


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="headrace")
