"""Publication of tables between micro-batches, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.small_logs import LogWriter

from raftlog.client import open_path
from raftlog.errors import OptionError
from raftlog_state.tables.materialize import PublishSchedule, end_of_run


def test_the_first_batch_is_published_and_later_ones_after_the_interval() -> None:
    schedule = PublishSchedule(30.0, None)
    assert schedule.is_due(100.0, 1)
    schedule.published(100.0)
    assert not schedule.is_due(129.0, 2)
    assert schedule.left_s(129.0) == 1.0
    assert schedule.is_due(130.0, 3)
    assert schedule.left_s(131.0) == 0


def test_every_batch_is_published_without_an_interval() -> None:
    schedule = PublishSchedule(0.0, None)
    schedule.published(100.0)
    assert schedule.is_due(100.0, 2)


def test_a_run_publishes_at_its_end_and_not_before() -> None:
    schedule = PublishSchedule(30.0, 7)
    schedule.published(100.0)
    assert not schedule.is_due(101.0, 6)
    assert schedule.is_due(101.0, 7)
    assert schedule.is_due(101.0, 8), "the log had grown when the source read its end"


def test_the_end_of_a_run_is_known_although_a_tail_is_held_back(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(b"\x01\x14\x00", b"\x01\x14\x00", b"\x01\x14\x00")
    reader = open_path(str(log.directory))
    assert end_of_run(reader, {"tailHoldback": "0"}) == 3
    assert end_of_run(reader, {"TAILHOLDBACK": " 0 s "}) == 3
    assert end_of_run(reader, {"tailHoldback": "1000000h"}) == 0
    with pytest.raises(OptionError, match="tailHoldback"):
        end_of_run(reader, {"tailHoldback": "soon"})
