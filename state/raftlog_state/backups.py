"""Backup of a log to a directory or an object store, and restore.

The manifest of a store is a log of ``__remote_log_metadata`` records, which ``raftlog cat``,
``raftlog state STORE/manifest remote_segments`` and kafka-dump-log read.
"""

from __future__ import annotations

import os

from raftlog.client import LogKind
from raftlog.client.backup import (
    BackupReport,
    EpochEntry,
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RestoredLog,
    back_up_directory,
    restore_directory,
)
from raftlog.types import TopicPartition

from .errors import MetadataParseError
from .records.internal_logs import REMOTE_LOG_RECORDS
from .records.schema_remote import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
)

__all__ = ["BackupReport", "ManifestSerde", "RestoredLog", "backup", "restore"]


def backup(
    path: str | os.PathLike[str], uri: str | os.PathLike[str], *, kind: LogKind | None = None
) -> BackupReport:
    """Back up the log in a directory, Kafka's or raftlog's; only what is new is uploaded.

    Args:
        path: directory of a log, or log directory of a node. It may be written meanwhile.
        uri: where the backups of this log are: a directory, or a URI of S3 (``s3://``), Google
            Cloud Storage (``gs://``) or Azure (``abfs://``) as of ``pyarrow.fs``.
        kind: kind of the log's records; None: it is detected.

    Raises:
        NotALogError: ``path`` is not a directory of a log, or the log is empty.
        UnknownRecordKindError: ``kind`` cannot be detected.
        OptionError: ``uri`` is in the directory of the log or its node, or cannot be opened.
        WrongBackupError: another log has its backups there.
        CorruptBatchError, CorruptFileError: what would be uploaded is damaged.
        RemoteStorageError: a request to the store failed. The next backup continues.
        CorruptRemoteObjectError: the manifest of the store is damaged.
    """
    return back_up_directory(path, uri, ManifestSerde(), kind=kind)


def restore(
    uri: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    to_offset: int | None = None,
) -> RestoredLog:
    """Write a log's directory from its last backup, or as it was at an offset.

    Args:
        uri: as of ``backup``.
        directory: a new directory, in an existing one. It is complete or absent.
        to_offset: only batches that end below this offset are restored.

    Raises:
        OptionError: ``directory`` exists, or the ``.part`` of an interrupted restore.
        BackupNotFoundError: there is no complete backup, or none with the records up to the offset.
        RemoteObjectNotFoundError, CorruptRemoteObjectError: an object is missing or damaged.
        RemoteStorageError: a request to the store failed.
    """
    return restore_directory(uri, directory, ManifestSerde(), to_offset=to_offset)


class ManifestSerde:
    """Records of ``__remote_log_metadata`` as events of a manifest."""

    def encode(self, event: ManifestEvent) -> bytes:
        partition = event.topic_partition
        segment_id = RemoteLogSegmentId(
            topic_id_partition=TopicIdPartition(
                name=partition.topic, id=event.topic_id, partition=partition.partition
            ),
            id=event.segment_id,
        )
        if isinstance(event, RemoteLogSegmentMetadataUpdate):
            update = RemoteLogSegmentMetadataUpdateRecord(
                remote_log_segment_id=segment_id,
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=int(event.state),
            )
            return REMOTE_LOG_RECORDS.encode(update)
        record = RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=segment_id,
            start_offset=event.first_offset,
            end_offset=event.last_offset,
            broker_id=event.broker_id,
            max_timestamp_ms=event.max_timestamp_ms,
            event_timestamp_ms=event.event_timestamp_ms,
            segment_leader_epochs=tuple(
                SegmentLeaderEpoch(leader_epoch=one.epoch, offset=one.start_offset)
                for one in event.leader_epochs
            ),
            segment_size_in_bytes=event.byte_count,
            custom_metadata=event.custom_metadata,
            remote_log_segment_state=int(event.state),
        )
        return REMOTE_LOG_RECORDS.encode(record)

    def decode(self, value: bytes) -> ManifestEvent | None:
        """Return the event; None for a deletion of a partition and for records of other types."""
        record = REMOTE_LOG_RECORDS.decode(value).record
        if not isinstance(
            record, (RemoteLogSegmentMetadataRecord, RemoteLogSegmentMetadataUpdateRecord)
        ):
            return None
        try:
            state = RemoteLogSegmentState(record.remote_log_segment_state)
        except ValueError:
            reason = f"its state is {record.remote_log_segment_state}"
            raise MetadataParseError(
                record=record.schema.name, version=0, position=0, reason=reason
            ) from None
        segment_id = record.remote_log_segment_id
        partition = segment_id.topic_id_partition
        topic_partition = TopicPartition(partition.name, partition.partition)
        if isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
            return RemoteLogSegmentMetadataUpdate(
                segment_id=segment_id.id,
                topic_partition=topic_partition,
                topic_id=partition.id,
                broker_id=record.broker_id,
                event_timestamp_ms=record.event_timestamp_ms,
                state=state,
                custom_metadata=record.custom_metadata,
            )
        return RemoteLogSegmentMetadata(
            segment_id=segment_id.id,
            topic_partition=topic_partition,
            topic_id=partition.id,
            first_offset=record.start_offset,
            last_offset=record.end_offset,
            broker_id=record.broker_id,
            max_timestamp_ms=record.max_timestamp_ms,
            event_timestamp_ms=record.event_timestamp_ms,
            leader_epochs=tuple(
                EpochEntry(epoch=one.leader_epoch, start_offset=one.offset)
                for one in record.segment_leader_epochs
            ),
            byte_count=record.segment_size_in_bytes,
            state=state,
            custom_metadata=record.custom_metadata,
        )
