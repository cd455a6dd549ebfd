"""The house rules that a program can check. Each test lists all offenders of its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

HOME = Path(__file__).parents[2]
ROOTS = ("connector", "state", "python_datasource")
LINES_PER_FILE_MAX = 900
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

NAKED_SUPPRESSION = re.compile(r"#\s*(type:\s*ignore(?!\[)|noqa(?!:))")
MACHINE_PATH = re.compile(r"(?<![\w.])/(root|home/\w+|Users/\w+)/")


def name_of(path: Path) -> str:
    return str(path.relative_to(HOME))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def offenders(pattern: re.Pattern[str]) -> list[str]:
    """Return every line of the repository, this file's excepted, in which the pattern occurs."""
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in SOURCES + TEXTS
        if path != Path(__file__) and pattern.search(text_of(path))
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_a_file_has_a_bounded_length() -> None:
    lengths = {name_of(path): text_of(path).count("\n") for path in SOURCES}
    assert not {name: count for name, count in lengths.items() if count > LINES_PER_FILE_MAX}


def test_a_function_fits_on_a_screen() -> None:
    assert not [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno + 1 > LINES_PER_FUNCTION_MAX
    ]


def test_every_module_has_a_docstring() -> None:
    trees = {name_of(path): tree_of(path) for path in SOURCES}
    assert not [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)]


def test_a_suppressed_check_names_its_rule() -> None:
    assert not offenders(NAKED_SUPPRESSION)


def test_no_path_of_one_machine_is_committed() -> None:
    assert not offenders(MACHINE_PATH)


def test_every_module_is_imported_or_an_entry_point() -> None:
    modules = {}
    for path in SOURCES:
        parts = path.relative_to(HOME).with_suffix("").parts[1:]
        modules[".".join(part for part in parts if part != "__init__")] = path
    imported: set[str] = set()
    for name, path in modules.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*base, *([node.module] if node.module else [])])
                imported |= {source} | {f"{source}.{alias.name}" for alias in node.names}
    entry_points = {"raftlog_state.cli.main", "raftlog_state.cli.__main__"}
    entry_points |= {n for n, p in modules.items() if p.name == "__init__.py"}
    unreached = set(modules) - imported - entry_points
    assert not unreached


def test_a_support_module_has_several_users() -> None:
    """One with a single user is beside it."""
    users = [path for path in TEXTS if path.suffix == ".py" and path != Path(__file__)]
    assert not [
        module.name
        for module in (HOME / "tests/support").glob("[a-z]*.py")
        if sum(
            re.search(rf"tests\.support\.{module.stem}\b", text_of(path)) is not None
            for path in users
            if path != module
        )
        < 2
    ]


# --- Numbers of different kinds -------------------------------------------------------------------

KINDS = tuple(
    re.compile(kind)
    for kind in (
        r"offset$",
        r"position$",
        r"(?<!producer_)epoch$",
        r"(node|leader|voter)_id$",
        r"_id$",
    )
)
KIND_ROOTS = tuple(f"connector/raftlog/{name}/" for name in ("records", "storage", "log", "quorum"))
POSITIONAL_KINDS = {
    "connector/raftlog/log/format/epoch_cache.py EpochCache.assign",
    "connector/raftlog/log/format/epoch_cache.py EpochCache.end_offset_for",
    "connector/raftlog/records/builder.py BatchBuilder.build",
}
"""Nodes and the remote producer still pass these numbers by position."""


INT = ast.Name("int")


def kind_of(name: str) -> int | None:
    return next((at for at, kind in enumerate(KINDS) if kind.search(name)), None)


def mixes_kinds(fields: Sequence[tuple[str, ast.expr | None]]) -> bool:
    """Return whether two neighbours are plain integers of different kinds."""
    runs: list[set[int]] = [set()]
    for name, annotation in fields:
        kind = kind_of(name)
        if annotation is None or ast.unparse(annotation) not in ("int", "int | None"):
            runs.append(set())
        elif kind is not None:
            runs[-1].add(kind)
    return any(len(kinds) > 1 for kinds in runs)


def positional_kinds(path: Path) -> Iterator[str]:
    """Yield the functions and classes of a file whose numbers could be swapped unnoticed.

    A named tuple cannot have keyword-only fields: the calls that create one have keywords.
    """
    named_tuples = set()
    for owner in ast.walk(tree_of(path)):
        if not isinstance(owner, ast.Module | ast.ClassDef):
            continue
        prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if mixes_kinds([(one.arg, one.annotation) for one in node.args.args]):
                    yield f"{name_of(path)} {prefix}{node.name}"
            elif isinstance(node, ast.ClassDef):
                fields = [
                    (one.target.id, one.annotation)
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                ]
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if not mixes_kinds(fields):
                    continue
                if "NamedTuple" in map(ast.unparse, node.bases):
                    named_tuples.add(node.name)
                elif "dataclass" in decorators and "kw_only=True" not in decorators:
                    yield f"{name_of(path)} {node.name}"
    for call in ast.walk(tree_of(path)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            is_swappable = mixes_kinds([(ast.unparse(one), INT) for one in call.args])
            if call.func.id in named_tuples and is_swappable:
                yield f"{name_of(path)}:{call.lineno} {call.func.id}(...)"


def test_numbers_of_different_kinds_are_never_neighbours_by_position() -> None:
    """An offset in the place of a position or an epoch would be a valid program."""
    found = {
        name
        for path in SOURCES
        if name_of(path).startswith((*KIND_ROOTS, "connector/raftlog/types.py"))
        for name in positional_kinds(path)
    }
    assert found == POSITIONAL_KINDS
