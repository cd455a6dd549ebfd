"""Check of a whole log: metadata files, segments, snapshots and replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from raftlog.client import LogKind, LogReader, SourceKind, open_path
from raftlog.client.inspection import (
    DirectoryLog,
    LogFiles,
    QuorumCopies,
    ReadableFile,
    embedded_checkpoints,
    files_of_others,
    find_foreign_batches,
)
from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    LogGapError,
    SegmentDeletedError,
    UnknownRecordKindError,
)
from raftlog.limits import DECOMPRESSED_BYTES_MAX, SEGMENT_BYTES_MAX
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import Column
from raftlog_state.image import MetadataImage

from .copies import divergences
from .files import epochs_path, index_checks, read_epochs, small_files
from .findings import Finding, Kind, damage, note, of_error
from .replay_check import ReplayCheck
from .segments import HistoryCheck, SegmentCheck, unindexed_aborts

OnProgress = Callable[[int, int], None]

_STEPS = 1000


class LogCheck:
    """Check of the log at a path, or of several voters' replicas of one log.

    ``on_progress`` is called with the number of completed steps and of all steps. The summary is
    complete once ``run`` has been consumed. ``copies`` are the replicas of ``log``, or ``log``
    itself.
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
        self.log: Final = log
        self._voters: QuorumCopies | None = None
        if isinstance(log, QuorumCopies):
            self._voters, self.copies = log, log.logs
        else:
            assert isinstance(log, DirectoryLog), "a path is a directory or several"
            self.copies = (log,)
        self._on_progress = on_progress
        self._checks: list[_CopyCheck] = []
        self._replicas_compared = 0

    def run(self) -> Iterator[Finding]:
        """Read everything and yield the findings.

        Raises ``LogAccessError`` if a file cannot be read.
        """
        for ordinal, log in enumerate(self.copies):
            check = _CopyCheck(log, self._part(ordinal))
            self._checks.append(check)
            yield from check.run()
        if self._voters is not None:
            self._replicas_compared = yield from divergences(self._voters)

    def image(self) -> MetadataImage | None:
        """Return the state at the end of a metadata log, as replayed.

        None if the replay has failed, which is a finding. For several replicas, it is the state at
        the committed end.
        """
        (check,) = self._checks if len(self._checks) == 1 else (None,)
        return None if check is None else check.image()

    def summary(self) -> dict[str, int]:
        """Return counts of what was read."""
        return {
            "segments": sum(check.segment_count for check in self._checks),
            "batches": sum(check.batch_count for check in self._checks),
            "records": sum(check.record_count for check in self._checks),
            "checkpoints": sum(check.snapshot_count for check in self._checks),
            "checkpoints_compared": sum(check.compared_count for check in self._checks),
            "replicas_compared": self._replicas_compared,
            "start_offset": min(check.start_offset for check in self._checks),
            "end_offset": max(check.end_offset for check in self._checks),
        }

    def summary_text(self) -> str:
        """Return the summary as text."""
        facts = self.summary()
        text = ", ".join(_counted(facts, name) for name in ("segment", "batch", "record"))
        text += f", offsets from {facts['start_offset']} to {facts['end_offset']} (exclusive)"
        count = facts["checkpoints"]
        if count:
            compared = facts["checkpoints_compared"]
            text += (
                f"; {count} snapshot{'' if count == 1 else 's'}, {compared} compared with a replay "
                "of the log"
            )
        if self._replicas_compared:
            text += f"; {self._replicas_compared} replicas compared with each other"
        return text

    def _part(self, ordinal: int) -> OnProgress:
        count = len(self.copies)
        return lambda done, whole: self._on_progress(ordinal * whole + done, count * whole)


def _open_log(path: str, kind: LogKind | None, decompressed_bytes_max: int) -> LogReader:
    """Open a log, as a partition if its kind is unknown, because a check prints no values."""
    try:
        return open_path(path, kind=kind, decompressed_bytes_max=decompressed_bytes_max)
    except UnknownRecordKindError:
        return open_path(
            path, kind=LogKind.PARTITION, decompressed_bytes_max=decompressed_bytes_max
        )


def _oversized_segment(file: ReadableFile) -> Iterator[Finding]:
    """Report a file that exceeds the size limit of segments, because index positions are 32-bit."""
    byte_count = file.byte_count()
    if byte_count > SEGMENT_BYTES_MAX:
        reason = (
            f"the file has {byte_count} bytes, a segment at most {SEGMENT_BYTES_MAX}: the rest is "
            "not checked"
        )
        yield damage(Kind.BATCH, file.path, reason, position=SEGMENT_BYTES_MAX)


def _counted(facts: dict[str, int], name: str) -> str:
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    count = facts[plural]
    return f"{count} {name if count == 1 else plural}"


class _CopyCheck:
    """Check of one replica of a log."""

    def __init__(self, log: DirectoryLog, on_progress: OnProgress) -> None:
        self._log = log
        self._files: LogFiles = log.files
        self._on_progress = on_progress
        self._is_metadata = log.kind is LogKind.METADATA
        self._is_contiguous = self._is_metadata or self._files.listing.is_embedded
        self.segment_count = self.batch_count = self.record_count = 0
        self.snapshot_count = self.compared_count = 0
        self._replay_check: ReplayCheck | None = None
        self.start_offset = log.log_start_offset
        self.end_offset = self.start_offset

    def image(self) -> MetadataImage | None:
        return None if self._replay_check is None else self._replay_check.image()

    def run(self) -> Iterator[Finding]:
        durable_offset = 0
        if self._log.source is SourceKind.DIRECTORY:
            yield from self._permissions()
            durable_offset, anomalies = embedded_checkpoints(self._files)
            reported = {anomaly.path for anomaly in anomalies}
            for anomaly in anomalies:
                yield damage(Kind.FILE, anomaly.path, anomaly.reason, position=anomaly.position)
            yield from (
                finding for finding in small_files(self._files) if finding.path not in reported
            )
        if self._log.source is not SourceKind.CHECKPOINT:
            yield from self._segments()
            if self.end_offset < durable_offset:
                lost = f"offsets {self.end_offset} to {durable_offset - 1} were synced and are lost"
                yield damage(Kind.GAP, self._files.path, lost, offset=self.end_offset)
        if self._log.source is SourceKind.DIRECTORY and self._files.listing.is_embedded:
            yield from self._foreign_batches()
        if self._is_metadata:
            yield from self._check_log_start()
            yield from self._replay()
        else:
            yield from self._check_snapshots()
            if self._log.source is not SourceKind.CHECKPOINT:
                yield from unindexed_aborts(self._log)

    def _permissions(self) -> Iterator[Finding]:
        """Report metadata in a log of raftlog that other users may read. Kafka's is Kafka's."""
        if not self._is_metadata or not self._log.is_raftlog:
            return
        paths = files_of_others(self._files)
        if paths:
            reason = (
                f"other users may read {len(paths)} of its files, and cluster metadata contains "
                f"credentials; run chmod -R o-rwx {self._files.directory}"
            )
            yield note(Kind.PERMISSIONS, self._files.directory, reason)

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
            yield note(Kind.BATCH, path, "deleted by its node during the check", offset=base_offset)
            history.skip(following or 0)
            return
        self.segment_count += 1
        self.batch_count += check.batch_count
        self.record_count += check.record_count

    def _foreign_batches(self) -> Iterator[Finding]:
        """Report batches in the log of a quorum's node that the quorum did not write."""
        files, log = self._files, self._log
        try:
            epochs = log.epochs
            start_offset = log.log_start_offset  # from the listing with which the epochs were read
            state = log.quorum_state  # read after the batches, because the node may be running
        except (CorruptBatchError, CorruptFileError):
            return  # the check of segments and files reports it
        except SegmentDeletedError:
            return  # deleted by its running node, which has checked the log at its start
        if state is None:
            return
        names = files.storage.list_names(files.directory)
        found = find_foreign_batches(names, state, epochs, start_offset, self._batch_at)
        if found is not None:
            reason = f"another process changed the log of this node: {found.reason}"
            yield damage(Kind.FOREIGN, files.path, reason, offset=found.offset)

    def _batch_at(self, offset: int) -> RecordBatch | None:
        if not self.start_offset <= offset < self.end_offset:
            return None
        try:
            return next(self._log.batches(offset, offset + 1), None)
        except (CorruptBatchError, LogGapError, SegmentDeletedError):
            return None

    def _check_log_start(self) -> Iterator[Finding]:
        """Report a log that begins after offset 0 without a snapshot of the deleted records."""
        start = self.start_offset
        if self._log.source is not SourceKind.DIRECTORY or start == 0:
            return
        if any(snapshot_id.end_offset >= start for snapshot_id in self._log.snapshots):
            return
        yield damage(
            Kind.GAP,
            self._log.path,
            f"the log start offset is {start}, and no snapshot contains the records before it",
            offset=start,
        )

    def _check_snapshots(self) -> Iterator[Finding]:
        """Check that snapshots are complete, without replaying them."""
        self.snapshot_count = len(self._log.snapshots)
        for snapshot_id in self._log.snapshots:
            snapshot = self._log.read_snapshot(snapshot_id)
            try:
                for _ in snapshot.scan(columns=Column.NONE):
                    pass
            except CorruptSnapshotError as error:
                yield of_error(error, snapshot.path)
            except SegmentDeletedError:
                yield note(Kind.SNAPSHOT, snapshot.path, "deleted by its node during the check")

    def _replay(self) -> Iterator[Finding]:
        self.snapshot_count = len(self._log.snapshots)
        try:
            end_offset = self._log.log_end_offset
        except CorruptBatchError:
            return  # a log without any batch; the check of its segments reports it
        check = ReplayCheck(
            self._log,
            self.start_offset,
            end_offset,
            lambda done, whole: self._on_progress(
                _STEPS // 2 + _STEPS * done // (2 * max(whole, 1)), _STEPS
            ),
        )
        yield from check.run()
        self.compared_count, self._replay_check = check.compared_count, check
