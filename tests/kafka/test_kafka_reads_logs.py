"""Files written by raftlog, read by Kafka's own log classes, dump-log and metadata shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.node.apis.compressed_forms import CompressedForm, compressed_forms
from tests.support.appending import append_batches
from tests.support.kafka import dump_log, kafka_jars, run_java
from tests.support.log_builder import control_batch
from tests.support.metadata_logs import CLUSTERS, metadata_log, restored

import raftlog
from raftlog.log.reading.reads import Isolation
from raftlog.log.reading.transactions import CommitName, ValueKind, commit_header
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records import (
    BatchAccumulator,
    Compression,
    Header,
    NewRecord,
    ProducerStamp,
)
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.control import ControlType, EndTransactionMarker
from raftlog_state import write_batch_file
from raftlog_state.image import MetadataImage
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import TopicRecord, encode, to_json_text

pytestmark = pytest.mark.kafka

DUMP = "org.apache.kafka.tools.DumpLogSegments"
READ_LOG = str(Path(__file__).parent / "ReadLog.java")
SMALL = LogConfig(segment_bytes=3_000, index_interval_bytes=300)
SHELL_TRIES_MAX = 10
NAME = CommitName("application", "query", 4)
OWN_TIME_MS = 1_600_000_000_000
RECORD = re.compile(
    r"\| offset: (\d+) CreateTime: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) .*?"
    r"headerKeys: \[(.*?)\](?: key: (.*?))?(?: payload: (.*))?$"
)


@dataclass(frozen=True)
class Written:
    """Log written by raftlog: path, appended records, and the path of a copy of the running log."""

    path: Path
    while_open: Path
    records: dict[int, NewRecord]
    end_offset: int


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


def transaction(log: SingleVoterLog, now_ms: int, producer_id: int, outcome: ControlType) -> None:
    """Append a producer's transaction as a coordinator writes it: two data batches and a marker."""
    batches = BatchAccumulator(epoch=log.epoch, next_offset=log.end_offset, byte_count_max=1 << 16)
    for sequence in (0, 2):
        stamp = ProducerStamp(producer_id, 0, sequence, is_transactional=True)
        batches.append_atomic(log.epoch, [b"in", b"doubt"], now_ms=now_ms, producer=stamp)
    end = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
    marker = control_batch(
        [end],
        base_offset=batches.next_offset,
        epoch=log.epoch,
        timestamp_ms=now_ms,
        producer_id=producer_id,
    )
    append_batches(log, *(one.data for one in batches.drain()), marker)


def write_log(place: Path, compression: Compression) -> Written:
    """Write a log with every kind of append of the embedded log, and two epochs."""
    path = place / "orders-3"
    records: dict[int, NewRecord] = {}
    with raftlog.open(path, config=replace(SMALL, compression=compression)) as log:

        def append(*new: NewRecord, **how: Any) -> None:
            result = log.append(new, **how)
            records.update(enumerate(new, result.base_offset))

        for number in range(30):
            append(NewRecord(None, b"value %04d" % number * 10))
        append(*(NewRecord(b"k%d" % at, b"v" * at) for at in range(200)))
        append(NewRecord(b"", None, OWN_TIME_MS, (Header("h", b"x"), Header("none", None))))
        append(NewRecord(None, b""), NewRecord(None, b"end"), atomic=True)
        append(NewRecord(None, b"token"), required_base_offset=log.end_offset)
        append(NewRecord(None, b"named"), commit=NAME)
        append(NewRecord(None, b"one"), NewRecord(None, b"two"), producer=(77, 2, 0))
        append(NewRecord(None, b"three"), producer=(77, 2, 2))
        log.run(lambda opened, now_ms: transaction(opened, now_ms, 501, ControlType.ABORT))
        log.run(lambda opened, now_ms: transaction(opened, now_ms, 502, ControlType.COMMIT))
        log.claim()
        for number in range(30):
            append(NewRecord(None, b"epoch 2: %04d" % number * 5))
        while_open = place / "copy" / "orders-3"
        shutil.copytree(path, while_open)
        end_offset = log.end_offset
    return Written(path, while_open, records, end_offset)


@pytest.fixture(scope="module", params=[Compression.NONE, Compression.ZSTD], ids=str)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_log(tmp_path_factory.mktemp("ours"), request.param)


Opened = Callable[[str], tuple[Path, list[str]]]


@pytest.fixture(scope="module")
def opened(written: Written, jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Copy of the log after Kafka's own log opened and closed it, and the output of that."""
    done: dict[str, tuple[Path, list[str]]] = {}

    def once(how: str) -> tuple[Path, list[str]]:
        if how not in done:
            copy = tmp_path_factory.mktemp(how) / written.path.name
            shutil.copytree(written.path, copy)
            done[how] = (copy, read_by_kafka(jars, copy, how))
        return done[how]

    return once


def read_by_kafka(jars: Path, directory: Path, how: str) -> list[str]:
    interval = str(SMALL.index_interval_bytes)
    return run_java(jars, READ_LOG, str(directory), how, interval).splitlines()


def dumped(jars: Path, files: list[Path], *options: str) -> list[str]:
    """Return kafka-dump-log's output, with its errors after the rest."""
    names = ",".join(map(str, files))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", DUMP, *options]
    done = subprocess.run([*command, "--files", names], capture_output=True, text=True, check=True)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def files_of(directory: Path, *suffixes: str) -> list[Path]:
    found = sorted(path for path in directory.iterdir() if path.suffix in suffixes)
    assert found
    return found


def shown(path: Path) -> list[str]:
    """Return every record of a log as ReadLog.java prints it, read by raftlog."""

    def hexed(data: bytes | None) -> str:
        return "-" if data is None else data.hex()

    with raftlog.open(path, create=False) as log:
        lines = []
        for record in log.read(isolation=Isolation.READ_UNCOMMITTED):
            epoch = 1 if record.offset < claimed_at(path) else 2
            words = [record.offset, epoch, record.timestamp_ms, hexed(record.key)]
            words += [hexed(record.value), *(f"{h.key}={hexed(h.value)}" for h in record.headers)]
            # raftlog's reader hides headers that Kafka's reader returns
            if record.value == b"named":
                words.append(f"raftlog.commit={hexed(commit_header(NAME).value)}")
            lines.append("record " + " ".join(map(str, words)))
    return lines


def claimed_at(path: Path) -> int:
    """Return the first offset of epoch 2."""
    return int((path / "leader-epoch-checkpoint").read_text().split()[-1])


# --- Kafka's own log ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "unclean"])
def test_kafkas_log_opens_raftlogs_and_reads_every_record(
    written: Written, how: str, opened: Opened
) -> None:
    _, lines = opened(how)
    properties = dict(
        line.split(": ") for line in (written.path / "partition.metadata").read_text().splitlines()
    )
    claimed = claimed_at(written.path)
    aborted = min(set(range(written.end_offset)) - set(written.records) - {0})
    other_lines = [line for line in lines if not line.startswith(("record", "control", "producer"))]
    assert other_lines == [
        f"topic {properties['topic_id']}",
        f"offset-file recovery-point-offset-checkpoint orders 3 {written.end_offset}",
        "start 0",
        f"end {written.end_offset}",
        f"stable {written.end_offset}",
        "epoch 1 0",
        f"epoch 2 {claimed}",
        f"aborted 501 {aborted} {aborted + 4}",
        "closed",
    ]
    producers = {line for line in lines if line.startswith("producer")}
    assert producers == {"producer 77 2 2", "producer 501 0 3", "producer 502 0 3"}
    assert [line for line in lines if line.startswith("record")] == shown(written.path)
    controls = [line.split()[1:] for line in lines if line.startswith("control")]
    assert controls[0] == ["0", "1"]
    assert controls[-1] == [str(claimed), "2"]
    assert len(controls) == 4


def test_kafka_writes_the_same_indexes_for_raftlogs_segments(
    written: Written, opened: Opened
) -> None:
    copy, _ = opened("unclean")
    ours = files_of(written.path, ".index", ".timeindex", ".txnindex")
    assert sum(path.stat().st_size > 0 for path in ours if path.suffix == ".index") > 1
    assert any(path.stat().st_size > 0 for path in ours if path.suffix == ".txnindex")
    for path in ours:
        theirs = copy / path.name
        assert (theirs.read_bytes() if theirs.exists() else b"") == path.read_bytes(), path.name
    for path in files_of(written.path, ".log"):
        assert (copy / path.name).read_bytes() == path.read_bytes()
    name = "leader-epoch-checkpoint"
    assert (copy / name).read_text() == (written.path / name).read_text()


def test_kafka_opens_a_copy_of_a_running_writers_directory(
    written: Written, jars: Path, tmp_path: Path
) -> None:
    copy = tmp_path / written.path.name
    shutil.copytree(written.while_open, copy)
    lines = read_by_kafka(jars, copy, "unclean")
    assert f"end {written.end_offset}" in lines
    assert [line for line in lines if line.startswith("record")] == shown(written.path)
    assert lines[-1] == "closed"


# --- kafka-dump-log -------------------------------------------------------------------------------


def test_dump_log_prints_every_record_without_errors(written: Written, jars: Path) -> None:
    segments = files_of(written.path, ".log")
    assert len(segments) > 2
    lines = dumped(jars, segments, "--deep-iteration", "--print-data-log")
    batches = [line for line in lines if line.startswith("baseOffset:")]
    assert all("isvalid: true" in line for line in batches)
    others = ("baseOffset:", "| offset:", "Dumping ", "Log starting offset:")
    # dump-log reports this for every segment except the first, of Kafka's too: it counts from -1.
    expected = []
    for segment in segments[1:]:
        expected.append(f"Non-consecutive offsets in {segment}")
        expected.append(f"  -1 is followed by {int(segment.stem)}")
    assert sorted(line for line in lines if not line.startswith(others)) == sorted(expected)
    printed = {}
    for line in lines:
        found = RECORD.match(line)
        if found is not None:
            offset, time_ms, key_size, value_size, headers, key, payload = found.groups()
            sizes = (int(key_size), int(value_size))
            printed[int(offset)] = (int(time_ms), sizes, headers, key, payload)
    offsets = [int(line.split()[2]) for line in lines if line.startswith("| offset:")]
    assert offsets == list(range(written.end_offset))
    for offset, record in written.records.items():
        time_ms, sizes, headers, key, payload = printed[offset]
        assert sizes == tuple(
            -1 if part is None else len(part) for part in (record.key, record.value)
        )
        assert record.timestamp_ms in (None, time_ms)
        assert (key or "") == (record.key or b"").decode()
        assert (payload or "") == (record.value or b"").decode()
        names_there = ["raftlog.commit"] if record.value == b"named" else []
        names_there += [header.key for header in record.headers]
        assert headers == ",".join(names_there)


def test_dump_log_finds_no_error_in_raftlogs_indexes(written: Written, jars: Path) -> None:
    indexes = [
        *files_of(written.path, ".index", ".timeindex"),
        *files_of(written.while_open, ".index", ".timeindex"),
    ]
    void = [path for path in indexes if path.suffix == ".index" and not path.stat().st_size]
    empty = [f"{path} is empty." for path in void]
    passed = [f"{path} passed sanity check." for path in indexes if path not in void]
    assert len(passed) > len(empty)
    sane = dumped(jars, indexes, "--index-sanity-check")
    assert sorted(line for line in sane if not line.startswith("Dumping ")) == sorted(
        empty + passed
    )
    verified = dumped(jars, indexes, "--verify-index-only")
    assert [line for line in verified if not line.startswith("Dumping ")] == empty


def test_dump_log_reads_raftlogs_aborted_transactions_and_producers(
    written: Written, jars: Path
) -> None:
    names = files_of(written.path, ".txnindex", ".snapshot")
    lines = dumped(jars, names)
    aborted = [line for line in lines if line.startswith("version:")]
    assert len(aborted) == 1
    assert "producerId: 501" in aborted[0]
    last = [line for line in lines if line.startswith("producerId:")][-3:]
    assert {line.split()[1] for line in last} == {"77", "501", "502"}


# --- metadata -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> MetadataImage:
    """Image of a real cluster."""
    loader = MetadataLoader()
    loader.append(metadata_log(restored(CLUSTERS[1], tmp_path_factory.mktemp("source"))).records)
    return loader.image


@pytest.fixture(scope="module")
def metadata(image: MetadataImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That image as a log of metadata records written by raftlog, and as a snapshot."""
    path = tmp_path_factory.mktemp("metadata") / "__cluster_metadata-0"
    values = [encode(record) for record in image_records(image)]
    with raftlog.open(path, values="kraft", config=replace(SMALL, values=ValueKind.KRAFT)) as log:
        log.append(values[:5], commit=("application", "query", 1))
        log.append(values[5:])
        assert log.snapshot(values) is not None
    return path


def payloads(lines: list[str]) -> list[str]:
    return [line.split("payload: ")[1] for line in lines if "payload: " in line]


def test_dump_log_prints_raftlogs_metadata_records(
    image: MetadataImage, metadata: Path, jars: Path
) -> None:
    printed = payloads(dump_log(jars, *files_of(metadata, ".log")))
    records = [to_json_text(record) for record in image_records(image)]
    assert printed[0].startswith('{"type":"BEGIN_TRANSACTION_RECORD"')
    assert '\\"application\\"' in printed[0]
    assert printed[6].startswith('{"type":"END_TRANSACTION_RECORD"')
    assert printed[1:6] + printed[7:] == records


def test_dump_log_prints_raftlogs_snapshot(
    image: MetadataImage, metadata: Path, jars: Path
) -> None:
    lines = dump_log(jars, *files_of(metadata, ".checkpoint"))
    assert payloads(lines) == [to_json_text(record) for record in image_records(image)]
    assert "SnapshotHeader" in " ".join(lines[:4])
    assert "SnapshotFooter" in lines[-1]
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert all("isvalid: true" in line for line in batches)


def test_kafkas_metadata_shell_opens_raftlogs_snapshot(
    image: MetadataImage, metadata: Path, jars: Path
) -> None:
    (checkpoint,) = files_of(metadata, ".checkpoint")
    assert topics_in_kafkas_shell(jars, checkpoint) == topics_of(image)


def test_dump_log_and_the_metadata_shell_read_a_batch_file(
    image: MetadataImage, jars: Path, tmp_path: Path
) -> None:
    """A segment with a leader, in many batches, and a snapshot with its frame."""
    records = list(image_records(image))
    small = 1_000
    texts = [to_json_text(record) for record in records]
    segment = tmp_path / f"{40:020}.log"
    done = write_batch_file(segment, records, leader_epoch=3, leader_id=5, batch_bytes_max=small)
    lines = dump_log(jars, segment)
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert len(batches) == done.batch_count > 5
    assert batches[0].startswith("baseOffset: 40 ")
    assert all("isvalid: true" in line and "partitionLeaderEpoch: 3" in line for line in batches)
    assert "LeaderChange" in lines[2]
    assert payloads(lines) == texts
    checkpoint = tmp_path / f"{100:020}-{3:010}.checkpoint"
    write_batch_file(checkpoint, records)  # in one batch: the shell may answer between two
    lines = dump_log(jars, checkpoint)
    assert payloads(lines) == texts
    assert "SnapshotHeader" in " ".join(lines[:4])
    assert "SnapshotFooter" in lines[-1]
    assert topics_in_kafkas_shell(jars, checkpoint) == topics_of(image)


def topics_of(image: MetadataImage) -> list[str]:
    records = [decoded.record for decoded in image_records(image)]
    topics = [record.name for record in records if isinstance(record, TopicRecord)]
    assert topics
    return sorted(topics)


def topics_in_kafkas_shell(jars: Path, checkpoint: Path) -> list[str]:
    shell = ("org.apache.kafka.shell.MetadataShell", "--snapshot", str(checkpoint))
    listed: list[str] = []
    for _ in range(SHELL_TRIES_MAX):  # it may answer before it has read the file, even Kafka's own
        listed = run_java(jars, *shell, "ls", "image/topics/byName").split()
        if listed:
            break
    return listed


@pytest.mark.parametrize("form", compressed_forms(), ids=str)
def test_kafka_reads_the_forms_of_compression_that_a_leader_stores(
    form: CompressedForm, tmp_path: Path
) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(form.data)
    batch = read_batch(form.data)
    assert isinstance(batch, RecordBatch)
    try:
        printed = run_java(kafka_jars(), DUMP, "--deep-iteration", "--files", str(segment))
    except AssertionError:
        printed = ""
    assert (printed.count("| offset:") == batch.record_count) is form.is_read_by_kafka
