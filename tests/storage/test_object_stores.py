"""One contract for every object store; S3 is a server of moto's, which a test installs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.simulated_disk.simulated_machine import SimulatedFile
from tests.support.cli import rows, run
from tests.support.kafka import HOME
from tests.support.quorum_processes import free_ports

import raftlog
from raftlog.client.object_stores import open_object_store
from raftlog.errors import DiskFullError, LogAccessError, OptionError
from raftlog.storage.arrow_objects import ArrowObjects
from raftlog.storage.errors import RemoteObjectNotFoundError, RemoteStorageError
from raftlog.storage.objects import ObjectStore, ReadAheadFile, StorageObjects, StoredObject
from raftlog.storage.protocol import Closeable

MOTO = "moto[server]==5.2.5"


def arrow_objects(tmp_path: Path) -> ArrowObjects:
    return ArrowObjects(fs.LocalFileSystem(), str(tmp_path / "objects"), "local")


STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "a directory": lambda tmp_path: open_object_store(tmp_path / "objects"),
    "a file: URI": lambda tmp_path: open_object_store(f"file://{tmp_path}/objects"),
    "a simulated disk": lambda _: StorageObjects(SimulatedDisk(), "/objects"),
    "a file system of pyarrow": arrow_objects,
}


def check_contract(store: ObjectStore) -> None:
    assert store.list_objects("a") == []
    with pytest.raises(RemoteObjectNotFoundError) as caught:
        store.open_object("a/b/c")
    assert (caught.value.location, caught.value.name) == (store.location, "a/b/c")
    store.put("a/b/c", [b"first ", b"", b"second"])
    store.put("a/empty", [])
    store.put("ab/c", iter([b"x" * 3_000_000] * 2))
    assert store.list_objects("a") == [StoredObject("a/b/c", 12), StoredObject("a/empty", 0)]
    assert store.list_objects("ab") == [StoredObject("ab/c", 6_000_000)]
    with store.open_object("a/b/c") as file:
        assert file.byte_count() == 12
        assert file.read_at(6, 3) == b"sec"
        assert file.read_at(9, 100) == b"ond"
        assert file.read_at(12, 1) == file.read_at(100, 1) == b""
    store.put("a/b/c", [b"again"])  # as after a crash
    with store.open_object("a/b/c") as file:
        assert file.read_at(0, 100) == b"again"
    for _ in range(2):
        store.delete("a/b/c")
    with pytest.raises(RemoteObjectNotFoundError):
        store.open_object("a/b/c")
    assert store.list_objects("a") == [StoredObject("a/empty", 0)]


class RequestedFile(Closeable):
    """File of a store, with the position and size of each request."""

    path = "store/object"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.requests: list[tuple[int, int]] = []

    def read_at(self, position: int, byte_count: int) -> bytes:
        self.requests.append((position, byte_count))
        return self.data[position : position + byte_count]

    def byte_count(self) -> int:
        return len(self.data)

    def close(self) -> None:
        self.data = b""


def test_an_object_is_read_ahead_only_where_a_read_continues_the_last_one() -> None:
    data = bytes(range(256)) * 4
    source = RequestedFile(data)
    file = ReadAheadFile(source, byte_count_min=10, sequential_bytes=100)
    reads = [(500, 4), (506, 4), (510, 4), (605, 20), (300, 4), (310, 200), (1_020, 9), (1_024, 1)]
    for position, byte_count in reads:
        assert file.read_at(position, byte_count) == data[position : position + byte_count]
    assert source.requests == [
        *((500, 10), (510, 100)),  # the second read is in the first request
        *((605, 100), (300, 10), (310, 200), (1_020, 4)),
    ]


@pytest.mark.parametrize("kind", STORES)
def test_a_store_keeps_the_contract(kind: str, tmp_path: Path) -> None:
    check_contract(STORES[kind](tmp_path))


def test_an_object_is_durable_when_it_is_put() -> None:
    disk = SimulatedDisk()
    StorageObjects(disk, "/objects").put("a/b/c", [b"content"])
    disk.crash(Survival.NOTHING)
    assert disk.files() == {"/objects/a/b/c": b"content"}


def test_a_directory_is_deleted_with_its_last_object_but_not_that_of_the_store() -> None:
    disk = SimulatedDisk()
    store = StorageObjects(disk, "/objects")
    for name in ("a/b/c", "a/b/d", "a/e", "f"):
        store.put(name, [b"content"])
    store.delete("a/b/c")
    assert disk.list_names("/objects/a") == ["b", "e"]
    store.delete("a/b/d")
    assert disk.list_names("/objects/a") == ["e"]
    for name in ("a/e", "f", "a/e"):
        store.delete(name)
    assert disk.list_names("/objects") == []
    assert disk.list_names("/") == ["objects"]
    store.put("a/b/c", [b"again"])
    disk.crash(Survival.NOTHING)
    assert disk.files() == {"/objects/a/b/c": b"again"}


def test_an_object_is_deleted_also_if_its_directory_cannot_be() -> None:
    """As a mount point, or one in a directory of another user; a run would fail at each attempt."""

    class FixedDisk(SimulatedDisk):
        def remove_directory(self, path: str) -> bool:
            raise LogAccessError(path=path, reason="device or resource busy")

    disk = FixedDisk()
    store = StorageObjects(disk, "/objects")
    store.put("a/b/c", [b"content"])
    store.delete("a/b/c")
    assert store.list_objects("a") == []
    store.delete("a/b/c")


@pytest.mark.parametrize("is_created_again", [False, True])
def test_an_object_is_durable_also_if_another_process_has_deleted_its_directory_meanwhile(
    is_created_again: bool,
) -> None:
    """With the last object in it; and has perhaps created it again, and not synced that yet."""

    class RacingDisk(SimulatedDisk):
        is_racing = True

        def create_file(self, path: str) -> SimulatedFile:
            if self.is_racing:
                self.is_racing = False
                assert self.remove_directory("/objects/a/b")
                if is_created_again:
                    self.make_directory("/objects/a/b")
            return super().create_file(path)

    disk = RacingDisk()
    StorageObjects(disk, "/objects").put("a/b/c", [b"content"])
    disk.crash(Survival.NOTHING)
    assert disk.files() == {"/objects/a/b/c": b"content"}


def test_an_object_that_fails_meanwhile_has_its_name_only_where_uploads_have_parts(
    tmp_path: Path,
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"first"
        raise RemoteStorageError(location="x", name="y", reason="the source fails")

    for kind, found in (("a directory", []), ("a file system of pyarrow", [("a/b", 5)])):
        store = STORES[kind](tmp_path / kind.replace(" ", "-"))
        (tmp_path / kind.replace(" ", "-")).mkdir()
        with pytest.raises(RemoteStorageError, match="the source fails"):
            store.put("a/b", chunks())
        assert store.list_objects("a") == found
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_object_that_does_not_fit_leaves_the_room_as_it_was() -> None:
    disk = SimulatedDisk()
    store = StorageObjects(disk, "/objects")
    store.put("a/b", [b"x"])
    disk.leave_room(100)
    for name in ("a/c", "a/d"):
        with pytest.raises(DiskFullError):
            store.put(name, [b"y" * 80, b"z" * 80])
    assert disk.files() == {"/objects/a/b": b"x"}
    store.put("a/e", [b"z" * 90])


class RenamedMeanwhile(SimulatedDisk):
    """Disk on which a writer renames its temporary file after each listing."""

    def list_names(self, directory: str) -> list[str]:
        names = super().list_names(directory)
        for name in names:
            if name.endswith(".tmp"):
                path = self.join(directory, name)
                self.rename(path, path.removesuffix(".tmp"))
        return names


def test_an_object_that_is_completed_during_a_listing_hides_no_other() -> None:
    disk = RenamedMeanwhile()
    store = StorageObjects(disk, "/objects")
    store.put("a/1/b", [b"x"])
    store.put("a/3/b", [b"x"])
    disk.put("/objects/a/1/c.tmp", b"y")
    assert [one.name for one in store.list_objects("a")] == ["a/1/b", "a/3/b"]
    assert [one.name for one in store.list_objects("a")] == ["a/1/b", "a/1/c", "a/3/b"]


@pytest.mark.parametrize(
    "uri", ["s4://key:secret@host/path", "s3://", "s3://?secret", "gs://", "nowhere://secret"]
)
def test_a_uri_that_cannot_be_opened_is_an_error_without_its_secrets(uri: str) -> None:
    with pytest.raises(OptionError) as caught:
        open_object_store(uri)
    assert "secret" not in str(caught.value)


def test_a_failure_of_a_file_system_names_the_object(tmp_path: Path) -> None:
    (tmp_path / "objects").write_bytes(b"a file instead of a directory")
    store = arrow_objects(tmp_path)
    with pytest.raises(RemoteStorageError, match="object a/b in local:"):
        store.put("a/b", [b"x"])
    with pytest.raises(RemoteStorageError, match="object a/b in local:"):
        store.open_object("a/b")


# --- S3 -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    """Start a server of S3's API that is installed under ``build``; yield its port."""
    packages = HOME / "build" / MOTO.replace("[", "-").replace("]", "")
    if not (packages / "moto").exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), MOTO]
        subprocess.run(install, check=True)
    (port,) = free_ports(1)
    program = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        "from moto.server import main\n"
        f"main(['-H', '127.0.0.1', '-p', '{port}'])"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_it_accepts(server, port)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/backups", method="PUT")
        urllib.request.urlopen(request).close()
        yield port
    finally:
        server.kill()
        server.wait()


def wait_until_it_accepts(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
    raise AssertionError("the server has ended")


def s3_uri(port: int, path: str) -> str:
    options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    return f"s3://key:topsecret@backups/{path}?{options}"


@pytest.mark.nightly
def test_s3_keeps_the_contract(s3_port: int) -> None:
    store = open_object_store(s3_uri(s3_port, "contract"))
    assert store.location == "s3://***@backups/contract"
    check_contract(store)


@pytest.mark.nightly
def test_a_log_is_backed_up_to_s3_and_restored(s3_port: int, tmp_path: Path) -> None:
    path = tmp_path / "decisions-0"
    with raftlog.open(path) as log:
        for at in range(30):
            log.append([os.urandom(200_000), b"%d" % at])
    uri = s3_uri(s3_port, "decisions-0")
    status, out, _ = run("backup", path, uri)
    assert (status, out.split(":")[0]) == (0, "backed up")
    with raftlog.open(path) as log:
        log.append([b"more"])
    status, out, _ = run("backup", path, uri)
    assert status == 0
    assert run("backup", path, uri)[1].startswith("unchanged")
    assert run("restore", uri, tmp_path / "restored" / "decisions-0")[0] == 2
    (tmp_path / "restored").mkdir()
    status, out, error = run("restore", uri, tmp_path / "restored" / "decisions-0")
    assert status == 0, error
    segment = "00000000000000000000.log"
    copy = tmp_path / "restored" / "decisions-0"
    assert (copy / segment).read_bytes() == (path / segment).read_bytes()
    assert run("check", copy)[0] == 0


@pytest.mark.nightly
def test_a_log_has_its_older_segments_in_s3(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    path, values = tmp_path / "decisions-0", [os.urandom(150_000) for _ in range(40)]
    uri = s3_uri(s3_port, "tiered").replace("key:topsecret@", "")
    config = raftlog.LogConfig(
        segment_bytes=1_000_000,
        remote_storage_enable=True,
        remote_storage_uri=uri,
        local_retention_bytes=1_000_000,
        retention_bytes=4_000_000,
    )
    with raftlog.open(path, config=config) as log:
        for value in values[:20]:
            log.append([value])
        log.clean()
        assert [record.value for record in log.read() if record.value] == values[:20]
        for value in values[20:]:
            log.append([value])
        for _ in range(2):
            log.clean()
        start = log.log_start_offset
        assert 0 < start < min(int(one.stem) for one in path.glob("*.log"))
        assert [record.value for record in log.read() if record.value] == values[start - 1 :]
    names = [one.name for one in open_object_store(s3_uri(s3_port, "tiered")).list_objects("")]
    segments = sorted(name.rpartition("/")[2] for name in names if not name.startswith("manifest"))
    assert int(segments[0][:20]) == start
    assert run("check", path)[0] == 0


@pytest.mark.nightly
def test_a_bucket_that_does_not_exist_is_an_error_without_the_keys(
    s3_port: int, tmp_path: Path
) -> None:
    uri = s3_uri(s3_port, "x").replace("backups", "absent")
    status, _, error = run("restore", uri, tmp_path / "new-0")
    assert status == 1
    assert "RAFTLOG_" in error
    assert "topsecret" not in error


@pytest.mark.nightly
def test_a_log_in_s3_is_read_where_it_is(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HOME / "tests" / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
    status, _, error = run("backup", source / "__cluster_metadata-0", s3_uri(s3_port, "metadata"))
    assert status == 0, error
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    uri = s3_uri(s3_port, "metadata/__cluster_metadata-0-*").replace("key:topsecret@", "")
    found = rows("cat", uri, "--to", "46")
    assert found == rows("cat", source, "--to", "46") != []
    assert run("check", uri)[0] == run("doctor", uri)[0] - 1 == 0
    state = ("topics", "--at", "700")
    assert rows("state", uri, *state) == rows("state", source, *state) != []
    status, out, error = run(
        "cat", s3_uri(s3_port, "metadata/nothing").replace("key:topsecret@", "")
    )
    assert (status, out) == (2, "")
    assert "s3://backups/metadata/nothing does not exist" in error
