"""A node's directory is formatted once, as Kafka formats it, with its identity."""

from __future__ import annotations

import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.errors import (
    CorruptFileError,
    DiskFailedError,
    DiskFullError,
    LogNotFoundError,
    LogReadOnlyError,
    OptionError,
)
from raftlog.log.format.directory import NODE_LOCK_NAME
from raftlog.log.reading.bootstrap import bootstrap_voters
from raftlog.node import Replica, RunSync
from raftlog.node.addresses import parse_initial_voters
from raftlog.node.config import NodeConfig, parse_config, voter_of
from raftlog.node.errors import AlreadyFormattedError, NotFormattedError, WrongDirectoryError
from raftlog.node.formatting import (
    format_directory,
    random_id,
    read_identity,
    topic_id_of,
)
from raftlog.quorum.events import TimePassed
from raftlog.quorum.voters import VoterSet
from raftlog.storage.protocol import WritableStorage
from raftlog.types import ReplicaKey
from tests.simulated_disk.simulated_disk import SimulatedDisk

CLUSTER_ID = "UBxqW7I0Tziuuu-k2lOaxw"
BOOTSTRAP = "00000000000000000000-0000000000.checkpoint"
TIME_MS = 1_795_301_564_853
KAFKA_VOTERS = "1@127.0.0.1:19093:CrUad84nR8KvMEpDpKrwbw,2@127.0.0.1:19094:AbCdEfGhIjKlMnOpQrStUg"
KAFKA_CHECKPOINT = bytes.fromhex(
    "0000000000000000000000ce0000000002a7f43768002000000002000001a2004feb8e000001a2004feb8effff"
    "ffffffffffffffffffffffff000000032a0000000800000003160000000001a2004feb5100001e000002080000"
    "00050a000000010000ea010000040800000006d401000003000000010ab51a77ce2747c2af304a43a4aaf06f02"
    "0b434f4e54524f4c4c45520a3132372e302e302e314a95000000000100000000000201b09d11f1a12232a53273"
    "a942b4ad52020b434f4e54524f4c4c45520a3132372e302e302e314a9600000000010000000000000000000000"
    "030000003f000000000244fccb33002000000000000001a2004feba5000001a2004feba5ffffffffffffffffff"
    "ffffffffff000000011a00000008000000040600000000"
)
"""Of `kafka-storage format --initial-controllers` with those voters (Kafka 4.3.1)."""
KAFKA_HEADER_MS, KAFKA_BATCH_MS, KAFKA_FOOTER_MS = 0x1A2004FEB51, 0x1A2004FEB8E, 0x1A2004FEBA5


def config_of(node_id: int = 1, *, more: str = "", topic: str = "raftlog") -> NodeConfig:
    return parse_config(
        f'[node]\nid = {node_id}\ndirectory = "/node"\ntopic = "{topic}"\n{more}'
        f'[listeners.voters]\naddress = "127.0.0.1:{19092 + node_id}"\n',
        "/node.toml",
    )


CONFIG = config_of()
STATIC = config_of(more='static_voters = ["1@127.0.0.1:19093", "2@127.0.0.1:19094"]\n')


def opened(disk: WritableStorage, config: NodeConfig) -> Replica:
    """Open the replica as a node does."""
    meta = read_identity(config, disk)
    assert meta.cluster_id is not None
    assert meta.directory_id is not None
    return Replica.open(
        disk,
        f"{config.directory}/{config.topic}-0",
        local_voter=voter_of(config, meta.directory_id),
        voters=config.static_voters or VoterSet(()),
        kraft_version=0 if config.static_voters else 1,
        log_config=config.log,
        topic_id=topic_id_of(meta.cluster_id, config.topic),
        config=config.quorum,
        jitter_ms=random.Random(1).randrange,
        now_ms=0,
        time_ms=TIME_MS,
    )


def test_a_single_node_is_its_quorums_only_voter() -> None:
    disk = SimulatedDisk()
    directory_id = format_directory(
        CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk, time_ms=TIME_MS
    )
    meta = read_identity(CONFIG, disk)
    assert (meta.cluster_id, meta.node_id, meta.directory_id) == (CLUSTER_ID, 1, directory_id)
    replica = opened(disk, CONFIG)
    assert list(replica.core.voters) == [voter_of(CONFIG, directory_id)]
    assert replica.log.end_offset == 0


def test_initial_voters_are_the_quorum_of_each_of_them() -> None:
    voters = parse_initial_voters(KAFKA_VOTERS)
    for node_id in (1, 2):
        disk, config = SimulatedDisk(), config_of(node_id)
        format_directory(config, cluster_id=CLUSTER_ID, initial_voters=voters, storage=disk)
        assert opened(disk, config).core.voters == voters
        own = voters.find(node_id)
        assert own is not None
        assert read_identity(config, disk).directory_id == own.key.directory_id


def test_the_snapshot_equals_kafkas_byte_for_byte() -> None:
    disk = SimulatedDisk()
    format_directory(
        CONFIG,
        cluster_id=CLUSTER_ID,
        initial_voters=parse_initial_voters(KAFKA_VOTERS),
        storage=disk,
        time_ms=KAFKA_HEADER_MS,
    )
    ours = disk.files()[f"/node/raftlog-0/{BOOTSTRAP}"]
    assert len(ours) == len(KAFKA_CHECKPOINT)
    # Kafka reads the clock three times: the times, and the checksums over them, are excluded.
    times = [KAFKA_HEADER_MS, KAFKA_BATCH_MS, KAFKA_FOOTER_MS]
    assert _without_times(ours, [KAFKA_HEADER_MS]) == _without_times(KAFKA_CHECKPOINT, times)


def _without_times(data: bytes, times_ms: list[int]) -> bytes:
    for time_ms in times_ms:
        data = data.replace(time_ms.to_bytes(8, "big"), bytes(8))
    second = 12 + int.from_bytes(data[8:12], "big")
    for batch in (0, second):
        data = data[: batch + 17] + bytes(4) + data[batch + 21 :]
    return data


def test_meta_properties_equal_kafkas() -> None:
    disk = SimulatedDisk()
    directory_id = format_directory(
        CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk, time_ms=TIME_MS
    )
    assert disk.files()["/node/meta.properties"].decode() == (
        "#\n#Sat Nov 21 22:52:44 UTC 2026\n"
        f"node.id=1\ndirectory.id={directory_id}\nversion=1\ncluster.id={CLUSTER_ID}\n"
    )


def test_static_voters_and_nodes_added_later_have_no_snapshot() -> None:
    for config, is_observer in ((STATIC, False), (CONFIG, True)):
        disk = SimulatedDisk()
        format_directory(config, cluster_id=CLUSTER_ID, is_observer=is_observer, storage=disk)
        assert disk.list_names("/node/raftlog-0") == []
        replica = opened(disk, config)
        assert replica.core.voters == (config.static_voters or VoterSet(()))


def test_a_formatted_directory_is_not_changed() -> None:
    disk = SimulatedDisk()
    format_directory(CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk)
    before = disk.files()
    with pytest.raises(AlreadyFormattedError, match=r"contains meta\.properties"):
        format_directory(CONFIG, cluster_id=random_id(), is_standalone=True, storage=disk)
    assert disk.files() == before


@pytest.mark.parametrize(
    "path",
    [
        "/node/notes.txt",
        "/node/raftlog-0/00000000000000000000.log",
        "/node/raftlog-0/quorum-state",
        "/node/other-0/quorum-state",
        "/node/bootstrap.checkpoint",
    ],
)
def test_other_directories_are_not_changed(path: str) -> None:
    disk = SimulatedDisk()
    disk.put(path, b"precious")
    with pytest.raises(AlreadyFormattedError, match=r"it contains "):
        format_directory(CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk)
    files = disk.files()
    assert files.pop(path) == b"precious"
    assert set(files) <= {f"/node/{NODE_LOCK_NAME}"}


def test_the_directory_of_a_running_node_is_not_formatted() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/node")
    lock = disk.another_process().try_lock(f"/node/{NODE_LOCK_NAME}")
    assert lock is not None
    with pytest.raises(AlreadyFormattedError, match="another process uses it"):
        format_directory(CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk)


def test_the_parent_directory_must_exist() -> None:
    config = replace(CONFIG, directory="/nowhere/node")
    with pytest.raises(LogNotFoundError, match="/nowhere"):
        format_directory(config, cluster_id=CLUSTER_ID, is_standalone=True, storage=SimulatedDisk())


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (CONFIG, {}, "specify the voters"),
        (CONFIG, {"is_standalone": True, "is_observer": True}, "specify the voters"),
        (STATIC, {"is_standalone": True}, "the configuration names the voters"),
        (STATIC, {"is_observer": True}, "the configuration names the voters"),
        (CONFIG, {"is_standalone": True, "cluster_id": "short"}, "a UUID of 22 characters"),
        (CONFIG, {"is_standalone": True, "cluster_id": "A" * 22}, "a UUID of 22 characters"),
        (replace(CONFIG, voters=None), {"is_standalone": True}, "a voter requires "),
        (
            config_of(3),
            {"initial_voters": parse_initial_voters(KAFKA_VOTERS)},
            "not one of the initial voters",
        ),
        (
            CONFIG,
            {"initial_voters": parse_initial_voters(KAFKA_VOTERS.replace("19093", "1"))},
            "listener for voters advertises 127.0.0.1:19093",
        ),
        (CONFIG, {"initial_voters": STATIC.static_voters}, "requires a directory id"),
    ],
)
def test_inconsistent_arguments_create_nothing(
    config: NodeConfig, options: dict[str, object], words: str
) -> None:
    disk = SimulatedDisk()
    with pytest.raises(OptionError, match=words):
        format_directory(config, **{"cluster_id": CLUSTER_ID, "storage": disk, **options})  # type: ignore[arg-type]
    assert not disk.files()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not ID@HOST:PORT:DIRECTORY_ID"),
        ("1@127.0.0.1:1", "a directory id has 22 characters"),
        ("1@127.0.0.1:1:AAAAAAAAAAAAAAAAAAAAAA", "a directory id has 22 characters"),
        ("1@127.0.0.1:1:CrUad84nR8KvMEpDpKrwbx", "a directory id has 22 characters"),
        ("one@127.0.0.1:1:CrUad84nR8KvMEpDpKrwbw", "is not ID@"),
        ("99999999999@127.0.0.1:1:CrUad84nR8KvMEpDpKrwbw", "is not ID@"),
        ("1@127.0.0.1:0:CrUad84nR8KvMEpDpKrwbw", "from 1 to 65535"),
        (KAFKA_VOTERS + ",1@127.0.0.1:3:CrUad84nR8KvMEpDpKrwbA", "duplicate node id 1"),
        (KAFKA_VOTERS + ",3@127.0.0.1:3:CrUad84nR8KvMEpDpKrwbw", "the same directory id"),
        (KAFKA_VOTERS + ",3@127.0.0.1:19093:CrUad84nR8KvMEpDpKrwbA", "the same address"),
        (KAFKA_VOTERS + ",", "is not ID@"),
    ],
)
def test_initial_voters_are_written_as_kafka_writes_them(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_initial_voters(text)


# --- identity of a directory ----------------------------------------------------------------------


def formatted(config: NodeConfig = CONFIG) -> SimulatedDisk:
    disk = SimulatedDisk()
    format_directory(config, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk)
    return disk


def test_a_node_starts_only_in_its_own_directory() -> None:
    disk = formatted()
    with pytest.raises(WrongDirectoryError, match=r"has node\.id 1, the configuration 2"):
        read_identity(config_of(2), disk)
    with pytest.raises(WrongDirectoryError, match=r"no log other-0, only raftlog-0"):
        read_identity(config_of(topic="other"), disk)
    with pytest.raises(NotFormattedError, match=r"raftlog node format"):
        read_identity(replace(CONFIG, directory="/else"), disk)


def test_a_node_whose_log_was_removed_does_not_start_as_a_new_voter() -> None:
    disk = formatted()
    disk.rename("/node/raftlog-0", "/node/kept-elsewhere")
    with pytest.raises(WrongDirectoryError, match=r"also stores the node's vote"):
        read_identity(CONFIG, disk)


def test_damage_to_the_formatted_files_is_found() -> None:
    for name in ("/node/meta.properties", f"/node/raftlog-0/{BOOTSTRAP}"):
        byte_count = len(formatted().files()[name])
        for at in range(0, byte_count, 7):
            disk = formatted()
            disk.flip_bit(name, 8 * at + at % 8)
            try:
                voters = opened(disk, CONFIG).core.voters
            except CorruptFileError:
                continue
            assert voters.node_ids == (1,)


def voters_of(checkpoint: bytes) -> tuple[int, ...] | None:
    """Return the ids of the voters in a bootstrap checkpoint; None without one."""
    disk = SimulatedDisk()
    disk.put(f"/log-0/{BOOTSTRAP}", checkpoint)
    found = bootstrap_voters(disk, "/log-0")
    return None if found is None else tuple(one.voter_id for one in found[0].voters)


def test_a_bootstrap_checkpoint_is_read_whole_or_not_at_all() -> None:
    data, footer_at = KAFKA_CHECKPOINT, 12 + int.from_bytes(KAFKA_CHECKPOINT[8:12], "big")
    assert voters_of(data) == (1, 2)
    assert bootstrap_voters(SimulatedDisk(), "/log-0") is None
    for byte_count in range(len(data)):
        with pytest.raises(CorruptFileError, match=r"copy this file from another node"):
            voters_of(data[:byte_count])
    first, footer = data[:footer_at], data[footer_at:]
    for damaged in (data + b"\0", data + first, footer, footer + first):
        with pytest.raises(CorruptFileError):
            voters_of(damaged)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize(("field", "byte_count"), [(0, 8), (12, 4)])
def test_offsets_and_epochs_of_a_bootstrap_checkpoint_are_checked(
    batch: int, field: int, byte_count: int
) -> None:
    """No checksum covers them."""
    footer_at = 12 + int.from_bytes(KAFKA_CHECKPOINT[8:12], "big")
    end = batch * footer_at + field + byte_count
    damaged = bytearray(KAFKA_CHECKPOINT)
    damaged[end - 1] += 1
    with pytest.raises(CorruptFileError, match=r"copy this file from another node"):
        voters_of(bytes(damaged))


def test_the_only_voter_of_a_formatted_quorum_never_truncates_synced_records() -> None:
    disk = formatted()
    replica, now_ms = opened(disk, CONFIG), 0
    while not replica.core.high_watermark:
        now_ms += 100
        for effect in replica.step(TimePassed(), now_ms=now_ms, time_ms=TIME_MS):
            if isinstance(effect, RunSync):
                effect.ticket.run()
                replica.complete_sync(effect.ticket, now_ms=now_ms, time_ms=TIME_MS)
    disk.kill()
    segment = "/node/raftlog-0/00000000000000000000.log"
    disk.flip_bit(segment, 8 * 100)
    damaged = disk.files()[segment]
    with pytest.raises(LogReadOnlyError):
        opened(disk, CONFIG)
    assert disk.files()[segment] == damaged


# --- interrupted formatting -----------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, STATIC], ids=["dynamic", "static"])
def test_an_interrupted_format_is_repeated(config: NodeConfig) -> None:
    is_alone = config is CONFIG

    def format_it(disk: SimulatedDisk) -> str:
        return format_directory(
            config, cluster_id=CLUSTER_ID, is_standalone=is_alone, storage=disk, time_ms=TIME_MS
        )

    disk = SimulatedDisk()
    recording = disk.record()
    first_id = format_it(disk)
    finished = 0
    for state in recording.states():
        after = SimulatedDisk.after(state)
        try:
            directory_id = format_it(after)
        except AlreadyFormattedError:
            finished += 1
            directory_id = first_id
        assert read_identity(config, after).directory_id == directory_id, str(state)
        voters = opened(after, config).core.voters
        if is_alone:
            assert [one.key for one in voters] == [ReplicaKey(1, directory_id)], str(state)
        else:
            assert voters == config.static_voters
    assert finished
    assert state.cut == len(recording.operations)


def test_a_format_interrupted_by_the_disk_is_repeated() -> None:
    for fault in ("sync", "write", "room"):
        disk = SimulatedDisk()
        if fault == "room":
            disk.full_at(200)
        else:
            (disk.fail_sync_once if fault == "sync" else disk.fail_write_once)("*meta*")
        with pytest.raises((DiskFailedError, DiskFullError)):
            format_directory(CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk)
        with pytest.raises(NotFormattedError):
            read_identity(CONFIG, disk)
        disk.full_at(None)
        disk.crash()
        format_directory(CONFIG, cluster_id=CLUSTER_ID, is_standalone=True, storage=disk)
        assert opened(disk, CONFIG).core.voters.node_ids == (1,)


# --- real files, and ids --------------------------------------------------------------------------


def test_files_are_private_to_their_owner(tmp_path: Path) -> None:
    config = replace(CONFIG, directory=str(tmp_path / "node"))
    mask = os.umask(0)
    try:
        format_directory(config, cluster_id=CLUSTER_ID, is_standalone=True)
    finally:
        os.umask(mask)
    assert read_identity(config).cluster_id == CLUSTER_ID
    for path in (tmp_path / "node", *(tmp_path / "node").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.name == BOOTSTRAP:
            assert mode == 0o400
        else:
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_the_nodes_of_a_cluster_agree_on_their_topic_id() -> None:
    ids = {topic_id_of(CLUSTER_ID, topic) for topic in ("raftlog", "raftlog2")}
    ids |= {topic_id_of(random_id(), "raftlog") for _ in range(200)}
    assert len(ids) == 202
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)
    assert topic_id_of(CLUSTER_ID, "raftlog") == topic_id_of(CLUSTER_ID, "raftlog")
    assert topic_id_of(CLUSTER_ID, "__cluster_metadata") == "AAAAAAAAAAAAAAAAAAAAAQ"
