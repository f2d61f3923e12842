"""The front-end process, which holds its GIL from SIGUSR1 until the file of its first argument is unlocked:
as a C extension does that forgets to release it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys

from service.frontend.process import main

lock = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.PyDLL(None)  # whose calls keep the GIL


def hold(*_: object) -> None:
    libc.flock(lock, fcntl.LOCK_EX)
    libc.flock(lock, fcntl.LOCK_UN)


signal.signal(signal.SIGUSR1, hold)
main(sys.argv[2:])
