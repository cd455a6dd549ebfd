"""``QuorumController``: the state machine of a metadata quorum, active on its leader.

It does no I/O. A driver calls it with commits, snapshots and leader changes of the log, with
writes, and with the time. The controller calls ``RaftClient``, and returns the results of writes.

    write   generate records from the state, replay each at the offset that it will have
            register an in-memory snapshot at the last one
            append them as one batch (or several), which must begin there
            wait until the log commits them, then complete

Large writes are generated in steps, between other events of the thread: commits of earlier writes,
and leader changes, which end the write. Later writes wait meanwhile, in order, and are also
executed between other events.

A write that is refused leaves no trace. If the log refuses it, another leader may have written: the
controller renounces its leadership and reverts to the last stable offset. It does the same if the
log has a part of a write that is not atomic.

Invariants:

1. The controller is active only after it has replayed the whole log: the next write offset is the
   log's end offset. It first aborts a transaction that an earlier leader left open.
2. A write is completed when the last stable offset is at or after its last record.
3. After a renunciation, the state equals a replay of the stable log. The waiting writes fail,
   although the log may still commit them. In that case, they are replayed like writes of other
   nodes.
4. Bookkeeping precedes calls of the log, which may deliver commits and leader changes before they
   return.
5. Between the steps of a write, its records are in the current state, after the newest in-memory
   snapshot. That snapshot is not deleted, so the state can revert to it at any time.

Source: Kafka ``QuorumController``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from raftlog.errors import (
    InvalidUpdateVersionError,
    RaftlogError,
    StateMachineError,
    UnexpectedEndOffsetError,
)
from raftlog.records import RecordBatch
from raftlog_state.errors import ControllerError, ControllerTimeoutError
from raftlog_state.image import METADATA_VERSION, MetadataImage, Row
from raftlog_state.image.record_versions import LEVEL_TRANSACTIONS
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    encode,
)
from raftlog_state.steps import Steps, begin, for_each_in_steps

from .api_exception import INVALID_UPDATE_VERSION, UNSUPPORTED_VERSION, ApiException
from .controller_state import ControllerState
from .deferred_events import DeferredEventQueue, Write
from .exception_info import (
    EventHandlerExceptionInfo,
    RejectedExecutionError,
    not_controller_error,
)
from .offset_control import OffsetControl, RecordNotAppliedError, Snapshot
from .pending_state import Operation, OperationInSteps, PendingState, Random, in_one_step
from .plan import check_metadata_version

T = TypeVar("T")
R = TypeVar("R", bound=Row)

RECORDS_PER_OPERATION_MAX: Final = 10_000
"""Kafka: ``MAX_RECORDS_PER_USER_OP``."""

NO_DEADLINE: Final = 2**63 - 1


class RaftClient(Protocol):
    """The log, as ``raftlog.node.raft_client`` offers it to a state machine."""

    @property
    def node_id(self) -> int: ...

    def append(
        self, epoch: int, records: Sequence[bytes], *, required_base_offset: int | None = None
    ) -> int: ...

    @property
    def kraft_version(self) -> int: ...

    def upgrade_kraft_version(
        self, epoch: int, version: int, *, required_base_offset: int, validate_only: bool
    ) -> int: ...

    def resign(self, epoch: int) -> None: ...


class LeaderAndEpoch(Protocol):
    """Leader of an epoch; ``leader_id`` is None if it is unknown.

    ``end_offset``: of this node's log; if this node leads, the base offset of its next append.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def leader_id(self) -> int | None: ...

    @property
    def end_offset(self) -> int: ...


class ControllerListener(Protocol):
    """Receiver of a controller's messages and faults."""

    def log(self, message: str) -> None: ...

    def handle_fault(self, message: str, error: Exception) -> None:
        """Handle an error that should not occur; the controller continues as a standby."""

    def handle_fatal_fault(self, message: str, error: Exception) -> None:
        """Handle an error after which the controller does not continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerMetrics:
    """Figures of one controller; the counts are since its creation.

    ``last_applied_record_lag_ms``: age of the last record that a standby has applied, 0 on the
    active controller. ``new_active_controllers_count``: elections of any node that this node has
    learned of. Kafka: ``QuorumControllerMetrics``.
    """

    is_active: bool
    last_applied_record_offset: int
    last_committed_record_offset: int
    last_applied_record_timestamp_ms: int
    last_applied_record_lag_ms: int
    operations_started_count: int
    operations_timed_out_count: int
    operations_waiting_count: int
    new_active_controllers_count: int
    fault_count: int


@dataclass(slots=True, eq=False)
class _WriteEvent(Generic[T]):
    """Write with the steps that generate and append its records."""

    write: Write[T]
    steps: Generator[None, None, None]


class QuorumController:
    """Controller of one node. Not thread-safe; use it on the thread that drives the log.

    Args:
        rng: source of ids and replica placement.
        time_us: monotonic clock, for deadlines and durations.
        records_per_batch_max: records in one batch of a transaction.
        schedule: calls its argument later, on the thread that drives the log, to run the next step
            of a write. None: writes are generated in one step.
    """

    def __init__(
        self,
        log: RaftClient,
        *,
        rng: Random,
        time_us: Callable[[], int],
        listener: ControllerListener,
        records_per_batch_max: int = RECORDS_PER_OPERATION_MAX,
        schedule: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._log: Final = log
        self._rng: Final = rng
        self._time_us: Final = time_us
        self._listener: Final = listener
        self._records_per_batch_max: Final = records_per_batch_max
        self._schedule: Final = schedule
        self._offsets: Final = OffsetControl()
        self._deferred: Final = DeferredEventQueue()
        self._queue: Final[deque[_WriteEvent[Any]]] = deque()
        """Writes that have not started, in order."""
        self._current: _WriteEvent[Any] | None = None
        """The write that is being generated."""
        self._is_in_step = self._is_scheduled = False
        self._epoch = 0
        self._leader_id: int | None = None
        self._claim_epoch: int | None = None
        """Epoch in which this controller is active, None on a standby."""
        self._claim_end_offset: int | None = None
        """End offset of the log that this node leads, until the controller has replayed it."""
        self._is_stopping = self._is_replaying = False
        self._fatal_fault: StateMachineError | None = None
        self._started_count = self._timed_out_count = self._election_count = self._fault_count = 0

    # --- state ------------------------------------------------------------------------------------

    @property
    def active_epoch(self) -> int | None:
        """The epoch in which this controller is active, None on a standby."""
        return self._claim_epoch

    @property
    def state(self) -> ControllerState:
        """The current state.

        On the active controller, it includes uncommitted writes and the steps of the current write.
        """
        return self._offsets.state

    @property
    def is_replaying(self) -> bool:
        """Whether the current state has a part of a batch; if so, read the last stable state.

        This remains so if the replay of the batch fails or is closed.
        """
        return self._is_replaying

    @property
    def is_stopped(self) -> bool:
        """Whether the controller is shutting down or has failed: it handles no more events."""
        return self._is_stopping or self._fatal_fault is not None

    @property
    def kraft_version(self) -> int:
        """The latest kraft.version of the quorum, which may be uncommitted."""
        return self._log.kraft_version

    @property
    def is_log_empty(self) -> bool:
        """Whether no metadata record is committed."""
        return self._offsets.is_empty

    @property
    def last_stable_offset(self) -> int:
        """Offset of the last committed record outside an open transaction, -1 without one."""
        return self._offsets.last_stable.offset

    def committed_rows_of(self, kind: type[R]) -> list[R]:
        """Return all rows of a type at the last stable offset, sorted by key."""
        return self._offsets.state.rows_at(kind, self.last_stable_offset)

    def image(self) -> MetadataImage:
        """Return the committed state, at the last stable offset.

        Takes time linear in the number of rows. Raises ``StateMachineError`` after a fatal fault.
        """
        self._check_not_failed()
        return self._offsets.image()

    def metrics(self, now_ms: int) -> ControllerMetrics:
        """Return the figures at a wall-clock time."""
        offsets, is_active = self._offsets, self._claim_epoch is not None
        timestamp_ms = offsets.last_committed.timestamp_ms
        return ControllerMetrics(
            is_active=is_active,
            last_applied_record_offset=offsets.last_applied_offset,
            last_committed_record_offset=offsets.last_committed.offset,
            last_applied_record_timestamp_ms=timestamp_ms,
            last_applied_record_lag_ms=0 if is_active else max(0, now_ms - timestamp_ms),
            operations_started_count=self._started_count,
            operations_timed_out_count=self._timed_out_count,
            operations_waiting_count=(
                len(self._deferred) + len(self._queue) + (self._current is not None)
            ),
            new_active_controllers_count=self._election_count,
            fault_count=self._fault_count,
        )

    # --- events of the log ------------------------------------------------------------------------

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        """Replay committed batches, or complete the writes that created their records.

        A standby replays a large batch in steps, and must receive no other event before the last
        step. Raises ``StateMachineError`` if a batch cannot be replayed. The controller has then
        failed.
        """
        self._check_not_failed()
        return begin(self._replay(batches))

    def _replay(self, batches: Sequence[RecordBatch]) -> Iterator[None]:
        for batch in batches:
            self._check_writer(batch)
            with self._fatal_if_it_fails(
                batch.base_offset, f"Unable to apply batch {batch.base_offset}"
            ):
                self._is_replaying = True
                yield from self._offsets.replay_in_steps(batch)
                self._is_replaying = False
            # before the next batch, which may end the leadership
            self._deferred.complete_up_to(self.last_stable_offset)
        self._claim_if_caught_up()

    def handle_load_snapshot(self, snapshot: Snapshot) -> Steps:
        """Replace the state, in steps, with that of a snapshot that ends after it.

        If an active controller's next batch was deleted, together with everything before the
        snapshot's end, the controller becomes a standby and resigns. (In Kafka this is fatal.)
        Raises ``StateMachineError`` as ``handle_commit`` does.
        """
        self._check_not_failed()
        offset, epoch = snapshot.snapshot_id.end_offset, self._claim_epoch
        if epoch is not None:
            self._lose_leadership(f"snapshot {snapshot.snapshot_id} replaces the log before it")
            self._log.resign(epoch)
        return begin(self._load(snapshot, offset))

    def _load(self, snapshot: Snapshot, offset: int) -> Iterator[None]:
        with self._fatal_if_it_fails(
            offset, f"Error while loading snapshot {snapshot.snapshot_id}"
        ):
            yield from self._offsets.load_in_steps(snapshot)
        self._claim_if_caught_up()

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Renounce a lost leadership; claim a new one once the whole log is replayed.

        An active controller whose node leads the new epoch, too, stays active. If the log has
        batches after the controller's own, it first becomes a standby, and then claims again.
        """
        self._check_not_failed()
        is_me = leader.leader_id == self._log.node_id
        claim_epoch, self._epoch, self._leader_id = (
            self._claim_epoch,
            leader.epoch,
            leader.leader_id,
        )
        self._election_count += leader.leader_id is not None
        if claim_epoch is not None:
            is_next = leader.end_offset == self._offsets.next_write_offset
            if is_me and is_next and self._current is None:
                self._listener.log(
                    f"We were the leader in epoch {claim_epoch}, and are still the leader in the "
                    f"new epoch {leader.epoch}."
                )
                self._claim_epoch = leader.epoch
                return
            self._lose_leadership(f"epoch {leader.epoch} has begun")
        self._claim_end_offset = leader.end_offset if is_me else None
        self._claim_if_caught_up()

    def begin_shutdown(self) -> None:
        """Renounce the leadership and refuse further writes."""
        self._is_stopping = True
        self._claim_end_offset = None
        epoch = self._claim_epoch
        if epoch is not None:
            info = EventHandlerExceptionInfo.from_internal(RejectedExecutionError(), None)
            self._renounce(info.external)
            self._log.resign(epoch)
        self._run_events()  # which fail

    # --- events of users --------------------------------------------------------------------------

    def write(
        self,
        name: str,
        operation: Operation[T],
        *,
        deadline_us: int,
        transaction_name: str | None = None,
        is_atomic: bool = True,
    ) -> Write[T]:
        """Start a write with few records, like ``write_in_steps``."""
        return self.write_in_steps(
            name,
            in_one_step(operation),
            deadline_us=deadline_us,
            transaction_name=transaction_name,
            is_atomic=is_atomic,
        )

    def write_in_steps(
        self,
        name: str,
        operation: OperationInSteps[T],
        *,
        deadline_us: int,
        transaction_name: str | None = None,
        is_atomic: bool = True,
    ) -> Write[T]:
        """Start a write after those before it are generated; its result may be known on return.

        Args:
            name: of the event, in messages.
            deadline_us: time at which it fails unless it is committed; its records stay in the log.
            transaction_name: name of a metadata transaction around the records, which may then be
                in several batches and unlimited in number.
            is_atomic: False: the records may be in several batches even without a transaction. If
                the leadership ends meanwhile, the log may contain only the first ones.
        """
        write: Write[T] = Write(name, deadline_us)
        self._started_count += 1
        steps = self._process(write, operation, transaction_name, is_atomic=is_atomic)
        self._queue.append(_WriteEvent(write, steps))
        if not self._is_scheduled:
            self._run_events()
        return write

    def upgrade_kraft_version(self, version: int, *, validate_only: bool) -> int:
        """Append the records of a kraft.version, as the first records of a write.

        Return the next write offset. Raises ``ApiException`` if the quorum refuses the version.
        """
        epoch, offsets = self._claim_epoch, self._offsets
        base_offset = offsets.next_write_offset
        assert epoch is not None, "it is active"
        assert base_offset is not None, "it is active"
        try:
            end_offset = self._log.upgrade_kraft_version(
                epoch, version, required_base_offset=base_offset, validate_only=validate_only
            )
        except InvalidUpdateVersionError as refused:
            remedy = "start all voters with a release that supports it, and wait until they follow"
            raise ApiException(
                "feature 'kraft.version'", refused.reason, remedy, INVALID_UPDATE_VERSION
            ) from refused
        next_offset = offsets.next_write_offset
        if next_offset is None or self._claim_epoch != epoch:  # the log may have delivered events
            raise not_controller_error(self.other_leader_id)
        if not validate_only and next_offset < end_offset:
            offsets.schedule_append(end_offset - 1)
        return base_offset if validate_only else end_offset

    def tick(self, now_us: int) -> None:
        """Fail the waiting writes whose deadline has passed."""
        for write in self._deferred.take_expired(now_us):
            self._handle_event_error(write, self._timeout_error(write))

    # --- the event queue --------------------------------------------------------------------------

    def _run_events(self) -> None:
        """Run one step of the first write, and schedule the other steps and writes.

        Without a schedule, run all of them.
        """
        if self._is_in_step:
            return  # the log has delivered an event during a step
        while self._current is not None or self._queue:
            if self._current is None:
                self._current = self._queue.popleft()
            if self._run_step(self._current):
                self._current = None
            has_more = self._current is not None or bool(self._queue)
            if has_more and self._schedule is not None and not self._is_stopping:
                if not self._is_scheduled:
                    self._is_scheduled = True
                    self._schedule(self._continue)
                return

    def _continue(self) -> None:
        self._is_scheduled = False
        self._run_events()

    def _run_step(self, event: _WriteEvent[Any]) -> bool:
        """Run a step of a write; return whether it was the last one."""
        self._is_in_step = True
        try:
            return next(event.steps, event) is event
        finally:
            self._is_in_step = False

    def _end_current(self, error: Exception) -> None:
        """End the write that is between two steps, if there is one: revert and fail it."""
        current = self._current
        if current is None or self._is_in_step:
            return
        self._current = None
        current.steps.close()
        current.write.fail(error)

    # --- one write --------------------------------------------------------------------------------

    def _process(
        self,
        write: Write[T],
        operation: OperationInSteps[T],
        transaction_name: str | None,
        *,
        is_atomic: bool,
    ) -> Generator[None, None, None]:
        try:
            self._check_may_start(write)
        except (ApiException, ControllerError, RejectedExecutionError) as error:
            self._handle_event_error(write, error)
            return
        write.started_us = self._time_us()
        try:
            yield from self._run(write, operation, transaction_name, is_atomic=is_atomic)
        except Exception as error:  # noqa: BLE001 (an operation may raise anything)
            self._handle_event_error(write, error)

    def _check_may_start(self, write: Write[Any]) -> None:
        if self.is_stopped:
            raise RejectedExecutionError
        if write.deadline_us <= self._time_us():
            raise self._timeout_error(write)
        if self._claim_epoch is None:
            raise not_controller_error(self.other_leader_id)
        check_metadata_version(self.state)
        unknown_count = self._offsets.unknown.total()
        if unknown_count:
            raise ApiException(
                "the log",
                f"it has {unknown_count} records that this release does not support",
                "use a release that supports them",
                UNSUPPORTED_VERSION,
            )

    def _run(
        self,
        write: Write[T],
        operation: OperationInSteps[T],
        transaction_name: str | None,
        *,
        is_atomic: bool,
    ) -> Generator[None, None, None]:
        epoch, offsets = self._claim_epoch, self._offsets
        base_offset = offsets.next_write_offset
        assert epoch is not None
        assert base_offset is not None, "it is active"
        has_markers = transaction_name is not None
        is_one_batch = is_atomic and not has_markers
        pending = PendingState(
            offsets.state,
            first_offset=base_offset + has_markers,
            leader_epoch=epoch,
            rng=self._rng,
            record_count_max=RECORDS_PER_OPERATION_MAX if is_one_batch else None,
            batch_record_count=(
                None if is_one_batch or has_markers else self._records_per_batch_max
            ),
            quorum=None if has_markers else self,
        )
        try:
            write.response = yield from operation(pending)
            if has_markers:
                self._check_transactions()  # afterwards: the first operation sets the level
            values = yield from _encoded(pending.records, transaction_name)
        except BaseException as error:
            if self._claim_epoch != epoch:  # lost during the upgrade, with all that was written
                raise
            base_offset = offsets.next_write_offset
            assert base_offset is not None, "it is active"
            offsets.revert_write(base_offset, base_offset)
            if pending.unapplied is None or not isinstance(error, Exception):
                raise
            number = len(pending.records) + 1
            message = (
                f"Unable to apply {type(pending.unapplied).__name__} record, which was {number} of "
                f"at least {number} record(s) in the batch following last write offset "
                f"{base_offset - 1}"
            )
            raise RecordNotAppliedError(message, error) from error
        if not values:
            # The response depends on the state that it has read, which may be uncommitted.
            write.last_offset = offsets.last_applied_offset
            self._deferred.add(write)
            self._deferred.complete_up_to(self.last_stable_offset)
        else:
            size = len(values) if is_one_batch else self._records_per_batch_max
            self._append(write, epoch, list(_chunks(values, size)), is_transaction=has_markers)
        if not write.is_done and write.deadline_us <= self._time_us():
            self.tick(self._time_us())  # its deadline may have passed between the steps

    def _append(
        self,
        write: Write[Any],
        epoch: int,
        batches: Sequence[list[bytes]],
        *,
        is_transaction: bool = False,
        has_markers: bool = False,
    ) -> None:
        """Append the records of a write, which are already replayed."""
        offsets = self._offsets
        base_offset = next_offset = offsets.next_write_offset
        assert next_offset is not None, "it is active"
        assert base_offset is not None
        write.last_offset = base_offset + sum(map(len, batches)) - 1
        starts = accumulate(map(len, batches[:-1]), initial=base_offset)
        offsets.schedule_append(
            write.last_offset, plain_offsets=() if is_transaction or has_markers else starts
        )
        self._deferred.add(write)
        try:
            for values in batches:
                self._log.append(epoch, values, required_base_offset=next_offset)
                next_offset += len(values)
        except Exception as error:
            if self._claim_epoch == epoch:
                self._deferred.remove(write)
                if next_offset > base_offset and not is_transaction:
                    self._lose_leadership("the log has a part of a write")
                    self._log.resign(epoch)
                    raise
                offsets.revert_write(base_offset, next_offset)
                info = EventHandlerExceptionInfo.from_internal(error, None)
                if next_offset > base_offset and not info.causes_failover:
                    self._abort_transaction("its records could not be appended")
            raise

    def _abort_transaction(self, reason: str) -> None:
        """End the transaction that is open at the end of the log; its records have no effect."""
        epoch = self._claim_epoch
        assert epoch is not None, "it is active"
        write: Write[None] = Write("abortTransaction", NO_DEADLINE)
        write.started_us = self._time_us()
        abort = DecodedRecord(0, AbortTransactionRecord(reason=reason))
        try:
            self._append(write, epoch, [[encode(abort)]], has_markers=True)
        except Exception as error:  # noqa: BLE001 (the log may raise anything)
            self._handle_event_error(write, error)
            if self._claim_epoch == epoch:  # the next write would be part of the transaction
                self._lose_leadership("the open transaction could not be aborted")
                self._log.resign(epoch)

    # --- leadership -------------------------------------------------------------------------------

    @property
    def other_leader_id(self) -> int | None:
        """The leader's node id, if another node is the leader."""
        return None if self._leader_id == self._log.node_id else self._leader_id

    def _claim_if_caught_up(self) -> None:
        end_offset, last_offset = self._claim_end_offset, self._offsets.last_committed.offset
        if end_offset is None or last_offset + 1 < end_offset or self._is_stopping:
            return
        self._listener.log(
            f"Becoming the active controller at epoch {self._epoch}, last write offset "
            f"{last_offset}."
        )
        self._claim_end_offset, self._claim_epoch = None, self._epoch
        self._offsets.activate(last_offset + 1)
        if self._offsets.open_transaction_offset is not None:
            self._abort_transaction("the controller that began the transaction is not active")

    def _lose_leadership(self, reason: str) -> None:
        self._listener.log(
            f"Renouncing the leadership at epoch {self._claim_epoch}: {reason}. "
            f"Reverting to the last stable offset {self.last_stable_offset}."
        )
        self._renounce(not_controller_error(self.other_leader_id))

    def _renounce(self, error: Exception) -> None:
        """Become a standby. The waiting writes and the current one fail with ``error``."""
        self._claim_epoch = None
        self._end_current(error)
        waiting = self._deferred.take_all()
        self._offsets.deactivate()
        for write in waiting:
            write.fail(error)

    def _check_writer(self, batch: RecordBatch) -> None:
        """Become or stay a standby if another writer has written a batch.

        A later leader's batch may be delivered before the leader change. In this controller's
        epoch, records of other writers are a failure. The log's control records are expected,
        except between the steps of a write, because they take its offsets.
        """
        is_active, next_offset = self._claim_epoch is not None, self._offsets.next_write_offset
        if batch.leader_epoch > self._epoch:
            self._epoch, self._leader_id = batch.leader_epoch, None
            self._claim_end_offset = None
            if is_active:
                self._lose_leadership(f"epoch {batch.leader_epoch} has begun")
            return
        if not is_active or self._offsets.is_replayed(batch):
            return
        if batch.is_control and (self._current is None or self._is_in_step):
            return
        error = UnexpectedEndOffsetError(
            required_base_offset=next_offset,
            record_count=batch.next_offset - batch.base_offset,
            log_end_offset=batch.next_offset,
        )
        self._handle_error("handleCommit", None, error)

    # --- errors -----------------------------------------------------------------------------------

    def _timeout_error(self, write: Write[Any]) -> ControllerTimeoutError:
        self._timed_out_count += 1
        return ControllerTimeoutError(reason=f"The deadline of {write.name} was reached.")

    def _handle_event_error(self, write: Write[Any], error: Exception) -> None:
        external = self._handle_error(write.name, write.started_us, error)
        if not write.is_done:  # otherwise it failed when the leadership was lost during the append
            write.fail(external)

    def _handle_error(self, name: str, started_us: int | None, error: Exception) -> Exception:
        """Report an error of an event and fail over if necessary; return the caller's error."""
        info = EventHandlerExceptionInfo.from_internal(error, self.other_leader_id)
        epoch = self._claim_epoch
        message = info.failure_message(
            epoch=self._epoch,
            duration_us=None if started_us is None else self._time_us() - started_us,
            is_active=epoch is not None,
            last_committed_offset=self._offsets.last_committed.offset,
        )
        if info.is_fault:
            self._fault_count += 1
            if isinstance(error, RecordNotAppliedError):
                message = f"{error}: {message}"
            self._listener.handle_fault(f"{name}: {message}", error)
        else:
            self._listener.log(f"{name}: {message}")
        if info.causes_failover and epoch is not None:
            self._leader_id = None
            self._renounce(not_controller_error(None))
            self._log.resign(epoch)
        return info.external

    @contextmanager
    def _fatal_if_it_fails(self, offset: int, what: str) -> Iterator[None]:
        """Fail the controller if the block raises an exception: its state is then undefined."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (a replay may raise anything)
            cause = error
            if isinstance(error, RecordNotAppliedError):
                what, cause = str(error), error.cause
            reason = str(cause) if isinstance(cause, RaftlogError) else type(cause).__name__
            self._fail_fatally(f"{what}: {reason}", offset, cause)
        except BaseException:  # such as KeyboardInterrupt: no fault, but the state is undefined
            self._fatal_fault = StateMachineError(offset=offset, reason=f"{what}: interrupted")
            raise

    def _fail_fatally(self, message: str, offset: int, error: Exception) -> NoReturn:
        self._fault_count += 1
        self._fatal_fault = StateMachineError(offset=offset, reason=message)
        self._listener.handle_fatal_fault(message, error)
        epoch = self._claim_epoch
        if epoch is not None:
            self._renounce(EventHandlerExceptionInfo.from_internal(error, None).external)
            self._log.resign(epoch)
        raise self._fatal_fault from error

    def _check_not_failed(self) -> None:
        if self._fatal_fault is not None:
            raise self._fatal_fault

    def _check_transactions(self) -> None:
        level = self.state.level
        if level < LEVEL_TRANSACTIONS:
            raise ApiException(
                "the log",
                f"its {METADATA_VERSION} {level} does not support metadata transactions",
                f"upgrade {METADATA_VERSION} to {LEVEL_TRANSACTIONS} or higher first",
                UNSUPPORTED_VERSION,
            )


def _encoded(
    records: Sequence[DecodedRecord], transaction_name: str | None
) -> Generator[None, None, list[bytes]]:
    """Return a write's records as values; if it has a name, between a transaction's markers."""
    if records and transaction_name is not None:
        begin = DecodedRecord(0, BeginTransactionRecord(name=transaction_name))
        records = (begin, *records, DecodedRecord(0, EndTransactionRecord()))
    values: list[bytes] = []
    yield from for_each_in_steps(records, lambda record: values.append(encode(record)))
    return values


def _chunks(values: list[bytes], size: int) -> Iterator[list[bytes]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
