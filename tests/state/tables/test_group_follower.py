"""The logs of many clusters followed into tables in memory: bad logs among others, and growth."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Container
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest
from tests.support.clock import StoppedClock
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.small_logs import LogWriter, copy_log
from tests.support.written_tables import contents, read_view, writer_of

from raftlog.client import LogReader, open_path
from raftlog.errors import DivergedLogError, QuorumUnavailableError
from raftlog_state.errors import ClusterOwnedError, ClustersFailedError
from raftlog_state.records import Redactor, RemoveTopicRecord, TopicRecord, encode
from raftlog_state.tables.backoff import BACKOFF_FIRST_S
from raftlog_state.tables.group_follower import GroupFollower
from raftlog_state.tables.log_follower import FollowSettings, LogFollower

SOURCE = "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
NO_OP = b"\x01\x14\x00\x00"
ANSWER_S = 60
"""Time after which a test fails whose rounds wait for nodes that do not answer."""
OpenLog = Callable[[], LogReader]


@pytest.fixture
def logs(data: Path, tmp_path: Path) -> dict[str, Path]:
    """Return directories of three clusters' logs with the same records."""
    found = {}
    for name in ("a", "b", "c"):
        found[name] = copy_log(data / SOURCE, log_of(tmp_path, name), end_offset=100)
        set_cluster(found[name], name)
    return found


def log_of(directory: Path, name: str) -> Path:
    return directory / name / "__cluster_metadata-0"


def set_cluster(log: Path, cluster_id: str) -> None:
    properties = log.parent / "meta.properties"
    lines = properties.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("cluster.id=")]
    properties.write_text("\n".join([*kept, f"cluster.id={cluster_id}"]) + "\n")


def grow(data: Path, log: Path, name: str, end_offset: int) -> None:
    copy_log(data / SOURCE, log, end_offset=end_offset)
    set_cluster(log, name)


def ignore(event: str) -> None:
    """Do nothing."""


def do_nothing() -> None:
    """Do nothing."""


def settings_of(
    *, is_once: bool = True, take_over: bool = False, record_count_max: int = 100_000
) -> FollowSettings:
    return FollowSettings(
        redactor=Redactor(),
        holdback_ms=0,
        is_once=is_once,
        take_over=take_over,
        record_count_max=record_count_max,
    )


def follower_of(
    tables: MemoryTables,
    logs: dict[str, Path],
    *,
    events: list[str] | None = None,
    clock: StoppedClock | None = None,
    is_once: bool = True,
    take_over: bool = False,
    record_count_max: int = 100_000,
    others: dict[str, OpenLog] | None = None,
    remote: Container[str] = (),
    raise_if_stopped: Callable[[], None] = do_nothing,
) -> GroupFollower:
    open_logs: dict[str, OpenLog] = {
        name: partial(open_path, str(log)) for name, log in logs.items()
    }
    return GroupFollower(
        open_logs | (others or {}),
        MemoryStore(tables),
        settings_of(is_once=is_once, take_over=take_over, record_count_max=record_count_max),
        group="all",
        remote=remote,
        clock=(clock or StoppedClock()).as_clock(),
        log_event=ignore if events is None else events.append,
        raise_if_stopped=raise_if_stopped,
    )


def alone(log: Path, name: str) -> list[tuple[str, str]]:
    """Return the contents of tables of one log alone."""
    tables = MemoryTables()
    LogFollower(
        partial(open_path, str(log)), MemoryStore(tables), settings_of(), log_event=ignore
    ).run()
    return contents(tables, name)


def test_each_cluster_has_the_tables_that_its_log_alone_gives(
    data: Path, logs: dict[str, Path]
) -> None:
    tables, events = MemoryTables(), list[str]()
    follower_of(tables, logs, events=events).run()
    assert events == ["appended rows of 3 clusters"]
    grow(data, logs["b"], "b", 200)
    follower_of(tables, logs, events=events).run()
    assert events[1:] == ["appended rows of 1 cluster"]
    for name, log in logs.items():
        assert contents(tables, name) == alone(log, name)
        assert writer_of(tables, cluster_id=name).unmerged_row_count() == 0


def test_no_ops_of_all_clusters_are_appended_together(tmp_path: Path) -> None:
    clock, tables = StoppedClock(at_ms=1_000_000), MemoryTables()
    logs = {
        name: LogWriter(tmp_path / name / "__cluster_metadata-0", cluster_id=name)
        for name in ("a", "b", "c")
    }
    paths = {name: log.directory for name, log in logs.items()}
    follower = follower_of(tables, paths, clock=clock, is_once=False)
    for log in logs.values():
        log.append(encode(TopicRecord(name="t", topic_id="I9iQnKeLSA2lyZwVZic7Xg")))
    assert follower.append_round() == 3
    commits = len(tables.commits)
    for log in logs.values():
        log.append(NO_OP)
        assert follower.append_round() is None
        clock.sleep_ms(1_500)
    assert len(tables.commits) == commits
    clock.sleep_ms(500)
    assert follower.append_round() == 3
    assert [one.operation for one in tables.commits[commits:]] == ["append", "append"]


def test_bad_logs_do_not_keep_the_others_from_being_written(
    data: Path, logs: dict[str, Path]
) -> None:
    tables, events = MemoryTables(), list[str]()
    follower_of(tables, logs).run()
    shutil.rmtree(logs["a"])
    other = LogWriter(logs["a"], cluster_id="a")
    other.append(*[NO_OP] * 50)
    other.append(*[NO_OP] * 100, epoch=9)
    set_cluster(logs["a"], "a")
    for name in "bc":
        grow(data, logs[name], name, 200)

    def away() -> LogReader:
        raise QuorumUnavailableError(path="nodes", waited_ms=1, reason="away")

    follower = follower_of(tables, logs, events=events, others={"d": away})
    with pytest.raises(ClustersFailedError) as raised:
        follower.run()
    assert raised.value.failures.keys() == {"a", "d"}
    assert isinstance(raised.value.failures["a"], DivergedLogError)
    assert "a is not followed" in "\n".join(events)
    assert [event for event in events if "rows of" in event] == ["appended rows of 2 clusters"]
    for name in "bc":
        assert contents(tables, name) == alone(logs[name], name)
    assert read_view(tables, "a").offset > 90

    writer_of(tables, cluster_id="a").truncate_to(49)
    with pytest.raises(ClustersFailedError) as raised:
        follower.run()
    assert raised.value.failures.keys() == {"a", "d"}, "it is not due yet"


def test_a_log_that_was_bad_is_read_again_after_a_pause(data: Path, logs: dict[str, Path]) -> None:
    tables, events = MemoryTables(), list[str]()
    follower_of(tables, logs).run()
    hidden = logs["a"].parent.with_name("hidden")
    shutil.move(logs["a"].parent, hidden)
    clock = StoppedClock()

    class EndError(Exception):
        """End of the test."""

    def poll() -> None:
        if len(clock.slept_ms) == 3:
            shutil.move(hidden, logs["a"].parent)
            grow(data, logs["a"], "a", 200)
        if len(clock.slept_ms) == 3 + 20 * int(BACKOFF_FIRST_S):
            grow(data, logs["b"], "b", 200)
        if len(clock.slept_ms) > 100:
            raise EndError

    clock.while_asleep = poll
    with pytest.raises(EndError):
        follower_of(tables, logs, events=events, clock=clock, is_once=False).run()
    for name in "ac":
        assert contents(tables, name) == alone(logs[name], name)
    assert sum("a is not followed" in event for event in events) == 1
    assert "a is followed again" in events


def test_a_cluster_that_is_truncated_after_its_log_diverged_is_followed_again(
    logs: dict[str, Path],
) -> None:
    """No other cluster has new records meanwhile."""
    tables, events = MemoryTables(), list[str]()
    only = {"a": logs["a"]}
    follower_of(tables, only).run()
    shutil.rmtree(logs["a"])
    other = LogWriter(logs["a"], cluster_id="a")
    other.append(*[NO_OP] * 50)
    other.append(*[NO_OP] * 100, epoch=9)
    set_cluster(logs["a"], "a")
    clock = StoppedClock()

    class EndError(Exception):
        """End of the test."""

    def truncate() -> None:
        if len(clock.slept_ms) == 3:
            writer_of(tables, cluster_id="a").truncate_to(0)
        if len(clock.slept_ms) > 200:
            raise EndError

    clock.while_asleep = truncate
    with pytest.raises(EndError):
        follower_of(tables, only, events=events, clock=clock, is_once=False).run()
    assert "a is followed again" in events
    assert read_view(tables, "a").offset == other.end_offset - 1


def test_a_cluster_with_two_logs_and_one_of_another_writer_are_refused(
    logs: dict[str, Path],
) -> None:
    tables = MemoryTables()
    LogFollower(
        partial(open_path, str(logs["a"])), MemoryStore(tables), settings_of(), log_event=ignore
    ).run()
    with pytest.raises(ClustersFailedError) as raised:
        follower_of(tables, {**logs, "again": logs["b"]}).run()
    assert raised.value.failures.keys() == {"a", "again"}
    assert "logs of one cluster, b" in str(raised.value)
    before = contents(tables, "a")
    follower_of(tables, logs, take_over=True).run()
    assert contents(tables, "a") == before


def test_a_cluster_of_another_writer_is_refused_without_take_over(
    data: Path, logs: dict[str, Path]
) -> None:
    tables = MemoryTables()
    LogFollower(
        partial(open_path, str(logs["a"])), MemoryStore(tables), settings_of(), log_event=ignore
    ).run()
    grow(data, logs["a"], "a", 200)
    with pytest.raises(ClustersFailedError) as raised:
        follower_of(tables, logs).run()
    assert isinstance(raised.value.failures["a"], ClusterOwnedError)
    follower_of(tables, logs, take_over=True).run()
    for name, log in logs.items():
        assert contents(tables, name) == alone(log, name)


@pytest.mark.slow
def test_a_run_writes_the_other_clusters_if_all_rows_of_a_round_are_rejected(
    logs: dict[str, Path],
) -> None:
    """The first round has rows of one cluster only, which contradict its state."""
    tables = MemoryTables()
    shutil.rmtree(logs["a"])
    unknown_topic = encode(RemoveTopicRecord(topic_id="AAAAAAAAAAAAAAAAAAAAZw"))
    LogWriter(logs["a"], cluster_id="a").append(unknown_topic)
    with pytest.raises(ClustersFailedError) as raised:
        follower_of(tables, logs, record_count_max=1).run()
    assert raised.value.failures.keys() == {"a"}
    assert raised.value.failures["a"].code == "RAFTLOG_REPLAY"
    for name in "bc":
        assert contents(tables, name) == alone(logs[name], name)


def test_a_run_whose_logs_are_all_away_ends_at_a_signal() -> None:
    """The exception of the signal was dropped, see ``StopSignals``."""

    class StoppedError(BaseException):
        """The signal."""

    def away() -> LogReader:
        raise QuorumUnavailableError(path="nodes", waited_ms=1, reason="away")

    def stop() -> None:
        if clock.slept_ms:
            raise StoppedError

    clock = StoppedClock()
    follower = follower_of(
        MemoryTables(), {}, clock=clock, is_once=False, others={"d": away}, raise_if_stopped=stop
    )
    with pytest.raises(StoppedError):
        follower.run()
    assert len(clock.slept_ms) == 1


def test_pauses_grow_although_the_error_changes() -> None:
    """The last failure of a quorum is that of another node each time."""

    class StoppedError(BaseException):
        """The signal."""

    tried_at_ms: list[int] = []

    def away() -> LogReader:
        tried_at_ms.append(clock.at_ms)
        raise QuorumUnavailableError(path="nodes", waited_ms=1, reason=f"try {len(tried_at_ms)}")

    def stop() -> None:
        if len(tried_at_ms) == 7:
            raise StoppedError

    clock, events = StoppedClock(), list[str]()
    clock.while_asleep = stop
    with pytest.raises(StoppedError):
        follower_of(
            MemoryTables(), {}, events=events, clock=clock, is_once=False, others={"d": away}
        ).run()
    pauses_ms = [later - earlier for earlier, later in pairwise(tried_at_ms)]
    assert pauses_ms == [500, 1_000, 2_000, 4_000, 8_000, 10_000]
    assert len(events) == 7, "each error is another one"


@pytest.mark.slow
def test_nodes_that_do_not_answer_do_not_delay_the_other_clusters(
    data: Path, logs: dict[str, Path]
) -> None:
    """Three rounds, while a request to the nodes of a cluster waits for its timeout."""
    tables, events = MemoryTables(), list[str]()
    answered = Event()

    def away() -> LogReader:
        answered.wait(ANSWER_S)
        raise QuorumUnavailableError(path="nodes", waited_ms=30_000, reason="away")

    follower = follower_of(
        tables, logs, events=events, is_once=False, others={"d": away}, remote={"a", "d"}
    )
    ends = []
    for end_offset in (100, 200, 300):
        for name in logs:
            grow(data, logs[name], name, end_offset)
        follower.append_round()
        ends.append({name: read_view(tables, name).offset for name in logs})
    assert [min(end.values()) for end in ends] == [max(end.values()) for end in ends]
    assert ends[0]["a"] < ends[1]["a"] < ends[2]["a"]
    assert not follower.failures
    answered.set()
    while not follower.failures:
        follower.append_round()
    assert set(follower.failures) == {"d"}
    assert sum("d is not followed" in event for event in events) == 1


@pytest.mark.slow
def test_a_run_with_an_end_waits_for_the_answer_of_each_node(logs: dict[str, Path]) -> None:
    tables = MemoryTables()
    written = Event()

    def late() -> LogReader:
        written.wait()
        return open_path(str(logs["b"]))

    def step(operation: str, table: str) -> None:
        written.set()

    follower = GroupFollower(
        {"a": partial(open_path, str(logs["a"])), "b": late},
        MemoryStore(tables, after_commit=step),
        settings_of(),
        group="all",
        remote={"b"},
        clock=StoppedClock().as_clock(),
        log_event=ignore,
    )
    follower.run()
    for name in "ab":
        assert contents(tables, name) == alone(logs[name], name)


def test_a_cluster_of_another_writer_without_new_rows_is_a_failure(logs: dict[str, Path]) -> None:
    tables = MemoryTables()
    LogFollower(
        partial(open_path, str(logs["a"])), MemoryStore(tables), settings_of(), log_event=ignore
    ).run()
    with pytest.raises(ClustersFailedError) as raised:
        follower_of(tables, logs).run()
    assert isinstance(raised.value.failures["a"], ClusterOwnedError)
    assert set(raised.value.failures) == {"a"}
    follower_of(tables, logs, take_over=True).run()
