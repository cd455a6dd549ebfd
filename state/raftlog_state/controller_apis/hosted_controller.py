"""``HostedController``: a ``QuorumController`` on the event loop of a node.

It is a listener of the node's log, provides the controller with time and randomness, and returns
the results of writes to tasks. On an empty log, its first write contains the bootstrap records.
While it is active, it fences brokers whose sessions have expired, and elects preferred leaders and,
where topics allow it, unclean leaders. It appends NoOpRecords (KIP-835), so that the end of the
log, and with it each replica's lag, has a recent time even if nothing changes.

Source: Kafka ``ControllerServer``, ``QuorumController`` (its event queue and its activation).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from raftlog.records import RecordBatch
from raftlog.wire import Features, VersionRange
from raftlog_state.controller import (
    KNOWN_FEATURES,
    ApiException,
    ControllerListener,
    ControllerState,
    Operation,
    OperationInSteps,
    PendingState,
    QuorumController,
    Random,
)
from raftlog_state.controller.activation import BOOTSTRAP_TRANSACTION, write_bootstrap_records
from raftlog_state.controller.active import NO_DEADLINE, LeaderAndEpoch, RaftClient
from raftlog_state.controller.broker_control import BrokerControl
from raftlog_state.controller.exception_info import not_controller_error
from raftlog_state.controller.offset_control import Snapshot
from raftlog_state.controller.partitions import balance_partition_leaders, elect_unclean_leaders
from raftlog_state.controller.pending_state import in_one_step
from raftlog_state.controller.tokens import DelegationTokenControl
from raftlog_state.errors import ControllerError, ControllerTimeoutError
from raftlog_state.image import METADATA_VERSION, FeatureRow, Key, Row
from raftlog_state.image.record_versions import LEVEL_MIN, LEVEL_TRANSACTIONS
from raftlog_state.records import NoOpRecord
from raftlog_state.steps import Steps, begin

from .requests import Principal

T = TypeVar("T")
R = TypeVar("R", bound=Row)

SESSION_TIMEOUT_MS: Final = 9_000
SESSION_CHECKS: Final = 8
"""Checks for expired sessions during one session timeout, as in Kafka."""
ELECTION_INTERVAL_S: Final = 300
"""Kafka: ``leader.imbalance.check.interval.seconds``, ``unclean.leader.election.interval.ms``."""
ELEMENTS_MAX: Final = 200_000
"""Array elements of one request, enough to assign 10,000 partitions with several replicas each."""
ROWS_PER_STEP: Final = 5_000
"""Rows searched between other events, which takes some 10 ms."""
DEFAULT_TIMEOUT_MS: Final = 30_000
"""Timeout of requests without one (Kafka: ``request.timeout.ms`` of a controller's clients)."""


def monotonic_us() -> int:
    """Return the monotonic clock in microseconds."""
    return time.monotonic_ns() // 1_000


ForwardedAudit: TypeAlias = Callable[[Any, Any, str, "object | None"], Callable[[object], None]]


def _no_audit(
    sender: Any, principal: Principal, request: str, arguments: object | None
) -> Callable[[object], None]:
    return lambda _: None


class HostedController:
    """Controller of one node. Use it on the node's event loop.

    Args:
        bootstrap_features: levels of a new cluster, written to an empty log.
        log_configs: names and values of the settings of the log itself.
        forwarded_principal: the principal of a request that a broker has authenticated and
            forwarded, by the broker's principal, the name, and the client's address.
        forwarded_audit: logs such a request in the node's audit log, by both principals, the name
            of its API and its arguments; the function that it returns logs the response.
        token_secret: key of the HMACs of delegation tokens; None: they are disabled.
        session_timeout_ms: time without a heartbeat after which a broker is fenced (Kafka:
            ``broker.session.timeout.ms``).
        max_idle_interval_ms: time between two NoOpRecords; 0: none are appended (Kafka:
            ``metadata.max.idle.interval.ms``).
    """

    def __init__(
        self,
        log: RaftClient,
        *,
        cluster_id: str,
        listener: ControllerListener,
        bootstrap_features: Mapping[str, int],
        log_configs: Callable[[], Mapping[str, str]],
        forwarded_principal: Callable[[Any, str, str], Principal],
        forwarded_audit: ForwardedAudit = _no_audit,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        max_idle_interval_ms: int = 0,
        token_secret: str | None = None,
        rng: Random | None = None,
        time_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self.cluster_id: Final = cluster_id
        self.log_configs: Final = log_configs
        self.forwarded_principal: Final = forwarded_principal
        self.forwarded_audit: Final = forwarded_audit
        self.tokens: Final = DelegationTokenControl(token_secret)
        self.session_timeout_ms: Final = session_timeout_ms
        self.brokers: Final = BrokerControl(
            cluster_id=cluster_id, session_timeout_us=session_timeout_ms * 1_000
        )
        self._max_idle_interval_ms: Final = max_idle_interval_ms
        self._listener = listener
        self._bootstrap_features = bootstrap_features
        self._time_us = time_us
        self.controller: Final = QuorumController(
            log,
            rng=random.SystemRandom() if rng is None else rng,
            time_us=time_us,
            listener=listener,
            schedule=lambda step: asyncio.get_running_loop().call_soon(step),
        )
        self._activated_epoch: int | None = None
        self._maintenance: Final[list[asyncio.Task[None]]] = []
        """Tasks of the epoch in which the controller is active."""
        self._steps_ended: Final = asyncio.Event()
        """Cleared while the log runs the steps of a batch or a snapshot."""

    # --- the log ----------------------------------------------------------------------------------

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        return begin(self._then_activate(self.controller.handle_commit(batches)))

    def handle_load_snapshot(self, snapshot: Snapshot) -> Steps:
        return begin(self._then_activate(self.controller.handle_load_snapshot(snapshot)))

    def _then_activate(self, steps: Steps) -> Iterator[None]:
        if steps is not None:
            self._steps_ended.clear()
            try:
                yield  # the first step is done
                yield from steps
            finally:
                self._steps_ended.set()
        self._activate()

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self.controller.handle_leader_change(leader)
        self._activate()

    def begin_shutdown(self) -> None:
        self.controller.begin_shutdown()
        self._steps_ended.set()
        self._end_maintenance()

    def _activate(self) -> None:
        """Begin maintenance if the controller has become active.

        Write the bootstrap records if the log is empty.
        """
        epoch = self.controller.active_epoch
        if epoch is None or epoch == self._activated_epoch:
            return
        self._activated_epoch = epoch
        self._end_maintenance()
        loop = asyncio.get_running_loop()
        self._maintenance.append(loop.create_task(self._maintain(epoch)))
        if self._max_idle_interval_ms:
            self._maintenance.append(loop.create_task(self._append_no_ops(epoch)))
        if not self.controller.is_log_empty:
            if self.controller.state.metadata_version is None:
                self._listener.log(
                    f"No {METADATA_VERSION} feature level record was found in the log. Treating "
                    f"the log as version {LEVEL_MIN}."
                )
            return
        features = self._bootstrap_features
        level = features[METADATA_VERSION]
        self._listener.log(
            "The metadata log appears to be empty. Appending the bootstrap records at "
            f"{METADATA_VERSION} {level}."
        )
        self.controller.write(
            "appendBootstrapRecords",
            lambda state: write_bootstrap_records(features, state),
            deadline_us=NO_DEADLINE,
            transaction_name=BOOTSTRAP_TRANSACTION if level >= LEVEL_TRANSACTIONS else None,
        )

    # --- maintenance ------------------------------------------------------------------------------

    async def _maintain(self, epoch: int) -> None:
        """Fence and elect periodically while the controller is active in this epoch."""
        interval_s = self.session_timeout_ms / 1_000 / SESSION_CHECKS
        next_election_s = ELECTION_INTERVAL_S
        elapsed_s = 0.0
        while self.controller.active_epoch == epoch:
            with contextlib.suppress(ApiException, ControllerError):
                await self._repeat("maybeFenceStaleBroker", self._fence)
                if elapsed_s >= next_election_s:
                    next_election_s += ELECTION_INTERVAL_S
                    await self._repeat("maybeBalancePartitionLeaders", balance_partition_leaders)
                    await self._repeat("maybeElectUncleanLeaders", elect_unclean_leaders)
                    await self._repeat("expireDelegationTokens", in_one_step(self._expire_tokens))
            await asyncio.sleep(interval_s)
            elapsed_s += interval_s

    async def _append_no_ops(self, epoch: int) -> None:
        """Append NoOpRecords periodically while the controller is active in this epoch.

        The next interval begins when the record is committed, so a leader without a majority
        appends only one before the record's deadline.
        """
        while self.controller.active_epoch == epoch:
            await asyncio.sleep(self._max_idle_interval_ms / 1_000)
            with contextlib.suppress(ApiException, ControllerError):
                await self.write("writeNoOpRecord", lambda state: state.write(NoOpRecord()))

    def _end_maintenance(self) -> None:
        for task in self._maintenance:
            task.cancel()
        self._maintenance.clear()

    async def _repeat(self, name: str, operation: OperationInSteps[bool]) -> None:
        while await self.write_in_steps(name, operation, is_atomic=False):
            pass

    def _expire_tokens(self, state: PendingState) -> bool:
        return self.tokens.remove_expired(state, now_ms=self.time_ms())

    def _fence(self, state: PendingState) -> Generator[None, None, bool]:
        return self.brokers.fence_one_stale_broker(state, now_us=self.now_us())

    # --- requests ---------------------------------------------------------------------------------

    async def write(
        self,
        name: str,
        operation: Operation[T],
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        validate_only: bool = False,
        is_atomic: bool = True,
    ) -> T:
        """Return the response of an operation with few records, like ``write_in_steps``."""
        return await self.write_in_steps(
            name,
            in_one_step(operation),
            timeout_ms=timeout_ms,
            validate_only=validate_only,
            is_atomic=is_atomic,
        )

    async def write_in_steps(
        self,
        name: str,
        operation: OperationInSteps[T],
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        validate_only: bool = False,
        is_atomic: bool = True,
    ) -> T:
        """Return the response of an operation once its records are committed.

        ``validate_only``: the records are not written. ``is_atomic``: see
        ``QuorumController.write``; pass False if a single broker determines their number. Raises
        ``ApiException`` (refused) and ``ControllerError`` (not the active controller, timed out,
        failed).
        """
        leader_id = self.controller.other_leader_id
        if leader_id is not None:  # no event: a forwarded request has not failed
            raise not_controller_error(leader_id)
        deadline_us = self._time_us() + timeout_ms * 1_000

        def validate(state: PendingState) -> Generator[None, None, T]:
            return state.validate_only_in_steps(operation)

        write = self.controller.write_in_steps(
            name,
            validate if validate_only else operation,
            deadline_us=deadline_us,
            is_atomic=is_atomic,
        )
        if not write.is_done:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def complete() -> None:
                if not done.done():
                    done.set_result(None)

            write.when_done = complete
            timer = loop.call_later(timeout_ms / 1_000, self._tick, deadline_us)
            try:
                await done
            finally:
                timer.cancel()
        if write.error is not None:
            raise write.error
        # its type allows None until the operation has returned
        response: T = write.response  # type: ignore[assignment]
        return response

    async def read(self, name: str, operation: Callable[[ControllerState], T]) -> T:
        """Return the result of a query of the committed state.

        The active controller answers once everything that the query has read is committed. A
        standby answers from the records that it has, with either all or none of a batch. Raises
        ``ControllerError`` as ``write`` does, even on a standby whose last batch will never be
        replayed completely.
        """
        await self._until_replayed(name)
        if self.controller.active_epoch is None and not self.controller.is_replaying:
            return operation(self.controller.state)

        def query(state: PendingState) -> T:
            return operation(state.current)

        return await self.write(name, query)

    async def _until_replayed(self, name: str) -> None:
        """Wait until the state has no part of a batch, or will always have one."""
        if not self.controller.is_replaying:
            return
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT_MS / 1_000):
                while self.controller.is_replaying and not self.controller.is_stopped:
                    await self._steps_ended.wait()
        except TimeoutError:
            raise ControllerTimeoutError(reason=f"The deadline of {name} was reached.") from None

    async def read_in_steps(
        self, name: str, queries: Iterable[Callable[[ControllerState], T]]
    ) -> list[T]:
        """Return the results of queries, each of which is a read, handling other events in between.

        Each query reads the state of its own time. Raises ``ControllerTimeoutError`` if the queries
        take longer than the timeout of a request without one.
        """
        found: list[T] = []
        deadline_us = self._time_us() + DEFAULT_TIMEOUT_MS * 1_000
        for query in queries:
            if found:
                await asyncio.sleep(0)
            if self._time_us() >= deadline_us:
                raise ControllerTimeoutError(reason=f"The deadline of {name} was reached.")
            found.append(await self.read(name, query))
        return found

    async def rows_in_steps(
        self,
        name: str,
        kind: type[R],
        matches: Callable[[R], bool] = lambda _: True,
        *,
        among: Callable[[ControllerState], Sequence[Key]] | None = None,
    ) -> list[R]:
        """Return the matching rows of a type, searched in steps, in no particular order.

        ``among`` returns the keys of the rows to search; None: all. Raises
        ``ControllerTimeoutError``.
        """

        def search(some: Sequence[Key], state: ControllerState) -> list[R]:
            rows = (state.find(kind, *key) for key in some)
            return [row for row in rows if row is not None and matches(row)]

        keys = await self.read(name, among or (lambda state: state.keys(kind.ENTITY)))
        starts = range(0, len(keys), ROWS_PER_STEP)
        steps = (partial(search, keys[at : at + ROWS_PER_STEP]) for at in starts)
        return list(chain.from_iterable(await self.read_in_steps(name, steps)))

    async def check_active(self, name: str) -> None:
        """Raise the error that a write would raise unless this is the active controller."""
        await self.write(name, lambda _: None)

    def now_us(self) -> int:
        """Return the controller's clock."""
        return self._time_us()

    def time_ms(self) -> int:
        """Return the wall-clock time."""
        return time.time_ns() // 1_000_000

    def features(self) -> Features:
        """Return the features that this release supports, and the cluster's committed features."""
        rows = self.controller.committed_rows_of(FeatureRow)
        return Features(
            supported={
                name: VersionRange(low, high) for name, (low, high) in KNOWN_FEATURES.items()
            },
            finalized={row.name: row.level for row in rows},
        )

    def _tick(self, deadline_us: int) -> None:
        # a timer may fire slightly before its time
        self.controller.tick(max(deadline_us, self._time_us()))
