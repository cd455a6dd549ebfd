"""What Kafka's producer snapshot has no place for, as bytes behind its entries.

Rules of this file:

1. Layout: ``raftlog`` and a version byte (1), int64 log time, then three arrays and tagged fields,
   all as in Kafka's flexible messages: the batches of each producer in the order of the entries but
   its last one, which the entry itself tells; the last commits; the open metadata transaction, if
   there is one. Kafka reads past all this, since its CRC covers it.
2. Bytes that do not begin with ``raftlog`` are nobody's: no trailer. One of ours that does not
   parse, or that is of another version, is ``CorruptFileError``.
3. All of it fits into one batch, since a checkpoint carries it in the header's record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptBatchError, CorruptFileError, OptionError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    COMMIT_ID_BYTES_MAX,
    COMMITS_MAX,
    PRODUCER_BATCHES_KEPT,
    PRODUCERS_MAX,
)
from raftlog.records.fields import FieldReader, array_bytes, string_bytes, tagged_bytes

from .batch_metadata import CommitName
from .commits import LastCommit
from .producers import ProducerBatch

_MAGIC: Final = b"raftlog"
_VERSION: Final = 1
_BATCH: Final = struct.Struct(
    ">"
    "i"  # last_sequence
    "q"  # last_offset
    "i"  # offset_delta
)
_COMMIT: Final = struct.Struct(
    ">"
    "q"  # version
    "q"  # base_offset
    "q"  # last_offset
    "q"  # timestamp_ms
)
_TRANSACTION: Final = struct.Struct(
    ">"
    "q"  # first_offset
    "q"  # batch_base_offset
)
_COMMIT_BYTES_MAX: Final = _COMMIT.size + 2 * (COMMIT_ID_BYTES_MAX + 2)
_PRODUCER_BYTES_MAX: Final = 46 + 1 + (PRODUCER_BATCHES_KEPT - 1) * _BATCH.size
assert COMMITS_MAX * _COMMIT_BYTES_MAX + PRODUCERS_MAX * _PRODUCER_BYTES_MAX < BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A metadata transaction that has begun.

    ``batch_base_offset`` is the last batch boundary that is outside every transaction: where the
    batch begins that begins it, or earlier if that batch begins inside another one.
    """

    first_offset: int
    batch_base_offset: int
    name: str | None


@dataclass(frozen=True, slots=True)
class ProducerStateTrailer:
    """``older_batches``: one tuple for each producer of the snapshot, oldest first."""

    log_time_ms: int
    older_batches: tuple[tuple[ProducerBatch, ...], ...]
    commits: tuple[LastCommit, ...]
    open_transaction: OpenTransaction | None


def encode_trailer(trailer: ProducerStateTrailer) -> bytes:
    """The bytes behind the entries of a producer snapshot."""
    opened = trailer.open_transaction
    return b"".join(
        (
            _MAGIC,
            bytes((_VERSION,)),
            struct.pack(">q", trailer.log_time_ms),
            array_bytes(tuple(map(_batches_bytes, trailer.older_batches))),
            array_bytes(tuple(map(_commit_bytes, trailer.commits))),
            array_bytes(() if opened is None else (_transaction_bytes(opened),)),
            tagged_bytes(()),
        )
    )


def parse_trailer(data: bytes, path: str, producer_count: int) -> ProducerStateTrailer | None:
    """Read what lies behind ``producer_count`` entries; None if it is none of ours.

    Raises ``CorruptFileError``.
    """
    if not data.startswith(_MAGIC):
        return None
    version = data[len(_MAGIC) : len(_MAGIC) + 1]
    if version != bytes((_VERSION,)):
        raise CorruptFileError(
            path=path, reason=f"its trailer has version 0x{version.hex()}, not {_VERSION}"
        )
    reader = FieldReader(data[len(_MAGIC) + 1 :])
    try:
        log_time_ms = reader.int64()
        older_batches = reader.array(_read_batches)
        commits = reader.array(_read_commit)
        opened = reader.array(_read_transaction)
        reader.tagged_fields()
    except CorruptBatchError as error:
        raise CorruptFileError(path=path, reason=f"its trailer: {error.reason}") from None
    except OptionError as error:
        reason = f"its trailer: a commit's {error.option}: {error.reason}"
        raise CorruptFileError(path=path, reason=reason) from None
    if len(older_batches) != producer_count or len(opened) > 1:
        raise CorruptFileError(
            path=path,
            reason=f"its trailer tells of {len(older_batches)} producers, not {producer_count}, "
            f"and of {len(opened)} open transactions",
        )
    return ProducerStateTrailer(log_time_ms, older_batches, commits, opened[0] if opened else None)


def _batches_bytes(batches: Iterable[ProducerBatch]) -> bytes:
    return array_bytes(
        tuple(
            _BATCH.pack(batch.last_sequence, batch.last_offset, batch.offset_delta)
            for batch in batches
        )
    )


def _commit_bytes(commit: LastCommit) -> bytes:
    name = commit.name
    return (
        string_bytes(name.application_id)
        + string_bytes(name.query_id)
        + _COMMIT.pack(name.version, commit.base_offset, commit.last_offset, commit.timestamp_ms)
    )


def _transaction_bytes(opened: OpenTransaction) -> bytes:
    name = () if opened.name is None else (string_bytes(opened.name),)
    return _TRANSACTION.pack(opened.first_offset, opened.batch_base_offset) + array_bytes(name)


def _read_batches(reader: FieldReader) -> tuple[ProducerBatch, ...]:
    return reader.array(
        lambda fields: ProducerBatch(fields.int32(), fields.int64(), fields.int32())
    )


def _read_commit(reader: FieldReader) -> LastCommit:
    application_id, query_id = reader.string(), reader.string()
    name = CommitName(application_id, query_id, reader.int64())
    return LastCommit(name, reader.int64(), reader.int64(), reader.int64())


def _read_transaction(reader: FieldReader) -> OpenTransaction:
    first_offset, batch_base_offset = reader.int64(), reader.int64()
    name = reader.array(lambda fields: fields.string())
    return OpenTransaction(first_offset, batch_base_offset, name[0] if name else None)
