"""T0: the rules that no compiler checks. Above all: every atomic access names its row of FQ_LABELS."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from c_toolchain import HERE, INCLUDE, headers, labels, without_comments

pytestmark = pytest.mark.t0

ROWS = {label.name: label for label in labels()}
ACCESS = re.compile(r"\bfq_(load|store|xchg)_(\w+)\s*\(")
POSSIBLE = {"load": {"rlx", "acq", "sc"}, "store": {"rlx", "rel", "sc"}, "xchg": {"rlx"}}


def sources() -> list[Path]:
    """Everything that may touch an atomic word: the headers, the binding, and C elsewhere in the project."""
    project = HERE.parents[1]
    found = [path for folder in ("fastqueue", "service") for path in (project / folder).rglob("*")]
    others = [path for path in found if path.suffix in (".c", ".h", ".pyx") and path.parent.name != "include"]
    return headers() + sorted(others)


def arguments(text: str, at: int) -> list[str]:
    """The arguments of the call whose parenthesis opens just before `at`."""
    parts, depth = [""], 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if text[at] == "," and depth == 1:
            parts.append("")
        elif depth:
            parts[-1] += text[at]
        at += 1
    return [part.strip() for part in parts]


def accesses() -> list[tuple[str, str, str, str]]:
    """(where, operation, order, label) of every atomic access, the definitions of the macros left out."""
    found = []
    for path in sources():
        text = without_comments(path.read_text())
        for match in ACCESS.finditer(text):
            line = text[: match.start()].splitlines()
            if "#define" in line[-1]:
                continue
            label = arguments(text, match.end())[-1].removeprefix("_c.")
            found.append((f"{path.name}:{len(line)}", match[1], match[2], label))
    return found


def test_every_access_names_a_row_with_its_order() -> None:
    wrong = [
        f"{where}: fq_{operation}_{order} with {label}; its row: {ROWS.get(label)}"
        for where, operation, order, label in accesses()
        if label not in ROWS or ROWS[label].order != order or order not in POSSIBLE[operation]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_row_is_used() -> None:
    used = {label for *_, label in accesses()}
    assert set(ROWS) - used == set(), "rows of FQ_LABELS without an access"


def test_an_ordering_stands_at_one_place() -> None:
    """So that weakening a row is weakening one access: T4 then speaks of each."""
    places = Counter(label for *_, label in accesses() if label in ROWS and ROWS[label].order != "rlx")
    assert [label for label, count in places.items() if count != 1] == []


def test_rows_name_their_partners_and_their_reason() -> None:
    for label in ROWS.values():
        unknown = [name for name in label.partners.split() if name != "none" and name not in ROWS]
        assert not unknown, f"{label.name} names a partner that has no row: {unknown}"
        assert len(label.why) > 15, f"{label.name} gives no reason"
        if label.order in ("acq", "rel"):
            orders = {ROWS[name].order for name in label.partners.split()}
            wanted = {"rel", "sc"} if label.order == "acq" else {"acq", "sc"}
            assert orders & wanted, f"{label.name} pairs with nobody"


def forbidden(pattern: str, paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.name}:{number}: {line.strip()}")
    return found


def test_only_fq_atomic_names_atomics() -> None:
    """The native front end's counters are its process's own: no other process ever sees them."""
    others = [path for path in sources() if path.name != "fq_atomic.h" and path.parent.name != "native"]
    assert forbidden(r"memory_order|\batomic_|_Atomic|__atomic|__sync_|stdatomic|\bvolatile\b", others) == []


def test_no_fence_stands_alone() -> None:
    assert forbidden(r"_fence\b|__sync_synchronize", sources()) == []


def test_core_allocates_nothing_and_knows_no_python() -> None:
    assert forbidden(r"\b(malloc|calloc|realloc|free|alloca|strdup)\s*\(", headers()) == []
    assert forbidden(r"Python\.h|\bPy[A-Z_]\w*", headers()) == []


def test_no_pointer_lies_in_shared_memory() -> None:
    """Two processes map a lane at different addresses, so what lies there has no pointers."""
    text = without_comments((INCLUDE / "fq_layout.h").read_text())
    structs = re.findall(r"typedef struct \w+ \{.*?\n\} \w+;", text, flags=re.DOTALL)
    assert len(structs) > 10
    ring = (INCLUDE / "fq_ring.h").read_text()
    control = re.search(r"typedef struct fq_ring_control \{.*?\n\}", ring, flags=re.DOTALL)
    assert control
    assert [s for s in [*structs, control[0]] if "*" in s] == []


@pytest.mark.parametrize("path", headers(), ids=lambda path: path.name)
def test_header_opens_with_its_essay(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"/* {path.name}: "), "the first words of a header are its name and what it is"
    assert f"#ifndef {path.stem.upper()}_H" in text
    assert len(text.splitlines()) <= 400, "a file that nobody can hold in mind; divide it"


def test_c_of_the_tests_keeps_the_budget() -> None:
    long = {path.name: len(path.read_text().splitlines()) for path in HERE.rglob("*.[ch]")}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
