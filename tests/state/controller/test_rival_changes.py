"""Rival writers of changes on one log: embedded, and of quorums of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.controllers import bootstrap
from tests.support.quorum_processes import QuorumProcesses, eventually
from tests.support.rival_changes import (
    BATCH_BYTES_MAX,
    NO_OP,
    Interruptions,
    RivalHistory,
    replayed_image,
)
from tests.support.sweep_size import nightly_except

import raftlog
from raftlog import ConnectedLog, EmbeddedLog, LogConfig
from raftlog.clock import Clock
from raftlog.errors import UnexpectedEndOffsetError
from raftlog_state import apply_changes
from raftlog_state.controller import CreateTopic
from raftlog_state.image import TopicRow
from raftlog_state.records import (
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    encode,
)

SETTINGS = f"""[log]
values = "kraft"
batch_bytes_max = {BATCH_BYTES_MAX}
"""


@pytest.mark.parametrize("seed", nightly_except([0], range(4)))
def test_rivals_on_an_embedded_log(seed: int, tmp_path: Path) -> None:
    history = RivalHistory(seed, lambda clock: embedded(tmp_path, clock))
    history.run(40)
    assert history.counts["several batches"] > 2
    assert history.counts["UnexpectedEndOffsetError"] + history.counts["left open"] > 1
    assert history.counts["interrupted"]


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_transaction_in_which_another_writer_appended_is_aborted(
    attempts: int, tmp_path: Path
) -> None:
    between = Interruptions()
    log, other = embedded(tmp_path, between.as_clock()), embedded(tmp_path, Clock())
    apply_changes(log, bootstrap())
    between.act, between.readings_left = lambda: append_no_op(other), 4
    large = CreateTopic(topic="a", partitions=60, replication_factor=1)
    if attempts == 1:
        begin_offset = log.end_offset
        with pytest.raises(UnexpectedEndOffsetError) as caught:
            apply_changes(log, [large])
        assert (caught.value.required_base_offset or 0) > begin_offset, "a batch was written"
    else:
        apply_changes(log, [large], attempts=attempts)
    assert between.act is None
    apply_changes(log, [CreateTopic(topic="b", partitions=1, replication_factor=1)])
    found = {row.name for row in replayed_image(log).rows_of(TopicRow)}
    assert found == ({"b"} if attempts == 1 else {"a", "b"})


def test_changes_are_planned_again_if_only_the_log_itself_appended(tmp_path: Path) -> None:
    between = Interruptions()
    log, other = embedded(tmp_path, between.as_clock()), embedded(tmp_path, Clock())
    apply_changes(log, bootstrap())
    end_offset = log.end_offset
    between.act, between.readings_left = other.claim, 1
    topic = CreateTopic(topic="a", partitions=1, replication_factor=1)
    applied = apply_changes(log, [topic], attempts=1)
    assert between.act is None
    assert applied.result.base_offset == end_offset + 1
    assert [row.name for row in replayed_image(log).rows_of(TopicRow)] == ["a"]


def test_records_of_another_writer_beside_control_records_are_a_conflict(tmp_path: Path) -> None:
    between = Interruptions()
    log, other = embedded(tmp_path, between.as_clock()), embedded(tmp_path, Clock())
    apply_changes(log, bootstrap())

    def claim_and_append() -> None:
        other.claim()
        append_no_op(other)

    between.act, between.readings_left = claim_and_append, 1
    topic = CreateTopic(topic="a", partitions=1, replication_factor=1)
    with pytest.raises(UnexpectedEndOffsetError):
        apply_changes(log, [topic], attempts=1)
    assert between.act is None


def test_the_transaction_of_a_rival_is_not_aborted(tmp_path: Path) -> None:
    """It begins where that of an interrupted writer would have begun."""
    between = Interruptions()
    log, rival = embedded(tmp_path, between.as_clock()), embedded(tmp_path, Clock())
    apply_changes(log, bootstrap())
    base_offset = log.end_offset

    def begin_and_interrupt() -> None:
        rival.append([encode(DecodedRecord(0, BeginTransactionRecord(name="rival")))])
        raise KeyboardInterrupt

    between.act, between.readings_left = begin_and_interrupt, 2
    with pytest.raises(KeyboardInterrupt):
        apply_changes(log, [CreateTopic(topic="a", partitions=60, replication_factor=1)])
    assert rival.end_offset == base_offset + 1, "nothing else was appended"
    rival.append(
        [encode(DecodedRecord(0, EndTransactionRecord()))], required_base_offset=rival.end_offset
    )


def append_no_op(log: EmbeddedLog) -> None:
    log.append(NO_OP)


def embedded(tmp_path: Path, clock: Clock) -> EmbeddedLog:
    config = LogConfig(batch_bytes_max=BATCH_BYTES_MAX)
    return raftlog.open(tmp_path / "rivals-0", values="kraft", config=config, clock=clock)


@pytest.mark.slow
@pytest.mark.parametrize("step_count", nightly_except([6], [6, 12]))
def test_rivals_on_a_quorum_that_elects_leaders_meanwhile(tmp_path: Path, step_count: int) -> None:
    with QuorumProcesses(tmp_path, 3, extra=SETTINGS) as quorum:

        def elect() -> None:
            with raftlog.connect(quorum.bootstrap) as log:
                leader = quorum.node(log.leader_id)
                leader.kill()
                eventually(lambda: log.leader_id != leader.node_id, "another leader")
                leader.start()

        def connected(clock: Clock) -> ConnectedLog:
            return raftlog.connect(quorum.bootstrap, clock=clock)

        history = RivalHistory(3, connected, elect)
        history.run(step_count)
    assert history.counts["several batches"]
    assert history.counts["interrupted"]
