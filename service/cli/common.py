"""What the subcommands share: the flags that say where a server is, tables, and how a failure ends.

Output is for people at a terminal and for pipes alike: in a pipe there are no colours and no boxes, columns
are aligned with blanks, and no line is cut to a width that nobody asked for.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from service.client import Tls

P = ParamSpec("P")

Url = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        metavar="HOST:PORT",
        help="The server's gRPC address; unix:FILE is a Unix-domain socket.",
        show_default=True,
    ),
]
Ssl = Annotated[
    bool, typer.Option("--ssl", help="TLS, with a server that an authority of this system vouches for.")
]
SslRootCert = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="TLS, and who signs the server's certificate (PEM).", show_default=False
    ),
]
SslClientCert = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="TLS, and the client's certificate, for mutual TLS (PEM).", show_default=False
    ),
]
SslClientKey = Annotated[
    str, typer.Option(metavar="FILE", help="That certificate's private key (PEM).", show_default=False)
]
ModelVersion = Annotated[
    str,
    typer.Option(
        "--model-version", metavar="VERSION", help="A version of the model; the newest if left out."
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Deadline of each call.")
]
DEFAULT_URL = "localhost:8001"


def program_name() -> str:
    """What a person types here to run this program again: its name if the shell finds it, else its path."""
    program = Path(sys.argv[0])
    if program.name != "headrace":
        return "python -m service"
    if shutil.which("headrace") == str(program):
        return program.name
    return str(program.relative_to(Path.cwd())) if program.is_relative_to(Path.cwd()) else str(program)


def examples(*lines: str) -> str:
    """An epilog for --help: one example a line. typer joins lines unless a blank one is between them."""
    return "\n\n".join(["[bold]Examples[/bold]", *(escape(line) for line in lines)])


def paragraphs(docstring: str | None) -> str:
    """A docstring as help text: one line a paragraph, so that the terminal's width alone breaks lines."""
    cleaned = inspect.cleandoc(docstring or "")
    return "\n\n".join(" ".join(part.split()) for part in cleaned.split("\n\n"))


def console() -> Console:
    """Where results go. Made anew each time: tests replace sys.stdout."""
    return Console(highlight=False, soft_wrap=True)


def fail(text: str, code: int = 1) -> NoReturn:
    """Ends the command with one sentence on standard error."""
    print(f"headrace: {text}", file=sys.stderr)
    raise typer.Exit(code)


def tls_of(ssl: bool, root_cert: str, client_cert: str, client_key: str) -> Tls | None:
    """What the --ssl flags ask for; any of them is TLS."""
    from service.client import Tls

    wanted = ssl or root_cert or client_cert or client_key
    return Tls(root_cert, client_cert, client_key) if wanted else None


def talks_to_server(command: Callable[P, None]) -> Callable[P, None]:
    """Makes a ClientError of the command a sentence with what to do, and exit code 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its log beside our sentence tells nobody more
        from service.client import ClientError, HungUp, Unreachable

        try:
            command(*args, **kwargs)
        except HungUp as error:
            fail(str(error))
        except Unreachable as error:
            fail(
                f"{error}. Start a server with 'headrace serve MODEL.onnx', "
                "or say where there is one with --url HOST:PORT or unix:FILE."
            )
        except ClientError as error:
            fail(str(error))

    return wrapped


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, whether it is aligned right, and its style at a terminal."""

    name: str
    right: bool = False
    style: str = ""


def print_table(
    out: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = ""
) -> None:
    """A table: with lines at a terminal, plain and uncut in a pipe."""
    if not out.is_terminal:
        for line in plain_table(columns, rows):
            print(line, file=out.file)
        return
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        justify = "right" if column.right else "left"
        table.add_column(column.name, justify=justify, style=column.style or None, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    out.print(table, soft_wrap=False)


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without decoration; the last column is not padded."""
    names = [column.name for column in columns]
    widths = [max(len(row[i]) for row in [names, *rows]) for i in range(len(columns))]
    lines = []
    for row in [names, *rows]:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
