"""Words of sources, tests and documents: the terms of Kafka, Raft, Spark and Delta."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

HOME = Path(__file__).parents[2]
SOURCES = ("connector", "state", "python_datasource", "notebooks", "benchmarks")
DOCUMENTS = (
    "README.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(f"docs/{path.name}" for path in sorted((HOME / "docs").glob("*.md"))),
)

BANNED = {
    r"who|whom|whoever|whomever": "name the component: the client, the leader, the caller",
    r"nobody|somebody|everybody|anybody|noone": "no replica, a client, every node, any caller",
    r"he|him|his": "it, its",
    r"anew": "again",
    r"gone": "deleted, closed, lost",
    r"told|tell|tells|telling": "sent, logs, reports",
    r"hear|hears|heard|hearing": "receive, handle",
    r"mend|mends|mended|mending|mender": "recover, repair, rebuild",
    r"placed": "appended, assigned",
    r"made|making": "created, built, computed",
    r"sound|unsound": "valid, undamaged",
    r"lie|lies|lay|lain": "is at, is in",
    r"(?-i:is none)|of ours|at once|for people": "no ..., raftlog's, immediately, for operators",
    r"behind": "after, later than; of a replica: lags",
    r"aside": "as a backup",
    r"door|doors": "listener, entry point",
}
BANNED_IN_PROSE = {
    r"ours|our": "raftlog's",
    r"strangers?": "an unknown replica, another client",
    r"senseless|deserted": "invalid, without a majority",
    r"parked": "delayed",
    r"for ever|all the same|in vain": "forever, nevertheless, without success",
    r"(goes|go|went|going) on": "continues",
    r"(gives?|gave|given|giving) up": "times out, is abandoned",
    r"comes?|came|coming": "arrives, follows, is received",
    r"stands?|stood|standing": "is, campaigns, is stalled",
    r"believes?|believed": "trusts, uses, accepts",
    r"wants?|wanted": "requires, requests",
    r"meets?|met": "finds, satisfies",
}
ALLOWED = re.compile(
    # A replica lags; a machine is reached through a proxy.
    r"(lag|lags|lagging|fall|falls|fallen|falling|fell) behind|behind (a|the) (proxy|NAT)",
    re.IGNORECASE,
)
PATTERN = re.compile("|".join(rf"\b(?:{words})\b" for words in BANNED), re.IGNORECASE)
PATTERN_IN_PROSE = re.compile(
    "|".join(rf"\b(?:{words})\b" for words in (*BANNED, *BANNED_IN_PROSE)), re.IGNORECASE
)
NAMES_OF_OTHERS = {"connection_made"}
"""Methods that asyncio calls."""


def texts() -> Iterator[Path]:
    for root in SOURCES:
        yield from sorted((HOME / root).rglob("*.py"))
    yield from (HOME / name for name in DOCUMENTS)


def offenders(text: str, pattern: re.Pattern[str] = PATTERN) -> Iterator[tuple[int, str]]:
    """Yield line number and word of every banned word, in code, comments and strings alike."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in pattern.finditer(ALLOWED.sub("", line)):
            yield number, found.group()


def words_of(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every parameter, and of every variable that is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def prose(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings, comments, planted bugs, and names of functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield node.lineno, text
            case ast.keyword(arg="bug", value=ast.Constant(value=str() as text)):
                yield node.value.lineno, text
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if node.name not in NAMES_OF_OTHERS:
                    yield node.lineno, words_of(node.name)
    if any("#" in line for line in path.read_text().splitlines() if is_suspect(line)):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string


def is_suspect(text: str) -> bool:
    """Return whether a text has a banned word anywhere: few sources need to be parsed."""
    return any(offenders(f"{text}\n{words_of(text)}", PATTERN_IN_PROSE))


def offenders_in_prose(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and word of banned words in the prose of a source."""
    for start, text in prose(path, tree):
        for line, word in offenders(text, PATTERN_IN_PROSE):
            yield start + line - 1, word


def offenders_in_test(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and word of banned words; strings that are data of a test may have any."""
    if path.suffix == ".txt":
        lines = path.read_text().splitlines()
        yield from offenders(
            "\n".join(line if line.startswith("#") else "" for line in lines), PATTERN_IN_PROSE
        )
        return
    if not is_suspect(path.read_text()):
        return
    tree = ast.parse(path.read_text())
    yield from offenders_in_prose(path, tree)
    for start, name in variables(tree):
        yield from ((start, f"{word} ({name})") for _, word in offenders(words_of(name)))


def test_sources_and_documents_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(HOME)}:{number}: {word}"
        for path in texts()
        for number, word in offenders(path.read_text())
    ]
    found += [
        f"{path.relative_to(HOME)}:{number}: {word}"
        for path in texts()
        if path.suffix == ".py" and is_suspect(path.read_text())
        for number, word in offenders_in_prose(path, ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_tests_use_the_words_of_the_field() -> None:
    tests = HOME / "tests"
    paths = [*tests.rglob("*.py"), *(tests / "scenarios").rglob("*.txt")]
    found = [
        f"{path.relative_to(HOME)}:{number}: {word}"
        for path in sorted(paths)
        for number, word in offenders_in_test(path)
    ]
    found += [
        f"{path.relative_to(HOME)}: {word}"
        for path in sorted(paths)
        for _, word in offenders(words_of(path.stem), PATTERN_IN_PROSE)
    ]
    assert not found, "\n".join(found)


def test_every_banned_word_is_found_where_it_is_a_word() -> None:
    for words in BANNED:
        for word in words.replace("(?-i:is none)", "is none").split("|"):
            assert list(offenders(f"an example: {word} in a sentence")), word
            assert not list(offenders(f"an_{word}_b".replace(" ", "_"))), word


def test_a_replica_may_lag_behind() -> None:
    assert not list(offenders("the follower lags behind, and the node is behind a proxy"))
    assert list(offenders("the record behind the end"))
