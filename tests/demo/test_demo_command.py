"""``headrace demo`` from end to end: the real service in processes of its own, the real model, real files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import service.cli.demo
import service.demo.server
from service.cli import app
from service.client import AsyncClient
from service.demo.classify import BY_RULE, FAILED, MODEL, Result, classify
from service.demo.model import find_model
from service.demo.server import Server, ServerFailed, running

pytestmark = pytest.mark.slow

magika = pytest.importorskip("magika", reason="needs magika")

PATIENCE_S = 60.0


def some_files(folder: Path, copies: int = 12) -> None:
    """Files of a few types, several of each, no two the same; and two that are decided by rule."""
    texts = {
        "py": "import os\n\n\ndef f{n}(path):\n    return os.path.exists(path) and len(path) > {n}\n" * 5,
        "c": '#include <stdio.h>\n\nint main(void) {{\n    printf("%d\\n", {n});\n    return 0;\n}}\n' * 3,
        "json": '{{\n  "number": {n},\n  "list": [1, 2, 3],\n  "more": {{\n    "a": null\n  }}\n}}\n',
        "html": "<!DOCTYPE html>\n<html><head><title>{n}</title></head><body><p>text</p></body></html>\n",
    }
    for number in range(copies):
        for suffix, text in texts.items():
            (folder / f"{number}.{suffix}").write_text(text.format(n=number))
    (folder / "empty").touch()
    (folder / "short").write_text("abc")


def demo_process(*arguments: object, tmp: Path) -> subprocess.Popen[str]:
    """The command in a process of its own; it and all its children can be told by their TMPDIR."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "service", "demo", *map(str, arguments)],
        env={**os.environ, "TMPDIR": str(tmp)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def family_of(tmp: Path) -> list[int]:
    """The processes that are alive and were given this TMPDIR."""
    mark, found = f"TMPDIR={tmp}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until_none_is_left(tmp: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while family := family_of(tmp):
        assert time.monotonic() < deadline, f"processes {family} are still there"
        time.sleep(0.02)


@pytest.fixture
def tmp(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    yield folder
    for pid in family_of(folder):
        os.kill(pid, signal.SIGKILL)


def test_the_demo_shows_the_models_label_of_every_file_and_leaves_nothing_behind(
    tmp_path: Path, tmp: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    some_files(files)
    process = demo_process(files, "--all", tmp=tmp)
    stdout, stderr = process.communicate()
    assert process.returncode == 0 and stderr == "", stderr
    lines = stdout.splitlines()
    shown = {line.split()[0]: line.split()[1] for line in lines if line.startswith(str(files))}
    tool = magika.Magika()
    for path in files.iterdir():
        prediction = tool.identify_path(path).prediction
        asked = str(prediction.dl.label) != "undefined"
        assert shown[str(path)] == str(prediction.dl.label if asked else prediction.output.label), path
    assert set(shown.values()) >= {"python", "c", "json", "html", "empty", "txt"}
    assert "50 files: 48 through the model, 2 by rule, 0 could not be read or were refused." in lines
    (batches,) = (line.split() for line in lines if line.startswith("Batches formed: "))
    assert 1 < int(batches[-3]) <= 32, "16 requests are in flight, so some must have shared a batch"
    assert 48 / int(batches[2]) == pytest.approx(float(batches[4]), abs=0.06)
    assert "python -m service serve" in stdout and "tritonclient" in stdout and "\x1b" not in stdout
    until_none_is_left(tmp)
    assert not list(tmp.glob("headrace-*"))


def test_a_killed_demo_leaves_no_process(tmp_path: Path, tmp: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    os.mkfifo(files / "never")  # reading it would never end, and it is not read
    some_files(files, copies=200)
    process = demo_process(files, tmp=tmp)
    deadline = time.monotonic() + PATIENCE_S
    while len(family_of(tmp)) < 4:  # the demo, and the service's three
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    until_none_is_left(tmp)


def test_a_file_that_is_gone_is_a_result_and_not_the_end(tmp_path: Path) -> None:
    some_files(tmp_path, copies=1)
    model = find_model()
    results: list[Result] = []
    files = [*sorted(tmp_path.iterdir()), tmp_path / "gone"]

    async def go(url: str) -> None:
        async with AsyncClient(url) as client:
            await classify(client, "types", model, files, 3, 2, results.append)

    with running(model.path, "types") as server:
        asyncio.run(go(server.url))
    by_name = {result.path.name: result for result in results}
    assert len(by_name) == len(files) == 7
    assert by_name["gone"].source == FAILED and by_name["gone"].label == "No such file or directory"
    assert by_name["empty"].source == by_name["short"].source == BY_RULE
    assert by_name["0.py"].label == "python" and by_name["0.py"].confidence > 0.9
    assert by_name["0.py"].source == MODEL and by_name["0.py"].latency_ns > 0


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"this is no model")
    with (
        pytest.raises(ServerFailed, match="did not start:\n.*bad") as caught,
        running(tmp_path / "bad.onnx", "bad"),
    ):
        pass
    assert "Traceback" not in str(caught.value)


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke()
    assert result.exit_code == 1
    assert "pip install 'headrace[demo]'" in result.stderr and len(result.stderr.splitlines()) == 1


def test_no_files_and_no_such_path_are_said_so(tmp_path: Path) -> None:
    result = invoke(tmp_path)
    assert result.exit_code == 1 and f"there are no files under {tmp_path}" in result.stderr
    result = invoke(tmp_path / "nothing")
    assert result.exit_code == 1 and "there is no" in result.stderr


@pytest.fixture
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def pretend(model: Path, name: str) -> Iterator[Server]:
        yield Server("127.0.0.1:1", 0)

    monkeypatch.setattr(service.demo.server, "running", pretend)


def answers(
    monkeypatch: pytest.MonkeyPatch, results: list[Result], then: type[BaseException] | None = None
) -> None:
    """Makes these results the service's, and ends the run with an exception."""

    async def stream(url: object, files: object, model: object, on_result: Any) -> None:
        for result in results:
            on_result(result)
        if then is not None:
            raise then

    monkeypatch.setattr(service.cli.demo, "_stream", stream)


def test_ctrl_c_still_shows_what_there_is(
    tmp_path: Path, no_service: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_files(tmp_path)
    answers(monkeypatch, [Result(tmp_path / "0.c", "c", 0.75, MODEL, 5_000_000)], KeyboardInterrupt)
    result = invoke(tmp_path)
    assert result.exit_code == 0
    assert "stopped after 1 of 50 files" in result.stderr
    assert f"{tmp_path / '0.c'}  c          75.0%" in result.stdout
    assert "p50 5.0 ms" in result.stdout and "Batches formed" not in result.stdout


def test_a_long_list_is_summed_up_by_type_and_all_lists_it(
    tmp_path: Path, no_service: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").touch()
    results = [Result(Path(f"{n:03}"), f"type{n % 30:02}", 0.999, MODEL, 1) for n in range(300)]
    answers(monkeypatch, [*reversed(results), Result(Path("~bad"), "Permission denied", 0.0, FAILED)])
    lines = invoke(tmp_path).stdout.splitlines()
    assert lines[0].split() == ["file", "type", "confidence", "note"]
    assert [line.split()[0] for line in lines[1:21]] == [f"{n:03}" for n in range(20)]
    assert lines[21] == "... 276 more (--all lists them)"
    assert [line.split()[0] for line in lines[23:28]] == ["296", "297", "298", "299", "~bad"]
    assert lines[27].endswith("Permission denied")
    assert lines[29].split() == ["type", "files"] and lines[30].split() == ["type00", "10"]
    assert lines[45].split() == ["15", "other", "types", "150"]
    assert "301 files: 300 through the model, 0 by rule, 1 could not be read or were refused." in lines
    everything = invoke(tmp_path, "--all").stdout.splitlines()
    assert [line.split()[0] for line in everything[1:301]] == [f"{n:03}" for n in range(300)]


def test_notes_tell_where_the_tool_would_not_trust_the_model(
    tmp_path: Path, no_service: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").touch()
    answers(
        monkeypatch,
        [
            Result(Path("a"), "markdown", 0.5, MODEL, 1),
            Result(Path("b"), "markdown", 0.99, MODEL, 1),
            Result(Path("c"), "txt", 1.0, BY_RULE),
        ],
    )
    lines = invoke(tmp_path).stdout.splitlines()
    assert lines[1].split() == ["a", "markdown", "50.0%", "magika", "would", "say", "txt"]
    assert lines[2].split() == ["b", "markdown", "99.0%"]
    assert lines[3].split() == ["c", "txt", "-", "too", "short", "for", "the", "model:", "by", "rule"]


def test_the_ready_line_is_what_the_demo_needs() -> None:
    line = json.dumps({"grpc_port": 4711, "metrics_port": 1, "models": []})
    ready, tell = os.pipe()
    os.write(tell, line.encode() + b"\n")
    os.close(tell)
    assert service.demo.server._url(ready, None, None) == "127.0.0.1:4711"  # type: ignore[arg-type]
