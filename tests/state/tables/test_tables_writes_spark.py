"""Ranges of a log written to tables: equal for every split, crash and concurrent writer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from tests.state.tables.conftest import TEMPLATE_END
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import SCHEMA, source_rows
from tests.support.tables import CrashError, Feed, contents, crash_after, offsets_once

from raftlog.errors import DivergedLogError, WrongClusterError
from raftlog_state.errors import OffsetGapError, TablesError
from raftlog_state.tables import ClusterTables

pytestmark = pytest.mark.spark

Open = Callable[..., ClusterTables]
END = 380


@pytest.fixture(scope="module")
def expected(feed: Feed, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Tables of the offsets below ``END`` that were written in one run."""
    tables = feed.open(tmp_path_factory.mktemp("expected") / "tables")
    tables.apply(feed.frame(0, END), cluster_id="cluster-a")
    return contents(tables.latest())


@pytest.mark.nightly
def test_any_split_into_batches_gives_the_same_tables(
    feed: Feed, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    cuts = (3, 101, 270)
    tables = feed.open(tmp_path / "tables")
    for start, end in pairwise((0, *cuts, END)):
        assert tables.apply(feed.frame(start, end), publish=start == cuts[1]) == end - 1
    assert tables.publish() == END - 1
    assert contents(tables.latest()) == expected


def test_a_batch_that_ends_inside_a_transaction_waits_for_its_end(
    feed: Feed, tmp_path: Path
) -> None:
    tables = feed.open(tmp_path / "tables")
    assert tables.apply(feed.frame(0, 7), publish=False) == 2
    assert tables.apply(feed.frame(3, 11), publish=False) == 2
    assert tables.apply(feed.frame(3, 12), publish=False) == 11


def test_a_crash_after_any_step_loses_nothing(
    feed: Feed, tables: Open, expected: list[tuple[str, str]]
) -> None:
    """One crash after another, each after a later step; rows already in ``log`` are never requested
    from the source again.
    """
    crashes = {320: "changes", 340: "log", 360: "table partitions", END: "commits"}
    start = TEMPLATE_END
    for end, step in crashes.items():
        with pytest.raises(CrashError):
            tables(**crash_after(step)).apply(feed.frame(start, end))
        half_done = step != "commits"
        seen = TEMPLATE_END - 1 if half_done else END - 1
        assert tables().latest().offset == seen, "readers never see half of a publication"
        start = end
    again = tables()
    assert again.publish() == END - 1
    assert contents(again.latest()) == expected


def test_a_crash_before_the_first_publication_is_completed(
    feed: Feed, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    """The interrupted batch ends inside a transaction, which is written again as a whole."""
    place = tmp_path / "tables"
    with pytest.raises(CrashError):
        feed.open(place, **crash_after("table topics")).apply(feed.frame(0, 7))
    with pytest.raises(TablesError, match="nothing was published"):
        feed.open(place).latest()
    again = feed.open(place)
    assert again.apply(feed.frame(3, END)) == END - 1
    assert contents(again.latest()) == expected


def test_refused_batches_write_nothing(feed: Feed, tables: Open) -> None:
    opened = tables()
    before = opened.status()
    for start, end in ((0, TEMPLATE_END), (250, 280), (TEMPLATE_END - 1, TEMPLATE_END)):
        assert opened.apply(feed.frame(start, end)) == TEMPLATE_END - 1, "a repeated range"
    assert tables().apply(feed.frame(290, TEMPLATE_END)) == TEMPLATE_END - 1
    with pytest.raises(OffsetGapError) as raised:
        opened.apply(feed.frame(TEMPLATE_END + 2, TEMPLATE_END + 9))
    assert raised.value.expected_offset == TEMPLATE_END
    with pytest.raises(WrongClusterError):
        opened.apply(feed.frame(TEMPLATE_END, END), cluster_id="cluster-b")
    assert opened.status() == before
    assert offsets_once(opened.latest())
    with pytest.raises(TablesError, match="they begin at offset 0"):
        opened.truncate_to(17)


def test_two_writers_with_the_same_end_write_every_record_once(
    feed: Feed, tables: Open, expected: list[tuple[str, str]]
) -> None:
    """Each continues from its own state, which is stale after the commits of the other."""
    first, second = tables(), tables()
    for opened in (first, second):
        opened.apply(feed.frame(TEMPLATE_END - 1, TEMPLATE_END))
    assert first.apply(feed.frame(TEMPLATE_END, 320), publish=False) == 319
    assert second.apply(feed.frame(TEMPLATE_END, 330), publish=False) == 329
    assert first.apply(feed.frame(330, END), publish=False) == END - 1
    assert second.publish() == END - 1
    assert first.publish() == END - 1
    assert contents(second.latest()) == expected


def test_a_diverged_log_is_resolved_by_rollback_to(
    feed: Feed, tables: Open, expected: list[tuple[str, str]], three_nodes: MetadataLog
) -> None:
    rewritten = source_rows(three_nodes.records[320:END]).to_pylist()
    for row in rewritten:
        row["leaderEpoch"] = 5
    other = feed.of(pa.Table.from_pylist(rewritten, schema=SCHEMA))
    opened = tables()
    opened.apply(feed.frame(TEMPLATE_END, 330))
    before = opened.status()
    with pytest.raises(DivergedLogError, match=r"truncate_to\(319\)") as raised:
        opened.apply(other)
    assert (raised.value.offset, raised.value.expected_epoch, raised.value.epoch) == (320, 1, 5)
    assert opened.status() == before

    with pytest.raises(CrashError):
        tables(**crash_after("commits")).truncate_to(319)
    assert tables().latest().offset == TEMPLATE_END - 1, "readers continue immediately"
    again = tables()
    again.apply(feed.frame(TEMPLATE_END, 320), publish=False)
    assert again.status().log_offset == 319, "the next writer completes the rollback"
    assert again.apply(other) == END - 1
    assert again.status().incarnation == 1
    assert offsets_once(again.latest())
    topics = [row for table, row in expected if table == "topics"]
    assert again.latest().topics().count() == len(topics)
    assert again.latest().partitions().where("_leader_epoch = 5").count() > 0
