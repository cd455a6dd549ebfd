"""ReadIndex: a leader returns the end of the log only after a majority has confirmed it."""

from __future__ import annotations

from tests.scenarios.commands import Handler


def run(handler: Handler, *commands: str) -> list[str]:
    """Run commands; return the results of appends."""
    for command in commands:
        handler.run(command)
    return [line for line in handler.take_lines() if line.startswith("user")]


def leader_of_three() -> Handler:
    handler = Handler()
    run(handler, "cluster voters=1,2,3", "elect 1", 'append 1 "a"', "deliver")
    return handler


def test_an_empty_append_is_answered_once_a_majority_has_confirmed_the_leader() -> None:
    handler = leader_of_three()
    assert run(handler, "append 1") == []
    assert len(run(handler, "deliver")) == 1


def test_a_deposed_leader_does_not_confirm_the_end_of_its_log() -> None:
    """The new leader's log may already be longer."""
    handler = leader_of_three()
    run(handler, "partition 1", "elect 3", "deliver", 'append 3 "b"', "deliver")
    assert run(handler, "append 1", "deliver", "tick 1 ms=20", "deliver") == []
    (answer,) = run(handler, "timeout 1")
    assert "NotLeaderError" in answer
