"""--help teaches: every subcommand has a text and examples. It loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from fake_server import Run

from service import __version__
from service.cli import app
from service.cli.common import Column, plain_table, program_name

COMMANDS = ["serve", "demo", "infer", "models", "bench", "doctor"]


def test_the_first_page_names_every_command_and_shows_the_way(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f" {command} " in result.stdout
        assert f"headrace {command}" in result.stdout or command in ("models", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_on_lines_of_their_own(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    examples = [line for line in lines if line.startswith(f"headrace {command}")]
    assert "Examples" in lines and len(examples) >= 3


def test_no_arguments_is_help_and_a_wrong_command_is_exit_code_2(run: Run) -> None:
    assert "Usage" in run().output
    assert run("srve").exit_code == 2


def test_the_version_is_the_packages(run: Run) -> None:
    assert run("--version").stdout == f"headrace {__version__}\n"


@pytest.mark.parametrize("flag", ["--url", "--timeout", "--model-version"])
def test_client_commands_share_their_flags(run: Run, flag: str) -> None:
    for command in ("infer", "bench"):
        assert flag in run(command, "--help").stdout


@pytest.mark.parametrize(
    "flag", ["--url", "--ssl", "--ssl-root-cert", "--ssl-client-cert", "--ssl-client-key"]
)
@pytest.mark.parametrize("command", ["infer", "models", "bench"])
def test_every_client_command_says_how_a_server_is_spoken_to(run: Run, command: str, flag: str) -> None:
    assert f" {flag} " in run(command, "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_with_a_value_says_in_a_users_word_what_it_is(run: Run, command: str) -> None:
    lines = run(command, "--help").stdout.splitlines()
    flags = [line for line in lines if line.strip("│ ").startswith("--")]
    types = ("<int", "<float", "<str", "<path", "INTEGER", "FLOAT", "TEXT", "PATH")
    assert flags and not [line for line in flags if any(name in line for name in types)]


@pytest.mark.parametrize("columns", [72, 80, 140, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_name_can_be_read_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run(command, "--help").stdout.splitlines()
    assert max(map(len, lines)) <= columns
    words = {word for line in lines if line.startswith("│") for word in re.split("[ ,│]+", line)}
    params = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    names = {name for param in params if not param.hidden for name in param.opts if name.startswith("-")}
    assert names and names <= words


def test_a_narrow_help_says_everything_that_the_wide_one_says(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(columns: int) -> set[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        return set(re.split(r"[\s,│╭╮╰╯─]+", run("serve", "--help").stdout))

    assert told(300) - told(80) <= {"*", "<bool>"}  # what is required, and what has no value


def test_help_loads_neither_grpc_nor_numpy() -> None:
    code = (
        "import sys\nsys.argv = ['headrace', '--help']\nfrom service.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('grpc', 'numpy', 'onnxruntime', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_dash_m_service_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "service", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"headrace {__version__}\n" and done.returncode == 0


def test_how_to_call_this_program_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "headrace"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.chdir(tmp_path)
    assert program_name() == "bin/headrace"
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", "/nowhere")
    assert program_name() in (str(program), str(program)[1:]), "relative to where one stands, if below it"
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_name() == "headrace"
    monkeypatch.setattr(sys, "argv", ["/somewhere/service/__main__.py"])
    assert program_name() == "python -m service"


def test_a_table_in_a_pipe_is_aligned_and_never_cut() -> None:
    lines = plain_table(
        [Column("name"), Column("n", right=True), Column("note")], [["x" * 200, "7", ""], ["y", "10", "z"]]
    )
    assert lines == [
        "name" + " " * 196 + "   n  note",
        "x" * 200 + "   7",
        "y" + " " * 199 + "  10  z",
    ]
