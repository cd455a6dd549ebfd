"""What became of an append, in the one place of an answer to Produce that holds text; both ways.

The text is what a person reads, a space, and the same facts as JSON without spaces:
``[RAFTLOG_NOT_LEADER] Append failed because ... {"current_epoch":5,"epoch":4}``. The word in
brackets is the code of an error of ``raftlog.errors``, or ``RAFTLOG_APPENDED``.

Rules of this file:

1. Stock clients go by Kafka's code, so it is one that they treat rightly: what may be tried again
   is retriable there, what may not is not. Ours tells apart by the text what shares a code.
2. No path of a node leaves it: of a path the last name is told.
3. Whoever reads believes nothing: text that is not as ours is no refusal of ours, and is left to
   Kafka's code. Facts that a later release adds are passed over.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from raftlog.errors import (
    AppendUnknownError,
    BufferAllocationError,
    DiskFullError,
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    LogClosedError,
    LogLockedError,
    LogReadOnlyError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordBatchTooLargeError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import STRING_BYTES_MAX

NOT_LEADER_OR_FOLLOWER: Final = 6
NOT_ENOUGH_REPLICAS: Final = 19
"""Retriable in every client, and understood as "nothing was appended"."""
FENCED_LEADER_EPOCH: Final = 74
PRODUCER_FENCED: Final = 90
UNKNOWN_SERVER_ERROR: Final = -1
_CODES: Final[dict[type[RaftlogError], int]] = {
    BufferAllocationError: NOT_ENOUGH_REPLICAS,
    LogLockedError: NOT_ENOUGH_REPLICAS,
    LogClosedError: NOT_LEADER_OR_FOLLOWER,
    StaleCommitError: PRODUCER_FENCED,
    ForeignCommitError: PRODUCER_FENCED,
}
_KINDS: Final[dict[str, type[RaftlogError]]] = {
    kind.code: kind
    for kind in (
        AppendUnknownError,
        BufferAllocationError,
        DiskFullError,
        ForeignCommitError,
        FutureEpochError,
        InvalidAppendError,
        InvalidProducerEpochError,
        InvalidTimestampError,
        LogClosedError,
        LogLockedError,
        LogReadOnlyError,
        NotLeaderError,
        OutOfOrderSequenceError,
        RecordBatchTooLargeError,
        StaleCommitError,
        UnexpectedEndOffsetError,
    )
}
_APPENDED: Final = "RAFTLOG_APPENDED"
_NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Appended:
    """What an answer without an error cannot say elsewhere: the epoch of the records, whether the
    log had them already, and the offset of the last of them: of a commit that is named again, that
    of the one which was appended then."""

    epoch: int
    was_duplicate: bool
    last_offset: int


# --- a node writes --------------------------------------------------------------------------------


def produce_error_code(error: RaftlogError) -> int:
    """Kafka's code for an append that was refused, or whose outcome is not known."""
    if isinstance(error, NotLeaderError) and error.epoch < error.current_epoch:
        return FENCED_LEADER_EPOCH  # this node does lead: the writer's epoch is over
    code = _CODES.get(type(error), error.kafka_code)
    return UNKNOWN_SERVER_ERROR if code is None else code


def produce_error_message(error: RaftlogError) -> str:
    """The text beside that code. Of an error that is not of an append, without facts."""
    facts = {field.name: getattr(error, field.name) for field in _fields(type(error))}
    if isinstance(facts.get("path"), str):
        facts["path"] = re.split(r"[/\\]", facts["path"].rstrip("/\\"))[-1]
        error = type(error)(**facts)
    return _with_facts(str(error), facts) if type(error) in _KINDS.values() else str(error)


def appended_message(appended: Appended) -> str:
    """The text of an answer to an append that is done."""
    what, known = (
        ("The log had this already", "true")
        if appended.was_duplicate
        else (
            "Appended",
            "false",
        )
    )
    # Every append is answered so: the JSON of three facts is written by hand.
    return (
        f'[{_APPENDED}] {what} {{"epoch":{appended.epoch},"last_offset":{appended.last_offset},'
        f'"was_duplicate":{known}}}'
    )


def _with_facts(sentence: str, facts: dict[str, Any]) -> str:
    plain = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    encoded = plain.replace(" ", "\\u0020")  # spaces stand inside strings only
    room = STRING_BYTES_MAX - len(encoded) - 1
    shortened = sentence.encode(errors="replace")[: max(room, 0)].decode(errors="ignore")
    return f"{shortened} {encoded}" if room > 0 else sentence[:STRING_BYTES_MAX]


# --- a client reads -------------------------------------------------------------------------------


def parse_error_message(text: str | None) -> RaftlogError | None:
    """The error that ``produce_error_message`` was given; None if the text is not from there."""
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
    """What ``appended_message`` was given; None if the text is not from there."""
    match _parsed(text):
        case (
            code,
            {"epoch": epoch, "was_duplicate": bool(was_duplicate), "last_offset": last_offset},
        ) if code == _APPENDED and _fits(epoch, int) and _fits(last_offset, int):
            return Appended(epoch, was_duplicate, last_offset)
        case _:
            return None


def _parsed(text: str | None) -> tuple[str, dict[str, Any]] | None:
    """The code in brackets, and the facts."""
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
    """Whether a fact is of its field's type, and a number of 64 bits."""
    if not isinstance(value, hint):
        return False
    if isinstance(value, bool):
        return hint is bool
    return not isinstance(value, int) or abs(value) <= _NUMBER_MAX


def _fields(kind: type[RaftlogError]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)
