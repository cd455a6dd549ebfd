"""Voters with damaged logs: how they are reported, and how a leader is elected again."""

from __future__ import annotations

import pytest

from raftlog.node.replica import Replica
from raftlog.quorum.effects import LogMessage
from raftlog.quorum.roles import Leader
from tests.scenarios.commands import Handler

BEGINNING = (
    "cluster voters=1,2,3",
    "elect 1",
    'append 1 "a"',
    'append 1 "b"',
    "deliver",
    "crash 1",
    "crash 2",
    "crash 3",
)


def run(handler: Handler, *commands: str) -> None:
    for command in commands:
        handler.run(command)


def damaged(*node_ids: int) -> Handler:
    """Restart three voters, these with a damaged log."""
    handler = Handler()
    run(handler, *BEGINNING)
    for node_id in node_ids:
        run(handler, f"damage {node_id} 00000000000000000000.log bit=1500")
    for node_id in (1, 2, 3):
        run(handler, f"start {node_id}")
    run(handler, "deliver")
    return handler


def replica(handler: Handler, node_id: int) -> Replica:
    return handler.node(node_id).replica


def has_leader(handler: Handler) -> bool:
    return any(isinstance(handler.node(one).role, Leader) for one in (1, 2, 3))


def try_elections(handler: Handler, node_id: int) -> None:
    for _ in range(5):
        run(handler, "tick ms=2100", "deliver", f"timeout {node_id}", "deliver")


def test_a_quorum_without_a_majority_logs_the_reason_and_the_remedy() -> None:
    handler = damaged(1, 2)
    try_elections(handler, 3)
    assert not has_leader(handler)
    healthy = replica(handler, 3).core
    assert healthy.damaged_voter_count == 2
    problem = healthy.election_problem or ""
    assert "the log of node 1, 2 lacks records" in problem
    assert "No leader can be elected: 2 votes of 3 are needed, and 1 can be granted" in problem
    assert "raftlog node recover --allow-data-loss" in problem
    own = replica(handler, 2)
    assert "the log of node 2 lacks records" in (own.core.election_problem or "")
    reason = own.log.out_of_election_reason() or ""
    assert "truncated at offset 2: offsets 2 to 2, which were synced" in reason
    assert "raftlog repair" not in reason, "that is for logs without a quorum"

    run(handler, "crash 2", "forget 2 withdrawn", "start 2", "deliver")
    try_elections(handler, 3)
    assert isinstance(handler.node(3).role, Leader)
    assert replica(handler, 3).log.end_offset >= 4
    run(handler, "tick ms=600", "deliver")
    for node_id in (1, 2, 3):
        assert replica(handler, node_id).core.election_problem is None


def test_one_damaged_log_does_not_prevent_an_election() -> None:
    handler = damaged(2)
    try_elections(handler, 3)
    assert has_leader(handler)
    run(handler, "tick ms=600", "deliver")
    assert replica(handler, 2).core.election_problem is None


def test_a_former_only_voter_starts_with_a_damaged_log() -> None:
    """The voters of later sets are in the damaged part; ``quorum-state`` has the later leader."""
    handler = Handler()
    run(handler, "cluster voters=1 observers=4 kraft_version=1", "elect 1", "deliver")
    run(handler, 'append 1 "a"', "tick 4 ms=20", "deliver", "tick 4 ms=20", "deliver")
    run(handler, "add-voter 1 node=4", "deliver", "remove-voter 1 node=1", "deliver")
    run(handler, "elect 4", "deliver", "tick ms=2100", "deliver")
    assert handler.node(1).role.leader_id == 4
    run(handler, "crash 1", "damage 1 00000000000000000000.log bit=1500", "start 1", "deliver")
    assert replica(handler, 1).log.end_offset == 3
    assert replica(handler, 1).core.is_recovering, "it votes when it has fetched the rest"


def test_log_lines_name_a_damaged_log(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Handler()
    run(handler, *BEGINNING, "damage 2 00000000000000000000.log bit=1500")
    node = handler.node(2)
    logged: list[str] = []

    def notify(news: object) -> None:
        if isinstance(news, LogMessage):
            logged.append(news.text)

    monkeypatch.setattr(node, "_notify", notify)
    run(handler, "start 1", "start 3", "start 2", "deliver")
    try_elections(handler, 3)
    run(handler, "tick ms=600", "deliver")
    assert [text for text in logged if "the log of node 2 lacks records" in text]
    assert [text for text in logged if "votes again" in text]
