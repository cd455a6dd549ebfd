"""The house rules that a machine can check: style is a test that fails, not a document."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
ROOTS = ("connector", "state", "python_datasource")
LINES_PER_FILE_MAX = 600
LINES_PER_FUNCTION_MAX = 70
SOURCES = sorted(path for root in ROOTS for path in (HOME / root).rglob("*.py"))
TEXTS = (
    sorted(
        path
        for pattern in ("*.md", "Makefile", "pyproject.toml", "setup.cfg", "notebooks/*.py")
        for path in HOME.glob(pattern)
    )
    + sorted((HOME / "tests").rglob("*.py"))
    + sorted((HOME / "benchmarks").rglob("*.py"))
)

NAKED_SUPPRESSION = re.compile(r"#\s*(type:\s*ignore(?!\[)|noqa(?!:)|pyright:\s*ignore(?!\[))")
MACHINE_PATH = re.compile(r"(?<![\w.])/(root|home/\w+|Users/\w+)/")


def name_of(path: Path) -> str:
    return str(path.relative_to(HOME))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_PER_FILE_MAX


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    long = [
        f"{node.name} at line {node.lineno}"
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno + 1 > LINES_PER_FUNCTION_MAX
    ]
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), "a module docstring is missing"


@pytest.mark.parametrize("path", SOURCES + TEXTS, ids=name_of)
def test_a_suppressed_check_names_its_rule(path: Path) -> None:
    if path == Path(__file__):
        return
    assert not NAKED_SUPPRESSION.findall(path.read_text())


@pytest.mark.parametrize("path", SOURCES + TEXTS, ids=name_of)
def test_no_path_of_one_machine_is_written_down(path: Path) -> None:
    assert not MACHINE_PATH.findall(path.read_text())


def test_every_module_is_reached_from_another_or_is_a_door() -> None:
    modules = {}
    for path in SOURCES:
        parts = path.relative_to(HOME).with_suffix("").parts[1:]
        modules[".".join(part for part in parts if part != "__init__")] = path
    imported: set[str] = set()
    for name, path in modules.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*base, *([node.module] if node.module else [])])
                imported |= {source} | {f"{source}.{alias.name}" for alias in node.names}
    # The simulated disk is there for whoever tests something that writes, ourselves first.
    doors = {"raftlog_state.cli.main", "raftlog_state.cli.__main__", "raftlog.storage.simulated"}
    doors |= {n for n, p in modules.items() if p.name == "__init__.py"}
    unreached = set(modules) - imported - doors
    assert not unreached
