"""h2spec, which asks an HTTP/2 server what RFC 7540 and 7541 demand: its generic, http2 and hpack cases."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from waiting import LIMIT_S

pytestmark = [pytest.mark.judge, pytest.mark.slow]

PARTS = ["generic", "http2", "hpack"]
ALL = 145
TOO_LARGE = ["http2/4.2/3", "--max-header-length", "300000"]

# What fails, and why that is right: a HEADERS frame of 20 KB, which h2spec takes for larger than
# SETTINGS_MAX_FRAME_SIZE. The server allows 1 MB (RFC 9113, 4.2), and resets the stream, whose headers are
# too many for SETTINGS_MAX_HEADER_LIST_SIZE. The other test has the frame that is too large.
ALLOWED = {"http2/4.2/3"}


def verdicts(report: Path) -> dict[str, str]:
    """passed, failed or skipped, of each case. In the JUnit report h2spec writes bytes as they came."""
    text = "".join(
        one for one in report.read_text("utf-8", "replace") if one in "\t\n\r" or " " <= one < "\ufffe"
    )
    found = {}
    for suite in xml.fromstring(text.partition("?>")[2]).iter("testsuite"):
        for number, case in enumerate(suite.iter("testcase"), 1):
            words = {child.tag: child.tag for child in case}
            verdict = "skipped" if "skipped" in words else "failed" if words else "passed"
            found[f"{suite.get('package')}/{number}"] = verdict
    return found


def judged(program: str, port: str, report: Path, *arguments: str) -> tuple[dict[str, str], str]:
    """The verdicts, and what h2spec said. Its exit code is 1 when a case fails."""
    command = [program, *arguments, "--port", port, "--junit-report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=4 * LIMIT_S)
    assert done.returncode in (0, 1), done.stderr
    return verdicts(report), done.stdout


def test_what_http2_demands_is_kept(program, interop_port, tmp_path):
    found, said = judged(program("bin/h2spec"), interop_port, tmp_path / "report.xml", *PARTS)
    assert len(found) == ALL
    failed = {case for case, verdict in found.items() if verdict != "passed"}
    assert failed <= ALLOWED, said.partition("Failures:")[2]


def test_headers_that_are_really_too_large_for_a_frame_are_refused(program, interop_port, tmp_path):
    """Five headers of 300 KB, 1.3 MB as h2spec packs them: more than the 1 MB that the server allows."""
    found, said = judged(program("bin/h2spec"), interop_port, tmp_path / "report.xml", *TOO_LARGE)
    assert list(found.values()) == ["passed"], said
