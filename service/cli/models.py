"""``headrace models``: what a server serves, and in which state; loading and unloading.

There are two ways to ask. RepositoryIndex knows every model, also those not loaded, with its state; servers
that do not have it still list what is loaded through ModelStatistics without a name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import (
    DEFAULT_URL,
    Column,
    Ssl,
    SslClientCert,
    SslClientKey,
    SslRootCert,
    Url,
    console,
    examples,
    fail,
    print_table,
    talks_to_server,
    tls_of,
)

if TYPE_CHECKING:
    from service.client import Client, TensorInfo

EPILOG = examples(
    "headrace models                          # everything at localhost:8001",
    "headrace models resnet50 --url gpu1:8001 # one model of another machine",
    "headrace models --url gpu1:8001 --ssl-root-cert ca.pem   # through TLS",
    "headrace models --url unix:/run/headrace.sock            # through a Unix-domain socket",
    "headrace models load resnet50            # or load it again: its files and config as they are now",
    "headrace models unload resnet50          # when what it had accepted is answered",
    "headrace models --json | jq '.[].model'",
)

READY = "READY"
LOAD, UNLOAD = "load", "unload"
LOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Row:
    """One version of one model. Tensors are "name DATATYPE [shape]"; ``max_batch`` None: it does not say."""

    model: str
    version: str
    state: str
    platform: str = ""
    max_batch: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    reason: str = ""


@talks_to_server
def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL | load MODEL | unload MODEL]",
            help="Only this model; or what to do with it.",
            show_default=False,
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    ssl: Ssl = False,
    ssl_root_cert: SslRootCert = "",
    ssl_client_cert: SslClientCert = "",
    ssl_client_key: SslClientKey = "",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list instead of a table.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="How long a load or unload may take.")
    ] = LOAD_TIMEOUT_S,
) -> None:
    """List the models of a server: versions, state, inputs and outputs; load one, or unload one.

    Loading and unloading is for servers with --model-control-mode explicit.
    """
    from service.client import Client

    words = words or []
    _check(words)
    tls = tls_of(ssl, ssl_root_cert, ssl_client_cert, ssl_client_key)
    if len(words) == 2:
        with Client(url, timeout_s=timeout, tls=tls) as client:
            (client.load_model if words[0] == LOAD else client.unload_model)(words[1])
        if not as_json:
            console().print(f"{words[0]}ed '{words[1]}'", markup=False)
        return
    with Client(url, tls=tls) as client:
        rows = [_describe(client, row) for row in _listed(client, words[0] if words else "")]
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        _print(rows)
    else:
        console().print(f"The server at {url} has no models loaded.", markup=False)


def _check(words: list[str]) -> None:
    """Ends the command where the words ask for nothing that there is."""
    does = bool(words) and words[0] in (LOAD, UNLOAD)
    if does and len(words) == 1:
        fail(
            f"expected the name of a model after '{words[0]}': headrace models {words[0]} MODEL "
            "('headrace models' lists them)",
            code=2,
        )
    if len(words) > (2 if does else 1):
        fail(f"expected MODEL, load MODEL or unload MODEL, got '{' '.join(words)}'", code=2)


def _listed(client: Client, name: str) -> list[Row]:
    """Names, versions and states. Raises ClientError, also for a name that does not exist."""
    from service.client import ClientError, RpcFailed

    if name:
        return _listed_by_name(client, name)
    try:
        return [
            Row(i.name, i.version, i.state or "UNLOADED", reason=i.reason) for i in client.repository_index()
        ]
    except RpcFailed as error:
        if error.code != "UNIMPLEMENTED":
            raise
    try:
        return [Row(entry.name, entry.version, "") for entry in client.model_statistics()]
    except RpcFailed as error:
        if error.code != "UNIMPLEMENTED":
            raise
    raise ClientError("this server cannot list its models; name one: headrace models MODEL")


def _listed_by_name(client: Client, name: str) -> list[Row]:
    """The versions of one model; what the index says of it when it is not loaded."""
    from service.client import RpcFailed

    try:
        return [Row(name, version, "") for version in client.model_metadata(name).versions]
    except RpcFailed as error:
        if error.code not in ("NOT_FOUND", "UNAVAILABLE"):
            raise
        unloaded = error
    try:
        rows = [row for row in client.repository_index() if row.name == name]
    except RpcFailed:
        rows = []
    if not rows:
        raise unloaded
    return [Row(i.name, i.version, i.state or "UNLOADED", reason=i.reason) for i in rows]


def _describe(client: Client, row: Row) -> Row:
    """Fills in what only the model itself tells; a model that is not ready tells nothing."""
    state = row.state
    if not state:
        state = READY if client.model_ready(row.model, row.version) else "UNAVAILABLE"
    if state != READY:
        return Row(row.model, row.version, state, reason=row.reason)
    info = client.model_metadata(row.model, row.version)
    return Row(
        model=row.model,
        version=row.version,
        state=state,
        platform=info.platform,
        max_batch=_max_batch(client, row),
        inputs=tuple(_tensor(tensor) for tensor in info.inputs),
        outputs=tuple(_tensor(tensor) for tensor in info.outputs),
    )


def _max_batch(client: Client, row: Row) -> int | None:
    from service.client import RpcFailed

    try:
        return client.model_config(row.model, row.version).max_batch_size
    except RpcFailed as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return None


def _tensor(tensor: TensorInfo) -> str:
    return f"{tensor.name} {tensor.datatype} [{', '.join(map(str, tensor.shape))}]"


def _print(rows: list[Row]) -> None:
    columns = [
        Column("model", style="bold"),
        Column("version"),
        Column("state"),
        Column("platform"),
        Column("max batch", right=True),
        Column("inputs"),
        Column("outputs"),
    ]
    cells = [
        [
            row.model,
            row.version,
            f"{row.state} ({row.reason})" if row.reason else row.state,
            row.platform,
            "?" if row.max_batch is None and row.state == READY else str(row.max_batch or "-"),
            "; ".join(row.inputs),
            "; ".join(row.outputs),
        ]
        for row in rows
    ]
    print_table(console(), columns, cells)
