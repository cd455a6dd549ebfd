"""CPU seconds and peak memory of the tables of a large cluster, with delta-rs.

Each step is a process of its own, so that its memory is that of the step. Small tables, of a tenth
of the partitions or versions, are measured in the same run.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
from benchmarks.run import HOME, Row, print_row, row

from raftlog.client import open_path
from raftlog_state.image import MetadataImage, PartitionRow, TopicRow
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.image.rows import Entity, FeatureRow
from raftlog_state.image.rows import Row as StateRow
from raftlog_state.records import (
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    TopicRecord,
    encode,
)
from raftlog_state.snapshot_writer import write_snapshot
from raftlog_state.source_rows.columns import arrow_schema
from raftlog_state.tables.batch import SOURCE_COLUMNS
from raftlog_state.tables.convert import changes_table
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.progress import Progress
from raftlog_state.tables.reader import ArrowTables, open_tables
from raftlog_state.tables.schema import CHANGES_TABLE
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import Transaction
from raftlog_state.tables.writer import Writer

PARTITIONS = 1_000_000
PARTITIONS_OF_A_TOPIC = 100
VERSIONS = 1_000_000
VERSIONED_PARTITIONS = 5_000
LOG_ENTRIES = 10_000
OFFSET = 5_000_000
METADATA_VERSION_LEVEL = 25
TIME_MS = 1_700_000_000_000
SLICE = 20_000
APPENDS = 40
TOPIC_ID = "I9iQnKeLSA2lyZwVZic7Xg"


# --- a cluster with many partitions ---------------------------------------------------------------


def rows(partition_count: int) -> Iterator[StateRow]:
    """Yield topics with partitions."""
    yield FeatureRow(name="metadata.version", level=METADATA_VERSION_LEVEL)
    for number in range(partition_count):
        topic, partition = divmod(number, PARTITIONS_OF_A_TOPIC)
        topic_id = base64.urlsafe_b64encode(uuid.UUID(int=topic + 1).bytes).decode()[:22]
        name = f"topic-{topic}"
        if not partition:
            yield TopicRow(topic_id=topic_id, name=name)
        brokers = tuple((number + step) % 50 for step in range(3))
        yield PartitionRow(
            topic_id=topic_id,
            partition_id=partition,
            topic_name=name,
            replicas=brokers,
            isr=brokers,
            removing_replicas=(),
            adding_replicas=(),
            leader=brokers[0],
            leader_recovery_state=0,
            leader_epoch=number % 7,
            partition_epoch=number % 11,
            directories=("AAAAAAAAAAAAAAAAAAAAAA",) * 3,
        )


def make_snapshot(directory: Path, partition_count: int) -> None:
    image = MetadataImage.from_rows(
        rows(partition_count), offset=OFFSET, leader_epoch=3, timestamp_ms=TIME_MS
    )
    write_snapshot(image, directory, written_ms=TIME_MS)


def follow(directory: Path) -> None:
    """Load the snapshot into empty tables; if they have it, open them without news."""
    (checkpoint,) = directory.glob("*.checkpoint")
    LogFollower(
        lambda: open_path(str(checkpoint)),
        DeltaRsStore(str(directory / "tables")),
        FollowSettings(redactor=Redactor(), writes_log=False, is_once=True),
        log_event=lambda line: print(line, file=sys.stderr),
    ).run()


def read_table(name: str, directory: Path) -> None:
    tables_in(directory).latest().table(name)


# --- a cluster with many versions -----------------------------------------------------------------


def values(version_count: int) -> Iterator[bytes]:
    """Yield one topic, its partitions, and changes of each partition in turn."""
    yield encode(TopicRecord(name="orders", topic_id=TOPIC_ID))
    for number in range(VERSIONED_PARTITIONS):
        created = PartitionRecord(
            partition_id=number, topic_id=TOPIC_ID, replicas=(7, 8), isr=(7, 8), leader=7
        )
        yield encode(created)
    for number in range(version_count):
        leader = 7 + number // VERSIONED_PARTITIONS % 2
        changed = PartitionChangeRecord(
            partition_id=number % VERSIONED_PARTITIONS,
            topic_id=TOPIC_ID,
            isr=(leader,),
            leader=leader,
        )
        yield encode(changed)


def make_versions(directory: Path, version_count: int) -> None:
    """Write tables in appends of ``SLICE`` records; ``state`` has the first half."""
    writer = Writer(DeltaRsStore(str(directory / "tables")), writes_log=False)
    records = list(values(version_count))
    is_merged = False
    for start in range(0, len(records), SLICE):
        writer.apply(source_rows(start, records[start : start + SLICE]), "cluster")
        if not is_merged and start >= len(records) // 2:
            writer.merge_state()
            is_merged = True
    writer.compact()


def source_rows(start: int, records: list[bytes]) -> pa.Table:
    """Return records as rows of the source, the first one at an offset."""
    count = len(records)
    offsets = range(start, start + count)
    columns = {
        "value": records,
        "topic": ["__cluster_metadata"] * count,
        "partition": [0] * count,
        "offset": offsets,
        "timestamp": [(TIME_MS + offset) * 1_000 for offset in offsets],
        "leaderEpoch": [1] * count,
        "visibleOffset": offsets,
    }
    schema = arrow_schema(tuple(name for name in SOURCE_COLUMNS if name != "record"))
    arrays = [
        pa.array(columns.get(name, [None] * count), schema.field(name).type)
        for name in schema.names
    ]
    return pa.table(arrays, schema=schema)


def tables_in(directory: Path) -> ArrowTables:
    return open_tables(str(directory / "tables"))


def read_offset(fraction: float, directory: Path) -> None:
    tables = tables_in(directory)
    tables.at(offset=int(tables.latest().offset * fraction)).table("partitions")


def read_time(directory: Path) -> None:
    tables = tables_in(directory)
    time_ms = TIME_MS + tables.latest().offset * 9 // 10
    tables.at(time=datetime.fromtimestamp(time_ms / 1_000, UTC)).table("partitions")


def read_difference(directory: Path) -> None:
    tables = tables_in(directory)
    offset = tables.latest().offset
    tables.diff(offset - 1_000, offset)


def read_key(directory: Path) -> None:
    tables_in(directory).changes(table="partitions", key=(TOPIC_ID, 7))


# --- a long Delta log -----------------------------------------------------------------------------


def append_ms(directory: Path, entry_count: int) -> float:
    """Return the median of the CPU time of an append to a table with many entries in Delta's log.

    They are copies of a commit before a checkpoint, so only lists of the directory have them.
    """
    store, first = DeltaRsStore(str(directory)), entry_count + 1
    for version in range(3):
        append_topic(store, version)
    log = directory / "changes" / "_delta_log"
    newest = max(log.glob("*.json"))
    version = int(newest.stem)
    from deltalake import DeltaTable

    DeltaTable(str(directory / "changes")).create_checkpoint()
    for path in list(log.iterdir()):
        if path.name.startswith(newest.stem):
            path.rename(log / path.name.replace(newest.stem, f"{version + first:020d}"))
        elif path.suffix == ".json":
            path.unlink()
    pointer = log / "_last_checkpoint"
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "version": version + first}))
    commit = (log / f"{version + first:020d}.json").read_bytes()
    for number in range(entry_count):
        (log / f"{version + first - 1 - number:020d}.json").write_bytes(commit)
    store = DeltaRsStore(str(directory))
    taken = [append_topic(store, 10 + number) for number in range(APPENDS)]
    return 1_000 * statistics.median(taken[APPENDS // 4 :])


def append_topic(store: DeltaRsStore, offset: int) -> float:
    """Append a topic; return the CPU seconds."""
    topic = TopicRow(topic_id=f"{offset:022d}", name=str(offset))
    created = RowChange(Entity.TOPIC, topic.key, Op.CREATE, None, topic)
    shared = {
        "cluster_id": "cluster",
        "topic": "",
        "partition": 0,
        "incarnation": 0,
        "committed_at": 0,
    }
    changes = [RecordChanges(offset, offset, 1, 0, "TopicRecord", (created,))]
    progress = Progress(cluster_id="cluster", offset=offset, from_offset=offset)
    added = pa.concat_tables([changes_table(changes, [None], shared), progress.changes_row(0)])
    start = time.process_time()
    store.append(CHANGES_TABLE, added, Transaction(app_id="writer", version=offset))
    return time.process_time() - start


# --- measurement ----------------------------------------------------------------------------------

PARTITION_STEPS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "load": ("snapshot of {:,} partitions into empty tables", follow),
    "restart": ("tables of {:,} partitions opened without news", follow),
    "topics": ("topics of {:,} partitions as Arrow", partial(read_table, "topics")),
    "partitions": ("{:,} partitions as Arrow", partial(read_table, "partitions")),
}
VERSION_STEPS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "late": ("5,000 partitions at 9/10 of {:,} versions", partial(read_offset, 0.9)),
    "early": ("5,000 partitions at 1/10 of {:,} versions", partial(read_offset, 0.1)),
    "time": ("5,000 partitions at a time, {:,} versions", read_time),
    "difference": ("difference of 1,000 offsets, {:,} versions", read_difference),
    "key": ("changes of one partition of {:,} versions", read_key),
}
STEPS: dict[str, Callable[[Path], None]] = {
    **{step: run for step, (_, run) in (PARTITION_STEPS | VERSION_STEPS).items()},
    "snapshot": lambda directory: make_snapshot(directory, int(directory.name)),
    "versions": lambda directory: make_versions(directory, int(directory.name)),
}


def run_step(step: str, directory: Path) -> dict[str, float]:
    """Run a step in a process of its own; return its CPU seconds and peak memory in MiB.

    This process stays small: the peak of a child includes that of its parent at the fork.
    """
    command = [sys.executable, "-m", "benchmarks.scale", "--step", step, str(directory)]
    done = subprocess.run(command, cwd=HOME, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(step: str, directory: Path) -> dict[str, float]:
    start = time.process_time()
    STEPS[step](directory)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"CPU s": time.process_time() - start, "MiB": peak_kib / 1024}


def measure(
    make: str,
    steps: dict[str, tuple[str, Callable[[Path], None]]],
    count: int,
    directory: Path,
) -> Iterator[Row]:
    """Yield the figures of steps on tables of ``count`` rows, beside those of a tenth."""
    places = {size: directory / str(size) for size in (count // 10, count)}
    for place in places.values():
        place.mkdir()
        run_step(make, place)
    for step, (title, _) in steps.items():
        small, large = (run_step(step, place) for place in places.values())
        for unit, found in large.items():
            yield row(title.format(count), found, unit, small[unit], f"{count // 10:,}")
    for place in places.values():
        shutil.rmtree(place)


def figures(partition_count: int, version_count: int, directory: Path) -> Iterator[Row]:
    yield from measure("snapshot", PARTITION_STEPS, partition_count, directory)
    yield from measure("versions", VERSION_STEPS, version_count, directory)
    few, many = (append_ms(directory / f"log{count}", count) for count in (0, LOG_ENTRIES))
    title = f"append without Spark, {LOG_ENTRIES:,} entries in Delta's log"
    yield row(title, many, "CPU ms", few, "a table without old entries")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--versions", type=int, default=VERSIONS)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    parser.add_argument("--step", choices=STEPS, help="run one step on the given directory")
    parser.add_argument("directory", nargs="?")
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measured(arguments.step, Path(arguments.directory))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for figure in figures(arguments.partitions, arguments.versions, Path(directory)):
            print_row(figure, as_json=arguments.json, decimals=2)


if __name__ == "__main__":
    main()
