"""What the protobuf library says of a ModelInferRequest, in the words of `_codec.scan`.

Run as a program it reads messages from standard input, a hexadecimal one per line, and answers each with one
line of JSON; so a test can ask another implementation of the library, which is chosen when a process starts.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

from service._pb import inference

_CONTENTS = ("bool", "int", "int64", "uint", "uint64", "fp32", "fp64", "bytes")


def _value(parameter: Any) -> tuple[str, Any]:
    member = parameter.WhichOneof("parameter_choice")
    if member is None:
        return ("none", None)
    value = getattr(parameter, member)
    return (member.removesuffix("_param"), struct.pack("<d", value) if member == "double_param" else value)


def _parameters(message: Any) -> dict[str, tuple[str, Any]]:
    return {key: _value(value) for key, value in message.parameters.items()}


def _contents(tensor: Any) -> dict[str, int] | None:
    if not tensor.HasField("contents"):
        return None
    return {name: len(getattr(tensor.contents, f"{name}_contents")) for name in _CONTENTS}


def describe(message: Any) -> dict[str, Any]:
    """The same dictionary that `_codec.scan` makes, with its bounds on what is kept."""
    return {
        "model_name": message.model_name,
        "model_version": message.model_version,
        "id": message.id,
        "parameters": _parameters(message),
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "rank": len(tensor.shape),
                "shape": list(tensor.shape)[:8],
                "parameters": _parameters(tensor),
                "contents": _contents(tensor),
            }
            for tensor in message.inputs[:64]
        ],
        "input_count": len(message.inputs),
        "outputs": [{"name": o.name, "parameters": _parameters(o)} for o in message.outputs[:64]],
        "output_count": len(message.outputs),
        "raw": list(message.raw_input_contents[:64]),
        "raw_count": len(message.raw_input_contents),
    }


def expected(wire: bytes) -> dict[str, Any] | None:
    """None when the library refuses the message."""
    try:
        return describe(inference.ModelInferRequest.FromString(wire))
    except Exception:  # DecodeError, and UnicodeDecodeError of the pure-Python implementation
        return None


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(expected(bytes.fromhex(line)), default=bytes.hex, sort_keys=True))


if __name__ == "__main__":
    main()
