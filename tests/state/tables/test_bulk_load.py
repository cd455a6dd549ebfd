"""A load by parallel tasks: the tables are those of the writer of single batches.

``make test`` has one random log of each kind, and ``make nightly`` others.
``RAFTLOG_LOAD_SEEDS=200`` sets their number.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.log_builder import begin
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import CLUSTERS, restored
from tests.support.random_metadata_log import write_random_log
from tests.support.random_topics import Topics
from tests.support.small_logs import END_TRANSACTION, NO_OP, LogWriter
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import CrashError, contents, follow_settings, followed

from raftlog.client import open_path
from raftlog.errors import OptionError
from raftlog_state.errors import ConcurrentWriterError, ReplayError
from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    PartitionRecord,
    Redactor,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)
from raftlog_state.tables import bucket_parts
from raftlog_state.tables.bucket_replay import BucketResult, replay_bucket
from raftlog_state.tables.bulk_load import CONFLICTS_MAX, BulkLoad, LoadSettings, RunTasks
from raftlog_state.tables.cluster_rows import ClusterRows, Step, no_step
from raftlog_state.tables.log_follower import LogFollower
from raftlog_state.tables.progress import Progress
from raftlog_state.tables.range_routing import NotSplit, RoutedRange
from raftlog_state.tables.topic_buckets import Buckets

SEEDS = int(os.environ.get("RAFTLOG_LOAD_SEEDS", "4"))
USUAL = "trimmed-3.9.2/node-1"
"""Real log of ``make test``: it begins with a snapshot."""


RandomLogOf = Callable[[int, int], tuple[Path, list[tuple[str, str]]]]


class Tasks:
    """Tasks in this process; counts those that replayed, and crashes before one of them."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.results: list[BucketResult | NotSplit] = []
        self._crash_at = crash_at

    def __call__(
        self, routed: RoutedRange, buckets: Sequence[int]
    ) -> Iterable[BucketResult | NotSplit]:
        for bucket in buckets:
            if len(self.results) == self._crash_at:
                raise CrashError
            self.results.append(replay_bucket(routed, bucket))
            yield self.results[-1]


def load(
    log: Path,
    tables: MemoryTables,
    staging: Path,
    *,
    tasks: Tasks | None = None,
    run_tasks: RunTasks | None = None,
    bucket_count: int = 3,
    range_records: int = 150,
    writes_log: bool = True,
    redactor: Redactor | None = None,
    after_step: Step = no_step,
    clock_us: Callable[[], int] = lambda: 1,
    log_event: Callable[[str], None] = lambda event: None,
) -> None:
    BulkLoad(
        MemoryStore(tables),
        replace(follow_settings(writes_log=writes_log), redactor=redactor or Redactor()),
        LoadSettings(
            options={"path": str(log)},
            staging=str(staging),
            bucket_count=bucket_count,
            range_records=range_records,
        ),
        run_tasks or tasks or Tasks(),
        log_event=log_event,
        clock_us=clock_us,
        after_step=after_step,
    ).run()


@pytest.fixture(scope="module")
def random_log(tmp_path_factory: pytest.TempPathFactory) -> RandomLogOf:
    """Return a random log by seed and size, and the contents that single batches give."""

    @cache
    def log_of(seed: int, record_count: int) -> tuple[Path, list[tuple[str, str]]]:
        log = write_random_log(tmp_path_factory.mktemp("log"), seed, record_count).directory
        return log, contents(followed(log))

    return log_of


def rows_in(tables: MemoryTables) -> ClusterRows:
    return ClusterRows(
        MemoryStore(tables),
        after_step=no_step,
        writes_log=True,
        clock_us=lambda: 1,
        decode_value=decode,
    )


@pytest.mark.parametrize("seed", nightly_except((0,), range(SEEDS)))
def test_a_load_of_a_random_log_gives_the_tables_of_single_batches(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    log = write_random_log(tmp_path, seed, 600).directory
    expected = followed(log)
    tables = MemoryTables()
    load(
        log,
        tables,
        tmp_path / "staging",
        bucket_count=chance.randint(1, 4),
        range_records=chance.choice((80, 200, 800)),
    )
    assert contents(tables) == contents(expected)
    assert _end(tables) == _end(expected)


@pytest.mark.slow
@pytest.mark.parametrize("column_bytes_max", nightly_except((3_000,), (0, 3_000)))
def test_topics_with_more_bytes_than_columns_may_have_give_the_same_tables(
    column_bytes_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader replays them: from the first records on, or after some of them were kept."""
    monkeypatch.setattr(bucket_parts, "COLUMN_BYTES_MAX", column_bytes_max)
    log = write_random_log(tmp_path, 1, 600).directory
    tables = MemoryTables()
    load(log, tables, tmp_path / "staging", bucket_count=2, range_records=800)
    assert contents(tables) == contents(followed(log))


def _end(tables: MemoryTables) -> Progress:
    """Return the end of tables, without what depends on the batches."""
    [progress] = rows_in(tables).ends().progress.values()
    return replace(progress, incarnation=0, from_offset=0)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", nightly_except((USUAL,), CLUSTERS))
def test_a_load_of_a_real_log_gives_the_tables_of_single_batches(
    cluster: str, tmp_path: Path
) -> None:
    log = restored(cluster, tmp_path)
    expected = contents(followed(log))
    tables, tasks = MemoryTables(), Tasks()
    load(log, tables, tmp_path / "staging", tasks=tasks, bucket_count=4, range_records=300)
    assert contents(tables) == expected
    assert sum(isinstance(result, BucketResult) for result in tasks.results) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("is_each", nightly_except((False,), (False, True)))
def test_a_crash_at_any_step_is_continued(
    is_each: bool, random_log: RandomLogOf, tmp_path: Path
) -> None:
    """Before each task, after the tasks, and after each commit, or the last one of each kind."""
    log, expected = random_log(3, 200)
    steps: list[str] = []
    tasks = Tasks()
    load(log, MemoryTables(), tmp_path / "staging", tasks=tasks, after_step=steps.append)
    assert {"load", "log", "changes", "state"} <= set(steps)
    task_count = len(tasks.results)
    assert task_count > 1

    def crash_after(count: int) -> Step:
        seen: list[str] = []

        def step(name: str) -> None:
            seen.append(name)
            if len(seen) == count:
                raise CrashError

        return step

    last_of_kind = {name: count for count, name in enumerate(steps, start=1)}
    for count in range(1, len(steps) + 1) if is_each else last_of_kind.values():
        tables = MemoryTables()
        with pytest.raises(CrashError):
            load(log, tables, tmp_path / "staging", after_step=crash_after(count))
        load(log, tables, tmp_path / "staging")
        assert contents(tables) == expected, steps[count - 1]
    for crash_at in range(task_count) if is_each else [task_count - 1]:
        tables = MemoryTables()
        with pytest.raises(CrashError):
            load(log, tables, tmp_path / "staging", tasks=Tasks(crash_at))
        again = Tasks()
        load(log, tables, tmp_path / "staging", tasks=again)
        assert contents(tables) == expected, crash_at


def crash_at_publication(step: str) -> None:
    if step == "load":
        raise CrashError


@pytest.mark.parametrize(
    "first",
    [
        {"redactor": Redactor(reveal=True)},
        pytest.param(
            {"redactor": Redactor(key=b"an earlier key of 24 byte")}, marks=pytest.mark.nightly
        ),
        pytest.param({"writes_log": False}, marks=pytest.mark.nightly),
    ],
)
def test_rows_of_an_interrupted_load_with_other_settings_are_not_published(
    first: dict[str, Any], random_log: RandomLogOf, tmp_path: Path
) -> None:
    (log, expected), staging = random_log(3, 120), tmp_path / "staging"
    tables = MemoryTables()
    with pytest.raises(CrashError):
        load(log, tables, staging, after_step=crash_at_publication, **first)
    assert list(staging.glob("*/*/pending.json"))
    load(log, tables, staging)
    assert contents(tables) == expected
    assert not list(staging.iterdir()), "revealed secrets are not left there"


def test_rows_of_an_interrupted_load_of_another_log_are_not_published(
    random_log: RandomLogOf, tmp_path: Path
) -> None:
    other, _ = random_log(3, 120)
    (log, expected), staging = random_log(5, 120), tmp_path / "staging"
    tables = MemoryTables()
    with pytest.raises(CrashError):
        load(other, tables, staging, after_step=crash_at_publication)
    assert not tables.commits
    load(log, tables, staging)
    assert contents(tables) == expected


def test_files_of_records_that_the_log_had_before_are_not_published(tmp_path: Path) -> None:
    """The leader of a later epoch has replaced records that were not committed."""

    def write(epoch: int) -> Path:
        log = LogWriter(tmp_path / f"{epoch}" / "__cluster_metadata-0", cluster_id="c")
        for number in range(40):
            topic = TopicRecord(name=f"topic-{epoch}-{number}", topic_id=f"{number:021d}Q")
            log.append(encode(topic), epoch=epoch)
        return log.directory

    before, after = write(1), write(2)
    expected = contents(followed(after))
    log, tables, staging = tmp_path / "__cluster_metadata-0", MemoryTables(), tmp_path / "staging"
    log.symlink_to(before)
    with pytest.raises(CrashError):
        load(log, tables, staging, tasks=Tasks(2), range_records=40)
    log.unlink()
    log.symlink_to(after)
    load(log, tables, staging, range_records=40)
    assert contents(tables) == expected


@pytest.mark.parametrize(
    "names",
    [
        "*.parquet",
        pytest.param("*.json", marks=pytest.mark.nightly),
        pytest.param("committed_at", marks=pytest.mark.slow),
    ],
)
def test_an_incomplete_file_of_an_interrupted_load_is_written_again(
    names: str, random_log: RandomLogOf, tmp_path: Path
) -> None:
    (log, expected), staging = random_log(3, 120), tmp_path / "staging"
    tables = MemoryTables()
    with pytest.raises(CrashError):
        load(log, tables, staging, after_step=crash_at_publication)
    paths = list(staging.rglob(names))
    assert paths
    for path in paths:
        path.write_bytes(path.read_bytes()[:-5])
    load(log, tables, staging)
    assert contents(tables) == expected


def test_all_rows_of_an_append_have_its_time(random_log: RandomLogOf, tmp_path: Path) -> None:
    """Also those of tasks of an interrupted load."""
    (log, expected), staging = random_log(3, 120), tmp_path / "staging"
    tables, times = MemoryTables(), itertools.count(1)
    with pytest.raises(CrashError):
        load(log, tables, staging, tasks=Tasks(2), clock_us=lambda: next(times))
    load(log, tables, staging, clock_us=lambda: next(times))
    assert contents(tables) == expected
    changes = tables.contents["changes"].select(["offset", "visible_offset", "op", "committed_at"])
    rows = changes.to_pylist()
    ends = {row["offset"]: row["committed_at"] for row in rows if row["op"] == "p"}
    assert len(set(ends.values())) == len(ends)
    for row in rows:
        assert row["committed_at"] == ends[min(end for end in ends if end >= row["visible_offset"])]


def test_a_second_load_with_the_staging_directory_is_refused(
    random_log: RandomLogOf, tmp_path: Path
) -> None:
    (log, expected), staging = random_log(3, 120), tmp_path / "staging"
    tables = MemoryTables()
    refused = []

    def second(step: str) -> None:
        if step == "load":
            with pytest.raises(ConcurrentWriterError, match="another load"):
                load(log, tables, staging)
            refused.append(step)

    load(log, tables, staging, after_step=second)
    assert refused
    assert contents(tables) == expected
    load(log, tables, staging)
    assert not list(staging.iterdir())


@pytest.mark.slow
def test_a_load_whose_appends_always_conflict_ends(random_log: RandomLogOf, tmp_path: Path) -> None:
    log, _ = random_log(3, 120)
    tables = MemoryTables()
    attempts = []

    def rival(step: str) -> None:
        if step == "load":
            attempts.append(step)
            assert len(attempts) <= CONFLICTS_MAX
            write_part(log, tables, 1)

    with pytest.raises(ConcurrentWriterError):
        load(log, tables, tmp_path / "staging", after_step=rival, range_records=60, bucket_count=1)
    assert len(attempts) == CONFLICTS_MAX


@pytest.mark.parametrize("settings", [{"bucket_count": 0}, {"range_records": 0}])
def test_a_load_without_buckets_or_records_is_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    log = write_random_log(tmp_path, 3, 40).directory
    with pytest.raises(OptionError, match="at least 1"):
        load(log, MemoryTables(), tmp_path / "staging", **settings)


@pytest.mark.parametrize("at", nightly_except((100,), (100, 230)))
@pytest.mark.parametrize("rejected", ["unknown topic", "known topic id"])
def test_a_record_that_is_rejected_raises_as_in_single_batches(
    at: int, rejected: str, tmp_path: Path
) -> None:
    """A topic id that is known by a name of another bucket is rejected, too."""
    log = write_random_log(tmp_path, 4, 30)
    topic_id = "A" * 21 + "Q"
    unknown = PartitionRecord(partition_id=0, topic_id=topic_id)
    names = {Buckets(3).of_name(f"new-{number}"): f"new-{number}" for number in range(9)}
    records = [TopicRecord(name=names[bucket], topic_id=topic_id) for bucket in (1, 2)]
    while log.end_offset < at:
        log.append(NO_OP, epoch=9)
    for record in [unknown] if rejected == "unknown topic" else records:
        log.append(encode(record), epoch=9)
    while log.end_offset < 350:
        log.append(NO_OP, epoch=9)
    with pytest.raises(ReplayError) as expected:
        followed(log.directory)
    tables = MemoryTables()
    with pytest.raises(ReplayError) as raised:
        load(log.directory, tables, tmp_path / "staging", range_records=100)
    assert str(raised.value) == str(expected.value)
    if tables.contents:
        [progress] = rows_in(tables).ends().progress.values()
        assert progress.offset < raised.value.offset


@pytest.mark.slow
def test_ranges_with_leader_changes_are_split(tmp_path: Path) -> None:
    log = write_random_log(tmp_path, 1, 150)
    assert len(log.epochs) > 1
    tables, tasks = MemoryTables(), Tasks()
    load(log.directory, tables, tmp_path / "staging", tasks=tasks, range_records=60)
    results = [result for result in tasks.results if isinstance(result, BucketResult)]
    [changes] = tables.contents["changes"].select(["leader_epoch"]).to_pydict().values()
    assert set(changes) >= {2, 3}
    assert len(results) >= 4
    reasons = {result.reason for result in tasks.results if isinstance(result, NotSplit)}
    assert all("it begins a transaction" in reason for reason in reasons)
    assert contents(tables) == contents(followed(log.directory))


def test_a_range_does_not_end_in_a_transaction_with_a_record_of_all_topics(
    tmp_path: Path,
) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0", cluster_id="c")
    log.append(*[NO_OP] * 20)
    for number in range(4):
        topic = TopicRecord(name=f"topic-{number}", topic_id=f"{number:021d}Q")
        log.append(begin(), encode(topic), encode(ClearElrRecord()), END_TRANSACTION)
    log.append(*[NO_OP] * 60)
    tables = MemoryTables()
    load(log.directory, tables, tmp_path / "staging", range_records=50)
    assert contents(tables) == contents(followed(log.directory))


def test_a_topic_id_that_is_created_again_under_other_names_is_loaded_by_tasks(
    tmp_path: Path,
) -> None:
    """Its rows have one key, so the buckets of its names are joined; those of others are not."""
    log = LogWriter(tmp_path / "__cluster_metadata-0", cluster_id="c")
    topic_id, other_id = "A" * 21 + "Q", "B" * 21 + "Q"
    log.append(encode(TopicRecord(name="other", topic_id=other_id)))
    for number in range(8):
        name = f"topic-{number}"
        config = ConfigRecord(resource_type=2, resource_name=name, name="n", value=f"{number}")
        log.append(encode(TopicRecord(name=name, topic_id=topic_id)), encode(config))
        log.append(encode(PartitionRecord(partition_id=0, topic_id=topic_id, replicas=(1,))))
        log.append(encode(PartitionRecord(partition_id=number, topic_id=other_id, replicas=(2,))))
        log.append(encode(RemoveTopicRecord(topic_id=topic_id)), *[NO_OP] * 5)
    log.append(encode(TopicRecord(name="last", topic_id=topic_id)), *[NO_OP] * 8)
    tables, events, tasks = MemoryTables(), list[str](), Tasks()
    load(
        log.directory,
        tables,
        tmp_path / "staging",
        tasks=tasks,
        range_records=45,
        bucket_count=4,
        log_event=events.append,
    )
    assert contents(tables) == contents(followed(log.directory))
    assert not [event for event in events if "replayed by one process" in event]
    assert len(tasks.results) == 8, "two ranges"
    assert all(isinstance(result, BucketResult) for result in tasks.results)


@pytest.mark.parametrize("seed", nightly_except((0,), range(SEEDS)))
def test_a_load_of_random_topics_whose_ids_are_created_again_gives_the_tables_of_single_batches(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(f"topics {seed}")
    log = LogWriter(tmp_path / "__cluster_metadata-0", cluster_id="c")
    values = list(Topics(chance).values(250))
    while values:
        size = chance.randint(1, 12)
        log.append(*values[:size])
        values = values[size:]
    log.append(*[NO_OP] * 60)
    tables, tasks = MemoryTables(), Tasks()
    load(
        log.directory,
        tables,
        tmp_path / "staging",
        tasks=tasks,
        bucket_count=chance.randint(2, 5),
        range_records=chance.choice((60, 200)),
    )
    assert contents(tables) == contents(followed(log.directory))
    assert any(isinstance(result, BucketResult) for result in tasks.results)


def test_another_writer_between_the_tasks_and_the_append_is_noticed(
    random_log: RandomLogOf, tmp_path: Path
) -> None:
    log, expected = random_log(3, 200)
    tables = MemoryTables()
    rivals = [30]

    def step(name: str) -> None:
        if name == "load" and rivals:
            write_part(log, tables, rivals.pop())

    load(log, tables, tmp_path / "staging", after_step=step, range_records=100)
    assert not rivals
    assert contents(tables) == expected


def write_part(log: Path, tables: MemoryTables, record_count: int) -> None:
    """Write the next records of a log in one batch."""
    some = replace(follow_settings(), record_count_max=record_count)
    LogFollower(
        lambda: open_path(str(log)), MemoryStore(tables), some, log_event=lambda event: None
    ).append_next()


@pytest.mark.slow
def test_records_in_log_that_are_not_published_are_written_once(
    random_log: RandomLogOf, tmp_path: Path
) -> None:
    """An interrupted load left its own; one of single batches left some of them."""
    log, expected = random_log(3, 120)
    for table in ("log", "changes"):
        tables = MemoryTables()

        def crash(name: str, last: str = table) -> None:
            if name == last:
                raise CrashError

        with pytest.raises(CrashError):
            load(log, tables, tmp_path / "staging", after_step=crash)
        for _ in range(2):
            load(log, tables, tmp_path / "staging")
            assert contents(tables) == expected
    tables = MemoryTables()
    follower = LogFollower(
        lambda: open_path(str(log)),
        MemoryStore(tables, before_commit=_crash_before_changes),
        replace(follow_settings(), record_count_max=30),
        log_event=lambda event: None,
    )
    with pytest.raises(CrashError):
        follower.append_next()
    load(log, tables, tmp_path / "staging")
    assert contents(tables) == expected


def _crash_before_changes(operation: str, table: str) -> None:
    if table == "changes":
        raise CrashError
