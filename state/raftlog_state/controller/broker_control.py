"""``BrokerControl``: registrations and heartbeats of brokers at the active controller.

Each method is called inside an operation of ``QuorumController.write``. The soft state belongs to
one leader epoch. The first call in a later epoch starts it again, with a whole session for each
unfenced broker. Call ``fence_one_stale_broker`` regularly, so that this happens soon after a claim.

Source: Kafka 4.3 ``ClusterControlManager``, ``ReplicationControlManager`` (processBrokerHeartbeat,
maybeFenceOneStaleBroker).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from raftlog_state.image import BrokerRow

from .api_exception import (
    BROKER_ID_NOT_REGISTERED,
    DUPLICATE_BROKER_REGISTRATION,
    INCONSISTENT_CLUSTER_ID,
    ApiException,
)
from .brokers import (
    BrokerRegistration,
    write_controlled_shutdown,
    write_fenced,
    write_registration,
    write_unfenced,
    write_unregistered,
)
from .directories import cordon_directories, take_directories_offline
from .heartbeats import BrokerControlState, BrokerHeartbeat, BrokerHeartbeatManager
from .partitions import check_broker_epoch
from .pending_state import PendingState

SESSION_TIMEOUT_US: Final = 9_000_000
"""Default of Kafka's ``broker.session.timeout.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatReply:
    """Answer to a heartbeat (Kafka: ``BrokerHeartbeatReply``)."""

    is_caught_up: bool
    is_fenced: bool
    in_controlled_shutdown: bool
    should_shut_down: bool


class BrokerControl:
    """Brokers of a cluster. Not thread-safe.

    ``heartbeats``: the soft state, None before the first operation.
    """

    def __init__(self, *, cluster_id: str, session_timeout_us: int = SESSION_TIMEOUT_US) -> None:
        self._cluster_id: Final = cluster_id
        self._session_timeout_us: Final = session_timeout_us
        self._epoch: int | None = None
        self.heartbeats: BrokerHeartbeatManager | None = None

    def register(
        self,
        registration: BrokerRegistration,
        state: PendingState,
        *,
        cluster_id: str,
        now_us: int,
        is_migrating_zk_broker: bool = False,
        kraft_version: int = 0,
    ) -> Generator[None, None, int]:
        """Register a broker, and return its epoch. Raises ``ApiException``.

        If a broker is in contact, another incarnation of it is refused.
        """
        heartbeats = self._active(state, now_us)
        broker_id = registration.broker_id
        row = state.current.find(BrokerRow, broker_id)
        is_new = row is None or row.incarnation_id != registration.incarnation_id
        what, reason, code = f"broker {broker_id}", None, INCONSISTENT_CLUSTER_ID
        if cluster_id != self._cluster_id:
            reason = f"Expected cluster ID {self._cluster_id}, but got cluster ID {cluster_id}"
        elif (
            is_new
            and row is not None
            and heartbeats.tracker.has_valid_session(broker_id, row.broker_epoch, now_us)
        ):
            code = DUPLICATE_BROKER_REGISTRATION
            reason = (
                "Another broker is registered with that broker id. If the broker was recently "
                "restarted this should self-resolve once the heartbeat manager expires the "
                "broker's session"
            )
        elif is_migrating_zk_broker:
            code = BROKER_ID_NOT_REGISTERED
            reason = "Controller does not support registering ZK brokers"
        if reason is not None:
            raise ApiException(what, reason, "correct the broker's configuration", code)
        epoch = yield from write_registration(registration, state, kraft_version=kraft_version)
        if is_new:
            heartbeats.remove(broker_id)
        heartbeats.register(broker_id, is_new or row is None or row.fenced)
        return epoch

    def heartbeat(
        self, heartbeat: BrokerHeartbeat, state: PendingState, *, now_us: int
    ) -> Generator[None, None, BrokerHeartbeatReply]:
        """Handle a heartbeat: record the contact, and fence, unfence or shut down the broker.

        Raises ``ApiException`` if its epoch is stale.
        """
        row, heartbeats = self._contact(heartbeat, state, now_us)
        broker_id = row.broker_id
        current = heartbeats.current_state(broker_id)
        if current is BrokerControlState.CONTROLLED_SHUTDOWN:
            self._forget_unregistered(state, heartbeats)
        registration_offset = state.current.registration_offset(broker_id)
        has_leaderships = False
        if heartbeat.want_shut_down or current is BrokerControlState.CONTROLLED_SHUTDOWN:
            has_leaderships = yield from state.current.leads_partitions(broker_id)
        found = heartbeats.next_state(heartbeat, registration_offset, has_leaderships)
        if found is not current:
            if found.is_fenced:
                yield from write_fenced(row, state)
            elif found is BrokerControlState.UNFENCED:
                yield from write_unfenced(row, state)
            else:
                yield from write_controlled_shutdown(row, state)
        heartbeats.touch(broker_id, found.is_fenced, heartbeat.current_metadata_offset)
        yield from take_directories_offline(broker_id, heartbeat.offline_log_dirs, state)
        if heartbeat.cordoned_log_dirs is not None:
            cordon_directories(broker_id, heartbeat.cordoned_log_dirs, state)
        is_in_shutdown = found is BrokerControlState.CONTROLLED_SHUTDOWN
        if is_in_shutdown:
            last_offset = state.next_offset - 1
            heartbeats.maybe_update_controlled_shutdown_offset(broker_id, last_offset)
        return BrokerHeartbeatReply(
            is_caught_up=heartbeat.current_metadata_offset >= registration_offset,
            is_fenced=found.is_fenced,
            in_controlled_shutdown=is_in_shutdown,
            should_shut_down=found is BrokerControlState.SHUTDOWN_NOW,
        )

    def unregister(self, broker_id: int, state: PendingState, *, now_us: int) -> Iterator[None]:
        """Unregister a broker. Raises ``ApiException``."""
        heartbeats = self._active(state, now_us)
        yield from write_unregistered(broker_id, state)
        heartbeats.remove(broker_id)

    def fence_one_stale_broker(
        self, state: PendingState, *, now_us: int
    ) -> Generator[None, None, bool]:
        """Fence a broker whose session has expired; return whether there may be others.

        Brokers are fenced one at a time, so that each sees the elections of those before it. The
        contact is removed by the next call, after the broker was fenced, because this operation may
        fail.
        """
        heartbeats = self._active(state, now_us)
        for broker_id, epoch in heartbeats.tracker.expired(now_us):
            row = state.current.find(BrokerRow, broker_id)
            if row is not None and row.broker_epoch == epoch and not row.fenced:
                yield from write_fenced(row, state)
                heartbeats.fence(broker_id)
                return True
            heartbeats.tracker.remove(broker_id, epoch)
            if row is None:
                heartbeats.remove(broker_id)
        return False

    # --- soft state -------------------------------------------------------------------------------

    def _active(self, state: PendingState, now_us: int) -> BrokerHeartbeatManager:
        if self.heartbeats is None or self._epoch != state.leader_epoch:
            self._epoch = state.leader_epoch
            self.heartbeats = BrokerHeartbeatManager(self._session_timeout_us)
            for row in state.current.rows_of(BrokerRow):
                self.heartbeats.register(row.broker_id, row.fenced)
                if not row.fenced:
                    self.heartbeats.tracker.update_contact_time(
                        row.broker_id, row.broker_epoch, now_us
                    )
        return self.heartbeats

    def _contact(
        self, heartbeat: BrokerHeartbeat, state: PendingState, now_us: int
    ) -> tuple[BrokerRow, BrokerHeartbeatManager]:
        heartbeats = self._active(state, now_us)
        broker_id, epoch = heartbeat.broker_id, heartbeat.broker_epoch
        check_broker_epoch(broker_id, epoch, state)
        row = state.current.find(BrokerRow, broker_id)
        assert row is not None, "its epoch is checked"
        heartbeats.tracker.update_contact_time(broker_id, epoch, now_us)
        # Another operation may have changed it, or an earlier heartbeat may have been reverted.
        if heartbeats.is_fenced(broker_id) is not row.fenced:
            heartbeats.register(broker_id, row.fenced)
        if not row.in_controlled_shutdown:
            heartbeats.forget_controlled_shutdown(broker_id)
        return row, heartbeats

    def _forget_unregistered(self, state: PendingState, heartbeats: BrokerHeartbeatManager) -> None:
        """Remove brokers that another operation has unregistered: no broker waits for them."""
        for broker_id in heartbeats.broker_ids():
            if state.current.find(BrokerRow, broker_id) is None:
                heartbeats.remove(broker_id)
