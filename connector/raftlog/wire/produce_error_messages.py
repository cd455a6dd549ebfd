"""Outcome of an append as text in the error_message field of a Produce response; both directions.

The text is a sentence, a space, and the same facts as JSON without spaces:
``[RAFTLOG_NOT_LEADER] Append failed because ... {"current_epoch":5,"epoch":4}``. The word in
brackets is the code of an error of ``raftlog.errors``, or ``RAFTLOG_APPENDED``.

1. Stock clients use Kafka's error code, which is retriable if and only if the append may be
   retried. raftlog's client distinguishes errors with the same code by the text.
2. A path is reduced to its last name, so that a client does not learn a node's directories.
3. Text that does not match is ignored, and Kafka's error code decides; so are unknown facts, which
   a later release may add.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from raftlog import errors
from raftlog.errors import NotLeaderError, RaftlogError
from raftlog.limits import STRING_BYTES_MAX

NOT_LEADER_OR_FOLLOWER: Final = 6
NOT_ENOUGH_REPLICAS: Final = 19
"""Retriable in every client, and means that nothing was appended."""
FENCED_LEADER_EPOCH: Final = 74
PRODUCER_FENCED: Final = 90
UNKNOWN_SERVER_ERROR: Final = -1
_CODES: Final[dict[type[RaftlogError], int]] = {
    errors.BufferAllocationError: NOT_ENOUGH_REPLICAS,
    errors.LogLockedError: NOT_ENOUGH_REPLICAS,
    errors.LogClosedError: NOT_LEADER_OR_FOLLOWER,
    errors.StaleCommitError: PRODUCER_FENCED,
    errors.ForeignCommitError: PRODUCER_FENCED,
}
_KINDS: Final[dict[str, type[RaftlogError]]] = {
    kind.code: kind
    for kind in (
        errors.AppendUnknownError,
        errors.BufferAllocationError,
        errors.DiskFullError,
        errors.ForeignCommitError,
        errors.FutureEpochError,
        errors.InvalidAppendError,
        errors.InvalidProducerEpochError,
        errors.InvalidTimestampError,
        errors.LogClosedError,
        errors.LogLockedError,
        errors.LogReadOnlyError,
        errors.NotLeaderError,
        errors.OutOfOrderSequenceError,
        errors.RecordBatchTooLargeError,
        errors.StaleCommitError,
        errors.UnexpectedEndOffsetError,
    )
}
_APPENDED: Final = "RAFTLOG_APPENDED"
_NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Appended:
    """Facts of a successful append for which a Produce response has no fields.

    ``epoch`` is that of the records, ``last_offset`` the offset of the last one. With
    ``was_duplicate`` both are those of the earlier append or commit.
    """

    epoch: int
    was_duplicate: bool
    last_offset: int


# --- node: encode ---------------------------------------------------------------------------------


def produce_error_code(error: RaftlogError) -> int:
    """Return Kafka's error code for an append that failed, or whose outcome is unknown."""
    if isinstance(error, NotLeaderError) and error.epoch < error.current_epoch:
        return FENCED_LEADER_EPOCH  # this node is the leader, in a later epoch than the writer's
    code = _CODES.get(type(error), error.kafka_code)
    return UNKNOWN_SERVER_ERROR if code is None else code


def produce_error_message(error: RaftlogError) -> str:
    """Return the error_message text; without facts for errors that are not about an append."""
    facts = {field.name: getattr(error, field.name) for field in _fields(type(error))}
    if isinstance(facts.get("path"), str):
        facts["path"] = re.split(r"[/\\]", facts["path"].rstrip("/\\"))[-1]
        error = type(error)(**facts)
    return _with_facts(str(error), facts) if type(error) in _KINDS.values() else str(error)


def appended_message(appended: Appended) -> str:
    """Return the error_message text of a successful append."""
    is_known = appended.was_duplicate
    what, known = ("Already appended", "true") if is_known else ("Appended", "false")
    # On the hot path of every append: the JSON is formatted by hand.
    return (
        f'[{_APPENDED}] {what} {{"epoch":{appended.epoch},"last_offset":{appended.last_offset},'
        f'"was_duplicate":{known}}}'
    )


def _with_facts(sentence: str, facts: dict[str, Any]) -> str:
    plain = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    encoded = plain.replace(" ", "\\u0020")  # spaces occur inside strings only
    room = STRING_BYTES_MAX - len(encoded) - 1
    shortened = sentence.encode(errors="replace")[: max(room, 0)].decode(errors="ignore")
    return f"{shortened} {encoded}" if room > 0 else sentence[:STRING_BYTES_MAX]


# --- client: decode -------------------------------------------------------------------------------


def parse_error_message(text: str | None) -> RaftlogError | None:
    """Return the error of a ``produce_error_message`` text; None for any other text."""
    found = _parsed(text)
    kind = None if found is None else _KINDS.get(found[0])
    if found is None or kind is None:
        return None
    values = found[1]
    facts: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in _fields(kind):
        if field.name in values:
            if not _fits(values[field.name], hints[field.name]):
                return None
            facts[field.name] = values[field.name]
        elif field.default is dataclasses.MISSING:
            return None
    return kind(**facts)


def parse_appended_message(text: str | None) -> Appended | None:
    """Return the facts of an ``appended_message`` text; None for any other text."""
    match _parsed(text):
        case (
            code,
            {"epoch": epoch, "was_duplicate": bool(was_duplicate), "last_offset": last_offset},
        ) if code == _APPENDED and _fits(epoch, int) and _fits(last_offset, int):
            return Appended(epoch, was_duplicate, last_offset)
        case _:
            return None


def _parsed(text: str | None) -> tuple[str, dict[str, Any]] | None:
    """Return the code in brackets and the facts; None if the text does not have this form."""
    if text is None:
        return None
    head, _, facts = text.rpartition(" ")
    code = re.match(r"\[(RAFTLOG_[A-Z_]+)\]", head)
    if code is None:
        return None
    try:
        values = json.loads(facts)
    except (ValueError, RecursionError):
        return None
    return (code[1], values) if isinstance(values, dict) else None


def _fits(value: object, hint: Any) -> bool:
    """Return whether a fact has its field's type, and a number fits 64 bits."""
    if not isinstance(value, hint):
        return False
    if isinstance(value, bool):
        return hint is bool
    return not isinstance(value, int) or abs(value) <= _NUMBER_MAX


def _fields(kind: type[RaftlogError]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)
