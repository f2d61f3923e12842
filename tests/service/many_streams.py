"""A client in a process of its own, made to be killed: python many_streams.py PORT STREAMS < request

Opens STREAMS streams on one connection, sends the request on each and half-closes none. Prints a line once
each of them has been answered, and reads on for ever; ends without a line when one is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from http2 import DATA, END_STREAM, HEADERS, RST_STREAM, Http2

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


def main(port: int, streams: int) -> None:
    request = sys.stdin.buffer.read()
    connection = Http2(port)
    unanswered = {1 + 2 * number for number in range(streams)}  # a client's streams have odd numbers
    for stream in sorted(unanswered):
        connection.call(stream, PATH, request, flags=0)
    for kind, flags, stream, _ in connection.frames():
        if kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            return
        if kind == DATA and stream in unanswered:
            unanswered.remove(stream)
            if not unanswered:
                print("answered", flush=True)


main(int(sys.argv[1]), int(sys.argv[2]))
