"""The check of a whole log: its files, its segments, its checkpoints, its replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from raftlog.client import LogKind, LogReader, SourceKind, open_path
from raftlog.client.inspection import (
    DirectoryLog,
    LogFiles,
    QuorumCopies,
    ReadableFile,
    embedded_checkpoints,
)
from raftlog.errors import (
    CorruptBatchError,
    CorruptSnapshotError,
    SegmentDeletedError,
    UnknownRecordKindError,
)
from raftlog.limits import DECOMPRESSED_BYTES_MAX, SEGMENT_BYTES_MAX
from raftlog.records.columns import Column

from .aborted import unindexed_aborts
from .copies import divergences
from .files import epochs_path, index_checks, read_epochs, small_files
from .findings import Finding, Kind, damage, note, of_error
from .history import HistoryCheck
from .replay_check import ReplayCheck
from .segments import SegmentCheck

OnProgress = Callable[[int, int], None]

_STEPS = 1000


class LogCheck:
    """A check of what lies at a path: one log, or several voters' copies of one.

    ``on_progress`` is called with steps done and steps in all. Counts are there once ``run`` has
    been consumed.
    """

    def __init__(
        self,
        path: str,
        on_progress: OnProgress,
        *,
        kind: LogKind | None = None,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        log = _open_log(path, kind, decompressed_bytes_max)
        self._voters: QuorumCopies | None = None
        if isinstance(log, QuorumCopies):
            self._voters, self._copies = log, log.logs
        else:
            assert isinstance(log, DirectoryLog), "the client opens no other logs"
            self._copies = (log,)
        self._on_progress = on_progress
        self._checks: list[_CopyCheck] = []

    def run(self) -> Iterator[Finding]:
        """Read everything; give each finding as it is made.

        Raises ``LogAccessError`` where the file system refuses to let us look.
        """
        for ordinal, log in enumerate(self._copies):
            check = _CopyCheck(log, self._part(ordinal))
            self._checks.append(check)
            yield from check.run()
        if self._voters is not None:
            yield from divergences(self._voters)

    def summary(self) -> dict[str, int]:
        """What was read."""
        return {
            "segments": sum(check.segment_count for check in self._checks),
            "batches": sum(check.batch_count for check in self._checks),
            "records": sum(check.record_count for check in self._checks),
            "checkpoints": sum(check.snapshot_count for check in self._checks),
            "checkpoints_compared": sum(check.compared_count for check in self._checks),
            "start_offset": min(check.start_offset for check in self._checks),
            "end_offset": max(check.end_offset for check in self._checks),
        }

    def summary_text(self) -> str:
        """The same in words."""
        facts = self.summary()
        words = ", ".join(_counted(facts, name) for name in ("segment", "batch", "record"))
        words += f", offsets from {facts['start_offset']} to {facts['end_offset']} (exclusive)"
        if facts["checkpoints"]:
            compared = facts["checkpoints_compared"]
            words += (
                f"; {_counted(facts, 'checkpoint')}, {compared} compared with a replay of the log"
            )
        return words

    def _part(self, ordinal: int) -> OnProgress:
        count = len(self._copies)
        return lambda done, whole: self._on_progress(ordinal * whole + done, count * whole)


def _open_log(path: str, kind: LogKind | None, decompressed_bytes_max: int) -> LogReader:
    """The log; one of unknown records as an ordinary partition: no value of it is shown here."""
    try:
        return open_path(path, kind=kind, decompressed_bytes_max=decompressed_bytes_max)
    except UnknownRecordKindError:
        return open_path(
            path, kind=LogKind.PARTITION, decompressed_bytes_max=decompressed_bytes_max
        )


def _oversized_segment(file: ReadableFile) -> Iterator[Finding]:
    """A file that is longer than any segment: positions in an index are 32-bit."""
    byte_count = file.byte_count()
    if byte_count > SEGMENT_BYTES_MAX:
        reason = (
            f"it has {byte_count} bytes, and a segment at most {SEGMENT_BYTES_MAX}: no batch is "
            "looked for after them"
        )
        yield damage(Kind.BATCH, file.path, reason, position=SEGMENT_BYTES_MAX)


def _counted(facts: dict[str, int], name: str) -> str:
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    count = facts[plural]
    return f"{count} {name if count == 1 else plural}"


class _CopyCheck:
    """The check of one copy of a log."""

    def __init__(self, log: DirectoryLog, on_progress: OnProgress) -> None:
        self._log = log
        self._files: LogFiles = log.files
        self._on_progress = on_progress
        self._is_metadata = log.kind is LogKind.METADATA
        self._is_contiguous = self._is_metadata or self._files.listing.is_embedded
        self.segment_count = self.batch_count = self.record_count = 0
        self.snapshot_count = self.compared_count = 0
        self.start_offset = log.log_start_offset
        self.end_offset = self.start_offset

    def run(self) -> Iterator[Finding]:
        durable_offset = 0
        if self._log.source is SourceKind.DIRECTORY:
            durable_offset, anomalies = embedded_checkpoints(self._files)
            reported = {one.path for one in anomalies}
            for one in anomalies:
                yield damage(Kind.FILE, one.path, one.reason, position=one.position)
            yield from (one for one in small_files(self._files) if one.path not in reported)
        if self._log.source is not SourceKind.CHECKPOINT:
            yield from self._segments()
            if self.end_offset < durable_offset:
                lost = f"offsets {self.end_offset} to {durable_offset - 1}, which were synced once,"
                yield damage(Kind.GAP, self._files.path, f"{lost} are gone", offset=self.end_offset)
        if self._is_metadata:
            yield from self._check_log_start()
            yield from self._replay()
        else:
            yield from self._check_snapshots()
            if self._log.source is not SourceKind.CHECKPOINT:
                yield from unindexed_aborts(self._log)

    def _segments(self) -> Iterator[Finding]:
        files = self._files
        history = HistoryCheck(
            contiguous=self._is_contiguous,
            epochs_path=epochs_path(files),
            read_epochs=lambda: read_epochs(files),
        )
        segments = self._files.listing.segments
        for ordinal, base_offset in enumerate(segments):
            yield from self._segment(ordinal, base_offset, history)
        if self._log.source is SourceKind.DIRECTORY:
            yield from history.finish()
        self.end_offset = max(self.end_offset, history.next_offset or 0)

    def _segment(self, ordinal: int, base_offset: int, history: HistoryCheck) -> Iterator[Finding]:
        following = self._files.segment_after(base_offset)
        step = _STEPS / (2 * len(self._files.listing.segments))
        path = self._files.segment_path(base_offset)
        try:
            with self._files.open(path) as file:
                yield from _oversized_segment(file)
                check = SegmentCheck(
                    file=file,
                    base_offset=base_offset,
                    next_base_offset=following,
                    is_contiguous=self._is_contiguous,
                    history=history,
                    indexes=index_checks(self._files, base_offset),
                    decompressed_bytes_max=self._files.decompressed_bytes_max,
                    on_progress=lambda share: self._on_progress(
                        int((ordinal + share) * step), _STEPS
                    ),
                )
                yield from check.run()
        except SegmentDeletedError:
            yield note(Kind.BATCH, path, "its node deleted it meanwhile", offset=base_offset)
            history.skip(following or 0)
            return
        self.segment_count += 1
        self.batch_count += check.batch_count
        self.record_count += check.record_count

    def _check_log_start(self) -> Iterator[Finding]:
        """What came before the first segment must be in a checkpoint."""
        start = self.start_offset
        if self._log.source is not SourceKind.DIRECTORY or start == 0:
            return
        if any(snapshot_id.end_offset >= start for snapshot_id in self._log.snapshots):
            return
        yield damage(
            Kind.GAP,
            self._log.path,
            f"the log begins at offset {start}, and no checkpoint holds what came before",
            offset=start,
        )

    def _check_snapshots(self) -> Iterator[Finding]:
        """Checkpoints of records that only their owner can replay: are they whole?"""
        self.snapshot_count = len(self._log.snapshots)
        for snapshot_id in self._log.snapshots:
            snapshot = self._log.read_snapshot(snapshot_id)
            try:
                for _ in snapshot.scan(columns=Column.NONE):
                    pass
            except CorruptSnapshotError as error:
                yield of_error(error, snapshot.path)
            except SegmentDeletedError:
                yield note(Kind.SNAPSHOT, snapshot.path, "its node deleted it meanwhile")

    def _replay(self) -> Iterator[Finding]:
        self.snapshot_count = len(self._log.snapshots)
        try:
            end_offset = self._log.log_end_offset
        except CorruptBatchError:
            return  # nothing in it is a batch: that was told
        check = ReplayCheck(
            self._log,
            self.start_offset,
            end_offset,
            lambda done, whole: self._on_progress(
                _STEPS // 2 + _STEPS * done // (2 * max(whole, 1)), _STEPS
            ),
        )
        yield from check.run()
        self.compared_count = check.compared_count
