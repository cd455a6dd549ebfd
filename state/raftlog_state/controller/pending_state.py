"""Records of an operation, replayed into the state as they are written.

A record is replayed when it is written, at the offset that it will have, so that the next change is
validated against it (Kafka: ``QuorumController``). A refused change is reverted completely.

An operation that may write many records runs in steps: it is a generator that yields where
``PendingState.pause`` does. Nothing else is written to the state between its steps.

Random values are drawn from the caller's ``rng`` in the order of the changes: equal states, changes
and seeds produce equal records.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from raftlog_state.image import BrokerRow
from raftlog_state.records import DecodedRecord, MetadataRecord
from raftlog_state.replay import Position
from raftlog_state.steps import Steps, complete

from .api_exception import INVALID_UPDATE_VERSION, ApiException
from .change_requests import ChangeRequest
from .controller_state import ControllerState

T = TypeVar("T")

WORK_PER_STEP: Final = 500
"""Records, and parts of an operation, that are written in one step, which takes some 10 ms."""


class Random(Protocol):
    """Source of random ids and placement: ``random.Random`` or ``random.SystemRandom``."""

    def randbytes(self, n: int, /) -> bytes: ...

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, x: list[Any], /) -> None: ...


class KRaftVersionAccessor(Protocol):
    """kraft.version of the quorum, which is not in metadata records."""

    @property
    def kraft_version(self) -> int:
        """The latest version, which may be uncommitted."""
        ...

    def upgrade_kraft_version(self, version: int, *, validate_only: bool) -> int | None:
        """Append the control records of a version; return the offset of the next record.

        None: they are appended later, before all other records of the operation. Raises
        ``ApiException``.
        """
        ...


class BoundedListTooLongError(Exception):
    """An operation with too many records; internal to the controller."""


class _NotWrittenError(Exception):
    """End of an operation whose records are only validated."""


class PendingState:
    """Records of one operation. ``records``: records to append, without markers.

    ``current`` is the state after them, and ``first_offset`` the offset that the first record will
    have. ``record_count_max`` limits the number of records; None: no limit. ``batch_record_count``:
    number of records after each of which the state can be committed alone, because they are one
    batch; None: all together. ``quorum`` is None if only metadata records can be written.
    """

    def __init__(
        self,
        state: ControllerState,
        *,
        first_offset: int,
        leader_epoch: int,
        rng: Random,
        record_count_max: int | None = None,
        batch_record_count: int | None = None,
        quorum: KRaftVersionAccessor | None = None,
    ) -> None:
        self.records: list[DecodedRecord] = []
        self.unapplied: MetadataRecord | None = None
        """The record that is being replayed, or whose replay failed."""
        self.rng = rng
        self.current = state
        self._first_offset = first_offset
        self.leader_epoch = leader_epoch
        self._record_count_max = record_count_max
        self._batch_record_count = batch_record_count
        self._quorum = quorum
        self._is_validating = False
        self._work = 0
        """Records and parts of the operation since its last pause."""

    @property
    def next_offset(self) -> int:
        """Offset that the next record will have."""
        return self._first_offset + len(self.records)

    def write(self, record: MetadataRecord, version: int | None = None) -> None:
        """Replay and append a record, by default in the version of metadata.version."""
        complete(self.write_in_steps(record, version))

    def write_in_steps(
        self, record: MetadataRecord, version: int | None = None
    ) -> Generator[None, None, None]:
        """Replay and append a record, as ``write``, that may change many rows."""
        if len(self.records) == self._record_count_max:
            raise BoundedListTooLongError
        self._work += 1
        offset = self.next_offset
        if version is None:
            version = self.current.versions.of(type(record))
        self.unapplied = record
        at = Position(offset, offset, self.leader_epoch, -1)
        yield from self.current.replay_in_steps(record, at)
        self.unapplied = None
        self.records.append(DecodedRecord(version, record))
        if self._batch_record_count and not len(self.records) % self._batch_record_count:
            self.current.registry.get_or_create_snapshot(offset)

    def pause(self) -> Iterator[None]:
        """Yield once if the current step has done its work. Call this after each part."""
        self._work += 1
        if self._work >= WORK_PER_STEP:
            yield
            self._work = 0

    @property
    def kraft_version(self) -> int:
        """The latest kraft.version of the quorum, 0 without one."""
        return 0 if self._quorum is None else self._quorum.kraft_version

    def upgrade_kraft_version(self, version: int) -> None:
        """Raise the quorum's kraft.version.

        Its control records precede the operation's records. They are appended immediately, and not
        reverted. Raises ``ApiException``.
        """
        if self._quorum is None:
            raise ApiException(
                "feature 'kraft.version'",
                "it is in control records, which only the leader of a quorum can write",
                "apply it to the running quorum, or use `raftlog quorum --kraft-version` or "
                "kafka-features upgrade --bootstrap-controller",
                INVALID_UPDATE_VERSION,
            )
        next_offset = self._quorum.upgrade_kraft_version(version, validate_only=self._is_validating)
        if next_offset is not None and not self._is_validating:
            assert not self.records, "control records precede the others"
            self._first_offset = next_offset

    def random_uuid(self) -> str:
        """Return a random uuid as Kafka's: version 4, not reserved, no leading dash in its text.

        Source: Kafka ``Uuid.randomUuid``, ``DirectoryId.reserved``.
        """
        while True:
            raw = bytearray(self.rng.randbytes(16))
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            text = base64.urlsafe_b64encode(raw).decode("ascii")[:22]
            if not text.startswith("-"):
                return text

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Revert the records written inside if an exception is raised."""
        count, offset = len(self.records), self.next_offset - 1
        registry = self.current.registry
        is_new = not registry.has_snapshot(offset)
        registry.get_or_create_snapshot(offset)
        try:
            yield
        except BaseException:
            registry.revert_to_snapshot(offset)
            del self.records[count:]
            raise
        finally:
            if is_new:
                registry.delete_snapshot(offset)

    def attempt(self, part: Callable[[], object]) -> ApiException | None:
        """Run a part of an operation; if it is refused, revert its records and return the error."""
        try:
            with self.atomic():
                part()
        except ApiException as refused:
            return refused
        return None

    def attempt_each(
        self, parts: Iterable[Callable[[], object]]
    ) -> Generator[None, None, list[ApiException | None]]:
        """Attempt the parts of an operation in steps; return the error of each one."""
        refused = []
        for part in parts:
            refused.append(self.attempt(part))
            yield from self.pause()
        return refused

    def validate_only(self, operation: Operation[T]) -> T:
        """Return the response of an operation, and revert its records."""
        return complete(self.validate_only_in_steps(in_one_step(operation)))

    def validate_only_in_steps(self, operation: OperationInSteps[T]) -> Generator[None, None, T]:
        """Return the response of an operation, and revert its records.

        Kafka: ``ControllerResult.withoutRecords``.
        """
        found: list[T] = []
        was_validating, self._is_validating = self._is_validating, True
        try:
            with self.atomic():
                found.append((yield from operation(self)))
                raise _NotWrittenError
        except _NotWrittenError:
            return found[0]
        finally:
            self._is_validating = was_validating


Operation: TypeAlias = Callable[[PendingState], T]
"""Writes the records of an operation, and returns its response. Raises ``ApiException``."""

OperationInSteps: TypeAlias = Callable[[PendingState], Generator[None, None, T]]
"""Operation whose records are written in steps."""


@functools.singledispatch
def write_in_steps(change: ChangeRequest, state: PendingState) -> Steps:
    """Validate a change against ``state`` and write its records; return the steps that are left.

    Raises ``ApiException``, after which the caller must undo the records written so far
    (``PendingState.atomic``).
    """
    raise AssertionError(f"no function handles {type(change).__name__}")


def in_one_step(operation: Operation[T]) -> OperationInSteps[T]:
    """Return an operation without steps as an operation with a single step."""

    def steps(state: PendingState) -> Generator[None, None, T]:
        yield from ()
        response = operation(state)
        assert not isinstance(response, Generator), "the operation has steps"
        return response

    return steps


def unregistered_brokers(ids: Sequence[int], state: PendingState) -> list[int]:
    """Return the ids that are not those of registered brokers."""
    return [one for one in ids if state.current.find(BrokerRow, one) is None]
