"""deploy/Dockerfile, as far as it can be checked without Docker: its steps are those that others test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import service.cli
import service.supervisor
from service.config import DEFAULT_GRPC_PORT, DEFAULT_METRICS_PORT, ServeConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, in order."""
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    parts = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in parts]


def arguments(steps: list[tuple[str, str]], instruction: str) -> list[str]:
    return [rest for word, rest in steps if word == instruction]


def words_of_command(steps: list[tuple[str, str]]) -> list[str]:
    """What a container without arguments of its own runs."""
    (entry,), (command,) = arguments(steps, "ENTRYPOINT"), arguments(steps, "CMD")
    return json.loads(entry) + json.loads(command)


def test_the_build_is_the_one_of_make_demo(steps):
    build, *others = arguments(steps, "RUN")
    recipe = re.search(r"^\t(\.ci/setup .*demo)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe, "the Makefile's recipe has another form"
    assert build == "/opt/headrace".join(recipe[1].split("$(VENV)")).replace("dev,demo", "demo")
    assert len(others) == 2


def test_the_system_packages_are_those_that_the_set_up_installs(steps):
    setup = (ROOT / ".ci/setup").read_text()
    (install,) = [step for step in arguments(steps, "RUN") if "apt-get install" in step]
    command, packages = re.findall(r"(apt-get install (?:-\S+ )+)([^&]*)&&", install)[0]
    assert command.strip() in setup
    offered = set(" ".join(re.findall(r'packages\+=" ([^"]*)"', setup)).split())
    built_with = {
        "libnghttp2-14": "libnghttp2-dev",
        "libssl3": "libssl-dev",
    }  # a library, and what it is built with
    assert {built_with.get(name, name) for name in packages.split()} <= offered


def test_it_serves_as_a_user_without_rights(steps):
    words = [word for word, _ in steps]
    (user,) = arguments(steps, "USER")
    (made,) = [step for step in arguments(steps, "RUN") if step.startswith("useradd")]
    assert user not in ("root", "0")
    assert made.endswith(f" {user}")
    after = words[words.index("USER") :]
    assert "RUN" not in after
    assert "USER" not in after[1:]
    assert words.count("FROM") == 2, "the last stage is the one that has the user"
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "FROM")


def test_what_it_runs_is_a_command_line_that_serves_on_every_address(steps, monkeypatch):
    started: list[ServeConfig] = []
    monkeypatch.setattr(service.supervisor, "serve", lambda config: started.append(config) or 0)
    program, *rest = words_of_command(steps)
    assert Path(program).name == "headrace"
    assert CliRunner().invoke(service.cli.app, rest).exit_code == 0
    (config,) = started
    assert config == ServeConfig(("/models",), host="0.0.0.0")
    exposed = {int(port) for ports in arguments(steps, "EXPOSE") for port in ports.split()}
    assert exposed == {DEFAULT_GRPC_PORT, DEFAULT_METRICS_PORT}
