"""Several copies of one log: read up to their common end, and reported where they diverge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run
from tests.support.log_builder import control_batch, data_batch, leader_change

from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from raftlog.client import EndBasis, Isolation, LogKind, open_path
from raftlog.errors import NotALogError, TooFewVotersError, WrongClusterError
from raftlog_state.check.findings import Kind
from raftlog_state.check.log_check import LogCheck

COMMITTED = Isolation.READ_COMMITTED
PROPERTIES = b"version=1\ntopic.id=AAAAAAAAAAAAAAAAAAAAAw\nvalues=bytes\n"


def batches(*values: bytes, base_offset: int = 0, epoch: int = 1) -> bytes:
    """Return one batch for each value."""
    return b"".join(
        data_batch([value], base_offset=base_offset + at, epoch=epoch)
        for at, value in enumerate(values)
    )


def replica(home: Path, node_id: int, data: bytes, *, name: str = "orders-0") -> Path:
    """Write one replica of a partition."""
    directory = home / f"node-{node_id}" / name
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(data)
    meta = f"version=1\ncluster.id=c\nnode.id={node_id}\n"
    (directory.parent / "meta.properties").write_text(meta)
    return directory


def named(*paths: Path) -> str:
    return ",".join(map(str, paths))


def divergences_of(path: str) -> list[dict[str, Any]]:
    """Return the findings of ``check`` about divergence."""
    found = map(json.loads, run("check", path, "--json")[1].splitlines())
    return [row for row in found if row.get("kind") == "divergence"]


COMMON = batches(b"a", b"b", b"c")


def test_an_empty_range_of_replicas_has_no_aborted_transactions(tmp_path: Path) -> None:
    log = open_path(named(*(replica(tmp_path, node_id, COMMON) for node_id in (1, 2, 3))))
    for offset in (0, 3):
        found = log.aborted_transactions(offset, offset)
        assert (found.spans, found.known_end, found.error) == ((), offset, None)


def test_replicas_that_agree_are_read_up_to_their_common_end(tmp_path: Path) -> None:
    longer = replica(tmp_path, 1, COMMON + batches(b"d", base_offset=3))
    others = [replica(tmp_path, node_id, COMMON) for node_id in (2, 3)]
    path = named(longer, *others)
    log = open_path(path)
    end = log.read_end(isolation=COMMITTED)
    assert (log.kind, log.topic, end.offset, end.basis) == (
        LogKind.PARTITION,
        "orders",
        3,
        EndBasis.REPLICAS,
    )
    assert "the records that all 3 copies have" in end.explanation
    assert [row["value"] for row in rows("cat", path)] == ["a", "b", "c"]
    reader = RaftlogReader(RaftlogOptions.parse({"path": path}), ("value",))
    read = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [row["value"] for batch in read for row in batch.to_pylist()] == [b"a", b"b", b"c"]
    status, out, _ = run("check", path)
    assert status == 0
    assert out.endswith("offsets from 0 to 4 (exclusive); 3 replicas compared with each other\n")
    assert json.loads(run("check", path, "--json")[1])["summary"]["replicas_compared"] == 3


@pytest.mark.parametrize(
    ("other", "offset"),
    [
        (batches(b"a", b"B", b"c"), 1),
        (batches(b"a") + batches(b"b", b"c", base_offset=1, epoch=2), 1),
        (batches(b"a", b"b") + data_batch([b"c", b"d"], base_offset=2), 2),
        (batches(b"a") + data_batch([b"b", b"c"], base_offset=1), 1),
    ],
    ids=["bytes", "epoch", "a longer batch", "another batch"],
)
def test_the_divergence_of_replicas_is_reported(tmp_path: Path, other: bytes, offset: int) -> None:
    first = replica(tmp_path, 1, batches(b"a", b"b", b"c", b"d", b"e"))
    second = replica(tmp_path, 2, other)
    for path in (named(first, second), named(second, first)):
        assert run("check", path)[0] == 1
        (only,) = divergences_of(path)
        assert (only["offset"], only["severity"]) == (offset, "damage")
        for word in ("epoch", "bytes with CRC", str(first), str(second)):
            assert word in only["reason"]
        assert f"offset {offset}: the replicas diverge here" in run("check", path)[1]


def test_a_divergence_of_epochs_ends_the_read_and_is_reported(tmp_path: Path) -> None:
    first = replica(tmp_path, 1, COMMON)
    second = replica(tmp_path, 2, batches(b"a") + batches(b"x", base_offset=1, epoch=2))
    end = open_path(named(first, second)).read_end(isolation=COMMITTED)
    assert end.offset == 1
    assert f"{first} diverges at offset 1: epoch 1 where {second} has epoch 2" in end.explanation


def test_records_compacted_in_one_replica_are_no_divergence(tmp_path: Path) -> None:
    whole = replica(
        tmp_path,
        1,
        data_batch([b"a", b"b", b"c"], base_offset=0) + batches(b"d", b"e", base_offset=3),
    )
    kept = data_batch([b"a", b"c"], base_offset=0, offset_deltas=(0, 2))
    compacted = replica(tmp_path, 2, kept + batches(b"e", base_offset=4))
    status, out, _ = run("check", named(whole, compacted))
    assert (status, "diverge" in out) == (0, False)


def quorum_copy(home: Path, node_id: int, *more: bytes) -> Path:
    """Write one voter's copy of the log of a raftlog quorum."""
    leader = control_batch([leader_change(1, [1, 2, 3])], base_offset=0)
    directory = replica(home, node_id, leader + b"".join(more), name="raftlog-0")
    (directory / "raftlog.properties").write_bytes(PROPERTIES)
    return directory


def test_the_log_of_raftlog_nodes_is_read_up_to_the_end_of_a_majority(tmp_path: Path) -> None:
    one = batches(b"a", b"b", base_offset=1)
    copies = [
        quorum_copy(tmp_path, 1, one, batches(b"c", base_offset=3)),
        quorum_copy(tmp_path, 2, one),
        quorum_copy(tmp_path, 3),
    ]
    log = open_path(named(*copies))
    end = log.read_end(isolation=COMMITTED)
    assert (log.kind, end.offset, end.basis) == (LogKind.PARTITION, 3, EndBasis.MAJORITY)
    assert [row["value"] for row in rows("cat", named(*copies))] == ["a", "b"]
    with pytest.raises(TooFewVotersError):
        open_path(named(copies[0], replica(tmp_path / "x", 9, one, name="raftlog-0"))).read_end(
            isolation=COMMITTED
        )


def test_an_uncommitted_tail_of_a_quorum_is_a_note_and_differing_bytes_are_damage(
    tmp_path: Path,
) -> None:
    one = batches(b"a", b"b", base_offset=1)
    tail = control_batch([leader_change(2, [1, 2, 3])], base_offset=3, epoch=2)
    copies = [
        quorum_copy(tmp_path, 1, one, batches(b"c", base_offset=3)),
        quorum_copy(tmp_path, 2, one, tail),
        quorum_copy(tmp_path, 3, one),
    ]
    (only,) = divergences_of(named(*copies))
    assert (only["offset"], only["severity"]) == (3, "note")
    segment = copies[2] / f"{0:020d}.log"
    leader = control_batch([leader_change(1, [1, 2, 3])], base_offset=0)
    segment.write_bytes(leader + batches(b"a", b"B", base_offset=1))
    found = {(one["offset"], one["severity"]) for one in divergences_of(named(*copies))}
    assert found == {(3, "note"), (2, "damage")}


def is_foreign(line: dict[str, Any]) -> bool:
    return line.get("kind") == "foreign"


@pytest.mark.parametrize(
    ("state", "more", "reason"),
    [
        ((1, 1), b"", None),
        ((2, 3), b"", None),
        ((1, 2), b"", "begun by leader 1, and its leader in quorum-state is 2"),
        (
            (1, 1),
            control_batch([leader_change(1, [1])], base_offset=1, epoch=2),
            "its leader epoch is 2, and the latest epoch in quorum-state is 1",
        ),
    ],
    ids=["its own", "of an earlier epoch", "of another leader", "of a later epoch"],
)
def test_batches_that_a_quorum_did_not_write_are_damage(
    tmp_path: Path, state: tuple[int, int], more: bytes, reason: str | None
) -> None:
    directory = quorum_copy(tmp_path, 1, more)
    (directory / "quorum-state").write_text(
        f'{{"leaderId":{state[1]},"leaderEpoch":{state[0]},"votedId":-1,'
        '"votedDirectoryId":"","data_version":1}'
    )
    _, out, _ = run("check", directory, "--json")
    found = [one["reason"] for one in map(json.loads, out.splitlines()) if is_foreign(one)]
    assert [reason is not None and reason in one for one in found] == [True] * bool(reason)
    (directory / "published").write_bytes(b"")
    status, out, _ = run("check", directory)
    assert (status, "another process changed the log of this node" in out) == (1, True)


def test_a_segment_that_the_node_deletes_during_the_check_is_not_foreign(tmp_path: Path) -> None:
    directory = quorum_copy(tmp_path, 1, batches(b"a", b"b", base_offset=1))
    (directory / f"{3:020d}.log").write_bytes(batches(b"c", base_offset=3))
    (directory / "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"","data_version":1}'
    )

    def delete_first_segment(done: int, whole: int) -> None:
        if done >= whole / 4:  # it is checked
            (directory / f"{0:020d}.log").unlink(missing_ok=True)

    check = LogCheck(str(directory), delete_first_segment)
    assert Kind.FOREIGN not in [found.kind for found in check.run()]
    assert check.summary()["segments"] == 2


def test_only_copies_of_one_log_are_read_together(tmp_path: Path) -> None:
    first = replica(tmp_path, 1, COMMON)
    other = replica(tmp_path, 2, COMMON, name="orders-1")
    with pytest.raises(NotALogError, match="copies of one log, and the first is of orders-0"):
        open_path(named(first, other))
    stranger = replica(tmp_path, 3, COMMON)
    (stranger.parent / "meta.properties").write_text("version=1\ncluster.id=d\nnode.id=3\n")
    with pytest.raises(WrongClusterError):
        open_path(named(first, stranger))
