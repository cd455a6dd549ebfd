"""``BrokerHeartbeatManager``: what the active controller knows of brokers from their heartbeats.

This is soft state, which is not in the log. A controller that becomes active begins without it, and
allows each unfenced broker a whole session before it fences the broker. Times are those of the
controller's clock.

    FENCED ----------> UNFENCED ----------> CONTROLLED_SHUTDOWN ----------> SHUTDOWN_NOW
           has replayed          leads partitions, and           leads none, and all active
           its registration      requests to shut down           brokers know that

Source: Kafka 4.3 ``BrokerHeartbeatManager``, ``BrokerHeartbeatTracker``, ``BrokerControlState``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

NO_OFFSET: Final = -1
OFFSET_MAX: Final = 2**63 - 1


class BrokerControlState(enum.Enum):
    """State of a broker in the controller's response to its heartbeat."""

    FENCED = enum.auto()
    UNFENCED = enum.auto()
    CONTROLLED_SHUTDOWN = enum.auto()
    SHUTDOWN_NOW = enum.auto()

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat:
    """Heartbeat of a broker (Kafka: ``BrokerHeartbeatRequest``).

    ``current_metadata_offset``: the last offset that the broker has replayed. ``cordoned_log_dirs``
    is None if the broker does not report them.
    """

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int = NO_OFFSET
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[str, ...] = ()
    cordoned_log_dirs: tuple[str, ...] | None = None


class BrokerHeartbeatTracker:
    """Times of the last contact with brokers, by id and epoch."""

    def __init__(self, session_timeout_us: int) -> None:
        self._session_timeout_us: Final = session_timeout_us
        self._contact_us: Final[dict[tuple[int, int], int]] = {}

    def update_contact_time(self, broker_id: int, broker_epoch: int, now_us: int) -> None:
        """Record a contact with a broker."""
        self._contact_us[broker_id, broker_epoch] = now_us

    def contact_time(self, broker_id: int, broker_epoch: int) -> int | None:
        """Return the time of the last contact with a broker, None without one."""
        return self._contact_us.get((broker_id, broker_epoch))

    def has_valid_session(self, broker_id: int, broker_epoch: int, now_us: int) -> bool:
        """Return whether the last contact with a broker is recent."""
        contact_us = self._contact_us.get((broker_id, broker_epoch))
        return contact_us is not None and not self.is_expired(contact_us, now_us)

    def expired(self, now_us: int) -> list[tuple[int, int]]:
        """Return the ids and epochs of the brokers without a recent contact."""
        return [
            key
            for key, contact_us in self._contact_us.items()
            if self.is_expired(contact_us, now_us)
        ]

    def remove(self, broker_id: int, broker_epoch: int) -> None:
        """Remove the contact with a broker."""
        self._contact_us.pop((broker_id, broker_epoch), None)

    def is_expired(self, contact_us: int, now_us: int) -> bool:
        """Return whether the session that began with a contact has expired."""
        return contact_us + self._session_timeout_us < now_us


@dataclass(slots=True)
class _Broker:
    is_fenced: bool
    metadata_offset: int = NO_OFFSET
    controlled_shutdown_offset: int = NO_OFFSET

    @property
    def is_shutting_down(self) -> bool:
        return self.controlled_shutdown_offset >= 0

    @property
    def is_active(self) -> bool:
        return not self.is_fenced and not self.is_shutting_down


class BrokerHeartbeatManager:
    """Brokers with the offsets that they have replayed. ``tracker``: times of their contacts."""

    def __init__(self, session_timeout_us: int) -> None:
        self.tracker: Final = BrokerHeartbeatTracker(session_timeout_us)
        self._brokers: Final[dict[int, _Broker]] = {}

    def register(self, broker_id: int, is_fenced: bool) -> None:
        """Add a broker, or update whether it is fenced."""
        broker = self._brokers.get(broker_id)
        offset = NO_OFFSET
        if broker is None:
            self._brokers[broker_id] = _Broker(is_fenced)
        elif broker.is_fenced != is_fenced:
            offset = broker.metadata_offset
        self.touch(broker_id, is_fenced, offset)

    def touch(self, broker_id: int, is_fenced: bool, metadata_offset: int) -> None:
        """Record a heartbeat's report and result. Raises ``KeyError`` for an unknown broker.

        A fenced broker leaves a controlled shutdown: with its next heartbeat, it shuts down.
        """
        broker = self._brokers[broker_id]
        broker.is_fenced, broker.metadata_offset = is_fenced, metadata_offset
        if is_fenced:
            broker.controlled_shutdown_offset = NO_OFFSET

    def fence(self, broker_id: int) -> None:
        """Record that a broker is fenced."""
        broker = self._brokers.get(broker_id)
        if broker is not None:
            broker.is_fenced = True

    def remove(self, broker_id: int) -> None:
        """Remove a broker."""
        self._brokers.pop(broker_id, None)

    def is_fenced(self, broker_id: int) -> bool | None:
        """Return whether a broker is fenced, None for an unknown one."""
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.is_fenced

    def forget_controlled_shutdown(self, broker_id: int) -> None:
        """End a controlled shutdown whose records were not written."""
        self._brokers[broker_id].controlled_shutdown_offset = NO_OFFSET

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers."""
        return list(self._brokers)

    def lowest_active_offset(self) -> int:
        """Return the lowest offset that an active broker has replayed."""
        offsets = (one.metadata_offset for one in self._brokers.values() if one.is_active)
        return min(offsets, default=OFFSET_MAX)

    def controlled_shutdown_offset(self, broker_id: int) -> int | None:
        """Return the offset that all active brokers must have replayed before a broker shuts down.

        None unless the broker is in a controlled shutdown.
        """
        broker = self._brokers.get(broker_id)
        if broker is None or not broker.is_shutting_down:
            return None
        return broker.controlled_shutdown_offset

    def maybe_update_controlled_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """Begin a controlled shutdown unless it has begun. ``offset``: that of its last record."""
        broker = self._brokers[broker_id]
        assert not broker.is_fenced, "Fenced brokers cannot enter controlled shutdown."
        if not broker.is_shutting_down:
            broker.controlled_shutdown_offset = offset

    def current_state(self, broker_id: int) -> BrokerControlState:
        """Return the state of a broker before a heartbeat."""
        broker = self._brokers[broker_id]
        if broker.is_shutting_down:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if broker.is_fenced else BrokerControlState.UNFENCED

    def next_state(
        self,
        heartbeat: BrokerHeartbeat,
        registration_offset: int,
        has_leaderships: bool,
    ) -> BrokerControlState:
        """Return the state of a broker after a heartbeat.

        ``registration_offset``: of the broker's registration, which it must have replayed before it
        is unfenced. ``has_leaderships``: whether the broker leads a partition, which matters only
        if it requests to shut down or is shutting down.
        """
        current = self.current_state(heartbeat.broker_id)
        if current is BrokerControlState.FENCED:
            if heartbeat.want_shut_down:
                return BrokerControlState.SHUTDOWN_NOW
            is_caught_up = heartbeat.current_metadata_offset >= registration_offset
            may_unfence = is_caught_up and not heartbeat.want_fence
            return BrokerControlState.UNFENCED if may_unfence else current
        if current is BrokerControlState.UNFENCED:
            if heartbeat.want_shut_down:
                is_controlled = not heartbeat.want_fence and has_leaderships
                return (
                    BrokerControlState.CONTROLLED_SHUTDOWN
                    if is_controlled
                    else BrokerControlState.SHUTDOWN_NOW
                )
            return BrokerControlState.FENCED if heartbeat.want_fence else current
        shutdown_offset = self._brokers[heartbeat.broker_id].controlled_shutdown_offset
        if has_leaderships or shutdown_offset > self.lowest_active_offset():
            return current
        return BrokerControlState.SHUTDOWN_NOW
