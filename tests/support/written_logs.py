"""Logs written by raftlog on a simulated disk, and then corrupted."""

from __future__ import annotations

from raftlog.log.format.directory import offset_name
from raftlog.log.reading.transactions import CommitName, commit_header
from raftlog.log.recovery.recover import RecoveredLog, recover
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.batch import NewRecord
from raftlog.records.compression import Compression
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import TOPIC_ID, append_batches
from tests.support.batch_encoding import NewRecordBatch, encode_batch

DIRECTORY = "/data/decisions-0"
SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=200)
ONE_SEGMENT = LogConfig(index_interval_bytes=200)


def encoded(
    *values: bytes,
    base_offset: int,
    epoch: int = 1,
    timestamp_ms: int | None = None,
    commit: CommitName | None = None,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] | None = None,
) -> bytes:
    """Encode one batch; ``producer`` is id, epoch and base sequence."""
    headers = () if commit is None else (commit_header(commit),)
    records = [
        NewRecord(None, value, headers=headers if at == 0 else ())
        for at, value in enumerate(values)
    ]
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    batch = NewRecordBatch(
        records=tuple(records),
        base_timestamp_ms=1_000 + base_offset if timestamp_ms is None else timestamp_ms,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return encode_batch(batch, base_offset=base_offset, leader_epoch=epoch)


class WrittenLog:
    """One log, its disk and the process that writes it."""

    def __init__(
        self,
        config: LogConfig = SMALL,
        *,
        disk: SimulatedDisk | None = None,
        directory: str = DIRECTORY,
    ) -> None:
        self.config = config
        self.disk = SimulatedDisk() if disk is None else disk
        self.directory = directory
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.log = SingleVoterLog.create(
            self.disk, directory, config=config, topic_id=TOPIC_ID, now_ms=1_000
        )

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def segment(self, base_offset: int, suffix: str = ".log") -> str:
        return self.path(offset_name(base_offset, suffix))

    @property
    def active(self) -> str:
        """Return the path of the last segment."""
        names = self.disk.list_names(self.directory)
        return self.path([name for name in names if name.endswith(".log")][-1])

    def append(
        self,
        *values: bytes,
        commit: CommitName | None = None,
        compression: Compression = Compression.NONE,
        producer: tuple[int, int, int] | None = None,
        sync: bool = True,
    ) -> int:
        """Append one batch; return the log end offset."""
        batch = encoded(
            *values,
            base_offset=self.log.end_offset,
            epoch=self.log.epoch,
            commit=commit,
            compression=compression,
            producer=producer,
        )
        append_batches(self.log, batch)
        if sync:
            self.log.flush()
        return self.log.end_offset

    def fill(self, count: int, *, byte_count: int = 40) -> None:
        """Append this many batches of one record, each of them synced."""
        for _ in range(count):
            at = self.log.end_offset
            self.append(b"%d " % at + b"x" * byte_count)

    def recover(self) -> RecoveredLog:
        return recover(self.disk, self.directory, config=self.config)

    def reopen(self) -> None:
        """Open it in a new process."""
        self.log = SingleVoterLog.open(self.disk, self.directory, now_ms=2_000_000)

    def raw_append(self, path: str, data: bytes) -> None:
        """Append bytes to a file, durably, that no writer of raftlog would write."""
        with self.disk.open_for_writing(path) as file:
            file.write_at(file.byte_count(), data)
            file.sync()

    def names(self) -> list[str]:
        return self.disk.list_names(self.directory)
