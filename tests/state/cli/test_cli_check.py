"""``raftlog check``: no findings in undamaged logs, and each kind of damage at its position."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.batch_encoding import NewRecordBatch
from tests.support.cli import run
from tests.support.dumps import dumped_logs, read_dump
from tests.support.random_topics import Topics
from tests.support.small_logs import NO_OP, LogWriter, write_epochs

import raftlog
from raftlog.records import NewRecord
from raftlog_state.image import BrokerRow, ConfigRow, MetadataImage, PartitionRow, Row
from raftlog_state.image.delta import key_json
from raftlog_state.loader import scans
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import (
    BeginTransactionRecord,
    PartitionRecord,
    Redactor,
    RemoveTopicRecord,
    encode,
)
from raftlog_state.replay.topics import CONFIG_OF_TOPIC
from raftlog_state.snapshots import snapshot_bytes

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
SEGMENTS = sorted((NODE / "__cluster_metadata-0").glob("*.log"))
UNDAMAGED = sorted(
    {path.parent for path in dumped_logs(LOGS) if "every-record-4.3.1" not in path.parts}
)
BYTES = st.integers(0, 255)
FIRST, SECOND, NEWEST = (SEGMENTS[at].name for at in (0, 1, -1))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Metadata log of a node, for damage."""
    return copy_without(tmp_path, "*.gz", "*.checkpoint")


@pytest.fixture
def whole_log(tmp_path: Path) -> Path:
    """The same log with its snapshots."""
    return copy_without(tmp_path, "*.gz")


def copy_without(place: Path, *patterns: str) -> Path:
    shutil.copytree(NODE, place / "node", ignore=shutil.ignore_patterns(*patterns))
    return place / "node" / "__cluster_metadata-0"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Ordinary partition with transactions, for damage."""
    source = LOGS / "three-nodes-4.3.1" / "node-1" / "orders-0-0"
    shutil.copytree(source, tmp_path / "orders-0-0", ignore=shutil.ignore_patterns("*.gz"))
    return tmp_path / "orders-0-0"


def check(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the findings."""
    status, out, err = run("check", path, "--json")
    assert err == ""
    *findings, last = map(json.loads, out.splitlines())
    summary = last["summary"]
    assert summary["damage"] == sum(finding["severity"] == "damage" for finding in findings)
    assert status == (1 if summary["damage"] else 0)
    return status, findings


def damage_of(path: Path) -> dict[str, Any]:
    """Return the single finding of a log with one damaged position."""
    status, findings = check(path)
    assert status == 1
    (finding,) = findings
    return finding


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.chmod(0o600)
    path.write_bytes(data)


def put(path: Path, position: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[position : position + len(data)] = data
    path.chmod(0o600)
    path.write_bytes(whole)


# --- undamaged logs -------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", UNDAMAGED, ids=lambda path: str(path.relative_to(LOGS)))
def test_logs_that_kafka_wrote_are_undamaged(directory: Path) -> None:
    assert check(directory) == (0, [])


@pytest.mark.parametrize("path", SEGMENTS[:2], ids=lambda path: path.name)
def test_a_single_segment_is_undamaged(path: Path) -> None:
    assert check(path) == (0, [])


def test_several_voters_are_checked_separately(log: Path) -> None:
    other = LOGS / "three-nodes-4.3.1" / "node-101"
    flip(log / SECOND, 100)
    status, out, _ = run("check", f"{log.parent},{other}")
    assert status == 1
    assert len(out.splitlines()) == 2
    assert str(log / SECOND) in out.splitlines()[0]


def test_every_snapshot_is_compared_with_the_log() -> None:
    _, out, _ = run("check", NODE, "--json")
    summary = json.loads(out)["summary"]
    assert (summary["checkpoints"], summary["checkpoints_compared"]) == (3, 3)
    assert (summary["records"], summary["end_offset"]) == (3131, 3131)


def test_a_log_copied_from_a_running_node_is_undamaged(tmp_path: Path) -> None:
    with tarfile.open(LOGS / "running-4.3.1" / "running.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    status, findings = check(tmp_path)
    assert status == 0
    assert {finding["kind"] for finding in findings} <= {"torn_tail"}


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_a_torn_tail_is_normal(log: Path, cut: int) -> None:
    newest = log / NEWEST
    newest.write_bytes(newest.read_bytes()[:-cut])
    status, findings = check(log)
    assert status == 0
    assert [finding["kind"] for finding in findings if finding["path"] == str(newest)] == [
        "torn_tail"
    ]


def test_preallocated_zeros_are_normal(log: Path) -> None:
    newest = log / NEWEST
    newest.write_bytes(newest.read_bytes() + bytes(100_000))
    for index in log.glob("*3131*index"):
        index.write_bytes(index.read_bytes() + bytes(1200))
    status, findings = check(log)
    assert status == 0
    assert {finding["kind"] for finding in findings} == {"torn_tail"}


def test_an_undecided_transaction_is_a_note(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP, encode(BeginTransactionRecord(name="t")), NO_OP)
    status, findings = check(tmp_path)
    assert status == 0
    assert [(found["kind"], found["offset"]) for found in findings] == [("replay", 1)]


def test_records_of_a_later_release_are_a_note(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP, b"\x01\x63\x00\x00", b"\x01\x63\x00\x00")
    status, findings = check(tmp_path)
    assert status == 0
    assert [(found["kind"], found["offset"]) for found in findings] == [("unknown", 1)]
    assert "2 records of type 99 version 0" in findings[0]["reason"]


def test_a_snapshot_that_ends_after_the_log_is_a_note(whole_log: Path) -> None:
    newest = sorted(whole_log.glob("*.log"))[-1]
    newest.write_bytes(b"")
    for index in whole_log.glob(f"{newest.stem}*index"):
        index.unlink()
    status, findings = check(whole_log)
    assert status == 0
    assert [(found["kind"], found["offset"]) for found in findings] == [("checkpoint", 3128)]
    assert f"whose end offset is {int(newest.stem)}" in findings[0]["reason"]


# --- batches --------------------------------------------------------------------------------------


BATCHES = read_dump(SEGMENTS[1])


@pytest.mark.parametrize("ordinal", [0, len(BATCHES) // 2, len(BATCHES) - 1])
@pytest.mark.parametrize("byte", [17, 21, 23, 60, -1])
def test_a_flipped_bit_is_found_at_its_position(log: Path, ordinal: int, byte: int) -> None:
    batch = BATCHES[ordinal]
    flip(log / SECOND, batch.position + byte % batch.byte_count, bit=2)
    found = damage_of(log)
    assert (found["kind"], found["path"]) == ("batch", str(log / SECOND))
    assert (found["position"], found["offset"]) == (batch.position, batch.base_offset)
    assert "CRC" in found["reason"]


@pytest.mark.parametrize(("byte", "bit"), [(8, 7), (9, 0), (11, 0), (16, 0)])
def test_a_wrong_length_does_not_hide_later_batches(log: Path, byte: int, bit: int) -> None:
    batch = BATCHES[len(BATCHES) // 2]
    flip(log / SECOND, batch.position + byte, bit)
    found = damage_of(log)
    assert (found["kind"], found["position"]) == ("batch", batch.position)


def test_a_wrong_length_in_the_newest_segment_is_no_torn_tail(log: Path) -> None:
    batches = read_dump(SEGMENTS[-1])
    batch = batches[len(batches) // 2]
    flip(log / NEWEST, batch.position + 9, 0)
    found = damage_of(log)
    assert (found["kind"], found["position"]) == ("batch", batch.position)


@pytest.mark.parametrize(("byte", "bit"), [(7, 0), (6, 1), (4, 0), (0, 7)])
def test_a_flipped_offset_is_found_although_no_crc_covers_it(
    log: Path, byte: int, bit: int
) -> None:
    batch = BATCHES[len(BATCHES) // 2]
    flip(log / SECOND, batch.position + byte, bit)
    status, findings = check(log)
    assert status == 1
    assert findings[0]["path"] == str(log / SECOND)
    assert findings[0]["position"] == batch.position


@pytest.mark.parametrize("bit", [0, 1, 6])
def test_a_flipped_epoch_is_found_although_no_crc_covers_it(log: Path, bit: int) -> None:
    batch = BATCHES[len(BATCHES) // 2]
    flip(log / SECOND, batch.position + 15, bit)
    status, findings = check(log)
    assert status == 1
    assert "epoch" in {found["kind"] for found in findings}


def test_two_damaged_positions_are_two_findings_in_text_and_in_json(log: Path) -> None:
    first, second = BATCHES[3], BATCHES[9]
    for batch in (first, second):
        flip(log / SECOND, batch.position + 65)
    status, findings = check(log)
    assert status == 1
    assert [found["position"] for found in findings] == [first.position, second.position]
    status, out, err = run("check", log)
    assert (status, err) == (1, "")
    *lines, verdict = out.splitlines()
    assert lines == [
        f"damage: {log / SECOND} at byte {found['position']}, offset {found['offset']}: "
        f"{found['reason']}"
        for found in findings
    ]
    assert verdict.startswith("damaged (2 findings): 4 segments, 256 batches, ")


def test_wrong_records_under_a_valid_crc_are_found(tmp_path: Path) -> None:
    from crc32c import crc32c

    writer = LogWriter(tmp_path / "topic-0")
    writer.append(b"a", b"b")
    writer.append(b"c")
    (segment,) = (tmp_path / "topic-0").glob("*.log")
    put(segment, 61, b"\x7f")
    (length,) = struct.unpack_from(">i", segment.read_bytes(), 8)
    put(segment, 17, struct.pack(">I", crc32c(segment.read_bytes()[21 : 12 + length])))
    found = damage_of(tmp_path / "topic-0")
    assert (found["kind"], found["position"]) == ("batch", 0)
    assert "record 1 of 2" in found["reason"]


def test_a_truncated_sealed_segment_is_damage(log: Path) -> None:
    path = log / SECOND
    path.write_bytes(path.read_bytes()[: BATCHES[-1].position + 10])
    status, findings = check(log)
    assert status == 1
    kinds = [(found["kind"], found["path"]) for found in findings]
    assert kinds[0] == ("batch", str(path))
    assert findings[0]["position"] == BATCHES[-1].position
    assert ("gap", str(log / SEGMENTS[2].name)) in kinds


def test_a_missing_segment_is_a_gap(log: Path) -> None:
    (log / SECOND).unlink()
    found = damage_of(log)
    assert (found["kind"], found["path"]) == ("gap", str(log / SEGMENTS[2].name))
    assert (found["position"], found["offset"]) == (0, 1288)
    assert "offsets 436 to 1287 are missing" in found["reason"]


def test_a_missing_start_of_the_log_without_a_snapshot_is_a_gap(whole_log: Path) -> None:
    (whole_log / FIRST).unlink()
    assert check(whole_log)[0] == 0, "the snapshot at 636 has the state before"
    for checkpoint in whole_log.glob("*.checkpoint"):
        checkpoint.unlink()
    found = damage_of(whole_log)
    assert (found["kind"], found["offset"]) == ("gap", 436)


def test_a_segment_under_a_wrong_name_is_found(log: Path) -> None:
    for path in list(log.glob(f"{SECOND.removesuffix('.log')}*")):
        if path.suffix in (".log", ".index", ".timeindex"):
            path.rename(path.with_name(path.name.replace("436", "435")))
    status, findings = check(log)
    assert status == 1
    assert findings[0]["kind"] == "segment_name"
    assert findings[0]["offset"] == 436


def test_text_instead_of_a_segment_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_text("This is a text, and no log.\n" * 40)
    found = damage_of(tmp_path)
    assert (found["kind"], found["position"]) == ("batch", 0)
    assert "no valid batch in the remaining 1120 bytes" in found["reason"]


# --- other files of the log -----------------------------------------------------------------------


INDEX = SECOND.replace(".log", ".index")
TIME_INDEX = SECOND.replace(".log", ".timeindex")


@pytest.mark.parametrize(
    ("name", "position", "data", "said"),
    [
        (INDEX, 4, struct.pack(">i", 4321), "no batch begins at byte 4321"),
        (INDEX, 0, struct.pack(">i", 3), "the last offset of the batch"),
        (INDEX, 8, bytes(4), "entry 2 does not ascend"),
        (INDEX, 36, struct.pack(">i", 2**31 - 1), "after the last complete batch"),
        (INDEX, 40, b"abc", "entry 6 is incomplete"),
        (TIME_INDEX, 8, struct.pack(">i", 100_000), "after the last complete batch"),
        (TIME_INDEX, 4, b"\x00\x00\x00\x01", "ms, but the batch of the log has"),
        (TIME_INDEX, 12, bytes(8), "entry 2 does not ascend"),
    ],
)
def test_a_wrong_index_is_found(
    log: Path, name: str, position: int, data: bytes, said: str
) -> None:
    put(log / name, position, data)
    status, findings = check(log)
    assert status == 1
    assert {(found["kind"], found["path"]) for found in findings} == {("index", str(log / name))}
    assert said in findings[0]["reason"]
    assert findings[0]["position"] == position // (8 if name == INDEX else 12) * (
        8 if name == INDEX else 12
    )


def test_index_entries_of_a_damaged_batch_are_not_reported(log: Path) -> None:
    (_, position) = struct.unpack_from(">ii", (log / INDEX).read_bytes())
    flip(log / SECOND, position + 70)
    assert damage_of(log)["position"] == position


def test_an_index_ahead_of_the_newest_segment_is_a_note(log: Path) -> None:
    path = log / NEWEST
    (_, position) = struct.unpack_from(">ii", (log / NEWEST.replace(".log", ".index")).read_bytes())
    path.write_bytes(path.read_bytes()[: position + 10])
    status, findings = check(log)
    assert status == 0
    assert {"torn_tail", "index"} == {found["kind"] for found in findings}


@pytest.mark.parametrize(
    ("position", "said"),
    [(10, "no marker of producer"), (2, "no marker of producer"), (0, "version")],
)
def test_a_wrong_transaction_index_is_found(orders: Path, position: int, said: str) -> None:
    path = orders / "00000000000000000000.txnindex"
    field = {0: b"\xff\xff", 2: struct.pack(">q", 77), 10: struct.pack(">qq", 0, 1)}[position]
    put(path, position, field)
    status, findings = check(orders)
    assert status == 1
    assert all(found["path"] == str(path) for found in findings)
    assert said in findings[0]["reason"]


def test_an_aborted_transaction_missing_in_the_index_is_found(orders: Path) -> None:
    path = orders / "00000000000000000000.txnindex"
    (*_, marker, _) = struct.unpack_from(">hqqqq", path.read_bytes(), 34)
    path.write_bytes(path.read_bytes()[:34])
    found = damage_of(orders)
    assert (found["kind"], found["path"], found["offset"]) == ("index", str(path), marker)
    path.unlink()
    status, findings = check(orders)
    assert (status, len(findings)) == (0, 2), "an index that was not copied is no damage"


@pytest.mark.parametrize(
    ("entries", "offset"),
    [
        ([(1, 0), (2, 700)], 700),
        ([(1, 0), (2, 800)], 721),
        ([(1, 0), (3, 721)], 721),
        ([(1, 0)], 721),
    ],
)
def test_an_epoch_file_that_contradicts_the_log_is_found(
    log: Path, entries: list[tuple[int, int]], offset: int
) -> None:
    write_epochs(log, entries)
    found = damage_of(log)
    assert (found["kind"], found["path"]) == ("epoch", str(log / "leader-epoch-checkpoint"))
    batches = [batch for segment in SEGMENTS for batch in read_dump(segment)]
    first = next(batch.base_offset for batch in batches if batch.base_offset >= offset)
    assert found["offset"] == first


def test_an_epoch_after_the_end_is_a_note(log: Path) -> None:
    write_epochs(log, [(1, 0), (2, 721), (3, 3500)])
    status, findings = check(log)
    assert status == 0
    assert [(found["kind"], found["offset"]) for found in findings] == [("epoch", 3500)]


@pytest.mark.parametrize(
    "name",
    ["leader-epoch-checkpoint", "quorum-state", "partition.metadata", "../meta.properties"],
)
def test_a_small_file_of_garbage_is_found(log: Path, name: str) -> None:
    (log / name).write_bytes(b"version=nine\n")
    found = damage_of(log)
    assert found["kind"] == "file"
    assert Path(found["path"]).name == Path(name).name


def test_a_producer_snapshot_with_a_wrong_crc_is_found(orders: Path) -> None:
    (path,) = orders.glob("*.snapshot")
    flip(path, 20)
    found = damage_of(orders)
    assert (found["kind"], found["path"]) == ("file", str(path))


# --- snapshots and replay -------------------------------------------------------------------------


def cut_footer(path: Path) -> int:
    batches = read_dump(NODE / "__cluster_metadata-0" / path.name)
    path.write_bytes(path.read_bytes()[: batches[-1].position])
    return batches[-1].position


def flip_in_the_middle(path: Path) -> int:
    batches = read_dump(NODE / "__cluster_metadata-0" / path.name)
    flip(path, batches[1].position + 1000)
    return batches[1].position


def drop_header(path: Path) -> int:
    batches = read_dump(NODE / "__cluster_metadata-0" / path.name)
    path.write_bytes(path.read_bytes()[batches[1].position :])
    return 0


def cut_in_a_batch(path: Path) -> int:
    batches = read_dump(NODE / "__cluster_metadata-0" / path.name)
    path.write_bytes(path.read_bytes()[: batches[1].position + 500])
    return batches[1].position


@pytest.mark.parametrize("hurt", [cut_footer, flip_in_the_middle, drop_header, cut_in_a_batch])
def test_an_incomplete_snapshot_is_found(whole_log: Path, hurt: Callable[[Path], int]) -> None:
    path = whole_log / "00000000000000000636-0000000001.checkpoint"
    path.chmod(0o600)
    position = hurt(path)
    found = damage_of(whole_log)
    assert (found["kind"], found["path"]) == ("checkpoint", str(path))
    assert found["position"] == position
    assert damage_of(path)["position"] == position


def test_a_snapshot_that_contradicts_the_log_is_found(whole_log: Path) -> None:
    path = whole_log / "00000000000000001762-0000000002.checkpoint"
    path.rename(whole_log / "00000000000000001700-0000000002.checkpoint")
    found = damage_of(whole_log)
    assert (found["kind"], found["offset"]) == ("replay", 1700)
    assert "differs from the replayed log in" in found["reason"]


def leader_of_another(image: MetadataImage) -> tuple[MetadataImage, str]:
    row = image.rows_of(PartitionRow)[-1]
    changed = dataclasses.replace(row, leader=row.leader + 1)
    return with_row(image, changed), f"partition {key_json(row.key)}, columns leader"


def config_of_a_topic(image: MetadataImage) -> tuple[MetadataImage, str]:
    row = next(row for row in image.rows_of(ConfigRow) if row.resource_type == CONFIG_OF_TOPIC)
    changed = dataclasses.replace(row, value="no value of the log")
    return with_row(image, changed), f"config {key_json(row.key)}, columns value"


def broker_of_another_epoch(image: MetadataImage) -> tuple[MetadataImage, str]:
    row = image.rows_of(BrokerRow)[0]
    changed = dataclasses.replace(row, broker_epoch=row.broker_epoch + 1)
    return with_row(image, changed), f"broker {key_json(row.key)}, columns broker_epoch"


def with_row(image: MetadataImage, row: Row) -> MetadataImage:
    maps = {**image.maps, row.ENTITY: {**image.map(row.ENTITY), row.key: row}}
    return dataclasses.replace(image, maps=maps)


@pytest.mark.parametrize("change", [leader_of_another, config_of_a_topic, broker_of_another_epoch])
def test_one_row_of_a_snapshot_that_differs_is_found_and_later_snapshots_are_compared(
    whole_log: Path, change: Callable[[MetadataImage], tuple[MetadataImage, str]]
) -> None:
    """Rows are compared as columns; those of the snapshot that differs as objects."""
    path = whole_log / "00000000000000001762-0000000002.checkpoint"
    image = ImageReader(str(whole_log), Redactor(reveal=True)).image_at(1762)
    changed, expected = change(image)
    path.chmod(0o600)
    path.write_bytes(snapshot_bytes(changed, written_ms=1))
    found = damage_of(whole_log)
    assert (found["kind"], found["path"], found["offset"]) == ("replay", str(path), 1762)
    assert found["reason"] == f"differs from the replayed log in 1 rows, the first is {expected}"
    _, out, _ = run("check", whole_log, "--json")
    assert json.loads(out.splitlines()[-1])["summary"]["checkpoints_compared"] == 3


def test_a_snapshot_of_another_epoch_is_found(whole_log: Path) -> None:
    path = whole_log / "00000000000000001762-0000000002.checkpoint"
    renamed = path.rename(whole_log / "00000000000000001762-0000000003.checkpoint")
    found = damage_of(whole_log)
    assert (found["kind"], found["path"]) == ("checkpoint", str(renamed))
    assert "epoch 2" in found["reason"]


def test_replay_restarts_after_damage(whole_log: Path) -> None:
    # The damage is before the snapshots at 636 and 1762; the last one is compared nevertheless.
    flip(whole_log / FIRST, 10_000)
    (whole_log / "00000000000000003128-0000000002.checkpoint").rename(
        whole_log / "00000000000000003100-0000000002.checkpoint"
    )
    status, findings = check(whole_log)
    assert status == 1
    assert [found["kind"] for found in findings] == ["batch", "replay"]


def as_it_is(log: Path) -> None:
    pass


def with_a_snapshot_of_another_offset(log: Path) -> None:
    path = log / "00000000000000001762-0000000002.checkpoint"
    path.rename(log / "00000000000000001700-0000000002.checkpoint")


def with_a_damaged_batch(log: Path) -> None:
    flip(log / FIRST, 10_000)


@pytest.mark.parametrize(
    "change", [as_it_is, with_a_snapshot_of_another_offset, with_a_damaged_batch]
)
def test_replay_by_columns_finds_what_replay_record_by_record_does(
    whole_log: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """Topics are replayed by columns, also where a range ends at a snapshot or at damage."""
    change(whole_log)
    outputs = []
    for records_min in (2, 10**9):
        monkeypatch.setattr(scans, "COMPARED_RECORDS_MIN", records_min)
        outputs.append(run("check", whole_log, "--json"))
    assert outputs[0] == outputs[1]


def test_records_that_contradict_a_long_log_are_found_at_their_offset(tmp_path: Path) -> None:
    """The range before them is replayed by columns; theirs is replayed record by record."""
    topics = Topics(random.Random(5))
    values = [NO_OP, *topics.values(2 * scans.RECORDS_MIN)]
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    for start in range(0, len(values), 100):
        writer.append(*values[start : start + 100])
    assert check(tmp_path) == (0, [])
    writer.append(NO_OP, encode(RemoveTopicRecord(topic_id="A" * 21 + "Q")), NO_OP)
    found = damage_of(tmp_path)
    assert (found["kind"], found["offset"]) == ("replay", len(values) + 1)
    assert "RemoveTopicRecord cannot be replayed" in found["reason"]


def test_contradicting_records_are_found(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP, encode(RemoveTopicRecord(topic_id="A" * 21 + "Q")), NO_OP)
    found = damage_of(tmp_path)
    assert (found["kind"], found["offset"]) == ("replay", 1)
    assert "RemoveTopicRecord cannot be replayed" in found["reason"]


def test_records_that_need_those_of_a_later_release_are_found_as_such(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP, b"\x01\x02\x09", encode(PartitionRecord(topic_id="A" * 21 + "Q")))
    found = damage_of(tmp_path)
    assert (found["kind"], found["offset"]) == ("unknown", 2)
    assert "support 1 records of type 2 version 9 (offsets 1 to 1), which may" in found["reason"]


def test_a_malformed_value_is_found(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP, b"\x01\x02\x00\x7f")
    found = damage_of(tmp_path)
    assert (found["kind"], found["offset"]) == ("replay", 1)


# --- unreadable files -----------------------------------------------------------------------------


def test_an_unreadable_segment_is_no_damage(log: Path) -> None:
    # A link to itself: the file system refuses it for every user.
    (log / SECOND).unlink()
    (log / SECOND).symlink_to(log / SECOND)
    for command in ("check", "cat", "state"):
        status, _, err = run(command, log, *(("--at", "1000") if command == "state" else ()))
        assert status == 2, command
        assert err.splitlines()[-1].startswith("raftlog: [RAFTLOG_LOG_ACCESS] ")
        assert str(log / SECOND) in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_permission_is_reported(log: Path) -> None:
    log.chmod(0)
    try:
        status, out, err = run("check", log)
    finally:
        log.chmod(0o700)
    assert (status, out) == (2, "")
    assert "permission denied" in err


def test_a_check_writes_nothing(log: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in log.parent.rglob("*")}
    check(log)
    assert {path: path.stat().st_mtime_ns for path in log.parent.rglob("*")} == before


def test_a_batch_with_skipped_offsets_is_found(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP)
    records = (NewRecord(None, NO_OP),) * 2
    gap = NewRecordBatch(records=records, offset_deltas=(0, 2), base_timestamp_ms=0)
    writer.append(batch=gap)
    found = damage_of(tmp_path)
    assert (found["kind"], found["offset"]) == ("gap", 3)


@given(
    changes=st.lists(
        st.tuples(st.sampled_from((".log", ".index", ".timeindex")), st.integers(0, 2**16), BYTES),
        min_size=1,
        max_size=4,
    ),
    end=st.integers(0, 2**16),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_cause_no_traceback(
    tmp_path: Path, changes: list[tuple[str, int, int]], end: int
) -> None:
    source = NODE / "__cluster_metadata-0"
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir(exist_ok=True)
    for suffix in (".log", ".index", ".timeindex"):
        data = bytearray((source / f"{0:020d}{suffix}").read_bytes()[:4096])
        for changed, position, byte in changes:
            if changed == suffix and data:
                data[position % len(data)] = byte
        if suffix == ".log":
            del data[max(end % len(data), 1) :]
        (directory / f"{0:020d}{suffix}").write_bytes(data)
    for command in (("check",), ("cat", "--noop", "--control"), ("cat", "--batches"), ("state",)):
        status, _, err = run(*command, tmp_path)
        assert status in (0, 1)
        assert all(line.startswith("raftlog: ") for line in err.splitlines())


def test_metadata_of_raftlog_that_other_users_may_read_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "changes-0"
    raftlog.open(path, values="kraft").close()
    assert check(path) == (0, [])
    path.chmod(0o755)
    assert check(path) == (0, [])  # its files are still private
    for one in path.iterdir():
        one.chmod(0o644)
    status, (finding,) = check(path)
    assert (status, finding["severity"], finding["kind"]) == (0, "note", "permissions")
    assert f"chmod -R o-rwx {path}" in finding["reason"]
    path.chmod(0o750)
    assert check(path) == (0, [])
    orders = tmp_path / "orders-0"
    raftlog.open(orders).close()
    orders.chmod(0o755)
    assert check(orders) == (0, [])  # its values are those of its users
