"""``headrace infer``: one request from a file, and its answer for a person, a script or numpy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.common import (
    DEFAULT_URL,
    ModelVersion,
    Ssl,
    SslClientCert,
    SslClientKey,
    SslRootCert,
    Timeout,
    Url,
    console,
    examples,
    fail,
    talks_to_server,
    tls_of,
)

if TYPE_CHECKING:
    from service.client import Client, InferResult, ModelInfo

SHOWN = 100  # characters of a string, or bytes where it is no text
EPILOG = examples(
    "headrace infer resnet50 image.npy                   # the one input, with or without its batch axis",
    "headrace infer bert tokens.npz -o answer.npz        # inputs by name; the answer as arrays",
    'headrace infer affine input.json --json             # {"x": [[1, 2], [3, 4]]} in, JSON out',
    """headrace infer words input.json                     # {"x": [["some", "text"]]}: strings of BYTES""",
    "headrace infer decoder frame.raw                    # any file: its bytes are the one input",
)


@talks_to_server
def infer(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model of the server; 'headrace models' lists them.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help=".npy, .npz, .json, or any file as raw bytes.", exists=True, dir_okay=False
        ),
    ],
    url: Url = DEFAULT_URL,
    ssl: Ssl = False,
    ssl_root_cert: SslRootCert = "",
    ssl_client_cert: SslClientCert = "",
    ssl_client_key: SslClientKey = "",
    model_version: ModelVersion = "",
    input_name: Annotated[
        str | None,
        typer.Option("--input", metavar="NAME", help="Which input a nameless array or raw file is for."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME", help="Ask for this output only; may be repeated."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("-o", "--save", metavar="FILE.npz", help="Write the outputs there, by name."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    timeout: Timeout = 60.0,
) -> None:
    """Send one request and print its outputs."""
    from service.client import Client

    tls = tls_of(ssl, ssl_root_cert, ssl_client_cert, ssl_client_key)
    with Client(url, timeout_s=timeout, tls=tls) as client:
        info = client.model_metadata(model, model_version)
        inputs = _load(file, info, _batched(client, info, model_version), input_name)
        result = client.infer(model, inputs, version=model_version, outputs=output or ())
    if save is not None:
        _save(result, save)
    if as_json:
        typer.echo(json.dumps(as_protocol_json(result)))
    else:
        _print(result)


def _load(file: Path, info: ModelInfo, batched: bool, input_name: str | None) -> dict[str, Any]:
    from service.client import ClientError
    from service.client.inputs import load_inputs

    try:
        return load_inputs(file, info, batched, input_name, _note)
    except ClientError as error:
        fail(str(error), code=2)  # what was given is wrong, and nothing was sent


def _note(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr)


def _batched(client: Client, info: ModelInfo, version: str) -> bool:
    from service.client import RpcFailed
    from service.client.inputs import looks_batched

    try:
        return client.model_config(info.name, version).max_batch_size > 0
    except RpcFailed as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return looks_batched(info)


def _save(result: InferResult, path: Path) -> None:
    import numpy as np

    arrays = {name: _unpickled(name, array) for name, array in result.outputs.items()}
    try:
        with open(path, "wb") as file:  # savez would add a suffix to a path of its own
            np.savez(file, **arrays)
    except OSError as error:
        fail(f"cannot write '{path}': {error.strerror}")


def _unpickled(name: str, array: Any) -> Any:
    """An array that a file can hold without pickling it: of strings, numpy's own."""
    if array.dtype.kind != "O":
        return array
    if any(element.endswith(b"\0") for element in array.ravel()):
        fail(f"output '{name}' has strings that end in a zero byte, which .npz files lose; use --json")
    return array.astype("S")


def as_protocol_json(result: InferResult) -> dict[str, Any]:
    """The answer in the protocol's JSON form: data is flat, in row-major order."""
    from service.client.tensors import datatype_of, text_of

    return {
        "model_name": result.model_name,
        "model_version": result.model_version,
        "id": result.id,
        "outputs": [
            {
                "name": name,
                "datatype": datatype_of(name, a),
                "shape": list(a.shape),
                "data": [text_of(e) for e in a.ravel()] if a.dtype.kind == "O" else a.ravel().tolist(),
            }
            for name, a in result.outputs.items()
        ],
    }


def _shown(element: bytes) -> str:
    """A string as text where it is some, its beginning where it is long."""
    try:
        text: str | bytes = element.decode()
    except UnicodeDecodeError:
        text = element
    shown = repr(text[:SHOWN])
    return shown if len(text) <= SHOWN else f"{shown}... ({len(element)} bytes)"


def _print(result: InferResult) -> None:
    import numpy as np

    from service.client.tensors import datatype_of

    out = console()
    for name, array in result.outputs.items():
        out.print(f"{name}  {datatype_of(name, array)}  {list(array.shape)}", style="bold", markup=False)
        text = np.array2string(
            array,
            threshold=64,
            edgeitems=4,
            max_line_width=100,
            precision=6,
            formatter={"object": _shown},  # type: ignore[arg-type]  # numpy's stub wants a function of object
        )
        out.print(text, markup=False)
