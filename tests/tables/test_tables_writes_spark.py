"""Ranges of a log into tables: every split, every crash, every rival gives the same tables."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import source_rows
from tests.support.tables import CrashError, Feed, contents, crash_after, offsets_once
from tests.tables.conftest import TEMPLATE_END

from raftlog.errors import DivergedLogError, OffsetGapError, TablesError, WrongClusterError
from raftlog_state.tables import ClusterTables

pytestmark = pytest.mark.spark

Open = Callable[..., ClusterTables]
END = 340


@pytest.fixture(scope="module")
def expected(feed: Feed, tmp_path_factory: pytest.TempPathFactory) -> ClusterTables:
    """Tables of the offsets below ``END``, written in one go."""
    tables = feed.open(tmp_path_factory.mktemp("expected") / "tables")
    tables.apply(feed.frame(0, END), cluster_id="cluster-a")
    return tables


@pytest.mark.parametrize("cuts", [(3, 12, 13, 270), (100, 101, 102, 335)])
def test_any_split_into_batches_gives_the_same_tables(
    feed: Feed, expected: ClusterTables, tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    tables = feed.open(tmp_path / "tables")
    for start, end in pairwise((0, *cuts, END)):
        last = tables.apply(feed.frame(start, end), publish=start in (0, 13, 101))
        assert last == end - 1
    assert tables.status().published_offset < END - 1
    tables.publish()
    assert contents(tables.latest()) == contents(expected.latest())
    assert tables.latest().offset == END - 1


def test_a_batch_that_ends_inside_a_transaction_waits_for_its_end(
    feed: Feed, tmp_path: Path
) -> None:
    tables = feed.open(tmp_path / "tables")
    assert tables.apply(feed.frame(0, 7), publish=False) == 2
    assert tables.apply(feed.frame(3, 11), publish=False) == 2
    assert tables.apply(feed.frame(3, 12), publish=False) == 11


@pytest.mark.parametrize("step", ["log", "changes", "table partitions", "commits"])
def test_a_crash_after_any_step_loses_nothing(
    feed: Feed, tables: Open, expected: ClusterTables, step: str
) -> None:
    """After the crash the source is not asked again: ``log`` holds what is needed."""
    before = contents(tables().latest())
    with pytest.raises(CrashError):
        tables(**crash_after(step)).apply(feed.frame(TEMPLATE_END, END))
    again = tables()
    if step != "commits":
        assert contents(again.latest()) == before, "readers see no half of a publication"
    assert again.publish() == END - 1
    assert contents(again.latest()) == contents(expected.latest())
    assert again.verify().ok


def test_a_crash_in_the_first_publication_is_made_good_later(feed: Feed, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    with pytest.raises(CrashError):
        feed.open(place, **crash_after("table topics")).apply(feed.frame(0, 60))
    tables = feed.open(place)
    with pytest.raises(TablesError, match="nothing was published"):
        tables.latest()
    assert tables.apply(feed.frame(60, 90)) == 89
    assert tables.verify().ok


def test_a_range_that_comes_again_changes_nothing(feed: Feed, tables: Open) -> None:
    opened = tables()
    before = contents(opened.latest())
    for start, end in ((0, TEMPLATE_END), (250, 280), (TEMPLATE_END - 1, TEMPLATE_END)):
        assert opened.apply(feed.frame(start, end)) == TEMPLATE_END - 1
    assert tables().apply(feed.frame(290, TEMPLATE_END)) == TEMPLATE_END - 1
    assert contents(opened.latest()) == before


def test_a_gap_is_refused_and_nothing_written(feed: Feed, tables: Open) -> None:
    opened = tables()
    before = opened.status()
    with pytest.raises(OffsetGapError) as raised:
        opened.apply(feed.frame(TEMPLATE_END + 2, TEMPLATE_END + 9))
    assert raised.value.expected_offset == TEMPLATE_END
    assert opened.status() == before


def test_another_clusters_log_is_refused(feed: Feed, tables: Open) -> None:
    with pytest.raises(WrongClusterError):
        tables().apply(feed.frame(TEMPLATE_END, END), cluster_id="cluster-b")


def test_two_writers_that_saw_the_same_end_write_every_record_once(
    feed: Feed, tables: Open, expected: ClusterTables
) -> None:
    """Each goes on from what it remembers, which the other has made old."""
    first, second = tables(), tables()
    for opened in (first, second):
        opened.apply(feed.frame(TEMPLATE_END - 1, TEMPLATE_END))
    assert first.apply(feed.frame(TEMPLATE_END, 320), publish=False) == 319
    assert second.apply(feed.frame(TEMPLATE_END, 330), publish=False) == 329
    assert first.apply(feed.frame(330, END), publish=False) == END - 1
    assert second.publish() == END - 1
    assert first.publish() == END - 1
    assert offsets_once(first.latest())
    assert contents(second.latest()) == contents(expected.latest())


def test_a_diverged_log_is_refused_and_truncation_is_the_way_out(
    feed: Feed, tables: Open, three_nodes: MetadataLog
) -> None:
    rewritten = source_rows(three_nodes.records[320:END]).to_pylist()
    for row in rewritten:
        row["leaderEpoch"] = 5
    other = feed.of(feed.rows.slice(0, 0).from_pylist(rewritten, schema=feed.rows.schema))
    opened = tables()
    opened.apply(feed.frame(TEMPLATE_END, 330))
    before = opened.status()
    with pytest.raises(DivergedLogError, match=r"truncate_to\(319\)") as raised:
        opened.apply(other)
    assert (raised.value.offset, raised.value.expected_epoch, raised.value.epoch) == (320, 1, 5)
    assert opened.status() == before

    assert opened.truncate_to(319) == TEMPLATE_END - 1
    assert opened.latest().offset == TEMPLATE_END - 1
    assert opened.status().log_offset == TEMPLATE_END - 1
    opened.apply(feed.frame(TEMPLATE_END, 320))
    assert opened.apply(other) == END - 1
    assert offsets_once(opened.latest())
    assert opened.status().incarnation == 1
    assert opened.verify().ok


def test_a_truncation_that_was_cut_short_is_finished_by_the_next_writer(
    feed: Feed, tables: Open
) -> None:
    opened = tables()
    before = contents(opened.latest())
    opened.apply(feed.frame(TEMPLATE_END, END))
    with pytest.raises(CrashError):
        tables(**crash_after("commits")).truncate_to(END - 2)
    assert contents(tables().latest()) == before, "readers are back at once"
    again = tables()
    assert again.apply(feed.frame(TEMPLATE_END, END)) == END - 1
    assert offsets_once(again.latest())
    assert again.status().incarnation == 1


def test_truncating_below_the_first_publication_says_so(tables: Open) -> None:
    with pytest.raises(TablesError, match="they begin at offset 0"):
        tables().truncate_to(17)
