"""Planted bugs fit the present sources and name existing tests; ``run`` plants them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.planted.plant import Plant
from tests.planted.registry import EVERY_PLANT
from tests.planted.run import COPIED
from tests.support.jars import LOCK

pytestmark = pytest.mark.slow

HOME = Path(__file__).parents[2]


@cache
def source(path: str) -> str:
    return (HOME / path).read_text()


@cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.walk(ast.parse(source(path)))
    return frozenset(one.name for one in tree if isinstance(one, ast.FunctionDef))


@cache
def statement_lines(path: str) -> list[tuple[int, int]]:
    """Return the first and the last line of each top-level statement, decorators included."""
    return [
        (
            min([one.lineno, *(at.lineno for at in getattr(one, "decorator_list", ()))]),
            one.end_lineno,
        )
        for one in ast.parse(source(path)).body
        if one.end_lineno is not None
    ]


def changed_statements(path: str, planted: str) -> tuple[str, str]:
    """Return the text of the top-level statements that a plant changes, before and after it.

    The others are equal, and are not parsed.
    """
    before, after = source(path).splitlines(), planted.splitlines()
    same = [one == other for one, other in zip(before, after, strict=False)]
    first = [*same, False].index(False)
    same_from_end = [one == other for one, other in zip(before[::-1], after[::-1], strict=False)]
    last = len(before) - min(
        [*same_from_end, False].index(False), min(len(before), len(after)) - first
    )
    lines = statement_lines(path)
    # What is inserted after a statement may be its last lines.
    (start, *_) = [0, 0, *(end for _, end in lines if end <= first)][-2:]
    end = min((begin for begin, _ in lines if begin > last), default=len(before) + 1) - 1
    return (
        "\n".join(before[start:end]),
        "\n".join(after[start : end + len(after) - len(before)]),
    )


def why_not_applicable(plant: Plant) -> str | None:
    try:
        planted = plant.plant_into(source(plant.path))
    except (ValueError, OSError) as error:
        return str(error)
    if not plant.path.endswith(".py"):
        return None if plant.old != plant.new else f"{plant.bug}: it changes nothing"
    before, after = changed_statements(plant.path, planted)
    if ast.dump(ast.parse(before)) == ast.dump(ast.parse(after)):
        return f"{plant.bug}: it changes nothing that runs"
    return None


def missing_tests(plant: Plant) -> list[str]:
    missing = [] if plant.tests else ["no test is named"]
    for test in plant.tests:
        path, _, name = test.partition("::")
        if not (HOME / path).exists():
            missing.append(path)
            continue
        function = name.split("::")[-1].partition("[")[0]
        if function and function not in names_of_tests(path):
            missing.append(test)
    return [f"{plant.bug}: {one}" for one in missing]


def test_a_copy_has_the_checksums_of_the_jars_of_spark_sessions() -> None:
    """Tests with a session would not run there: with a bug as without one."""
    assert LOCK.relative_to(HOME).parts[0] in COPIED


def test_every_planted_bug_fits_the_sources() -> None:
    assert not [why for plant in EVERY_PLANT if (why := why_not_applicable(plant))]


def test_no_planted_bug_uses_a_name_that_does_not_exist(tmp_path: Path) -> None:
    """Any test that reaches such a line fails, whatever it checks."""
    for number, plant in enumerate(EVERY_PLANT):
        if plant.path.endswith(".py"):
            (tmp_path / f"plant_{number}.py").write_text(plant.plant_into(source(plant.path)))
    command = ["ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise", "."]
    found = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    undefined = re.findall(r"^plant_(\d+)\.py:\S+ F821 (.*)", found.stdout, re.MULTILINE)
    assert not [f"{EVERY_PLANT[int(number)].bug}: {why}" for number, why in undefined]
    assert found.returncode == 0, found.stderr


def test_no_planted_bug_uses_an_attribute_that_no_source_has() -> None:
    roots = ("connector", "state", "python_datasource")
    texts = (
        path.read_text()
        for pattern in ("*.py", "native/src/*.rs")
        for root in roots
        for path in (HOME / root).rglob(pattern)
    )
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    assert not [
        f"{plant.bug}: {name}"
        for plant in EVERY_PLANT
        for name in re.findall(r"[\w)\]]\.([a-z_]\w*)", plant.new)
        if name not in words
    ]


def test_the_tests_that_must_find_a_planted_bug_exist() -> None:
    assert not [one for plant in EVERY_PLANT for one in missing_tests(plant)]


def test_every_planted_bug_has_a_unique_name() -> None:
    counts = Counter(plant.bug for plant in EVERY_PLANT)
    assert not [bug for bug, count in counts.items() if count > 1]


def test_every_tuple_of_planted_bugs_is_registered() -> None:
    """The registry would never plant bugs of a tuple whose name it does not find."""
    named = sum(
        ast.unparse(node.func) == "Plant"
        for path in (HOME / "tests/planted").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    )
    assert named == len(EVERY_PLANT)
