"""Tables that follow the updates of a loader, in a thread of its process."""

from __future__ import annotations

from pathlib import Path
from queue import Queue

from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.small_logs import LogWriter
from tests.support.written_tables import contents

from raftlog.client import open_path
from raftlog.errors import WrongClusterError
from raftlog_state.publishing import PublishingLoader
from raftlog_state.records import Redactor, TopicRecord, encode
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.tables_publisher import TablesPublisher
from raftlog_state.tables.writer import Writer

SOURCE = "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
END = 2685
PATIENCE_S = 60.0


class QueueListener:
    """Messages and faults of a thread, which a test waits for."""

    def __init__(self) -> None:
        self.messages: Queue[str] = Queue()
        self.faults: Queue[tuple[str, Exception]] = Queue()

    def log(self, message: str) -> None:
        self.messages.put(message)

    def handle_fault(self, message: str, error: Exception) -> None:
        self.faults.put((message, error))

    def wait_for(self, end: str) -> None:
        """Return when a message has this end."""
        while not self.messages.get(timeout=PATIENCE_S).endswith(end):
            pass


def settings() -> FollowSettings:
    return FollowSettings(redactor=Redactor(), holdback_ms=10**12)


def commit(loader: PublishingLoader, log: Path, start: int, end: int) -> None:
    """Pass committed batches to the loader, and execute all its steps."""
    batches = list(open_path(str(log)).batches(start, end))
    for _ in loader.handle_commit(batches) or ():
        pass


def test_the_tables_have_what_is_published_and_nothing_after_it(data: Path) -> None:
    log, tables, listener = data / SOURCE, MemoryTables(), QueueListener()
    publisher = TablesPublisher(
        lambda: open_path(str(log)), MemoryStore(tables), settings(), listener=listener
    )
    loader = PublishingLoader(listener, [publisher])
    boundary = open_path(str(log)).next_boundary(0, end_offset=END, max_records=1000)
    commit(loader, log, 0, boundary)
    listener.wait_for(f" to {boundary - 1}")
    assert Writer(MemoryStore(tables)).progress().next_offset == boundary
    commit(loader, log, boundary, END)
    listener.wait_for(f" to {END - 1}")
    publisher.close()

    expected = MemoryTables()
    once = FollowSettings(redactor=Redactor(), holdback_ms=0, is_once=True)
    LogFollower(
        lambda: open_path(str(log)), MemoryStore(expected), once, log_event=lambda _: None
    ).run()
    assert contents(tables) == contents(expected)
    assert listener.faults.empty()


def test_tables_of_another_cluster_are_a_fault_of_this_publisher_alone(
    data: Path, tmp_path: Path
) -> None:
    other = LogWriter(tmp_path / "node" / "__cluster_metadata-0", cluster_id="other")
    other.append(encode(TopicRecord(name="t", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")))
    tables, listener, log = MemoryTables(), QueueListener(), data / SOURCE
    once = FollowSettings(redactor=Redactor(), holdback_ms=0, is_once=True)
    LogFollower(
        lambda: open_path(str(other.directory)), MemoryStore(tables), once, log_event=lambda _: None
    ).run()
    before = contents(tables)

    publisher = TablesPublisher(
        lambda: open_path(str(log)), MemoryStore(tables), settings(), listener=listener
    )
    loader = PublishingLoader(listener, [publisher])
    commit(loader, log, 0, END)
    message, error = listener.faults.get(timeout=PATIENCE_S)
    assert message == "The tables are no longer written"
    assert isinstance(error, WrongClusterError)
    publisher.close()
    assert contents(tables) == before
    assert loader.image.offset == END - 1
