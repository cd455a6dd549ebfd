"""Intended appends, independent of the log's end at the time that they are run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import count

from hypothesis import strategies as st
from tests.log.machine.model import Model

from raftlog.append import AppendRequest
from raftlog.log.reading.transactions import CommitName
from raftlog.records.builder import ProducerStamp

DEADLINE_MS = 1_000_000
APPLICATIONS = ("orders", "users")
PRODUCER_IDS = (7, 8)


class Kind(Enum):
    """Kind of append."""

    PLAIN = auto()
    ATOMIC = auto()
    RIGHT_BASE = auto()
    RIGHT_END = auto()
    WRONG_BASE = auto()
    WRONG_END = auto()
    ONLY_CHECK = auto()
    RIGHT_EPOCH = auto()
    OLD_EPOCH = auto()
    FUTURE_EPOCH = auto()
    NEXT_COMMIT = auto()
    SAME_COMMIT = auto()
    SAME_COMMIT_OLD_OFFSET = auto()
    OLDER_COMMIT = auto()
    FOREIGN_COMMIT = auto()
    TAKE_OVER = auto()
    NEXT_SEQUENCE = auto()
    SAME_SEQUENCE = auto()
    SEQUENCE_GAP = auto()
    OLD_PRODUCER_EPOCH = auto()
    NEW_PRODUCER_EPOCH = auto()


@dataclass(frozen=True, slots=True)
class Intent:
    """Intended append. ``which`` of two applications or producers; ``back``: an earlier batch."""

    kind: Kind
    record_count: int
    record_bytes: int
    which: int
    back: int


INTENTS = st.builds(
    Intent,
    kind=st.sampled_from(Kind),
    record_count=st.integers(1, 3),
    record_bytes=st.sampled_from((0, 20, 150, 400)),
    which=st.integers(0, 1),
    back=st.integers(1, 6),
)


class Callers:
    """Builder of requests from intents and the log's end. Every value is used once."""

    def __init__(self) -> None:
        self._numbers = count()

    def request(self, intent: Intent, log: Model) -> AppendRequest:
        request = AppendRequest(records=self._records(intent), deadline_ms=DEADLINE_MS)
        name = intent.kind.name
        if "COMMIT" in name or intent.kind is Kind.TAKE_OVER:
            self._name(request, intent, log)
        elif "SEQUENCE" in name or "PRODUCER" in name:
            self._stamp(request, intent, log)
        elif "EPOCH" in name:
            delta = {Kind.RIGHT_EPOCH: 0, Kind.OLD_EPOCH: -1, Kind.FUTURE_EPOCH: 1}[intent.kind]
            request.epoch = log.epoch + delta
        else:
            self._required_offset(request, intent, log)
        request.check()
        return request

    def _records(self, intent: Intent) -> tuple[bytes, ...]:
        padding = b"x" * intent.record_bytes
        return tuple(b"%d " % next(self._numbers) + padding for _ in range(intent.record_count))

    def _required_offset(self, request: AppendRequest, intent: Intent, log: Model) -> None:
        end_offset = log.end_offset
        match intent.kind:
            case Kind.ATOMIC:
                request.is_atomic = True
            case Kind.RIGHT_BASE:
                request.required_base_offset = end_offset
            case Kind.RIGHT_END:
                request.required_end_offset = end_offset + intent.record_count - 1
            case Kind.WRONG_BASE:
                request.required_base_offset = max(0, end_offset - intent.back)
            case Kind.WRONG_END:
                request.required_end_offset = end_offset + intent.record_count + intent.back
            case Kind.ONLY_CHECK:
                request.records = ()
                request.required_base_offset = end_offset + intent.which

    def _name(self, request: AppendRequest, intent: Intent, log: Model) -> None:
        application_id = APPLICATIONS[intent.which]
        found = log.commits.get(application_id)
        last = CommitName(application_id, "query 0", 5) if found is None else found[0]
        query_id, version = last.query_id, last.version
        match intent.kind:
            case Kind.NEXT_COMMIT:
                version += intent.back
            case Kind.SAME_COMMIT_OLD_OFFSET:
                request.required_base_offset = log.end_offset if found is None else found[1]
            case Kind.OLDER_COMMIT:
                version = max(0, version - intent.back)
            case Kind.FOREIGN_COMMIT:
                query_id += "'"
            case Kind.TAKE_OVER:
                query_id, version = f"query {log.end_offset}", 0
                request.take_over_from = last.query_id if intent.back > 1 else "somebody"
        request.commit = CommitName(application_id, query_id, version)

    def _stamp(self, request: AppendRequest, intent: Intent, log: Model) -> None:
        producer_id = PRODUCER_IDS[intent.which]
        epoch, batches = log.producers.get(producer_id, (1, ()))
        sequence = batches[-1].base_sequence + batches[-1].count if batches else 0
        match intent.kind:
            case Kind.SAME_SEQUENCE if batches:
                batch = batches[-min(intent.back, len(batches))]
                sequence = batch.base_sequence
                request.records = (request.records[0],) * batch.count
            case Kind.SEQUENCE_GAP:
                sequence += intent.back
            case Kind.OLD_PRODUCER_EPOCH:
                epoch -= 1
            case Kind.NEW_PRODUCER_EPOCH:
                epoch, sequence = epoch + 1, 0
        request.producer = ProducerStamp(producer_id, epoch, sequence)
