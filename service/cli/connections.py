"""The flags of `headrace serve` that are about connections: names and units are Triton's."""

from __future__ import annotations

from typing import Annotated

import typer

TRUTH = {"0": 0, "false": 0, "1": 1, "true": 1}


def truth(word: str) -> int:
    """0 or 1, as Triton reads it."""
    try:
        return TRUTH[str(word).lower()]
    except KeyError:
        raise typer.BadParameter(f"expected 0 or 1, false or true, got '{word}'") from None


KeepaliveTime = Annotated[
    int,
    typer.Option(
        metavar="MS", help="Without a word from a client for so long, it gets a PING; 2147483647: never."
    ),
]
KeepaliveTimeout = Annotated[
    int, typer.Option(metavar="MS", help="Without an answer to that for so long, it is hung up on.")
]
KeepalivePermitWithoutCalls = Annotated[
    int,
    typer.Option(metavar="0|1", parser=truth, help="Whether either side may ping while there are no calls."),
]
MaxPingsWithoutData = Annotated[
    int,
    typer.Option(
        metavar="N", help="Taken as Triton takes it: servers have no such limit, and it does nothing."
    ),
]
MinRecvPingIntervalWithoutData = Annotated[
    int, typer.Option(metavar="MS", help="A client's PINGs that come sooner, without data, are strikes.")
]
MaxPingStrikes = Annotated[
    int, typer.Option(metavar="N", help="One strike more, and the client is hung up on; 0: any number.")
]
MaxConnectionAge = Annotated[
    int,
    typer.Option(metavar="MS", help="Age (10% more or less) at which a connection is told to go; 0: none."),
]
MaxConnectionAgeGrace = Annotated[
    int, typer.Option(metavar="MS", help="And how long its calls may take then; 0: as long as they like.")
]
