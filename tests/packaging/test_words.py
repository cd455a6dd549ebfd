"""The words of sources, help texts and documents: the field's, none of a private dialect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")

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
ALLOWED = re.compile(
    # A replica lags; a machine is reached through a proxy.
    r"(lag|lags|lagging|fall|falls|fallen|falling|fell) behind|behind (a|the) (proxy|NAT)",
    re.IGNORECASE,
)
PATTERN = re.compile("|".join(rf"\b(?:{words})\b" for words in BANNED), re.IGNORECASE)


def texts() -> Iterator[Path]:
    for root in ("connector", "state", "python_datasource", "notebooks"):
        yield from sorted((HOME / root).rglob("*.py"))
    yield from (HOME / name for name in DOCUMENTS)


def offenders(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and word of every banned word, in code, comments and strings alike."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in PATTERN.finditer(ALLOWED.sub("", line)):
            yield number, found.group()


def test_sources_and_documents_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(HOME)}:{number}: {word}"
        for path in texts()
        for number, word in offenders(path.read_text())
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
