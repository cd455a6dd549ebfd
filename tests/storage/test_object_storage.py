"""Logs in the file systems of pyarrow are read as those of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from tests.support.cli import run
from tests.support.kafka import HOME

from raftlog.client import LogKind, LogReader, open_path
from raftlog.client.location import parse_location
from raftlog.errors import LogAccessError, LogNotFoundError, NotALogError, OptionError
from raftlog.storage.arrow_objects import READ_AHEAD_BYTES, ArrowStorage
from raftlog_state import read_state

LOGS = HOME / "tests" / "data" / "kraft-logs"


def storage_of(directory: Path, files: Any = None) -> ArrowStorage:
    """Return the storage of a directory that is a bucket."""
    return ArrowStorage(files or fs.LocalFileSystem(), f"{directory}", "s3://bucket")


def all_records(log: LogReader) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    for scan in log.scan(log.log_start_offset, log.log_end_offset):
        assert scan.records.offset is not None
        assert scan.records.value is not None
        offsets, values = scan.records.offset.to_pylist(), scan.records.value.to_pylist()
        found += zip(offsets, values, strict=True)
    return found


@pytest.mark.parametrize(
    "path",
    [
        *("node-100", "node-100/__cluster_metadata-0", "node-1/orders-0-0"),
        "node-1/__transaction_state-0",
        "node-102/__cluster_metadata-0/00000000000000000000.log",
    ],
)
def test_a_log_has_the_records_of_the_local_one(path: str) -> None:
    home = LOGS / "three-nodes-4.3.1"
    local = open_path(f"{home}/{path}")
    remote = open_path(f"s3://bucket/{path}", storage=storage_of(home))
    assert all_records(remote) == all_records(local) != []
    assert (remote.path, remote.kind) == (f"s3://bucket/{path}", local.kind)
    assert (remote.cluster_id, remote.snapshots) == (local.cluster_id, local.snapshots)


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/node-10[0-2]",
        "s3://bucket/node-1*",
        "s3://bucket/node-100,s3://bucket/node-101,s3://bucket/node-102",
        "s3://bucket/*/__cluster_metadata-0",
    ],
)
def test_several_voters_end_at_the_end_of_a_majority(path: str) -> None:
    home = LOGS / "three-nodes-4.3.1"
    log = open_path(path, storage=storage_of(home))
    of_files = read_state(open_path(f"{home}/node-10[0-2]"))
    state = read_state(log)
    assert (state.end_offset, state.partitions()) == (of_files.end_offset, of_files.partitions())


def test_the_segments_of_a_backup_are_read_where_they_are(tmp_path: Path) -> None:
    source = LOGS / "three-nodes-4.3.1" / "node-1" / "orders-0-0"
    status, _, err = run("backup", source, tmp_path / "backup")
    assert status == 0, err
    (copied,) = (one.name for one in (tmp_path / "backup").iterdir() if "orders" in one.name)
    log = open_path(f"s3://bucket/{copied}", storage=storage_of(tmp_path / "backup"))
    segments = [one for one in all_records(open_path(str(source))) if one[0] < log.log_end_offset]
    assert all_records(log) == segments
    assert log.kind is LogKind.PARTITION


def test_paths_are_those_of_uris(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"0123456789" * READ_AHEAD_BYTES)
    storage = storage_of(tmp_path)
    assert storage.list_names("s3://bucket") == ["a"]
    assert storage.is_directory("s3://bucket/a/b")
    assert not storage.is_directory("s3://bucket/a/b/file")
    assert storage.split("s3://bucket/a/b/") == ("s3://bucket/a", "b")
    assert storage.join(*storage.split("s3://bucket/a")) == "s3://bucket/a"
    assert storage.expand("s3://bucket/*/b/f*") == ["s3://bucket/a/b/file"]
    assert storage.expand("s3://bucket/a/b/file/*") == storage.expand("s3://bucket/c/*") == []
    with storage.open_file("s3://bucket/a/b/file") as file:
        size = file.byte_count()
        assert size == 10 * READ_AHEAD_BYTES
        for position in (3, READ_AHEAD_BYTES - 1, 0, size - 1, size, size + 1, 5):
            wanted = bytes((position + at) % 10 + ord("0") for at in range(2))
            assert file.read_at(position, 2) == wanted[: max(size - position, 0)]
        assert len(file.read_at(1, 2 * READ_AHEAD_BYTES)) == 2 * READ_AHEAD_BYTES

    with pytest.raises(LogNotFoundError, match="s3://bucket/c does not exist"):
        storage.is_directory("s3://bucket/c")
    for missing in (storage.list_names, storage.open_file):
        with pytest.raises(LogNotFoundError, match="s3://bucket/c does not exist"):
            missing("s3://bucket/c")
    with pytest.raises(NotALogError, match="a file was expected there"):
        storage.open_file("s3://bucket/a/b")
    with pytest.raises(NotALogError, match="a directory was expected there"):
        storage.list_names("s3://bucket/a/b/file")


class CountedFile:
    """Open file that counts its reads."""

    def __init__(self, file: Any, reads: list[tuple[int, ...]]) -> None:
        self._file = file
        self._reads = reads

    def size(self) -> int:
        return int(self._file.size())

    def read_at(self, *wanted: int) -> bytes:
        self._reads.append(wanted)
        return bytes(self._file.read_at(*wanted))

    def close(self) -> None:
        self._file.close()


class CountedFiles:
    """File system of this machine that counts the reads of its files."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, ...]] = []
        self._files = fs.LocalFileSystem()

    def get_file_info(self, wanted: Any) -> Any:
        return self._files.get_file_info(wanted)

    def open_input_file(self, path: str) -> CountedFile:
        return CountedFile(self._files.open_input_file(path), self.reads)


def test_batches_are_read_with_few_requests() -> None:
    """A request of a store takes tens of milliseconds, and a log has a header for each batch."""
    files = CountedFiles()
    log = open_path("s3://bucket/node-100", storage=storage_of(LOGS / "three-nodes-4.3.1", files))
    assert all_records(log)
    assert len(files.reads) < 60, "of 260 batches in 4 segments"


class RefusingFiles:
    """File system that refuses all requests."""

    def get_file_info(self, wanted: Any) -> Any:
        url = "https://a.blob.core.windows.net/c/node-100?sig=topsecret&se=1"
        raise OSError(f"GET '{url}': ACCESS_DENIED")


def test_a_refused_request_names_the_uri_without_a_query_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LogAccessError) as caught:
        open_path("s3://bucket/node-100", storage=storage_of(tmp_path, RefusingFiles()))
    assert caught.value.message() == (
        "s3://bucket/node-100 cannot be read: GET 'https://a.blob.core.windows.net/c/node-100': "
        "ACCESS_DENIED; check that the store can be reached and grants access"
    )


def test_a_uri_is_for_reading_only_and_has_no_keys_in_spark() -> None:
    for call in (("append",), ("repair",), ("configure",)):
        status, _, err = run(*call, "s3://bucket/decisions-0")
        assert status == 2
        assert "a log in s3:// can be read, not written" in err
    assert parse_location({"path": "s3a://bucket/a"}).path == "s3a://bucket/a"
    for uri in (
        "s3://key:topsecret@bucket/a",
        "abfs://c@account.dfs.core.windows.net/a?sig=topsecret",
        "abfs://c@account.dfs.core.windows.net/a?tenant_id=t&client_secret=topsecret",
    ):
        with pytest.raises(OptionError, match="keys in it") as caught:
            parse_location({"path": uri})
        assert "topsecret" not in str(caught.value)
    with pytest.raises(OptionError, match="dbfs:/ is not supported"):
        parse_location({"path": "dbfs:/a"})
