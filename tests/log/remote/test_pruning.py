"""What interrupted backups have uploaded is deleted, and nothing that a backup has or will have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.log.remote.stored_backups import (
    STORE,
    FailingObjects,
    InterruptedObjects,
    backed_up,
    objects_of,
    restored,
    store_disk,
    surroundings,
)
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.cli import run
from tests.support.written_logs import DIRECTORY, WrittenLog

import raftlog
from raftlog.log.reading.opening import open_log
from raftlog.log.remote.backup import identity_of
from raftlog.log.remote.manifest import RemoteLogManifest
from raftlog.log.remote.pruning import ABANDONED_MS, PruneReport, prune_objects
from raftlog.storage.errors import RemoteStorageError
from raftlog.storage.objects import ObjectStore, StorageObjects


def pruned(
    source: WrittenLog, store: ObjectStore, *, after_ms: int = 0, is_dry_run: bool = False
) -> PruneReport:
    partition, topic_id = identity_of(open_log(source.disk, DIRECTORY))
    context = surroundings(7)
    context = replace(context, now_ms=lambda: 1_000_100 + after_ms)
    return prune_objects(store, f"{partition}-{topic_id}", context, is_dry_run=is_dry_run)


def _prune_into(reports: list[PruneReport], source: WrittenLog, store: ObjectStore) -> None:
    reports.append(pruned(source, store))


def data_of(disk: SimulatedDisk) -> dict[str, bytes]:
    """Return the objects that are not of the manifest."""
    return {name: data for name, data in objects_of(disk) if not name.startswith("manifest")}


def ids_in(store: ObjectStore) -> set[str]:
    found = RemoteLogManifest(store)
    return {*found.ranges, *(one.metadata.segment_id for one in found.backups)}


@pytest.mark.parametrize("byte_count", [None, 100])
def test_what_an_interrupted_backup_has_uploaded_is_deleted_after_a_day(
    byte_count: int | None,
) -> None:
    deleted_counts = set()
    for fail_at in range(1_000):
        source, disk = WrittenLog(), store_disk()
        store = StorageObjects(disk, STORE)
        source.fill(20)
        backed_up(source.disk, store, 1)
        source.fill(40)
        try:
            backed_up(source.disk, FailingObjects(store, fail_at, byte_count), 2)
        except RemoteStorageError:
            before = data_of(disk)
            assert pruned(source, store) == PruneReport(names=(), byte_count=0)
            report = pruned(source, store, after_ms=ABANDONED_MS, is_dry_run=True)
            assert data_of(disk) == before
            assert pruned(source, store, after_ms=ABANDONED_MS) == report
            after = data_of(disk)
            assert before.keys() - after.keys() == set(report.names)
            assert report.byte_count == sum(len(before[name]) for name in report.names)
            assert {name.split("/")[1][21:43] for name in after} == ids_in(store)
            deleted_counts.add(len(report.names))
            assert restored(store, disk).end_offset == 21
            assert backed_up(source.disk, store, 3).end_offset == 61
            continue
        assert max(deleted_counts) > 1
        return
    raise AssertionError("each write fails")


def test_a_store_may_be_pruned_while_a_backup_runs() -> None:
    for at_write in range(1_000):
        source, disk = WrittenLog(), store_disk()
        source.fill(60)
        plain = StorageObjects(disk, STORE)
        reports: list[PruneReport] = []
        prune = partial(_prune_into, reports, source, plain)
        store = InterruptedObjects(disk, prune, at_write=at_write)
        backed_up(source.disk, store, 1)
        assert restored(plain, disk).end_offset == 61
        if not reports:
            assert at_write > 5
            return
        assert reports[0].names == ()
    raise AssertionError("a backup ends")


def test_an_upload_that_is_finished_after_it_was_pruned_is_no_part_of_a_backup() -> None:
    """A backup that takes more than a day begins again."""
    for at_write in range(1_000):
        source, disk = WrittenLog(), store_disk()
        source.fill(60)
        plain = StorageObjects(disk, STORE)
        prune = partial(pruned, source, plain, after_ms=ABANDONED_MS)
        backed_up(source.disk, InterruptedObjects(disk, prune, at_write=at_write), 1)
        deleted = {one.segment_id for one in RemoteLogManifest(plain).deleted}
        is_published = bool(RemoteLogManifest(plain).backups)
        assert not deleted & ids_in(plain)
        if is_published:
            assert restored(plain, disk).end_offset == 61
        else:
            assert backed_up(source.disk, plain, 2).is_new
            assert restored(plain, disk).end_offset == 61
        if not deleted and at_write > 20:
            return
    raise AssertionError("a backup ends")


def test_objects_of_a_part_of_the_manifest_that_was_moved_away_are_deleted_and_no_others() -> None:
    source, disk = WrittenLog(), store_disk()
    store = StorageObjects(disk, STORE)
    source.fill(20)
    backed_up(source.disk, store, 1)
    kept = data_of(disk)
    partitions = RemoteLogManifest(store).partitions
    source.fill(40)
    backed_up(source.disk, store, 2)
    (second,) = RemoteLogManifest(store).partitions - partitions
    for one in store.list_objects(f"manifest/__remote_log_metadata-{second}"):
        store.delete(one.name)
    directory = next(iter(kept)).partition("/")[0]
    others = (f"{directory}/README", f"{directory}/{'0' * 20}.log", "others-0/x")
    for name in others:
        store.put(name, [b"x"])
    report = pruned(source, store)
    assert report.names
    assert data_of(disk) == {**kept, **dict.fromkeys(others, b"x")}
    assert restored(store, disk).end_offset == 21


def test_the_command_prints_what_it_would_delete_and_deletes_it_with_write(tmp_path: Path) -> None:
    path, location = tmp_path / "orders-0", tmp_path / "backups"
    with raftlog.open(path) as log:
        log.append([b"one"])
    assert run("backup", path, location)[0] == 0
    (data,) = location.glob("orders-0-*/*.log")
    orphan = data.with_name(f"{'0' * 20}-{'A' * 22}.log")
    orphan.write_bytes(b"12345")
    name = f"{orphan.parent.name}/{orphan.name}"
    text = f"{name}\n1 objects with 5 bytes would be deleted with --write\n"
    assert run("backup", path, location, "--prune") == (0, text, "")
    assert orphan.exists()
    text = f"{name}\n1 objects with 5 bytes deleted\n"
    assert run("backup", path, location, "--prune", "--write") == (0, text, "")
    assert not orphan.exists()
    assert data.exists()
    status, _, error = run("backup", path, location, "--write")
    assert status == 2
    assert "it needs --prune" in error
