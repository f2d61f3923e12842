"""Help in which every flag can be read whole, however narrow the terminal is.

typer's table has names, units and texts beside each other, and rich shortens what has no room there: of
`--grpc-http2-min-recv-ping-interval-without-data` it shows the first half. Where that would come to pass,
names get lines of their own here, and the texts stand below them.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperArgument, TyperCommand

BESIDE_NAMES = 40  # what typer's table has beside two columns as wide as the longest name, at most


class Command(TyperCommand):
    """A command with typer's help, and where names would be cut, with the same in lines below each other."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints it."""
        out = Console(highlight=False)
        longest = max(len(option) for param in self.get_params(ctx) for option in param.opts)
        if out.width >= 2 * longest + BESIDE_NAMES:
            super().format_help(ctx, formatter)
            return
        out.print(Padding(Text(self.get_usage(ctx), style="bold"), 1))
        out.print(Padding(Text.from_markup(self.help or ""), (0, 1, 1, 1)))
        records = [(isinstance(p, TyperArgument), p.get_help_record(ctx)) for p in self.get_params(ctx)]
        for title, of_arguments in (("Arguments", True), ("Options", False)):
            shown = [record for is_argument, record in records if record and is_argument is of_arguments]
            if shown:
                lines = Group(*(line for name, text in shown for line in _entry(name, text)))
                out.print(Panel(lines, title=title, title_align="left", border_style="dim"))
        out.print(Padding(Text.from_markup((self.epilog or "").replace("\n\n", "\n")), 1))


def _entry(names: str, text: str) -> tuple[RenderableType, RenderableType]:
    """One flag: its names with the unit of its value, and below what it means."""
    from typer.rich_utils import STYLE_OPTION, STYLE_TYPES  # with much of rich, which serving does not need

    heading = Text(names, style=STYLE_TYPES, overflow="fold")
    heading.highlight_regex(r"(?<![^ ])--?[a-z][\w-]*", STYLE_OPTION)
    return heading, Padding(Text(text, overflow="fold"), (0, 0, 0, 4))
