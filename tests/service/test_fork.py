"""A forked child of a running service gets errors from the queue's handles, and neither hangs nor harms its
parent.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import LIMIT_S

SCRIPT = """
import os, sys
import numpy as np
from scripted import affine
from wire import Wire, infer_request, output, rows
from fastqueue import BatchFormer, FrontLane, InputArena, WorkerPage
from fastqueue.errors import ForkedHandle
from service.frontend._dispatch import Dispatcher
from service.inprocess import running

arena = InputArena(1)
lane = FrontLane(arena, 8)
former = BatchFormer(1)
former.add_model(1, group=1, max_batch=8, element_bytes=[4], output_row_bytes=[4])
stream = former.add_stream(1)
former.attach_lane(*lane.fds)
lane.attach_worker(former.page_fd, former.output_fd)
page = WorkerPage(former.page_fd)
lane.submit(1, 1, [(0, (1, 1), b"abcd")])
former.step()
batch = former.try_batch(stream)
assert batch is not None
dispatcher = Dispatcher(1 << 20, 8)

handles = [
    lambda: arena.used_bytes, lambda: lane.poll(), lambda: lane.submit(1, 1, [(0, (1, 1), b"abcd")]),
    lambda: lane.arm(), lambda: lane.cancel(0), lambda: page.stats(), lambda: former.step(), lambda:
    former.next_batch(stream), lambda: former.run(), lambda: former.close(), lambda: former.stats(), lambda:
    batch.rows, lambda: batch.check(), lambda: batch.fail(13, "no"), lambda: batch.gather(0, 0, 0), lambda:
    dispatcher.submit(b"", 1), lambda: dispatcher.drain(), lambda: dispatcher.arm(), lambda:
    dispatcher.cancel(1), lambda: dispatcher.open_lane(), lambda: dispatcher.eventfd(),
]

def refused(call):
    try:
        call()
    except ForkedHandle:
        return True
    return False

with running([affine()]) as service:
    wire = Wire(service.address)
    before = wire.infer(infer_request("affine", x=rows(1)))
    child = os.fork()
    if child == 0:
        os._exit(sum(not refused(call) for call in handles))
    _, status = os.waitpid(child, 0)
    after = wire.infer(infer_request("affine", x=rows(1)))
    assert before == after
    wire.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_every_handle_raises_in_a_forked_child_and_the_parent_goes_on():
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    script = f"import sys; sys.path[:0] = {folders!r}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{done.returncode} handles worked in the child\n{done.stderr}"
