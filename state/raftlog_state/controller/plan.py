"""From an image and changes to the records that make them: all of them, or a list of refusals.

Rules of this file:

1. A change sees the ones before it. One that is refused leaves nothing, and the rest are checked
   all the same, so that one run shows what is wrong with a table.
2. The records stand between the markers of a metadata transaction where metadata.version has them
   (KIP-868). They hold for one place in the log: where the image ends.
3. Nothing here reads a clock or draws a number: rng is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftlog.errors import InvalidChangesError, RefusedChange
from raftlog_state.image import METADATA_VERSION, MetadataImage
from raftlog_state.record_versions import LEVEL_MAX, LEVEL_MIN, LEVEL_TRANSACTIONS
from raftlog_state.records import (
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    encode,
)

from .api_exception import INVALID_UPDATE_VERSION, UNSUPPORTED_VERSION, ApiException
from .change_requests import CHANGE_TYPES, ChangeRequest, SetFeature
from .columns import KIND, parse_change
from .dispatch import write
from .pending_state import PendingState, Random

TRANSACTION_NAME: Final = "raftlog changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult:
    """What to append to make changes.

    It holds only as one batch that begins at ``base_offset``, where the image ended.
    ``transaction_name``: of the markers around the records; None: they have none.
    """

    base_offset: int
    change_records: tuple[DecodedRecord, ...]
    transaction_name: str | None

    @property
    def records(self) -> tuple[DecodedRecord, ...]:
        """The records with their markers; none at all if the changes change nothing."""
        if not self.change_records or self.transaction_name is None:
            return self.change_records
        begin = DecodedRecord(0, BeginTransactionRecord(name=self.transaction_name))
        return (begin, *self.change_records, DecodedRecord(0, EndTransactionRecord()))

    def values(self) -> list[bytes]:
        """``records`` as the values of a ``kraft`` log."""
        return [encode(record) for record in self.records]


def plan_changes(
    image: MetadataImage,
    changes: Iterable[Mapping[str, Any] | ChangeRequest],
    *,
    rng: Random,
    transaction_name: str = TRANSACTION_NAME,
    is_named_commit: bool = False,
) -> ControllerResult:
    """The records that make ``changes``, rows or objects, on top of ``image``.

    ``rng``: ids, salts and placement are drawn from it; give ``random.SystemRandom()`` unless a
    run has to be repeated. ``is_named_commit``: the log writes the markers, naming the commit in
    them, and whether metadata.version has them does not matter.

    Raises ``InvalidChangesError`` with every row that is refused.
    """
    rows = list(changes)
    has_markers = is_named_commit or _has_transactions(image, rows)
    base_offset = image.offset + 1
    state = PendingState(image, first_offset=base_offset + has_markers, rng=rng)
    refused: list[RefusedChange] = []
    for number, row in enumerate(rows):
        try:
            _apply_change(row, state)
        except ApiException as exception:
            refused.append(_refused_change(number, row, exception))
    if refused:
        raise InvalidChangesError(refused=tuple(refused), row_count=len(rows))
    return ControllerResult(
        base_offset=base_offset,
        change_records=tuple(state.records),
        transaction_name=transaction_name if has_markers and not is_named_commit else None,
    )


def _apply_change(row: Mapping[str, Any] | ChangeRequest, state: PendingState) -> None:
    change = parse_change(row) if isinstance(row, Mapping) else row
    if type(change) not in CHANGE_TYPES.values():
        reason = f"it is {type(row).__name__}, neither columns by name nor a change"
        raise ApiException("the row", reason, "give each row as a dict, or a table of them")
    if state.metadata_version is None and not _sets_metadata_version(change):
        raise ApiException(
            "the log",
            f"it has no {METADATA_VERSION} yet, so nobody knows which records it may hold",
            f"begin with set_feature {METADATA_VERSION}",
            INVALID_UPDATE_VERSION,
        )
    if not LEVEL_MIN <= state.level <= LEVEL_MAX:
        raise ApiException(
            "the log",
            f"its {METADATA_VERSION} is {state.level}, and this release writes {LEVEL_MIN} to "
            f"{LEVEL_MAX}",
            "use a release that knows it",
            UNSUPPORTED_VERSION,
        )
    with state.atomic():
        write(change, state)


def _has_transactions(image: MetadataImage, rows: list[Mapping[str, Any] | ChangeRequest]) -> bool:
    """Whether the level before, or that of a new log's first row, has metadata transactions."""
    level = image.metadata_version
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
