"""One child process of the supervisor, from both sides.

Children are started, never forked: a fresh interpreter runs `python -P -m <module> --control-fd N` and is
told everything else over its control socket (`service.control`). Two things end it when the supervisor is
gone, however it went: the kernel kills it (PDEATHSIG, set first thing), and where that was set too late its
control socket is at its end of file, which it takes as an order to exit. -P keeps the working directory off
the import path, so that a checkout in it does not shadow the installed package.

A child has a process group of its own and ignores SIGINT and SIGTERM: Ctrl-C in a terminal reaches the
supervisor alone, which then drains in good order.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from service.control import AsyncChannel, socket_pair, wait_ready

RESERVED_DESCRIPTORS = 256  # of a front end, from clients of the gRPC port; half of them for the metrics port
_PR_SET_PDEATHSIG = 1


def python_module(module: str) -> list[str]:
    """The command that runs a module of this package in a fresh interpreter."""
    return [sys.executable, "-P", "-m", module]


def start_child(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a child process with a control socket; the process, and our end of the socket."""
    ours, theirs = socket_pair()
    with theirs:
        process = subprocess.Popen(
            [*command, "--control-fd", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
    return process, ours


class Child:
    """One incarnation of a child process, as the supervisor holds it.

    Start it in the main thread: PDEATHSIG means the death of the thread that started the child.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process, ours = start_child(command)
        self.channel = AsyncChannel(ours)
        self.pid = self._process.pid

    def kill(self) -> None:
        """Ends it at once. Harmless when it has ended."""
        self._process.kill()

    async def end(self, grace_s: float) -> str:
        """Waits for its end, and kills it when that takes longer than `grace_s`. Says what its end was."""
        timer = asyncio.get_running_loop().call_later(grace_s, self.kill)
        try:
            return await self.wait()
        finally:
            timer.cancel()

    async def wait(self) -> str:
        """Waits for its end, and says in a few words what that was."""
        loop = asyncio.get_running_loop()
        if self._process.poll() is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                await wait_ready(loop.add_reader, loop.remove_reader, pidfd)
            finally:
                os.close(pidfd)
        return describe_exit(self._process.wait())


def describe_exit(returncode: int) -> str:
    """`returncode` as subprocess gives it, in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def raise_descriptor_limit() -> None:
    """As many descriptors as this process may have: each client connection takes one. Children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed() -> tuple[int, int]:
    """How many clients of the gRPC port and of the metrics port this process may hold at once, so that they
    never take the descriptors that links, shared memory and files need.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - RESERVED_DESCRIPTORS, soft // 2), min(RESERVED_DESCRIPTORS // 2, soft // 8)


def die_with_parent() -> None:
    """The child's first act: from here on it ends with its supervisor, and only by its supervisor's word."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def control_fd(arguments: Sequence[str]) -> int:
    """The control socket's descriptor from a child's command line. Exits with a hint when there is none."""
    if len(arguments) == 2 and arguments[0] == "--control-fd" and arguments[1].isdigit():
        return int(arguments[1])
    sys.exit("this is a part of the service that `headrace serve` starts; it is of no use alone")
