"""A log followed into tables in memory: growth, deleted segments, nodes that are away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import StoppedClock
from tests.support.controllers import Listener
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog
from tests.support.small_logs import TIME_MS, LogWriter, copy_log
from tests.support.source_rows import source_rows
from tests.support.written_tables import contents as contents_of
from tests.support.written_tables import read_view

import raftlog
from raftlog.client import LogReader, ReadEnd, open_path
from raftlog.errors import (
    DivergedLogError,
    NotALogError,
    QuorumUnavailableError,
    SegmentDeletedError,
    WrongClusterError,
)
from raftlog_state.errors import TablesError
from raftlog_state.image import MetadataImage
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.publishing import Manifest, MetadataUpdate, PublishingLoader
from raftlog_state.records import DecodedRecord, Redactor, TopicRecord, decode, encode
from raftlog_state.tables import log_follower
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.progress import Progress
from raftlog_state.tables.reader import ArrowTables
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE
from raftlog_state.tables.upkeep import MERGE_INTERVAL_S
from raftlog_state.tables.writer import Writer

SOURCE = "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
END = 2685
NO_OP = b"\x01\x14\x00\x00"


def follow(
    tables: MemoryTables,
    log: Path,
    *,
    open_log: Callable[[], LogReader] | None = None,
    clock: StoppedClock | None = None,
    count: int = 500,
    redactor: Redactor | None = None,
    is_once: bool = True,
    allows_gap: bool = False,
    writes_log: bool = True,
    is_beside: bool = False,
    on_event: Callable[[str], object] = len,
) -> list[str]:
    """Follow a log to its end; return the events."""
    events: list[str] = []

    def log_event(event: str) -> None:
        events.append(event)
        on_event(event)

    settings = FollowSettings(
        redactor=redactor or Redactor(),
        record_count_max=count,
        holdback_ms=0,
        is_once=is_once,
        allows_gap=allows_gap,
        writes_log=writes_log,
    )
    LogFollower(
        open_log or (lambda: open_path(str(log))),
        MemoryStore(tables),
        settings,
        upkeep_store=MemoryStore(tables) if is_beside else None,
        clock=(clock or StoppedClock()).as_clock(),
        log_event=log_event,
    ).run()
    return events


def contents(tables: MemoryTables) -> list[tuple[str, str]]:
    """Return the published rows, JSON of records parsed: the tests write numbers differently."""
    found = [(name, json.loads(row)) for name, row in contents_of(tables)]
    for _, row in found:
        if row.get("value_json") is not None:
            row["value_json"] = json.loads(row["value_json"])
    return [(name, json.dumps(row)) for name, row in found]


def progress_of(tables: MemoryTables) -> Progress:
    return Writer(MemoryStore(tables)).progress()


def expected(log: MetadataLog, end_offset: int) -> list[tuple[str, str]]:
    """Return the contents of tables of the rows that the tests' own reader returns."""
    tables = MemoryTables()
    Writer(MemoryStore(tables)).apply(source_rows(log.records[:end_offset]), None)
    return contents(tables)


@pytest.fixture(scope="module")
def whole(three_nodes: MetadataLog) -> list[tuple[str, str]]:
    return expected(three_nodes, END)


@pytest.mark.slow
def test_batches_of_any_size_give_the_same_tables(
    data: Path, three_nodes: MetadataLog, tmp_path: Path
) -> None:
    log = copy_log(data / SOURCE, tmp_path / "node" / "__cluster_metadata-0", end_offset=1600)
    end = open_path(str(log)).log_end_offset
    whole = expected(three_nodes, end)
    for count in (20, 1_000_000):
        tables = MemoryTables()
        events = follow(tables, log, count=count, is_beside=count == 20)
        assert contents(tables) == whole
        assert len(events) == 2 if count > end else len(events) > 20
    assert events == [f"following {log} from offset 0", f"appended offsets 0 to {end - 1}"]
    writer = Writer(MemoryStore(tables))
    assert writer.unmerged_row_count() == 0, "a run that ends merges"
    assert follow(tables, log) == [f"following {log} from offset {end}"]


def test_the_table_of_changes_has_what_a_publisher_gets(data: Path) -> None:
    """Record by record, in the same order; other tables have what it does not get (see
    ``raftlog_state.publishing``)."""
    updates: list[MetadataUpdate] = []

    class Recorder:
        name = "recorder"

        def on_metadata_update(
            self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
        ) -> None:
            updates.append(update)

        def on_controller_change(self, leader: object) -> None:
            pass

        def close(self) -> None:
            pass

    loader, log = PublishingLoader(Listener(), [Recorder()]), open_path(str(data / SOURCE))
    batches = list(log.batches(0, END))
    for start in range(0, len(batches), 100):
        for _ in loader.handle_commit(batches[start : start + 100]) or ():
            pass
    published = [
        (record.offset, record.visible_offset, change.entity, change.op)
        for update in updates
        for record in update.changes
        for change in record.changes
    ]
    tables = MemoryTables()
    follow(tables, data / SOURCE)
    rows = [row for row in tables.contents[CHANGES_TABLE.name].to_pylist() if row["op"] != "p"]
    rows.sort(key=lambda row: (row["offset"], row["seq"]))
    stored = [(row["offset"], row["visible_offset"], row["entity"], row["op"]) for row in rows]
    assert [(*position, str(entity), str(op)) for *position, entity, op in published] == stored
    assert 1 < len(updates) < len(stored)


@pytest.mark.slow
def test_a_log_that_grows_rolls_and_deletes_segments_is_followed(
    data: Path, three_nodes: MetadataLog, tmp_path: Path
) -> None:
    log, tables = tmp_path / "node" / "__cluster_metadata-0", MemoryTables()
    for start_offset, end_offset in ((0, 60), (0, 130), (0, 500), (436, 900), (436, 1200)):
        if log.exists():
            shutil.rmtree(log)
        copy_log(data / SOURCE, log, start_offset=start_offset, end_offset=end_offset)
        follow(tables, log)
        assert contents(tables) == expected(three_nodes, progress_of(tables).next_offset)
        assert end_offset - 60 < progress_of(tables).next_offset


def ignore(event: str) -> None:
    """Ignore an event."""


class CountingLog:
    """Log that counts the ranges that are read."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self.plan_count = 0

    def __getattr__(self, name: str) -> Any:
        self.plan_count += name == "plan"
        return getattr(self._log, name)


def test_no_ops_are_appended_with_other_records_or_after_a_delay(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "node" / "__cluster_metadata-0", cluster_id="c")
    tables, clock = MemoryTables(), StoppedClock(at_ms=1_000_000)
    reader: Any = CountingLog(open_path(str(log.directory)))
    follower = LogFollower(
        lambda: reader,
        MemoryStore(tables),
        FollowSettings(redactor=Redactor(), holdback_ms=0, no_op_delay_ms=5_000),
        clock=clock.as_clock(),
        log_event=ignore,
    )

    def end() -> int:
        return progress_of(tables).offset

    topics = [
        encode(TopicRecord(name=name, topic_id=topic_id))
        for name, topic_id in (("a", "I9iQnKeLSA2lyZwVZic7Xg"), ("b", "J9iQnKeLSA2lyZwVZic7Xg"))
    ]
    log.append(topics[0], timestamp_ms=TIME_MS + 100)
    assert str(follower.append_next()) == "appended offsets 0 to 0"
    for at_ms in (1_000, 2_000):
        log.append(NO_OP, timestamp_ms=TIME_MS + at_ms)
        assert follower.append_next() is None
        assert end() == 0
    read_count = reader.plan_count
    clock.sleep_ms(4_999)
    assert follower.append_next() is None
    assert reader.plan_count == read_count, "the same records are not read again"
    before = {at_ms: image_at(tables, at_ms) for at_ms in (101, 1_000, 1_500, 2_500)}
    clock.sleep_ms(1)
    assert str(follower.append_next()) == "appended offsets 1 to 2"
    for at_ms, image in before.items():
        assert image_at(tables, at_ms).same_rows(image), "the answer was the state at that time"
    log.append(NO_OP, timestamp_ms=TIME_MS + 3_000)
    assert follower.append_next() is None
    log.append(topics[1], timestamp_ms=TIME_MS + 3_100)
    assert str(follower.append_next()) == "appended offsets 3 to 4", "together, without a delay"
    log.append(NO_OP, NO_OP, timestamp_ms=TIME_MS + 4_000)
    assert follower.append_next() is None
    settings = FollowSettings(redactor=Redactor(), holdback_ms=0, is_once=True)
    LogFollower(lambda: reader, MemoryStore(tables), settings, log_event=ignore).run()
    assert end() == 6, "a run with an end appends them"


def test_changes_are_merged_after_an_interval_of_the_clock(data: Path, tmp_path: Path) -> None:
    log, tables, clock = tmp_path / "__cluster_metadata-0", MemoryTables(), StoppedClock()
    follower = LogFollower(
        lambda: open_path(str(log)),
        MemoryStore(tables),
        FollowSettings(redactor=Redactor(), holdback_ms=0),
        clock=clock.as_clock(),
        log_event=ignore,
    )
    merged = []
    for end_offset, waited_ms in ((100, 0), (200, 1_000 * int(MERGE_INTERVAL_S) - 1), (300, 1)):
        clock.sleep_ms(waited_ms)
        copy_log(data / SOURCE, log, end_offset=end_offset)
        assert follower.append_next() is not None
        merged.append(STATE_TABLE.name in tables.contents)
    assert merged == [False, False, True]


def test_other_records_than_no_ops_are_not_delayed(data: Path, tmp_path: Path) -> None:
    """Nor are NoOps before the boundary of a batch, as others may be after it."""
    log, tables = tmp_path / "node" / "__cluster_metadata-0", MemoryTables()
    copy_log(data / SOURCE, log, end_offset=1)
    settings = FollowSettings(redactor=Redactor(), holdback_ms=0, record_count_max=2)
    store, clock = MemoryStore(tables), StoppedClock().as_clock()
    follower = LogFollower(
        lambda: open_path(str(log)), store, settings, clock=clock, log_event=ignore
    )
    assert str(follower.append_next()) == "appended offsets 0 to 2"
    writer = LogWriter(tmp_path / "other" / "__cluster_metadata-0")
    for _ in range(5):
        writer.append(NO_OP)
    follower = LogFollower(
        lambda: open_path(str(writer.directory)),
        MemoryStore(MemoryTables()),
        settings,
        clock=clock,
        log_event=ignore,
    )
    assert [str(follower.append_next()) for _ in range(3)] == [
        "appended offsets 0 to 1",
        "appended offsets 2 to 3",
        "None",
    ]


def image_at(tables: MemoryTables, at_ms: int) -> MetadataImage:
    """Return the state at a time, as a reader sees it."""
    reader = ArrowTables(MemoryStore(tables), None)
    return reader.image(reader.at(time=str(TIME_MS + at_ms)).offset)


def test_a_log_of_other_records_is_refused_before_one_is_read(tmp_path: Path) -> None:
    tables, path = MemoryTables(), tmp_path / "orders-0"
    with raftlog.open(path) as log:
        log.append([b"a"])
    with pytest.raises(NotALogError, match=r"is partition orders-0; use the log of __clus"):
        follow(tables, path)
    assert progress_of(tables).next_offset == 0


def test_a_run_with_an_end_leaves_later_records_to_the_next_one(data: Path, tmp_path: Path) -> None:
    log, tables = tmp_path / "node" / "__cluster_metadata-0", MemoryTables()
    copy_log(data / SOURCE, log, end_offset=200)

    def grow(event: str) -> None:
        if event.startswith("appended"):
            copy_log(data / SOURCE, log, end_offset=400)

    follow(tables, log, count=40, on_event=grow)
    assert 200 <= progress_of(tables).next_offset < 300
    follow(tables, log)
    assert progress_of(tables).next_offset >= 400


def test_a_follower_continues_with_new_records(data: Path, tmp_path: Path) -> None:
    log, tables = tmp_path / "node" / "__cluster_metadata-0", MemoryTables()
    copy_log(data / SOURCE, log, end_offset=60)
    ends = [130, 700]

    class EndError(Exception):
        """End of the test."""

    def grow() -> None:
        if not ends:
            raise EndError
        copy_log(data / SOURCE, log, end_offset=ends.pop(0))

    clock = StoppedClock(while_asleep=grow)
    with pytest.raises(EndError):
        follow(tables, log, clock=clock, is_once=False)
    assert clock.slept_ms == [log_follower.POLL_MS_DEFAULT] * 3
    assert progress_of(tables).next_offset > 600


def test_deleted_records_are_a_gap_only_if_that_is_allowed(
    data: Path, three_nodes: MetadataLog, tmp_path: Path
) -> None:
    log, tables = tmp_path / "node" / "__cluster_metadata-0", MemoryTables()
    copy_log(data / SOURCE, log, end_offset=300)
    follow(tables, log)
    end_offset = progress_of(tables).next_offset
    before = contents(tables)
    (snapshot_id, *_) = (checkpoint.snapshot_id for checkpoint in three_nodes.checkpoints)
    shutil.rmtree(log)
    copy_log(data / SOURCE, log, start_offset=436, end_offset=900)
    with pytest.raises(TablesError, match=r"begins at offset 436; .*--allow-gap"):
        follow(tables, log)
    assert contents(tables) == before
    events = follow(tables, log, allows_gap=True)
    assert events[1] == f"loaded snapshot {snapshot_id}: the state after offset 719"
    progress = progress_of(tables)
    assert progress.gaps == ((end_offset, 719),)
    loader = MetadataLoader()
    loader.append(three_nodes.records[: progress.next_offset])
    redactor = Redactor()
    assert redactor.reveal is False
    counts = {name: count for name, count in progress.row_counts.items() if name != "epochs"}
    found = {str(row.ENTITY) for row in read_view(tables).rows}
    assert found == {str(entity) for entity, rows in loader.image.maps.items() if rows}
    assert sum(counts.values()) == sum(
        len(rows) for entity, rows in loader.image.maps.items() if str(entity) != "epoch"
    )


def test_an_empty_place_begins_with_the_snapshot_of_a_trimmed_log(data: Path) -> None:
    tables = MemoryTables()
    log = data / "kraft-logs/trimmed-3.9.2/node-1"
    events = follow(tables, log)
    assert events[1].startswith("loaded snapshot 00000000000000001022-")
    assert progress_of(tables).gaps == ((0, 1021),)
    assert progress_of(tables).offset == 1304
    assert follow(tables, log)[1:] == []


def test_a_checkpoint_is_loaded_once(data: Path) -> None:
    tables = MemoryTables()
    checkpoint = next((data / "kraft-logs/trimmed-3.9.2/node-1").rglob("0*.checkpoint"))
    assert len(follow(tables, checkpoint)) == 2
    assert len(follow(tables, checkpoint)) == 1


@pytest.mark.slow
def test_other_logs_are_refused_and_named_truncations_suffice(
    data: Path, tmp_path: Path, whole: list[tuple[str, str]]
) -> None:
    tables = MemoryTables()
    follow(tables, data / SOURCE)
    short = copy_log(data / SOURCE, tmp_path / "short" / "__cluster_metadata-0", end_offset=1000)
    end_offset = open_path(str(short)).log_end_offset
    command = f"raftlog tables truncate TABLES {end_offset - 1}"
    with pytest.raises(TablesError, match=command):
        follow(tables, short)
    Writer(MemoryStore(tables)).truncate_to(end_offset - 1)
    assert len(follow(tables, short)) == 1
    follow(tables, data / SOURCE)
    assert contents(tables) == whole

    other = LogWriter(tmp_path / "other" / "__cluster_metadata-0")
    other.append(*[NO_OP] * 120)
    other.append(*[NO_OP] * 4000, epoch=9)
    with pytest.raises(DivergedLogError, match="raftlog tables truncate TABLES 119"):
        follow(tables, other.directory)
    cluster_id = "cluster-b"
    stranger = LogWriter(tmp_path / "b" / "__cluster_metadata-0", cluster_id=cluster_id)
    stranger.append(*[NO_OP] * 4000)
    with pytest.raises(WrongClusterError, match=cluster_id):
        follow(tables, stranger.directory)
    assert contents(tables) == whole


def test_a_truncation_between_two_reads_is_found(data: Path, tmp_path: Path) -> None:
    tables = MemoryTables()
    log = copy_log(data / SOURCE, tmp_path / "node" / "__cluster_metadata-0", end_offset=300)

    def replace() -> None:
        assert len(clock.slept_ms) == 1, "it is found at the next read"
        shutil.rmtree(log)
        other = LogWriter(log)
        other.append(*[NO_OP] * 50)
        other.append(*[NO_OP] * 400, epoch=9)

    clock = StoppedClock(while_asleep=replace)
    with pytest.raises(DivergedLogError, match="raftlog tables truncate TABLES 49"):
        follow(tables, log, clock=clock, is_once=False)


def test_nodes_that_are_away_are_asked_again_with_a_growing_pause(data: Path) -> None:
    missing = [QuorumUnavailableError(path="nodes", waited_ms=1, reason="away")] * 3
    clock, tables = StoppedClock(), MemoryTables()

    class EndError(Exception):
        """End of the test."""

    def poll() -> None:
        if clock.slept_ms[-1] == log_follower.POLL_MS_DEFAULT:
            raise EndError

    def open_log() -> LogReader:
        if missing:
            raise missing.pop()
        return open_path(str(data / SOURCE))

    clock.while_asleep = poll
    with pytest.raises(EndError):
        follow(tables, data / SOURCE, open_log=open_log, clock=clock, is_once=False)
    assert progress_of(tables).next_offset == END
    assert clock.slept_ms == [500, 1_000, 2_000, 100], "no attempt is repeated at once"


def test_pauses_have_a_limit_and_a_run_with_an_end_fails(data: Path) -> None:
    clock, events = StoppedClock(), 0

    class EndError(Exception):
        """End of the test."""

    def open_log() -> LogReader:
        nonlocal events
        events += 1
        if events > 8:
            raise EndError
        raise QuorumUnavailableError(path="nodes", waited_ms=1, reason="away")

    with pytest.raises(EndError):
        follow(MemoryTables(), data, open_log=open_log, clock=clock, is_once=False)
    assert clock.slept_ms == [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]
    events = 0
    with pytest.raises(QuorumUnavailableError):
        follow(MemoryTables(), data, open_log=open_log)


@pytest.mark.slow
def test_records_are_decoded_once_and_secrets_are_not_stored(
    monkeypatch: pytest.MonkeyPatch, three_nodes: MetadataLog, data: Path, tmp_path: Path
) -> None:
    log = copy_log(data / SOURCE, tmp_path / "node" / "__cluster_metadata-0", end_offset=900)
    decoded_again: list[bytes] = []

    def counted(value: bytes) -> DecodedRecord:
        decoded_again.append(value)
        return decode(value)

    monkeypatch.setattr(log_follower, "decode", counted)
    shown, hidden = MemoryTables(), MemoryTables()
    follow(hidden, log)
    assert decoded_again == []
    follow(shown, log, redactor=Redactor(reveal=True))
    assert decoded_again == []
    follow(MemoryTables(), log, redactor=Redactor(reveal=True), writes_log=False)
    assert len(decoded_again) > 0, "only replay decodes them"
    end = open_path(str(log)).log_end_offset
    rows = source_rows(three_nodes.records[:end], redact=False)
    plain = MemoryTables()
    Writer(MemoryStore(plain)).apply(rows, None)
    assert contents(shown) == contents(plain) != contents(hidden)


@pytest.mark.nightly
def test_without_the_table_log_changes_and_state_are_the_same(data: Path) -> None:
    """``make test`` has ``test_tables_without_log_have_the_same_changes`` in ``test_writer.py``."""
    tables, less = MemoryTables(), MemoryTables()
    follow(tables, data / SOURCE)
    follow(less, data / SOURCE, writes_log=False)
    assert less.contents.keys() == {CHANGES_TABLE.name, STATE_TABLE.name}
    kept = [row for row in contents(tables) if row[0] != LOG_TABLE.name]
    assert contents(less) == kept


def test_a_run_ends_where_the_log_ended_although_its_first_read_failed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = copy_log(data / SOURCE, tmp_path / "__cluster_metadata-0", end_offset=60)
    reader = open_path(str(log))
    read_end, end_offset, failed = reader.read_end, reader.log_end_offset, list[str]()

    def fail_once(**arguments: Any) -> ReadEnd:
        if not failed:
            failed.append("read_end")
            raise SegmentDeletedError(path=str(log))
        return read_end(**arguments)

    def grow(event: str) -> None:
        if event.startswith("appended"):
            copy_log(data / SOURCE, log, end_offset=200)

    monkeypatch.setattr(reader, "read_end", fail_once)
    tables = MemoryTables()
    follow(tables, log, open_log=lambda: reader, count=20, on_event=grow)
    assert failed
    assert progress_of(tables).offset == end_offset - 1
    assert Writer(MemoryStore(tables)).unmerged_row_count() == 0, "a run that ends merges"
