"""Fixtures of the tables' tests: the shared session, a real log's records, tables to copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.log_builder import data_batch
from tests.support.metadata_logs import MetadataLog, metadata_log, restored
from tests.support.small_logs import NO_OP, LogWriter
from tests.support.tables import Feed

from raftlog.limits import IDENTIFY_BYTES_MAX
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME
from raftlog.records.compression import Compression
from raftlog_state.records import ConfigRecord, encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftlog_state.tables import ClusterTables

TEMPLATE_END = 300
"""The tables that tests copy have the real log's offsets below this one, published."""
TEMPLATE_MERGED = 225
"""Their ``state`` has those below this one, which updates a row."""

UNKNOWN_COUNT = 760
"""Records of ``log_of_unknown_kind``, more than ``IDENTIFY_BYTES_MAX`` in one batch."""


@pytest.fixture
def log_of_unknown_kind(tmp_path: Path) -> Path:
    """A log of which no property and no record within limits shows that it is metadata."""
    log = LogWriter(tmp_path / "decisions-0")
    (log.directory / RAFTLOG_PROPERTIES_NAME).write_bytes(b"values=\\u12")
    long = ConfigRecord(resource_type=2, resource_name="t", name="n", value="x" * 30_000)
    values = [NO_OP] * 200 + [encode(long)] * (UNKNOWN_COUNT - 200)
    assert sum(map(len, values)) > IDENTIFY_BYTES_MAX
    batch = data_batch(values, base_offset=0, compression=Compression.GZIP)
    log.append_encoded(batch, UNKNOWN_COUNT, epoch=1)
    return log.directory


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> MetadataLog:
    """Every record of the three-node cluster's log, and its snapshots."""
    return metadata_log(restored("three-nodes-4.3.1/node-1", tmp_path_factory.mktemp("log")))


@pytest.fixture(scope="session")
def feed(spark: SparkSession, three_nodes: MetadataLog) -> Feed:
    """Ranges of the real log as frames."""
    return Feed(spark, three_nodes.records)


@pytest.fixture(scope="session")
def template(feed: Feed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published tables of the log's first offsets. Never written to, only copied.

    delta-rs writes them in a fraction of the time. Those that Spark has written are compared with
    them: ``test_restarts_crashes_and_a_deleted_checkpoint_change_nothing``.
    """
    place = tmp_path_factory.mktemp("template") / "tables"
    opened = feed.open(place, engine="delta-rs")
    opened.apply(feed.frame(0, TEMPLATE_MERGED), cluster_id="cluster-a")
    opened.maintain()
    opened.apply(feed.frame(TEMPLATE_MERGED, TEMPLATE_END))
    return place


@pytest.fixture
def tables(feed: Feed, template: Path, tmp_path: Path) -> Callable[..., ClusterTables]:
    """Open the test's own tables, with the offsets below ``TEMPLATE_END``, on each call."""

    def open_copy(name: str = "tables", **options: object) -> ClusterTables:
        place = tmp_path / name
        if not place.exists():
            shutil.copytree(template, place)
        return feed.open(place, **options)

    return open_copy
