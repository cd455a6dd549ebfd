"""Crashes, rivals and a truncation of tables that Spark writes.

The histories of ``test_writer.py`` are of tables in memory. These are few, with Delta, and take a
minute. In ``make test`` Spark's part of them is in the transactions of ``test_store_contract.py``,
in a crash of a stream in ``test_tables_materialize_spark.py``, and in truncations in
``test_clusters_spark.py`` and ``test_engines_spark.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.state.tables.conftest import TEMPLATE_END
from tests.support.metadata_logs import MetadataLog
from tests.support.source_rows import SCHEMA, source_rows
from tests.support.tables import Feed, contents, crash_after, offsets_once
from tests.support.written_tables import CrashError

from raftlog.errors import DivergedLogError
from raftlog_state.tables import ClusterTables

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

Open = Callable[..., ClusterTables]
END = 380


@pytest.fixture(scope="module")
def expected(feed: Feed, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Tables of the offsets below ``END`` that were written in one run."""
    place = tmp_path_factory.mktemp("expected") / "tables"
    feed.open(place).apply(feed.frame(0, END), cluster_id="cluster-a")
    return contents(place)


def test_crashes_and_a_rival_lose_and_repeat_nothing(
    feed: Feed, tables: Open, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    stale = tables()
    assert stale.apply(feed.frame(TEMPLATE_END - 1, TEMPLATE_END)) == TEMPLATE_END - 1
    with pytest.raises(CrashError):
        tables(**crash_after("log")).apply(feed.frame(TEMPLATE_END, 320))
    assert tables().latest().offset == TEMPLATE_END - 1
    with pytest.raises(CrashError):
        tables(**crash_after("changes")).apply(feed.frame(TEMPLATE_END, 330))
    assert tables().latest().offset == 329, "an append of changes is a publication"
    with pytest.raises(CrashError):
        tables(**crash_after("state")).maintain()
    assert stale.apply(feed.frame(TEMPLATE_END, 350)) == 349
    again = tables()
    assert again.apply(feed.frame(340, END)) == END - 1
    again.maintain()
    found = contents(tmp_path / "tables")
    assert found == expected
    assert offsets_once(found)


def test_a_diverged_log_is_resolved_by_a_truncation(
    feed: Feed,
    tables: Open,
    expected: list[tuple[str, str]],
    three_nodes: MetadataLog,
    tmp_path: Path,
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
        tables(**crash_after("truncate")).truncate_to(319)
    assert tables().latest().offset == 319, "readers continue immediately"
    again = tables()
    assert again.apply(other) == END - 1
    assert again.status().incarnation == 2
    assert offsets_once(contents(tmp_path / "tables"))
    topics = [row for table, row in expected if table == "topics"]
    assert topics
    assert again.latest().topics().count() == len(topics)
    assert again.latest().partitions().where("_leader_epoch = 5").count() > 0
