"""The door for batch jobs that change a cluster's metadata: rows in, one transaction in a log.

Rules of this file:

1. The rows are checked against the state at the log's end, and appended as one batch that must
   begin there: what was checked is what is changed, or nothing is.
2. If a rival was first, the caller is told. ``attempts`` lets the rows be checked and appended
   again on top of what came in between: they mean the same then, or are refused.
3. A named commit that is in the log already is answered with its offsets, and not checked again:
   its own changes would refuse it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from raftlog import AppendResult, CommitName, EmbeddedLog, ValueKind
from raftlog.errors import (
    ChangesNotSupportedError,
    InvalidAppendError,
    OptionError,
    UnexpectedEndOffsetError,
    UnsupportedVersionError,
)

from .controller import TRANSACTION_NAME, ChangeRequest, ControllerResult, Random, plan_changes
from .image import MetadataImage
from .image_reader import ImageReader
from .records import Redactor


@runtime_checkable
class ArrowTable(Protocol):
    """A table, or a batch, of Arrow: each row a change."""

    def to_pylist(self) -> list[dict[str, Any]]: ...


@runtime_checkable
class Frame(Protocol):
    """A DataFrame of Spark: it is brought to the driver."""

    def toArrow(self) -> ArrowTable: ...  # noqa: N802 - Spark's name


Changes: TypeAlias = Frame | ArrowTable | Iterable[Mapping[str, Any] | ChangeRequest]


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """Where the changes are. ``record_count``: without markers; 0 if they changed nothing, or if
    the commit was there before (``result.was_duplicate``)."""

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
    """Make changes of a cluster's metadata, all or none, durable on return.

    Args:
        log: from ``raftlog.open(path, values="kraft")``.
        changes: one change a row, in order: the column ``change`` and those of its kind (see
            ``raftlog_state.controller``), as a DataFrame, an Arrow table, dicts or change objects.
        commit: a name, (application id, query id, version), under which a repeated call is
            answered with the offsets that it got; ``take_over_from`` as in ``EmbeddedLog.append``.
        transaction_name: what the metadata transaction is called in the log.
        attempts: how often the changes may be checked and appended if rivals are first.
        rng: where ids, salts and placement are drawn from; by default the system's.

    Raises:
        InvalidChangesError: rows are refused; it names each.
        UnexpectedEndOffsetError: a rival was first, in every attempt.
        InvalidAppendError: a metadata transaction is open at the log's end.
        RecordBatchTooLargeError: the records do not fit into one batch of this log.
        ChangesNotSupportedError: the log is that of a quorum, from ``raftlog.connect``.
        OptionError: the log does not hold metadata, or ``attempts`` is no number above 0.
        And what reading a log and ``EmbeddedLog.append`` raise. Nothing was written then.
    """
    if log.values is not ValueKind.KRAFT:
        reason = f"the log in {log.path} holds {log.values.value}, and changes go to one of kraft"
        raise OptionError(option="values", reason=reason)
    if not isinstance(log, EmbeddedLog):
        raise ChangesNotSupportedError(path=log.path)
    if attempts < 1:
        raise OptionError(option="attempts", reason="at least one is needed")
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
            reason="the log holds it and this release does not know it, so the state that changes "
            "would be checked against is not known; use a newer release",
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
