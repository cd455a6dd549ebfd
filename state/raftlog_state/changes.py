"""Changes of a cluster's metadata from a batch job: rows in, one metadata transaction in a log.

The rows are validated against the state at the log's end offset and appended as one batch with
that offset as its required base offset. If another writer appended in between, the append fails
with ``UnexpectedEndOffsetError``; up to ``attempts`` times the rows are validated and appended
again at the new end.

A named commit that is already in the log returns its offsets without validation, which its own
changes would fail ("topic already exists").
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from raftlog import AppendResult, CommitName, EmbeddedLog, ValueKind
from raftlog.errors import InvalidAppendError, OptionError, UnexpectedEndOffsetError
from raftlog_state.errors import ChangesNotSupportedError, UnsupportedVersionError

from .controller import TRANSACTION_NAME, ChangeRequest, ControllerResult, Random, plan_changes
from .image import MetadataImage
from .loader.image_reader import ImageReader
from .records import Redactor


@runtime_checkable
class ArrowTable(Protocol):
    """Arrow table or record batch: each row is a change."""

    def to_pylist(self) -> list[dict[str, Any]]: ...


@runtime_checkable
class Frame(Protocol):
    """Spark DataFrame; it is collected to the driver."""

    def toArrow(self) -> ArrowTable: ...  # noqa: N802 - Spark's name


Changes: TypeAlias = Frame | ArrowTable | Iterable[Mapping[str, Any] | ChangeRequest]


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """Offsets of the changes in the log. ``record_count`` excludes transaction markers; it is 0 if
    nothing changed or the commit is a duplicate (``result.was_duplicate``)."""

    result: AppendResult
    record_count: int


def apply_changes(
    log: EmbeddedLog,
    changes: Changes,
    *,
    commit: CommitName | tuple[str, str, int] | None = None,
    take_over_from: str | None = None,
    transaction_name: str = TRANSACTION_NAME,
    attempts: int = 1,
    rng: Random | None = None,
    timeout_ms: int = 30_000,
) -> AppliedChanges:
    """Apply changes of a cluster's metadata atomically; they are durable on return.

    Args:
        log: from ``raftlog.open(path, values="kraft")``.
        changes: one change a row, in order: the column ``change`` and those of its kind (see
            ``raftlog_state.controller``), as a DataFrame, an Arrow table, dicts or change objects.
        commit: (application id, query id, version); a repeated call with the same name returns the
            offsets of the first; ``take_over_from`` as in ``EmbeddedLog.append``.
        transaction_name: name of the metadata transaction in its begin marker.
        attempts: how often the changes are validated and appended if other writers append too.
        rng: source of ids, salts and replica placement; default: ``random.SystemRandom()``.

    Raises:
        InvalidChangesError: rows are refused; each is listed.
        UnexpectedEndOffsetError: in every attempt another writer appended first.
        InvalidAppendError: a metadata transaction is open at the log's end.
        RecordBatchTooLargeError: the records do not fit into one batch of this log.
        ChangesNotSupportedError: the log is that of a quorum, from ``raftlog.connect``.
        OptionError: the log does not hold metadata records, or ``attempts`` is below 1.
        Also the errors of reading a log and of ``EmbeddedLog.append``. Nothing was written.
    """
    if log.values is not ValueKind.KRAFT:
        reason = f'the log {log.path} has values="{log.values.value}"; changes need values="kraft"'
        raise OptionError(option="values", reason=reason)
    if not isinstance(log, EmbeddedLog):
        raise ChangesNotSupportedError(path=log.path)
    if attempts < 1:
        raise OptionError(option="attempts", reason="it must be at least 1")
    rows = _rows(changes)
    if commit is not None:
        probe = log.append((), commit=commit, take_over_from=take_over_from, timeout_ms=timeout_ms)
        if probe.was_duplicate:
            return AppliedChanges(probe, 0)
    images = ImageReader(log.path, Redactor(reveal=True))
    while True:
        image = _image_at_end(images)
        plan = plan_changes(
            image,
            rows,
            rng=random.SystemRandom() if rng is None else rng,
            transaction_name=transaction_name,
            is_named_commit=commit is not None,
        )
        attempts -= 1
        try:
            return _append(log, plan, commit, take_over_from, timeout_ms)
        except UnexpectedEndOffsetError:
            if attempts == 0:
                raise
        images.refresh()


def _rows(changes: Changes) -> list[Mapping[str, Any] | ChangeRequest]:
    table = changes.toArrow() if isinstance(changes, Frame) else changes
    return list(table.to_pylist() if isinstance(table, ArrowTable) else table)


def _image_at_end(images: ImageReader) -> MetadataImage:
    image = images.image_at(images.log_end_offset)
    if images.open_transaction_offset is not None:
        raise InvalidAppendError(
            reason=f"the metadata transaction that begins at offset "
            f"{images.open_transaction_offset} is open; end it, or claim the log, which aborts it"
        )
    if images.skipped:
        unknown = images.skipped[0]
        raise UnsupportedVersionError(
            record=f"record type {unknown.type_id}",
            version=unknown.version,
            reason="the log contains it and this release does not support it, so the state to "
            "validate changes against is unknown; use a newer release",
        )
    return image


def _append(
    log: EmbeddedLog,
    plan: ControllerResult,
    commit: CommitName | tuple[str, str, int] | None,
    take_over_from: str | None,
    timeout_ms: int,
) -> AppliedChanges:
    result = log.append(
        plan.values(),
        required_base_offset=plan.base_offset,
        atomic=True,
        commit=commit if plan.change_records else None,
        take_over_from=take_over_from if plan.change_records else None,
        timeout_ms=timeout_ms,
    )
    return AppliedChanges(result, 0 if result.was_duplicate else len(plan.change_records))
