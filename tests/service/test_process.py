"""A child process from both sides: what it does first, and how its end is told."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import LIMIT_S

from service.process import control_fd, describe_exit

SCRIPT = """
import ctypes, os, signal
from service.process import die_with_parent
die_with_parent()
at_death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(at_death), 0, 0, 0)  # PR_GET_PDEATHSIG
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
print(signal.Signals(at_death.value).name)
"""


def test_a_child_asks_to_be_killed_with_its_parent_and_ignores_polite_signals():
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout) == (0, "SIGKILL\n")


@pytest.mark.parametrize(("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL")])
def test_an_end_is_told_in_words(code, words):
    assert describe_exit(code) == words


@pytest.mark.parametrize("arguments", [[], ["--control-fd"], ["--control-fd", "x"], ["--help"]])
def test_started_by_hand_it_says_what_to_do(arguments):
    with pytest.raises(SystemExit, match="headrace serve"):
        control_fd(arguments)


def test_the_limit_on_descriptors_is_as_high_as_it_goes():
    program = (
        "import resource\n"
        "from service.process import raise_descriptor_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "raise_descriptor_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
