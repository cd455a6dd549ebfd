"""``verify()`` agrees with the loader on random logs, and reports changed rows."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from tests.state.table_stores.rows import Row as StoredRow
from tests.support.metadata_logs import at
from tests.support.random_metadata import RandomLog
from tests.support.source_rows import checkpoint_rows, without_secrets
from tests.support.tables import Feed, apply_feed, image_of

from raftlog.errors import OptionError
from raftlog.records.control import (
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
)
from raftlog.types import SnapshotId
from raftlog_state.errors import TablesError
from raftlog_state.image.image_writer import image_records
from raftlog_state.image.rows import Entity, table_of
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.loader.payload import Payload
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    MetadataRecord,
    TopicRecord,
    is_redacted,
)
from raftlog_state.tables import ClusterTables
from raftlog_state.tables.expected import RECORD_TYPES, no_base, replayed
from raftlog_state.tables.reader import open_tables
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE, StoredTable
from raftlog_state.tables.sql_cluster import REDACTED
from raftlog_state.tables.sql_parts import Base, Records, decoded
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

pytestmark = pytest.mark.spark
NIGHTLY = pytest.mark.nightly

SINCE = 250
"""An offset after the last merge of ``state``, and before the end of the tables."""

Open = Callable[..., ClusterTables]


def voter(number: int) -> Voter:
    return Voter(
        voter_id=number,
        voter_directory_id="ZIJvUG7kRnCUclpym7nbPg",
        endpoints=(VoterEndpoint("C", "host", 9093),),
        min_supported_version=0,
        max_supported_version=1,
    )


def leader(number: int, *voters: int) -> LeaderChange:
    return LeaderChange(leader_id=number, voters=tuple(map(LeaderChangeVoter, voters)))


class LogScript:
    """Log under construction: payloads with an epoch, a second apart."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.epoch = 0

    def changed(self, *payloads: MetadataRecord | Payload) -> None:
        for payload in payloads:
            self.epoch += isinstance(payload, LeaderChange)
            self.records += at(len(self.records), payload, epoch=self.epoch)


def random_script(seed: int, level: int) -> LogScript:
    """Return a random log with changes of leaders, in which some records are in transactions."""
    random = RandomLog(seed, level)
    random.grow(450)
    story = LogScript()
    story.changed(leader(1, 1, 2), KRaftVersion(kraft_version=1), KRaftVoters(voters=(voter(1),)))
    lost = TopicRecord(name="never", topic_id="wP1XW_XDTjOcp3STS81TJA")
    for start in range(0, len(random.records), 45):
        part = random.records[start : start + 45]
        story.changed(BeginTransactionRecord(name="one"), *part[:10], EndTransactionRecord())
        story.changed(*part[10:], leader(2, 1, 3))
        story.changed(BeginTransactionRecord(name=None), lost, AbortTransactionRecord(reason="no"))
        if start % 2:
            story.changed(KRaftVoters(voters=(voter(1), voter(3))))
    return story


def begins_a_transaction(record: LogRecord) -> bool:
    payload = record.payload
    return isinstance(payload, DecodedRecord) and isinstance(payload.record, BeginTransactionRecord)


@dataclass(frozen=True)
class RandomTables:
    """Tables of a random log; a snapshot of a later state replaces records in the middle.

    They have the first ``half`` records, whose last one outside a transaction is at ``last``, and
    those from ``gap_end`` on.
    """

    tables: ClusterTables
    records: list[LogRecord]
    half: int
    last: int
    gap_end: int
    snapshot_id: SnapshotId
    snapshot: list[LogRecord]


@pytest.fixture(scope="module")
def random_tables(
    feed: Feed, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], RandomTables]:
    """Return the tables of a seed, written once."""
    return functools.cache(lambda seed: write_random(feed, seed, tmp_path_factory.mktemp("random")))


def write_random(feed: Feed, seed: int, directory: Path) -> RandomTables:
    records = random_script(seed=seed, level=30).records
    half, gap_end = len(records) // 3, 2 * len(records) // 3
    loader = MetadataLoader()
    loader.append(records[:gap_end])
    while loader.open_transaction_offset is not None:
        loader.append(records[gap_end : gap_end + 1])
        gap_end += 1
    head = (SnapshotHeader(last_contained_log_timestamp_ms=5), KRaftVersion(kraft_version=1))
    payloads: tuple[Payload, ...] = (
        *head,
        KRaftVoters(voters=(voter(1), voter(3))),
        *image_records(loader.image),
        SnapshotFooter(),
    )
    snapshot_id = SnapshotId(epoch=records[gap_end - 1].leader_epoch, end_offset=gap_end)
    snapshot = [LogRecord(n, 1, 0, payload) for n, payload in enumerate(payloads)]
    checkpoint = checkpoint_rows(
        snapshot, end_offset=gap_end, epoch=snapshot_id.epoch, timestamp_ms=5
    )
    rows = Feed(feed.spark, records)
    tables = feed.open(directory / "tables", engine="delta-rs")
    tables.apply(rows.frame(0, half))
    reader = open_tables(str(directory / "tables"))
    last = reader.status().log_offset
    tail = rows.rows.slice(gap_end)
    assert tables.apply(feed.of(pa.concat_tables([checkpoint, tail]))) == len(records) - 1
    assert reader.status().gaps == ((last + 1, gap_end - 1),)
    return RandomTables(tables, records, half, last, gap_end, snapshot_id, snapshot)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=NIGHTLY) for n in range(2, 9))])
def test_a_second_replay_agrees_with_the_loader_on_random_logs(
    random_tables: Callable[[int], RandomTables], seed: int
) -> None:
    report = random_tables(seed).tables.verify()
    assert not report.differences, str(report)
    assert sum(report.rows_compared.values()) > 60


@pytest.mark.nightly
@pytest.mark.parametrize("begins", ["before the snapshot", "after it"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_ranges_of_random_logs_are_verified(
    random_tables: Callable[[int], RandomTables], seed: int, begins: str
) -> None:
    """Ranges are from inside a transaction over the snapshot into another one, and from there."""
    found = random_tables(seed)
    offsets = [record.offset for record in found.records if begins_a_transaction(record)]
    until: int | None = offsets[-4] + 3
    since = [begin for begin in offsets if begin < found.last - 20][-1] + 1
    if begins == "after it":
        since, until = offsets[-4] + 3, None
    report = found.tables.verify(until, since=since)
    assert not report.differences, str(report)
    assert report.since == since


@pytest.mark.parametrize(
    ("seed", "entities"),
    [
        (1, (Entity.PARTITION,)),
        *(pytest.param(n, tuple(Entity), marks=NIGHTLY) for n in range(1, 9)),
    ],
)
def test_states_and_feeds_of_random_logs_equal_a_replay(
    random_tables: Callable[[int], RandomTables], seed: int, entities: tuple[Entity, ...]
) -> None:
    found = random_tables(seed)
    tables, records, half = found.tables, found.records, found.half
    with pytest.raises(TablesError, match="no history"):
        tables.at(offset=found.last + 1)
    replay = MetadataLoader()
    replay.append(without_secrets(records[: half // 2]))
    early = replay.image
    assert image_of(tables.at(offset=half // 2 - 1)).same_rows(early)
    replay.append(without_secrets(records[half // 2 : found.last + 1]))
    replay.bootstrap(found.snapshot_id, without_secrets(found.snapshot))
    middle = (found.gap_end + len(records)) // 2
    replay.append(without_secrets(records[found.gap_end : middle]))
    assert image_of(tables.at(offset=middle - 1)).same_rows(replay.image)
    for entity in entities:
        state = dict(early.map(entity))
        apply_feed(state, tables.table_changes(table_of(entity), half // 2 - 1, middle - 1), entity)
        assert state == dict(replay.image.map(entity)), entity


def rewrite(place: Path, table: StoredTable, change: Callable[[StoredRow], bool]) -> None:
    """Rewrite the rows of a table, without those for which ``change``, which may change them, is
    False. With Spark each change of some rows would be two jobs more."""
    rows = [row for row in DeltaRsStore(str(place)).read(table).to_pylist() if change(row)]
    changed = pa.Table.from_pylist(rows, schema=table.schema)
    write_deltalake(place / table.name, changed, mode="overwrite")


def test_a_changed_row_is_reported(tables: Open, tmp_path: Path) -> None:
    opened = tables(engine="delta-rs")
    opened.maintain()
    place = tmp_path / "tables"
    before = open_tables(str(place))
    topic_id = before.latest().topics().sort_by("name")["topic_id"][0].as_py()
    updated = next(
        row for row in before.changes(table="partitions").to_pylist() if row["op"] == "u"
    )
    began = updated["before_origin"]["visible_offset"]

    def change_state(row: StoredRow) -> bool:
        values = row["row"]
        if row["entity"] == "partition" and row["key"] == f'["{topic_id}",0]':
            values["partition"]["leader"] = 99
        if row["entity"] == "config" and values["config"]["name"] == "min.insync.replicas":
            values["config"]["value"] = "7"
        if row["entity"] == "scram" and values["scram"]["mechanism"] == 1:
            values["scram"]["salt"] = b"\0"
        return not (row["entity"] == "topic" and row["key"] == f'["{topic_id}"]')

    def change_origin(row: StoredRow) -> bool:
        if (row["offset"], row["key"]) == (updated["offset"], updated["key"]):
            row["before_origin"]["visible_offset"] -= 1
        return True

    rewrite(place, STATE_TABLE, change_state)
    rewrite(place, CHANGES_TABLE, change_origin)
    report = opened.verify()
    found = {difference.table: difference for difference in report.differences[:-1]}
    assert found.keys() == {"topics", "partitions", "configs", "scram", "changes"}
    assert found["topics"].column == "(row)"
    assert found["topics"].found == "absent"
    assert json.loads(found["topics"].key) == {"topic_id": topic_id}
    assert (found["partitions"].column, found["partitions"].found) == ("leader", "99")
    assert (found["configs"].expected, found["configs"].found) == ('"1"', '"7"')
    assert (found["scram"].column, found["scram"].found) == ("salt", "(hidden)")
    assert json.loads(found["changes"].key)["offset"] == updated["offset"]
    assert found["changes"].column == "before_origin"
    assert json.loads(found["changes"].expected)["visible_offset"] == began
    assert json.loads(found["changes"].found)["visible_offset"] == began - 1
    counts = report.differences[-1]
    assert (counts.table, counts.column) == ("changes", "topics")
    assert int(counts.found) == int(counts.expected) + 1, "the count of the progress row"
    assert report.first is report.differences[0]
    assert "tables differ" in str(report)
    violated = {violation.rule: violation for violation in report.violations}
    assert set(violated) == {
        "config_of_topic_names_a_topic",
        "partition_has_topic",
        "partition_leader_is_in_isr",
        "partition_leader_is_registered",
    }
    assert json.loads(violated["partition_leader_is_registered"].first)["leader"] == 99
    assert "4 rules are violated" in str(report)


@pytest.mark.nightly
def test_a_range_that_is_not_damaged_is_verified(tables: Open) -> None:
    """In ``make test`` the README's example verifies one, and the next test another that is
    damaged, in which it reports nothing else."""
    opened = tables()
    report = opened.verify(since=SINCE)
    assert report.ok, str(report)
    at_end = opened.verify(since=report.offset)
    assert at_end.ok, str(at_end)
    assert not at_end.rows_compared, "no record is later"
    row_count = sum(opened.status().row_counts.values())
    assert 0 < sum(report.rows_compared.values()) < row_count / 2


def test_a_range_is_verified_from_the_rows_before_it(tables: Open, tmp_path: Path) -> None:
    """Its cost is that of the records after it, and it finds what is wrong after it."""
    opened, place = tables(), tmp_path / "tables"
    before = open_tables(str(place))
    last = {
        (change["entity"], change["key"]): change["offset"]
        for change in before.changes(since=SINCE).to_pylist()
    }
    partition = next(key for key in last if key[0] == "partition")
    topic = min((key for key in last if key[0] == "topic"), key=lambda key: last[key])
    damaged_offset = before.status().offset
    assert damaged_offset != last[topic], "the last record creates another topic"
    assert not any(entity == "feature" for entity, _ in last), "a change without a record"

    def change(row: StoredRow) -> bool:
        if (row["key"], row["offset"]) == (partition[1], last[partition]):
            row["after"]["partition"]["leader"] = 99
        if row["entity"] == "feature":
            row["visible_offset"] = SINCE + 1
        return (row["entity"], row["key"]) != topic

    def damage(row: StoredRow) -> bool:
        if row["offset"] == damaged_offset:
            row["value_raw"] = row["value_raw"][:2]
        return True

    rewrite(place, CHANGES_TABLE, change)
    rewrite(place, LOG_TABLE, damage)
    report = opened.verify(since=SINCE)
    row_count = sum(before.status().row_counts.values())
    assert 0 < sum(report.rows_compared.values()) < row_count / 2
    damaged, *differences = report.differences
    assert (damaged.table, damaged.column) == ("log", "value_raw")
    assert json.loads(damaged.key) == {"offset": damaged_offset}
    assert damaged.found == "damaged bytes: it ends inside a field"
    found = {difference.table: difference for difference in differences}
    assert found.keys() == {"partitions", "topics", "features", "changes"}
    assert (found["partitions"].column, found["partitions"].found) == ("leader", "99")
    assert (found["topics"].column, found["topics"].row_count) == ("(row)", 2)
    assert found["features"].column == "_visible_offset"
    with pytest.raises(OptionError, match="after offset"):
        opened.verify(SINCE - 1, since=SINCE)


class TypesRead(Records):
    """Records that note of which types they are read."""

    def __init__(self, rows: DataFrame, base: Base) -> None:
        super().__init__(rows, base, frozenset())
        self.types: set[str] = set()

    def has(self, *record_types: str) -> bool:
        self.types |= set(record_types)
        return True

    def of(self, record_type: str, data: str) -> DataFrame:
        self.types.add(record_type)
        return super().of(record_type, data)


def test_sql_finds_the_same_values_redacted_as_the_loader(feed: Feed) -> None:
    """In Java's expressions ``$`` is also before a line terminator at the end."""
    replaced = ("[redacted]", f"hmac:{'0f' * 16}", f"hmac:5c01a9d2:{'0f' * 16}")
    texts = [f"{head}{one}{tail}" for one in replaced for head in ("", "\n") for tail in ("", "\n")]
    values = feed.spark.createDataFrame([(text,) for text in texts], "value STRING")
    found = values.where(values["value"].rlike(REDACTED)).collect()
    assert {row["value"] for row in found} == {text for text in texts if is_redacted(text)}


def test_the_replay_of_a_table_reads_the_record_types_that_are_declared(feed: Feed) -> None:
    """A table is replayed only if the log has one of its types."""
    nothing = feed.spark.createDataFrame([], from_arrow_schema(LOG_TABLE.schema))
    base = no_base(feed.spark)
    records = TypesRead(decoded(nothing), base)
    for name in RECORD_TYPES.keys() - {"epochs", "transactions"}:
        records.types = set()
        assert replayed(records, {name}, base.rows).keys() == {name}
        assert records.types == RECORD_TYPES[name], name
