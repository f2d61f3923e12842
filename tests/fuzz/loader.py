"""A process that loads models for a fuzzer, one after another: a folder a line in, a line of JSON out.

Its memory is bounded, so that a file that asks for terabytes is refused by the allocator here as it would be
by a machine that has not got them.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from service.config import ServeConfig
from service.errors import StartError
from service.worker.__main__ import open_engines
from service.worker.worker import Worker

MOST_MEMORY = 8 << 30


def load(folder: str) -> str:
    """Loads a repository as a worker does; what it is refused with, or nothing."""
    try:
        Worker(open_engines(ServeConfig((folder,))), output_arena_mb=1).stop()
    except StartError as error:
        return str(error) or "(no words)"
    return ""


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to it
    for line in sys.stdin:
        print(json.dumps(load(line.rstrip("\n"))), file=answers, flush=True)
