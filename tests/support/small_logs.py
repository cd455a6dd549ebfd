"""Small logs in a temporary directory: growing parts of the bundled ones, and generated ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from raftlog.client import LogReader
from raftlog.errors import QuorumUnavailableError
from raftlog.records import NewRecord, RecordBatch, iter_batches
from tests.support.batch_encoding import NewRecordBatch, encode_batch

BEGIN_TRANSACTION = b"\x01\x17\x00\x01\x00\x02\x02t"
END_TRANSACTION = b"\x01\x18\x00\x00"
ABORT_TRANSACTION = b"\x01\x19\x00\x01\x00\x02\x02r"
NO_OP = b"\x01\x14\x00\x00"
TIME_MS = 1_700_000_000_000


def batches_of(segment: Path) -> list[RecordBatch]:
    """Return all complete batches of a segment."""
    return list(iter_batches(segment.read_bytes()))


def copy_log(source: Path, target: Path, *, end_offset: int, start_offset: int = 0) -> Path:
    """Copy a partition's directory as it was when it ended at (about) ``end_offset``.

    The copy ends with the batch that has the offset before ``end_offset``; a second call with a
    larger one makes the log grow. Segments that end at or before ``start_offset`` are omitted, as
    if the node had deleted them. Snapshots are copied once the log reaches their end offset.
    """
    target.mkdir(parents=True, exist_ok=True)
    segments = sorted(source.glob("*.log"))
    bases = [int(segment.stem) for segment in segments]
    for segment, base, next_base in zip(segments, bases, [*bases[1:], 2**62], strict=True):
        if base < end_offset and next_base > start_offset:
            (target / segment.name).write_bytes(_up_to(segment, end_offset))
    for checkpoint in source.glob("*.checkpoint"):
        if start_offset <= int(checkpoint.name.split("-")[0]) <= end_offset:
            shutil.copyfile(checkpoint, target / checkpoint.name)
    for name in ("partition.metadata", "quorum-state"):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    epochs = _epochs_up_to(source / "leader-epoch-checkpoint", end_offset)
    write_epochs(target, epochs)
    properties = source.parent / "meta.properties"
    if properties.exists():
        shutil.copyfile(properties, target.parent / "meta.properties")
    return target


def _up_to(segment: Path, end_offset: int) -> bytes:
    taken = [batch for batch in batches_of(segment) if batch.base_offset < end_offset]
    return segment.read_bytes()[: sum(batch.byte_count for batch in taken)]


def _epochs_up_to(checkpoint: Path, end_offset: int) -> list[tuple[int, int]]:
    lines = checkpoint.read_text().splitlines()[2:]
    entries = [tuple(map(int, line.split())) for line in lines]
    return [(epoch, start) for epoch, start in entries if start < end_offset]


def write_epochs(directory: Path, entries: Iterable[tuple[int, int]]) -> None:
    """Write ``leader-epoch-checkpoint``: pairs of epoch and start offset."""
    lines = [f"{epoch} {start}" for epoch, start in entries]
    text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
    (directory / "leader-epoch-checkpoint").write_text(text)


class LogWriter:
    """Writer of a partition's directory: batches in one segment."""

    def __init__(self, directory: Path, *, base_offset: int = 0, cluster_id: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.end_offset = base_offset
        self._segment = directory / f"{base_offset:020d}.log"
        self._segment.touch()
        self.epochs: list[tuple[int, int]] = []
        if cluster_id:
            properties = f"version=1\ncluster.id={cluster_id}\nnode.id=1\n"
            (directory.parent / "meta.properties").write_text(properties)

    def append(
        self,
        *values: bytes | None,
        epoch: int = 1,
        timestamp_ms: int = TIME_MS,
        batch: NewRecordBatch | None = None,
    ) -> int:
        """Append one batch of records with these values; return the new log end offset."""
        batch = batch or NewRecordBatch(
            records=tuple(NewRecord(key=None, value=value) for value in values),
            base_timestamp_ms=timestamp_ms,
        )
        data = encode_batch(batch, base_offset=self.end_offset, leader_epoch=epoch)
        return self.append_encoded(data, len(batch.records), epoch=epoch)

    def append_encoded(self, data: bytes, record_count: int, *, epoch: int) -> int:
        """Append the bytes of one batch; return the new log end offset."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, self.end_offset))
            write_epochs(self.directory, self.epochs)
        with self._segment.open("ab") as file:
            file.write(data)
        self.end_offset += record_count
        return self.end_offset


class FailingLog:
    """Log whose reads fail as those of a quorum without a leader: the first of each range, too."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._calls = 0
        self._tried: set[tuple[int, int]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def refresh(self) -> None:
        self._calls += 1
        self._fail_if(self._calls % 3 == 0)
        self._log.refresh()

    def batches(self, start_offset: int, end_offset: int) -> Iterator[Any]:
        is_first = self._is_first(start_offset, end_offset)
        for batch in self._log.batches(start_offset, end_offset):
            yield batch
            self._fail_if(is_first)

    def scan(self, start_offset: int, end_offset: int, **options: Any) -> Iterator[Any]:
        is_first = self._is_first(start_offset, end_offset)
        self._fail_if(is_first and end_offset % 2 == 1)
        for scan in self._log.scan(start_offset, end_offset, **options):
            yield scan
            self._fail_if(is_first)

    def _is_first(self, start_offset: int, end_offset: int) -> bool:
        wanted = start_offset, end_offset
        is_first = wanted not in self._tried
        self._tried.add(wanted)
        return is_first

    def _fail_if(self, is_failing: bool) -> None:
        if is_failing:
            raise QuorumUnavailableError(path="q", waited_ms=5, reason="no leader")
