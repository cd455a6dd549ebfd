"""Registration, fencing and removal of brokers.

A broker's record changes no partition: PartitionChangeRecords are written before the record of a
broker that is fenced or removed, and after the record of one that is unfenced.

Source: Kafka ``ClusterControlManager.registerBroker``, ``ReplicationControlManager``
(handleBrokerFenced, handleBrokerUnfenced, handleBrokerUnregistered, handleBrokerShutdown).
"""

from __future__ import annotations

import re
from typing import Final

from raftlog_state.enums import SECURITY_PROTOCOLS
from raftlog_state.image import METADATA_VERSION, BrokerRow, FeatureRow
from raftlog_state.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

from .api_exception import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REGISTRATION,
    UNSUPPORTED_VERSION,
    ApiException,
    check_uuid,
    enum_number,
)
from .change_requests import FenceBroker, RegisterBroker, UnfenceBroker, UnregisterBroker
from .dispatch import write
from .features import KNOWN_FEATURES, unsupported_reason
from .partitions import update_leader_and_isr
from .pending_state import PendingState

_FENCE: Final = 1
_UNFENCE: Final = -1
_ENDPOINT: Final = re.compile(r"(?:([A-Za-z_]+)://)?(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})")
_PORT_MAX: Final = 65535


@write.register
def register_broker(change: RegisterBroker, state: PendingState) -> None:
    """Register a broker. A new incarnation removes the broker from the ISRs and leaderships of the
    earlier one; the same incarnation updates its registration, and stays fenced or unfenced."""
    what = f"broker {change.broker_id}"
    if change.broker_id < 0:
        raise ApiException(
            what, "Invalid negative broker ID", "correct broker_id", INVALID_REGISTRATION
        )
    for uuid in (change.incarnation_id, *(change.log_dirs or ())):
        if uuid is not None:
            check_uuid(uuid, what)
    features = _features(change, state, what)
    endpoints = tuple(_endpoint(name, at, what) for name, at in sorted(change.endpoints.items()))
    if not endpoints:
        raise ApiException(what, "No endpoints specified", "set endpoints", INVALID_REGISTRATION)
    amended = state.current.find(BrokerRow, change.broker_id)
    if amended is not None and amended.incarnation_id != change.incarnation_id:
        amended = None
    log_dirs = _log_dirs(change, amended, state, what)
    if amended is None:
        _handle_unclean_shutdown(change.broker_id, state)
    state.write(
        RegisterBrokerRecord(
            broker_id=change.broker_id,
            incarnation_id=change.incarnation_id or state.random_uuid(),
            broker_epoch=state.next_offset if amended is None else amended.broker_epoch,
            end_points=endpoints,
            features=features,
            rack=change.rack,
            fenced=amended is None or amended.fenced,
            in_controlled_shutdown=amended is not None and amended.in_controlled_shutdown,
            log_dirs=log_dirs,
        )
    )


@write.register
def unregister_broker(change: UnregisterBroker, state: PendingState) -> None:
    """Unregister a broker."""
    row = _broker(change.broker_id, state)
    update_leader_and_isr(
        state.current.partitions_in_isr(row.broker_id), state, broker_to_remove=row.broker_id
    )
    update_leader_and_isr(
        state.current.partitions_in_elr(row.broker_id), state, broker_to_remove=row.broker_id
    )
    state.write(UnregisterBrokerRecord(broker_id=row.broker_id, broker_epoch=row.broker_epoch))


@write.register
def fence_broker(change: FenceBroker, state: PendingState) -> None:
    """Fence a broker."""
    row = _broker(change.broker_id, state)
    update_leader_and_isr(
        state.current.partitions_in_isr(row.broker_id), state, broker_to_remove=row.broker_id
    )
    _write_fencing(row, _FENCE, state)


@write.register
def unfence_broker(change: UnfenceBroker, state: PendingState) -> None:
    """Unfence a broker; elect it for leaderless partitions it may lead."""
    row = _broker(change.broker_id, state)
    _write_fencing(row, _UNFENCE, state)
    leaderless = state.current.leaderless_partitions()
    update_leader_and_isr(leaderless, state, broker_to_add=row.broker_id)


def _broker(broker_id: int, state: PendingState) -> BrokerRow:
    row = state.current.find(BrokerRow, broker_id)
    if row is None:
        reason = f"Broker ID {broker_id} is not currently registered"
        remedy = "correct the id, or register the broker first"
        raise ApiException(f"broker {broker_id}", reason, remedy, BROKER_ID_NOT_REGISTERED)
    return row


def _handle_unclean_shutdown(broker_id: int, state: PendingState) -> None:
    """Remove the earlier incarnation from ISRs and ELRs, as after an unclean shutdown."""
    row = state.current.find(BrokerRow, broker_id)
    if row is None:
        return
    if state.current.versions.elr:
        update_leader_and_isr(
            state.current.partitions_in_isr(row.broker_id), state, unclean=broker_id
        )
        update_leader_and_isr(
            state.current.partitions_in_elr(row.broker_id), state, unclean=broker_id
        )
    else:
        update_leader_and_isr(
            state.current.partitions_in_isr(row.broker_id), state, broker_to_remove=broker_id
        )


def _write_fencing(row: BrokerRow, fenced: int, state: PendingState) -> None:
    record = BrokerRegistrationChangeRecord(
        broker_id=row.broker_id, broker_epoch=row.broker_epoch, fenced=fenced
    )
    state.write(record, version=0)


def _endpoint(name: str, at: str, what: str) -> BrokerEndpoint:
    match = _ENDPOINT.fullmatch(at.strip())
    if match is None or not name or int(match[4]) > _PORT_MAX:
        reason = f"endpoint {name!r} is not [protocol://]host:port"
        raise ApiException(what, reason, "correct it, for instance localhost:9092 or SSL://h:9093")
    protocol = enum_number(SECURITY_PROTOCOLS, match[1] or "PLAINTEXT", what)
    return BrokerEndpoint(
        name=name, host=match[2] or match[3], port=int(match[4]), security_protocol=protocol
    )


def _log_dirs(
    change: RegisterBroker, amended: BrokerRow | None, state: PendingState, what: str
) -> tuple[str, ...]:
    """Return the log directories of the change, else of the incarnation, else a random one."""
    found = change.log_dirs
    if found is None and amended is not None:
        found = amended.log_dirs
    elif found is None:
        found = (state.random_uuid(),) if state.current.versions.directories else ()
    elif found and not state.current.versions.directories:
        reason = f"Directory assignment is not supported by metadata.version {state.current.level}"
        raise ApiException(what, reason, "leave log_dirs out", UNSUPPORTED_VERSION)
    others = (row for row in state.current.rows_of(BrokerRow) if row.broker_id != change.broker_id)
    taken = sorted({one for row in others for one in row.log_dirs} & set(found))
    if taken:
        reason = f"Another broker is already registered with directory {taken[0]}"
        raise ApiException(what, reason, "correct log_dirs", INVALID_REGISTRATION)
    return tuple(found)


def _features(change: RegisterBroker, state: PendingState, what: str) -> tuple[BrokerFeature, ...]:
    given = KNOWN_FEATURES if change.features is None else change.features
    if METADATA_VERSION not in given:
        reason = f"its features lack {METADATA_VERSION}"
        raise ApiException(what, reason, "add its range of levels", INVALID_REGISTRATION)
    for name, levels in given.items():
        if len(levels) != 2 or not 0 <= levels[0] <= levels[1]:
            reason = f"feature {name!r} is not a pair of lowest and highest level"
            raise ApiException(what, reason, "correct the levels", INVALID_REGISTRATION)
    for row in state.current.rows_of(FeatureRow):
        low, high = given.get(row.name, (0, 0))
        if unsupported_reason(row.level, what, low, high) is not None:
            reason = (
                "Unable to register because the broker does not support finalized version "
                f"{row.level} of {row.name}. The broker wants a version between {low} and {high}, "
                "inclusive"
            )
            remedy = "register a broker that supports the version"
            raise ApiException(what, reason, remedy, UNSUPPORTED_VERSION)
    return tuple(
        BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(given.items())
    )
