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

from raftlog_state.image import METADATA_VERSION, BrokerRow, FeatureRow, PartitionRow
from raftlog_state.names import SECURITY_PROTOCOLS
from raftlog_state.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

from .changes import FenceBroker, RegisterBroker, UnfenceBroker, UnregisterBroker
from .draft import Draft
from .features import KNOWN_FEATURES, not_supported
from .partition_change import NO_LEADER
from .partitions import leave_and_elect
from .refusal import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REGISTRATION,
    UNSUPPORTED_VERSION,
    Refused,
    check_uuid,
    number_of,
)
from .writing import write

_FENCE: Final = 1
_UNFENCE: Final = -1
_ENDPOINT: Final = re.compile(r"(?:([A-Za-z_]+)://)?(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})")
_PORT_MAX: Final = 65535


@write.register
def register_broker(change: RegisterBroker, draft: Draft) -> None:
    """A new incarnation: what an earlier one led or was in sync with is taken from it. The same
    one again amends what it said of itself, and stays as it is otherwise."""
    what = f"broker {change.broker_id}"
    if change.broker_id < 0:
        raise Refused(what, "ids of brokers are not negative", "correct it", INVALID_REGISTRATION)
    for uuid in (change.incarnation_id, *(change.log_dirs or ())):
        if uuid is not None:
            check_uuid(uuid, what)
    features = _features(change, draft, what)
    endpoints = tuple(_endpoint(name, at, what) for name, at in sorted(change.endpoints.items()))
    if not endpoints:
        raise Refused(what, "it listens nowhere", "give an endpoint", INVALID_REGISTRATION)
    amended = draft.find(BrokerRow, change.broker_id)
    if amended is not None and amended.incarnation_id != change.incarnation_id:
        amended = None
    log_dirs = _log_dirs(change, amended, draft, what)
    if amended is None:
        _shut_down(change.broker_id, draft)
    draft.write(
        RegisterBrokerRecord(
            broker_id=change.broker_id,
            incarnation_id=change.incarnation_id or draft.new_id(),
            broker_epoch=draft.next_offset if amended is None else amended.broker_epoch,
            end_points=endpoints,
            features=features,
            rack=change.rack,
            fenced=amended is None or amended.fenced,
            in_controlled_shutdown=amended is not None and amended.in_controlled_shutdown,
            log_dirs=log_dirs,
        )
    )


@write.register
def unregister_broker(change: UnregisterBroker, draft: Draft) -> None:
    """A broker goes for good."""
    row = _broker(change.broker_id, draft)
    leave_and_elect(_in_sync(row, draft), draft, leaving=row.broker_id)
    leave_and_elect(_eligible(row, draft), draft, leaving=row.broker_id)
    draft.write(UnregisterBrokerRecord(broker_id=row.broker_id, broker_epoch=row.broker_epoch))


@write.register
def fence_broker(change: FenceBroker, draft: Draft) -> None:
    """A broker is gone for now."""
    row = _broker(change.broker_id, draft)
    leave_and_elect(_in_sync(row, draft), draft, leaving=row.broker_id)
    _write_fencing(row, _FENCE, draft)


@write.register
def unfence_broker(change: UnfenceBroker, draft: Draft) -> None:
    """A broker is there: partitions that nobody leads may be led by it."""
    row = _broker(change.broker_id, draft)
    _write_fencing(row, _UNFENCE, draft)
    idle = [one for one in draft.rows_of(PartitionRow) if one.leader == NO_LEADER]
    leave_and_elect(idle, draft, coming=row.broker_id)


def _broker(broker_id: int, draft: Draft) -> BrokerRow:
    row = draft.find(BrokerRow, broker_id)
    if row is None:
        remedy = "correct the id, or register it first"
        raise Refused(
            f"broker {broker_id}", "it is not registered", remedy, BROKER_ID_NOT_REGISTERED
        )
    return row


def _in_sync(row: BrokerRow, draft: Draft) -> list[PartitionRow]:
    return [one for one in draft.rows_of(PartitionRow) if row.broker_id in one.isr]


def _eligible(row: BrokerRow, draft: Draft) -> list[PartitionRow]:
    return [one for one in draft.rows_of(PartitionRow) if row.broker_id in one.elr]


def _shut_down(broker_id: int, draft: Draft) -> None:
    """What it was before this incarnation is over, and was not closed cleanly as far as we know."""
    row = draft.find(BrokerRow, broker_id)
    if row is None:
        return
    if draft.versions.elr:
        leave_and_elect(_in_sync(row, draft), draft, unclean=broker_id)
        leave_and_elect(_eligible(row, draft), draft, unclean=broker_id)
    else:
        leave_and_elect(_in_sync(row, draft), draft, leaving=broker_id)


def _write_fencing(row: BrokerRow, fenced: int, draft: Draft) -> None:
    record = BrokerRegistrationChangeRecord(
        broker_id=row.broker_id, broker_epoch=row.broker_epoch, fenced=fenced
    )
    draft.write(record, version=0)


def _endpoint(name: str, at: str, what: str) -> BrokerEndpoint:
    match = _ENDPOINT.fullmatch(at.strip())
    if match is None or not name or int(match[4]) > _PORT_MAX:
        reason = f"endpoint {name!r} is not host:port"
        raise Refused(what, reason, "write it as localhost:9092 or SSL://host:9093")
    protocol = number_of(SECURITY_PROTOCOLS, match[1] or "PLAINTEXT", what)
    return BrokerEndpoint(
        name=name, host=match[2] or match[3], port=int(match[4]), security_protocol=protocol
    )


def _log_dirs(
    change: RegisterBroker, amended: BrokerRow | None, draft: Draft, what: str
) -> tuple[str, ...]:
    """Those that are given, else those that the incarnation has, else a new one."""
    found = change.log_dirs
    if found is None and amended is not None:
        found = amended.log_dirs
    elif found is None:
        found = (draft.new_id(),) if draft.versions.directories else ()
    elif found and not draft.versions.directories:
        reason = f"metadata.version {draft.level} knows no log directories"
        raise Refused(what, reason, "leave them out", UNSUPPORTED_VERSION)
    others = (row for row in draft.rows_of(BrokerRow) if row.broker_id != change.broker_id)
    taken = sorted({one for row in others for one in row.log_dirs} & set(found))
    if taken:
        reason = f"log directory {taken[0]} is another broker's"
        raise Refused(what, reason, "give each its own", INVALID_REGISTRATION)
    return tuple(found)


def _features(change: RegisterBroker, draft: Draft, what: str) -> tuple[BrokerFeature, ...]:
    given = KNOWN_FEATURES if change.features is None else change.features
    if METADATA_VERSION not in given:
        reason = f"it does not say which levels of {METADATA_VERSION} it supports"
        raise Refused(what, reason, "add the range", INVALID_REGISTRATION)
    for name, levels in given.items():
        if len(levels) != 2 or not 0 <= levels[0] <= levels[1]:
            reason = f"feature {name!r} has no lowest and highest level"
            raise Refused(what, reason, "give both", INVALID_REGISTRATION)
    for row in draft.rows_of(FeatureRow):
        low, high = given.get(row.name, (0, 0))
        reason_not = not_supported(row.level, "it", low, high)
        if reason_not is not None:
            reason = f"{row.name} is finalized at {row.level}, and {reason_not}"
            raise Refused(what, reason, "register one that does", UNSUPPORTED_VERSION)
    return tuple(
        BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(given.items())
    )
