"""Driver's reads of a log before tasks run: the record versions of its metadata.version."""

from __future__ import annotations

import asyncio
import gc
import pickle
from pathlib import Path

import pytest
from tests.support.ddl import schema_of
from tests.support.served_node import PATIENCE_S, served_node

import raftlog
from pyspark_raftlog.commit import WritePlan, plan_write
from pyspark_raftlog.options import WriteOptions
from raftlog.limits import RAW_BATCH_BYTES_MAX
from raftlog.log.writing.properties import LogConfig
from raftlog.records.compression import Compression
from raftlog_state.records import (
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    encode,
)

KINDS = (
    RegisterBrokerRecord,
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    PartitionChangeRecord,
    TopicRecord,
)


def level(number: int) -> bytes:
    return encode(FeatureLevelRecord(name="metadata.version", feature_level=number))


def planned(path: Path, ddl: str) -> WritePlan:
    plan = plan_write(WriteOptions(path=str(path)), schema_of(ddl))
    kept: WritePlan = pickle.loads(pickle.dumps(plan))
    return kept


@pytest.mark.parametrize(
    ("levels", "versions"),
    [
        ((), (1, 1, 0, 0, 0)),
        ((8,), (2, 1, 0, 0, 0)),
        ((8, 17), (3, 2, 1, 1, 0)),
        ((23,), (3, 2, 2, 2, 0)),
        ((23, 30), (4, 3, 2, 2, 0)),
    ],
)
def test_records_without_a_version_have_that_of_the_logs_metadata_version(
    tmp_path: Path, levels: tuple[int, ...], versions: tuple[int, ...]
) -> None:
    path = tmp_path / "metadata-0"
    with raftlog.open(path, values="kraft") as log:
        for number in levels:
            log.append([level(number)])
        log.append([encode(BeginTransactionRecord(name="open")), level(7)])
        # other processes use the log meanwhile
        plan = planned(path, "recordType string, record string")
    assert plan.versions is not None
    assert tuple(map(plan.versions.of, KINDS)) == versions


def test_connections_are_closed_after_the_metadata_version_was_read(tmp_path: Path) -> None:
    """Without garbage collection, so that nothing else closes them."""

    async def check() -> None:
        async with (
            served_node(tmp_path, '[log]\nvalues = "kraft"\n') as served,
            asyncio.timeout(PATIENCE_S),
        ):
            options = WriteOptions.parse({"bootstrap.servers": f"127.0.0.1:{served.port}"})
            schema = schema_of("recordType string, record string")
            plan = await asyncio.to_thread(plan_write, options, schema)
            assert plan.versions is not None
            while served.node.server.connections:
                await asyncio.sleep(0)

    gc.disable()
    try:
        asyncio.run(check())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "ddl", ["value binary", "recordType string, recordVersion int, record string"]
)
def test_the_metadata_version_is_not_read_if_rows_have_versions(tmp_path: Path, ddl: str) -> None:
    path = tmp_path / "metadata-0"
    with raftlog.open(path, values="kraft") as log:
        log.append([encode(PartitionChangeRecord(topic_id="I9iQnKeLSA2lyZwVZic7Xg"))])
    assert planned(path, ddl).versions is None


@pytest.mark.parametrize("wanted", [None, 2 * RAW_BATCH_BYTES_MAX])
def test_a_commit_to_a_compressed_log_is_bounded_before_compression(
    tmp_path: Path, wanted: int | None
) -> None:
    path = tmp_path / "jobs-0"
    raftlog.open(path, config=LogConfig(compression=Compression.ZSTD)).close()
    options = WriteOptions(path=str(path), max_bytes_per_commit=wanted)
    assert plan_write(options, schema_of("value binary")).byte_count_max == RAW_BATCH_BYTES_MAX
