"""Options of a log that is written to tables: each of the source is used, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.state.tables.conftest import UNKNOWN_COUNT
from tests.support.log_builder import data_batch
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.random_metadata_log import write_random_log
from tests.support.written_tables import contents, follow_settings, followed

from pyspark_raftlog.options import CONNECTION_OPTIONS, OPTIONS
from raftlog.client import LogKind
from raftlog.errors import DecompressionLimitError, OptionError, UnknownRecordKindError
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME
from raftlog.records.compression import Compression
from raftlog_state.tables.bucket_replay import replay_bucket
from raftlog_state.tables.bulk_load import BulkLoad, LoadSettings
from raftlog_state.tables.source_options import SourceOptions

PARSED = {"values", "maxDecompressedBytes", "tailHoldback", "failOnDataLoss"}
"""What the driver needs itself, and the source, too."""
OF_READS = {
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition", "recordBatchRows", "pollWaitMs"),
}
"""What the source alone uses."""
USED = {*CONNECTION_OPTIONS, *PARSED, *OF_READS}


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - USED))
def test_each_option_of_the_source_that_the_tables_determine_is_refused_by_name(name: str) -> None:
    for spelled in (name, name.upper()):
        with pytest.raises(OptionError, match=f"option {spelled}: cannot be set here: "):
            SourceOptions.parse({"path": "/logs", spelled: "1"})


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName"])
def test_options_of_sparks_writer_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: cannot be set here"):
        SourceOptions.parse({"path": "/logs", name: "x"})


def test_the_other_options_are_passed_to_the_source_as_they_are() -> None:
    given = {"path": "/logs", "TAILHOLDBACK": "5m", **dict.fromkeys(OF_READS, "7")}
    options = SourceOptions.parse(given)
    assert options.given == given
    assert options.holdback_ms == 300_000
    assert SourceOptions.parse("/logs").given == {"path": "/logs"}


@pytest.mark.parametrize("name", sorted(PARSED))
def test_an_invalid_value_is_an_error_before_a_query(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: must be"):
        SourceOptions.parse({"path": "/logs", name: "many"})


def test_nodes_report_the_kind_of_their_log() -> None:
    with pytest.raises(OptionError, match="option values: cannot be used with bootstrap"):
        SourceOptions.parse({"bootstrap.servers": "node:9093", "values": "kraft"})


@pytest.mark.parametrize("name", [*sorted(OF_READS), "maxDecompressedByte"])
def test_a_call_without_a_read_by_spark_refuses_the_options_of_one(name: str) -> None:
    used = {"path": "/logs", "values": "kraft", "tailHoldback": "0", "failOnDataLoss": "false"}
    SourceOptions.parse(used).refuse_options_of_rows("load()")
    with pytest.raises(OptionError, match=rf"option {name}: is no option of load\(\)"):
        SourceOptions.parse({**used, name: "7"}).refuse_options_of_rows("load()")


def test_a_load_refuses_no_option_that_names_nodes() -> None:
    options = {"kafka.bootstrap.servers": "node:9093", "security.protocol": "PLAINTEXT"}
    SourceOptions.parse(options).refuse_options_of_rows("load()")


def test_a_log_whose_kind_is_unknown_is_opened_as_the_one_that_is_declared(
    log_of_unknown_kind: Path,
) -> None:
    with pytest.raises(UnknownRecordKindError):
        SourceOptions.parse(str(log_of_unknown_kind)).open_log()
    options = SourceOptions.parse({"path": str(log_of_unknown_kind), "values": "kraft"})
    assert options.open_log().kind is LogKind.METADATA


@pytest.mark.slow
def test_a_load_reads_a_log_of_the_kind_that_is_declared(
    log_of_unknown_kind: Path, tmp_path: Path
) -> None:
    """By the process that routes its records, and by its tasks, which write table ``log``."""
    tables = loaded({"path": str(log_of_unknown_kind), "values": "kraft"}, tmp_path)
    assert tables.contents["log"].num_rows == UNKNOWN_COUNT
    (log_of_unknown_kind / RAFTLOG_PROPERTIES_NAME).write_bytes(b"version=1\nvalues=kraft\n")
    assert contents(tables) == contents(followed(log_of_unknown_kind))


def test_a_limit_of_decompressed_batches_is_that_of_all_reads_of_a_load(tmp_path: Path) -> None:
    log = write_random_log(tmp_path, 3, 200)
    batch = data_batch(
        [bytes(50_000)], base_offset=log.end_offset, epoch=9, compression=Compression.GZIP
    )
    log.append_encoded(batch, 1, epoch=9)
    with pytest.raises(DecompressionLimitError):
        loaded({"path": str(log.directory), "maxDecompressedBytes": "20k"}, tmp_path)


def loaded(options: dict[str, Any], directory: Path) -> MemoryTables:
    """Return tables that a load of a log by two tasks has written."""
    tables = MemoryTables()
    BulkLoad(
        MemoryStore(tables),
        follow_settings(),
        LoadSettings(
            options=options, staging=str(directory / "staging"), bucket_count=2, range_records=100
        ),
        lambda routed, buckets: [replay_bucket(routed, bucket) for bucket in buckets],
        log_event=lambda event: None,
        clock_us=lambda: 1,
    ).run()
    return tables
