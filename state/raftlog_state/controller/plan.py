"""Records for a table of changes on top of an image, or the list of all refused rows.

Each change is validated against the image and the changes before it. A refused change leaves no
records. The rows after it are also validated, so that one run reports all errors.

The records are valid only at the end offset of the image. They are between the markers of a
metadata transaction if metadata.version supports transactions (KIP-868).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raftlog_state.errors import InvalidChangesError, RefusedChange
from raftlog_state.image import METADATA_VERSION, MetadataImage
from raftlog_state.image.record_versions import LEVEL_MAX, LEVEL_MIN, LEVEL_TRANSACTIONS
from raftlog_state.records import (
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    encode,
)
from raftlog_state.steps import complete

from .api_exception import INVALID_UPDATE_VERSION, UNSUPPORTED_VERSION, ApiException
from .change_requests import CHANGE_TYPES, ChangeRequest, SetFeature
from .columns import KIND, parse_change
from .controller_state import ControllerState
from .pending_state import KRaftVersionAccessor, PendingState, Random, write_in_steps

TRANSACTION_NAME: Final = "raftlog changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult:
    """Records to append as one batch at ``base_offset``, the end offset of the image.

    ``transaction_name``: name in the begin marker; None: no markers.
    """

    base_offset: int
    change_records: tuple[DecodedRecord, ...]
    transaction_name: str | None

    @property
    def records(self) -> tuple[DecodedRecord, ...]:
        """Records with transaction markers; empty if the changes change nothing."""
        if not self.change_records or self.transaction_name is None:
            return self.change_records
        begin = DecodedRecord(0, BeginTransactionRecord(name=self.transaction_name))
        return (begin, *self.change_records, DecodedRecord(0, EndTransactionRecord()))

    def values(self) -> list[bytes]:
        """Return ``records`` encoded as values of a ``kraft`` log."""
        return [encode(record) for record in self.records]


def plan_changes(
    image: MetadataImage,
    changes: Iterable[Mapping[str, Any] | ChangeRequest],
    *,
    rng: Random,
) -> ControllerResult:
    """Return the records for ``changes``, rows or objects, on top of ``image``.

    Args:
        rng: source of ids, salts and replica placement; ``random.SystemRandom()`` unless the run
            must be reproducible.

    Raises:
        InvalidChangesError: rows are refused; each is listed.
    """
    return plan_changes_of_state(
        ControllerState.from_image(image),
        changes,
        base_offset=image.offset + 1,
        leader_epoch=image.leader_epoch,
        rng=rng,
    )


def plan_changes_of_state(
    state: ControllerState,
    changes: Iterable[Mapping[str, Any] | ChangeRequest],
    *,
    base_offset: int,
    leader_epoch: int,
    rng: Random,
    transaction_name: str = TRANSACTION_NAME,
    is_named_commit: bool = False,
    quorum: KRaftVersionAccessor | None = None,
) -> ControllerResult:
    """Return the records for ``changes`` on top of a state, which the caller must then revert.

    ``base_offset``: the end offset of the state. ``is_named_commit``: the log writes the markers,
    with the name of the commit, whatever the metadata.version. ``quorum``: None if kraft.version
    cannot be changed. The rest is as in ``plan_changes``.
    """
    rows = list(changes)
    has_markers = is_named_commit or _has_transactions(state.metadata_version, rows)
    pending = PendingState(
        state,
        first_offset=base_offset + has_markers,
        leader_epoch=leader_epoch,
        rng=rng,
        quorum=quorum,
    )
    write_changes(rows, pending)
    return ControllerResult(
        base_offset=base_offset,
        change_records=tuple(pending.records),
        transaction_name=transaction_name if has_markers and not is_named_commit else None,
    )


def write_changes(rows: Sequence[Mapping[str, Any] | ChangeRequest], state: PendingState) -> None:
    """Write the records of all rows. Raises ``InvalidChangesError``, which lists each refused row.

    The caller must then revert the records of the other rows.
    """
    refused: list[RefusedChange] = []
    for number, row in enumerate(rows):
        try:
            write_change(row, state)
        except ApiException as exception:
            refused.append(_refused_change(number, row, exception))
    if refused:
        raise InvalidChangesError(refused=tuple(refused), row_count=len(rows))


def write_change(row: Mapping[str, Any] | ChangeRequest, state: PendingState) -> None:
    """Write the records of one row. Raises ``ApiException`` without having written any record."""
    complete(write_change_in_steps(row, state))


def write_change_in_steps(
    row: Mapping[str, Any] | ChangeRequest, state: PendingState
) -> Generator[None, None, None]:
    """Write the records of one row in steps. Raises ``ApiException`` without any record written."""
    change = parse_change(row) if isinstance(row, Mapping) else row
    if type(change) not in CHANGE_TYPES.values():
        reason = f"it is of type {type(row).__name__}, neither a mapping nor a change object"
        raise ApiException("the row", reason, "pass each row as a dict of columns")
    if state.current.metadata_version is None and not _sets_metadata_version(change):
        raise ApiException(
            "the log",
            f"it has no {METADATA_VERSION} yet",
            f"set feature {METADATA_VERSION} first",
            INVALID_UPDATE_VERSION,
        )
    check_metadata_version(state.current)
    with state.atomic():
        yield from write_in_steps(change, state) or ()


def check_metadata_version(state: ControllerState) -> None:
    """Raise ``ApiException`` if this release does not support the metadata.version of a state."""
    if not LEVEL_MIN <= state.level <= LEVEL_MAX:
        raise ApiException(
            "the log",
            f"its {METADATA_VERSION} {state.level} is not supported: this release supports "
            f"{LEVEL_MIN} to {LEVEL_MAX}",
            "use a release that supports it",
            UNSUPPORTED_VERSION,
        )


def _has_transactions(level: int | None, rows: list[Mapping[str, Any] | ChangeRequest]) -> bool:
    """Return whether metadata.version supports metadata transactions.

    The metadata.version is ``level``, or otherwise the first row's.
    """
    if level is None and rows:
        first = rows[0]
        if isinstance(first, Mapping):
            try:
                first = parse_change(first)
            except ApiException:
                return False
        if isinstance(first, SetFeature) and _sets_metadata_version(first):
            level = first.level
    return level is not None and level >= LEVEL_TRANSACTIONS


def _sets_metadata_version(change: ChangeRequest) -> bool:
    return isinstance(change, SetFeature) and change.feature == METADATA_VERSION


def _refused_change(
    number: int, row: Mapping[str, Any] | ChangeRequest, exception: ApiException
) -> RefusedChange:
    kind = row.get(KIND) if isinstance(row, Mapping) else getattr(row, "KIND", None)
    return RefusedChange(
        row=number,
        change=kind if isinstance(kind, str) and kind.lower() in CHANGE_TYPES else "?",
        what=exception.what,
        reason=exception.reason,
        remedy=exception.remedy,
        kafka_code=exception.kafka_code,
    )
