"""``raftlog cat`` of Kafka's internal logs: known by their directory, printed as by dump-log."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run
from tests.support.internal_records import (
    DATA,
    InternalLogFile,
    dump_of,
    golden_records,
    internal_segments,
    remote_as_dumped,
    remote_printed_by,
    segment_name,
    topic_of,
)

from raftlog_state.records.internal_logs import INTERNAL_LOGS

SEGMENTS = internal_segments("4.3.1")
KRAFT_NODE = DATA / "kraft-logs" / "three-nodes-4.3.1" / "node-1"
GROUPS = KRAFT_NODE / "__consumer_offsets-1" / "00000000000000000000.log"
COMMITS = KRAFT_NODE / "__consumer_offsets-3" / "00000000000000000000.log"


def as_dumped(row: dict[str, Any]) -> tuple[int, str]:
    key, value = (
        json.dumps(row[part], separators=(",", ":"), ensure_ascii=False)
        for part in ("key", "value")
    )
    return row["offset"], f"key: {key} payload: {'<DELETE>' if value == 'null' else value}"


@pytest.mark.parametrize("segment", SEGMENTS, ids=segment_name)
@pytest.mark.parametrize("is_directory", [True, False])
def test_records_are_printed_as_by_dump_log(segment: Path, is_directory: bool) -> None:
    printed = rows("cat", segment.parent if is_directory else segment)
    assert [as_dumped(row) for row in printed] == dump_of(segment)
    names = INTERNAL_LOGS[topic_of(segment)].type_names().values()
    assert {row["type"] for row in printed} <= set(names)


def test_types_are_selected_by_kafkas_names_and_numbers() -> None:
    everything = rows("cat", GROUPS)
    for name in ("offset_commit", "OffsetCommit", "1"):
        commits = rows("cat", GROUPS, "--type", name)
        assert commits == [row for row in everything if row["type"] == "OFFSET_COMMIT"]
        assert 0 < len(commits) < len(everything)
    assert rows("cat", COMMITS, "--type", "group_metadata", "--type", "commit") == [
        row for row in rows("cat", COMMITS, "--control") if row["type"] == "COMMIT"
    ]
    status, _, err = run("cat", GROUPS, "--type", "topic")
    assert status == 2
    assert "unknown record type 'topic'" in err


def test_full_redaction_hides_hosts_and_commit_metadata() -> None:
    for segment in (GROUPS, COMMITS):
        shown, hidden = (rows("cat", segment, *more) for more in ([], ["--redact", "full"]))
        assert len(shown) == len(hidden)
        assert '"m1"' not in json.dumps(hidden)
        assert "127.0.0.1" not in json.dumps(hidden)
    (members,) = [row["value"]["data"]["members"] for row in rows("cat", GROUPS, "--to", "2")][1:]
    assert members[0]["clientHost"] == "/127.0.0.1"
    status, _, err = run("cat", GROUPS, "--redact", "full", "--reveal")
    assert status == 2
    assert "mutually exclusive" in err


def test_a_log_declared_as_a_partition_is_printed_unchanged() -> None:
    row = rows("cat", COMMITS, "--as", "partition", "--to", "1")[0]
    assert set(row) == {"offset", "leaderEpoch", "timestamp", "key", "valueBase64", "headers"}
    assert row["key"].startswith("\x00\x01\x00\x08orders-g")


def test_damaged_records_are_reported_and_the_others_printed(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((None, b"no key"), (b"\x00\x02\x00\x01g", None))
    log.append((b"\x00\x63", b"later"), (b"\x00\x02\x00\x09g", b""))
    status, out, err = run("cat", log.path)
    assert status == 1
    printed = [json.loads(line) for line in out.splitlines()]
    assert [(row["type"], row["value"] is None) for row in printed] == [
        ("GROUP_METADATA", True),
        ("UNKNOWN", False),
    ]
    assert "it has no key" in err
    assert "cannot parse GroupMetadataKey version 0" in err


def test_a_value_that_is_too_short_for_a_version_has_none(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((b"\x00\x63later", b"\x00"), (b"\x00\x63later", b"\x00\x02"))
    versions = [row["value"]["version"] for row in rows("cat", log.path)]
    assert versions == [None, "2"]


def test_remote_log_metadata_is_no_cluster_metadata(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__remote_log_metadata-3")
    golden = [one for one in golden_records() if one.topic == "__remote_log_metadata"]
    log.append(*[(one.key, one.value) for one in golden])
    printed = rows("cat", log.path)
    assert [json.loads(one.value_text) for one in golden] == [
        {name: row[name] for name in ("type", "version", "data")} for row in printed
    ]


@pytest.mark.parametrize(
    "path", sorted((DATA / "remote-log-metadata-4.3.1").iterdir()), ids=lambda path: path.name
)
def test_remote_segments_are_those_that_dump_log_prints(path: Path) -> None:
    with gzip.open(path / "00000000000000000000.log.dump.gz", "rt") as lines:
        dumped = remote_printed_by(lines)
    assert dumped
    assert [(row["offset"], remote_as_dumped(row)) for row in rows("cat", path)] == dumped


def test_the_directory_alone_decides_what_the_records_are(tmp_path: Path) -> None:
    other = tmp_path / "orders-3"
    shutil.copytree(COMMITS.parent, other)
    assert "type" not in rows("cat", other)[0]
