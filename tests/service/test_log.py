"""What is said on standard error: one line each, and never the end of whoever says it."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest

from service.frontend.addresses import why_not_bound
from service.log import one_line, say, say_exception


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("state", ["full", "closed"])
def test_nobody_can_take_it(monkeypatch, state):
    stderr = FullDisk() if state == "full" else io.StringIO()
    if state == "closed":
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    say("the worker ended")
    say_exception(ValueError("unforeseen"))


def test_a_name_cannot_break_or_recolour_a_line(capfd):
    say("model 'a\nb\x1b[31m' ist schön")
    assert capfd.readouterr().err == "headrace: model 'a\\nb\\x1b[31m' ist schön\n"
    assert one_line("x\u2028y") == "x\\u2028y"


def test_what_is_no_host_name_is_said():
    assert why_not_bound("x" * 300, 0, "--grpc-port").startswith(f"cannot listen on '{'x' * 300}'")
