"""Brokers register, are fenced and unfenced, and go.

Rules of this file:

1. A broker's record changes no partition by itself: the changes stand beside it, before the record
   of one who goes and behind that of one who comes.

Source: Kafka ``ClusterControlManager.registerBroker``, ``ReplicationControlManager``
(handleBrokerFenced, handleBrokerUnfenced, handleBrokerUnregistered, handleBrokerShutdown).
"""

from __future__ import annotations

import re
from typing import Final

from raftlog_state.enums import SECURITY_PROTOCOLS
from raftlog_state.image import METADATA_VERSION, BrokerRow, FeatureRow, PartitionRow
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
from .partition_change import NO_LEADER
from .partitions import update_leader_and_isr
from .pending_state import PendingState

_FENCE: Final = 1
_UNFENCE: Final = -1
_ENDPOINT: Final = re.compile(r"(?:([A-Za-z_]+)://)?(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})")
_PORT_MAX: Final = 65535


@write.register
def register_broker(change: RegisterBroker, state: PendingState) -> None:
    """A new incarnation: what an earlier one led or was in sync with is taken from it. The same
    one again amends what it said of itself, and stays as it is otherwise."""
    what = f"broker {change.broker_id}"
    if change.broker_id < 0:
        raise ApiException(
            what, "ids of brokers are not negative", "correct it", INVALID_REGISTRATION
        )
    for uuid in (change.incarnation_id, *(change.log_dirs or ())):
        if uuid is not None:
            check_uuid(uuid, what)
    features = _features(change, state, what)
    endpoints = tuple(_endpoint(name, at, what) for name, at in sorted(change.endpoints.items()))
    if not endpoints:
        raise ApiException(what, "it listens nowhere", "give an endpoint", INVALID_REGISTRATION)
    amended = state.find(BrokerRow, change.broker_id)
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
    """A broker goes for good."""
    row = _broker(change.broker_id, state)
    update_leader_and_isr(_in_sync(row, state), state, broker_to_remove=row.broker_id)
    update_leader_and_isr(_eligible(row, state), state, broker_to_remove=row.broker_id)
    state.write(UnregisterBrokerRecord(broker_id=row.broker_id, broker_epoch=row.broker_epoch))


@write.register
def fence_broker(change: FenceBroker, state: PendingState) -> None:
    """A broker is gone for now."""
    row = _broker(change.broker_id, state)
    update_leader_and_isr(_in_sync(row, state), state, broker_to_remove=row.broker_id)
    _write_fencing(row, _FENCE, state)


@write.register
def unfence_broker(change: UnfenceBroker, state: PendingState) -> None:
    """A broker is there: partitions that nobody leads may be led by it."""
    row = _broker(change.broker_id, state)
    _write_fencing(row, _UNFENCE, state)
    idle = [one for one in state.rows_of(PartitionRow) if one.leader == NO_LEADER]
    update_leader_and_isr(idle, state, broker_to_add=row.broker_id)


def _broker(broker_id: int, state: PendingState) -> BrokerRow:
    row = state.find(BrokerRow, broker_id)
    if row is None:
        remedy = "correct the id, or register it first"
        raise ApiException(
            f"broker {broker_id}", "it is not registered", remedy, BROKER_ID_NOT_REGISTERED
        )
    return row


def _in_sync(row: BrokerRow, state: PendingState) -> list[PartitionRow]:
    return [one for one in state.rows_of(PartitionRow) if row.broker_id in one.isr]


def _eligible(row: BrokerRow, state: PendingState) -> list[PartitionRow]:
    return [one for one in state.rows_of(PartitionRow) if row.broker_id in one.elr]


def _handle_unclean_shutdown(broker_id: int, state: PendingState) -> None:
    """What it was before this incarnation is over, and was not closed cleanly as far as we know."""
    row = state.find(BrokerRow, broker_id)
    if row is None:
        return
    if state.versions.elr:
        update_leader_and_isr(_in_sync(row, state), state, unclean=broker_id)
        update_leader_and_isr(_eligible(row, state), state, unclean=broker_id)
    else:
        update_leader_and_isr(_in_sync(row, state), state, broker_to_remove=broker_id)


def _write_fencing(row: BrokerRow, fenced: int, state: PendingState) -> None:
    record = BrokerRegistrationChangeRecord(
        broker_id=row.broker_id, broker_epoch=row.broker_epoch, fenced=fenced
    )
    state.write(record, version=0)


def _endpoint(name: str, at: str, what: str) -> BrokerEndpoint:
    match = _ENDPOINT.fullmatch(at.strip())
    if match is None or not name or int(match[4]) > _PORT_MAX:
        reason = f"endpoint {name!r} is not host:port"
        raise ApiException(what, reason, "write it as localhost:9092 or SSL://host:9093")
    protocol = enum_number(SECURITY_PROTOCOLS, match[1] or "PLAINTEXT", what)
    return BrokerEndpoint(
        name=name, host=match[2] or match[3], port=int(match[4]), security_protocol=protocol
    )


def _log_dirs(
    change: RegisterBroker, amended: BrokerRow | None, state: PendingState, what: str
) -> tuple[str, ...]:
    """Those that are given, else those that the incarnation has, else a new one."""
    found = change.log_dirs
    if found is None and amended is not None:
        found = amended.log_dirs
    elif found is None:
        found = (state.random_uuid(),) if state.versions.directories else ()
    elif found and not state.versions.directories:
        reason = f"metadata.version {state.level} knows no log directories"
        raise ApiException(what, reason, "leave them out", UNSUPPORTED_VERSION)
    others = (row for row in state.rows_of(BrokerRow) if row.broker_id != change.broker_id)
    taken = sorted({one for row in others for one in row.log_dirs} & set(found))
    if taken:
        reason = f"log directory {taken[0]} is another broker's"
        raise ApiException(what, reason, "give each its own", INVALID_REGISTRATION)
    return tuple(found)


def _features(change: RegisterBroker, state: PendingState, what: str) -> tuple[BrokerFeature, ...]:
    given = KNOWN_FEATURES if change.features is None else change.features
    if METADATA_VERSION not in given:
        reason = f"it does not say which levels of {METADATA_VERSION} it supports"
        raise ApiException(what, reason, "add the range", INVALID_REGISTRATION)
    for name, levels in given.items():
        if len(levels) != 2 or not 0 <= levels[0] <= levels[1]:
            reason = f"feature {name!r} has no lowest and highest level"
            raise ApiException(what, reason, "give both", INVALID_REGISTRATION)
    for row in state.rows_of(FeatureRow):
        low, high = given.get(row.name, (0, 0))
        reason_not = unsupported_reason(row.level, "it", low, high)
        if reason_not is not None:
            reason = f"{row.name} is finalized at {row.level}, and {reason_not}"
            raise ApiException(what, reason, "register one that does", UNSUPPORTED_VERSION)
    return tuple(
        BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(given.items())
    )
