"""The directory of a quorum's node is read, and never written as an embedded log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.one_replica import DIRECTORY, OneReplica

from raftlog.client.embedded.directory import configure
from raftlog.client.embedded.handle import EmbeddedLog, open_embedded
from raftlog.client.embedded.repair import recover_log, repair_log
from raftlog.errors import LogAccessError, LogReadOnlyError, NodeRunningError
from raftlog.log.format.directory import NODE_LOCK_NAME, QUORUM_STATE_NAME, SYNCED_NAME
from raftlog.log.writing.properties import LogConfig
from raftlog.node.config import parse_config
from raftlog.node.formatting import format_directory, random_id
from raftlog.storage.protocol import WritableStorage

NODE: Final = '[node]\nid = 2\ndirectory = "/node"\n[listeners.both]\naddress = "127.0.0.1:9192"\n'
LOG: Final = "/node/raftlog-0"


def of_running_node() -> SimulatedDisk:
    """Return the disk of a node that leads, seen by another process."""
    node = OneReplica()
    node.elect()
    return node.disk.another_process()


def open_on(disk: WritableStorage, path: str = DIRECTORY) -> EmbeddedLog:
    return open_embedded(path, storage=disk)


def formatted(*, is_observer: bool) -> SimulatedDisk:
    """Return the disk of a node that was formatted and never started."""
    disk = SimulatedDisk()
    format_directory(
        parse_config(NODE, "/node.toml"),
        cluster_id=random_id(),
        is_standalone=not is_observer,
        is_observer=is_observer,
        storage=disk,
    )
    return disk


WRITES: Final[dict[str, Callable[[EmbeddedLog], object]]] = {
    "append": lambda log: log.append([b"intruder"]),
    "claim": lambda log: log.claim(),
    "snapshot": lambda log: log.snapshot(),
    "clean": lambda log: log.clean(),
    "last_commit": lambda log: log.last_commit("app"),
    "run": lambda log: log.run(lambda opened, _: opened.end_offset),
}


@pytest.mark.parametrize("call", WRITES)
def test_the_log_of_a_node_is_not_written(call: str) -> None:
    disk = of_running_node()
    before = disk.files()
    with open_on(disk) as log, pytest.raises(LogReadOnlyError) as caught:
        WRITES[call](log)
    assert "node of a quorum" in caught.value.message()
    assert "raftlog.connect" in caught.value.message()
    assert disk.files() == before


def test_the_log_of_a_node_is_read() -> None:
    disk = of_running_node()
    with open_on(disk) as log:
        assert log.end_offset == 1, "the leader change"
        assert list(log.read(0)) == []


@pytest.mark.parametrize("is_observer", [False, True])
def test_no_embedded_log_is_created_in_the_directory_of_a_formatted_node(
    is_observer: bool,
) -> None:
    disk = formatted(is_observer=is_observer)
    before = disk.files()
    for path in (LOG, "/node/orders-0"):
        with pytest.raises(LogReadOnlyError, match="node of a quorum"):
            open_on(disk, path)
    assert disk.files() == before
    assert disk.list_names("/node") == [NODE_LOCK_NAME, "checksums", "meta.properties", "raftlog-0"]


@pytest.mark.parametrize("left", [QUORUM_STATE_NAME, SYNCED_NAME])
def test_one_file_of_a_node_is_enough_to_recognize_its_log(left: str) -> None:
    disk = of_running_node()
    for name in {QUORUM_STATE_NAME, SYNCED_NAME} - {left}:
        disk.unlink(disk.join(DIRECTORY, name))
    with open_on(disk) as log, pytest.raises(LogReadOnlyError):
        log.append([b"intruder"])


def test_the_log_of_a_node_is_neither_recovered_nor_truncated_as_an_embedded_log() -> None:
    disk = of_running_node()
    before = disk.files()
    with pytest.raises(LogReadOnlyError, match="node of a quorum"):
        recover_log(DIRECTORY, storage=disk)
    with pytest.raises(LogReadOnlyError, match="node of a quorum"):
        repair_log(DIRECTORY, cut_at=0, storage=disk)
    assert disk.files() == before


def test_settings_of_a_node_are_changed_only_while_it_is_stopped() -> None:
    disk = of_running_node()
    before = disk.files()
    lock = disk.another_process().try_lock(f"/data/{NODE_LOCK_NAME}")
    assert lock is not None
    with lock, pytest.raises(NodeRunningError):
        configure(DIRECTORY, {"retention.ms": "1000"}, storage=disk)
    assert {path for path, data in disk.files().items() if before.get(path) != data} <= {
        f"/data/{NODE_LOCK_NAME}"
    }
    changed = configure(DIRECTORY, {"retention.ms": "1000"}, storage=disk)
    assert changed["retention.ms"] == "1000"


def test_an_embedded_log_is_still_written() -> None:
    disk = SimulatedDisk()
    with open_embedded("/orders-0", storage=disk, config=LogConfig()) as log:
        assert log.append([b"one"]).base_offset == 1


def test_the_parent_of_an_embedded_log_need_not_be_listed() -> None:
    class Disk(SimulatedDisk):
        """Disk whose root this user may enter and not read."""

        def list_names(self, directory: str) -> list[str]:
            if directory == "/":
                raise LogAccessError(path=directory, reason="permission denied")
            return super().list_names(directory)

    disk = Disk()
    for offset in (1, 2):
        with open_embedded("/orders-0", storage=disk) as log:
            assert log.append([b"value"]).base_offset == offset
