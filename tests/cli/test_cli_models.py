"""``headrace models`` with servers that list their models in different ways, or not at all."""

from __future__ import annotations

import json

from fake_server import FakeServer, Run


def test_what_is_loaded_is_listed_through_statistics(run: Run, server: FakeServer) -> None:
    heading, line = run("models", "--url", server.url).stdout.splitlines()
    assert heading.split() == ["model", "version", "state", "platform", "max", "batch", "inputs", "outputs"]
    assert line.split("  ") != [line]
    for part in ("affine", "READY", "fake_platform", "x FP32 [-1, 4]", "y FP32 [-1, 4]", " 8 "):
        assert part in line


def test_a_repository_index_also_lists_what_is_not_loaded(run: Run, server: FakeServer) -> None:
    server.missing.clear()
    rows = json.loads(run("models", "--url", server.url, "--json").stdout)
    assert [(row["model"], row["version"], row["state"]) for row in rows] == [
        ("affine", "1", "READY"),
        ("asleep", "3", "UNAVAILABLE"),
    ]
    assert "UNAVAILABLE (unloaded)" in run("models", "--url", server.url).stdout


def test_a_model_that_is_not_ready_is_listed_without_details(run: Run, server: FakeServer) -> None:
    server.not_ready.add("affine")
    (row,) = json.loads(run("models", "--url", server.url, "--json").stdout)
    assert row["state"] == "UNAVAILABLE" and row["inputs"] == []


def test_one_model_by_name_needs_no_list(run: Run, server: FakeServer) -> None:
    server.missing |= {"ModelStatistics", "ModelConfig"}
    (row,) = json.loads(run("models", "affine", "--url", server.url, "--json").stdout)
    assert row["inputs"] == ["x FP32 [-1, 4]"] and row["max_batch"] is None


def test_a_server_that_cannot_list_says_what_to_do(run: Run, server: FakeServer) -> None:
    server.missing.add("ModelStatistics")
    result = run("models", "--url", server.url)
    assert result.exit_code == 1 and "name one: headrace models MODEL" in result.stderr


def test_an_unknown_model_is_not_found(run: Run, server: FakeServer) -> None:
    result = run("models", "nothing", "--url", server.url)
    assert result.exit_code == 1 and "NOT_FOUND" in result.stderr
