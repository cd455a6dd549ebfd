"""Registration, fencing and removal of brokers, and registration of controllers.

A broker's record changes no partition. PartitionChangeRecords are written before the record that
fences or removes a broker, and after the record that unfences one.

Source: Kafka 4.3 ``ClusterControlManager`` (registerBroker, registerController),
``ReplicationControlManager`` (handleBrokerFenced, handleBrokerUnfenced, handleBrokerUnregistered,
handleBrokerShutdown, handleBrokerInControlledShutdown).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog_state.enums import SECURITY_PROTOCOLS
from raftlog_state.image import METADATA_VERSION, BrokerRow, FeatureRow
from raftlog_state.image.record_versions import LEVEL_CONTROLLERS
from raftlog_state.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from raftlog_state.replay.cluster import KRAFT_VERSION

from .api_exception import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REGISTRATION,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    ApiException,
    check_uuid,
    enum_number,
)
from .change_requests import FenceBroker, RegisterBroker, UnfenceBroker, UnregisterBroker
from .features import KNOWN_FEATURES
from .partitions import check_broker_epoch, update_leader_and_isr
from .pending_state import PendingState, write_in_steps

NO_BROKER_EPOCH: Final = -1
_FENCE: Final = 1
_UNFENCE: Final = -1
_ENDPOINT: Final = re.compile(r"(?:([A-Za-z_]+)://)?(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})")
_PORT_MAX: Final = 65535
_RESERVED_MAX: Final = 100
"""Smaller uuids are reserved (Kafka: ``DirectoryId``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """Registration of a broker (Kafka: ``BrokerRegistrationRequest``).

    ``features``: name to lowest and highest level. ``previous_broker_epoch``: the epoch in which
    the broker was shut down cleanly, or -1.
    """

    broker_id: int
    incarnation_id: str
    endpoints: tuple[BrokerEndpoint, ...]
    features: Mapping[str, tuple[int, ...]]
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    previous_broker_epoch: int = NO_BROKER_EPOCH


def write_registration(
    registration: BrokerRegistration, state: PendingState, *, kraft_version: int = 0
) -> Generator[None, None, int]:
    """Register a broker, and return its epoch.

    A new incarnation is fenced. It is removed from the ISRs and leaderships of the earlier one, and
    from ELRs unless that one was shut down cleanly. The same incarnation updates its registration,
    and stays fenced or unfenced. Raises ``ApiException``.
    """
    what = f"broker {registration.broker_id}"
    row = state.current.find(BrokerRow, registration.broker_id)
    has_directories = state.current.versions.directories
    if has_directories:
        _check_log_dirs(registration, what, state)
    features = _features(registration.features, kraft_version, what, state)
    amended = row
    if row is None or row.incarnation_id != registration.incarnation_id:
        amended = None
        is_clean = row is not None and row.broker_epoch == registration.previous_broker_epoch
        yield from _handle_shutdown(registration.broker_id, is_clean, state)
    epoch = state.next_offset if amended is None else amended.broker_epoch
    state.write(
        RegisterBrokerRecord(
            broker_id=registration.broker_id,
            incarnation_id=registration.incarnation_id,
            broker_epoch=epoch,
            end_points=registration.endpoints,
            features=features,
            rack=registration.rack,
            fenced=amended is None or amended.fenced,
            in_controlled_shutdown=amended is not None and amended.in_controlled_shutdown,
            log_dirs=registration.log_dirs if has_directories else (),
        )
    )
    return epoch


def write_fenced(row: BrokerRow, state: PendingState) -> Generator[None, None, None]:
    """Fence a broker: remove it from every ISR and elect other leaders."""
    rows = yield from state.current.partitions_in_isr(row.broker_id)
    yield from update_leader_and_isr(rows, state, broker_to_remove=row.broker_id)
    _write_fencing(row, _FENCE, state)


def write_unfenced(row: BrokerRow, state: PendingState) -> Generator[None, None, None]:
    """Unfence a broker, and elect it for leaderless partitions that it may lead."""
    _write_fencing(row, _UNFENCE, state)
    rows = yield from state.current.leaderless_partitions()
    yield from update_leader_and_isr(rows, state, broker_to_add=row.broker_id)


def write_controlled_shutdown(row: BrokerRow, state: PendingState) -> Generator[None, None, None]:
    """Begin a broker's controlled shutdown: elect other leaders, remove it from every ISR."""
    if not row.in_controlled_shutdown:
        record = BrokerRegistrationChangeRecord(
            broker_id=row.broker_id, broker_epoch=row.broker_epoch, in_controlled_shutdown=1
        )
        state.write(record, version=1)
    rows = yield from state.current.partitions_in_isr(row.broker_id)
    yield from update_leader_and_isr(rows, state, broker_to_remove=row.broker_id)


def write_unregistered(broker_id: int, state: PendingState) -> Iterator[None]:
    """Unregister a broker, and remove it from every ISR and ELR. Raises ``ApiException``."""
    row = _broker(broker_id, None, state)
    rows = yield from state.current.partitions_in_isr(row.broker_id)
    yield from update_leader_and_isr(rows, state, broker_to_remove=row.broker_id)
    rows = yield from state.current.partitions_in_elr(row.broker_id)
    yield from update_leader_and_isr(rows, state, broker_to_remove=row.broker_id)
    state.write(UnregisterBrokerRecord(broker_id=row.broker_id, broker_epoch=row.broker_epoch))


@write_in_steps.register
def register_broker(change: RegisterBroker, state: PendingState) -> Iterator[None]:
    """Register a broker; values not set by the change are its incarnation's, or random."""
    what = f"broker {change.broker_id}"
    if change.broker_id < 0:
        raise ApiException(
            what, "Invalid negative broker ID", "correct broker_id", INVALID_REGISTRATION
        )
    for uuid in (change.incarnation_id, *(change.log_dirs or ())):
        if uuid is not None:
            check_uuid(uuid, what)
    endpoints = tuple(_endpoint(name, at, what) for name, at in sorted(change.endpoints.items()))
    if not endpoints:
        raise ApiException(what, "No endpoints specified", "set endpoints", INVALID_REGISTRATION)
    registration = BrokerRegistration(
        broker_id=change.broker_id,
        incarnation_id=change.incarnation_id or _new_incarnation_id(change.broker_id, state),
        endpoints=endpoints,
        features=KNOWN_FEATURES if change.features is None else change.features,
        rack=change.rack,
        log_dirs=_log_dirs(change, state, what),
        previous_broker_epoch=change.previous_broker_epoch,
    )
    yield from write_registration(registration, state)


@write_in_steps.register
def unregister_broker(change: UnregisterBroker, state: PendingState) -> Iterator[None]:
    """Unregister a broker."""
    row = _broker(change.broker_id, change.broker_epoch, state)
    return write_unregistered(row.broker_id, state)


@write_in_steps.register
def fence_broker(change: FenceBroker, state: PendingState) -> Iterator[None]:
    """Fence a broker."""
    return write_fenced(_broker(change.broker_id, change.broker_epoch, state), state)


@write_in_steps.register
def unfence_broker(change: UnfenceBroker, state: PendingState) -> Iterator[None]:
    """Unfence a broker."""
    return write_unfenced(_broker(change.broker_id, change.broker_epoch, state), state)


# --- helpers --------------------------------------------------------------------------------------


def _broker(broker_id: int, broker_epoch: int | None, state: PendingState) -> BrokerRow:
    row = state.current.find(BrokerRow, broker_id)
    if row is None:
        reason = f"Broker ID {broker_id} is not currently registered"
        remedy = "correct the id, or register the broker first"
        raise ApiException(f"broker {broker_id}", reason, remedy, BROKER_ID_NOT_REGISTERED)
    if broker_epoch is not None:
        check_broker_epoch(broker_id, broker_epoch, state)
    return row


def _new_incarnation_id(broker_id: int, state: PendingState) -> str:
    row = state.current.find(BrokerRow, broker_id)
    while (found := state.random_uuid()) == (None if row is None else row.incarnation_id):
        pass
    return found


def _handle_shutdown(broker_id: int, is_clean: bool, state: PendingState) -> Iterator[None]:
    """Remove a broker's earlier incarnation from ISRs, and after an unclean shutdown from ELRs."""
    is_unclean = state.current.versions.elr and not is_clean
    rows = yield from state.current.partitions_in_isr(broker_id)
    if not is_unclean:
        yield from update_leader_and_isr(rows, state, broker_to_remove=broker_id)
        return
    yield from update_leader_and_isr(rows, state, unclean=broker_id)
    rows = yield from state.current.partitions_in_elr(broker_id)
    yield from update_leader_and_isr(rows, state, unclean=broker_id)


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


def _log_dirs(change: RegisterBroker, state: PendingState, what: str) -> tuple[str, ...]:
    """Return the log directories of the change, or of the incarnation, or a random one."""
    if change.log_dirs is not None:
        if change.log_dirs and not state.current.versions.directories:
            reason = (
                f"Directory assignment is not supported by metadata.version {state.current.level}"
            )
            raise ApiException(what, reason, "leave log_dirs out", UNSUPPORTED_VERSION)
        return tuple(change.log_dirs)
    row = state.current.find(BrokerRow, change.broker_id)
    if row is not None and row.incarnation_id == change.incarnation_id and row.log_dirs:
        return row.log_dirs
    return (state.random_uuid(),) if state.current.versions.directories else ()


def _check_log_dirs(registration: BrokerRegistration, what: str, state: PendingState) -> None:
    wanted = set(registration.log_dirs)
    others = {
        directory: row.broker_id
        for row in state.current.rows_of(BrokerRow)
        if row.broker_id != registration.broker_id
        for directory in row.log_dirs
    }
    taken = sorted(wanted & others.keys())
    reason = None
    if not wanted:
        reason = "No directories specified in request"
    elif any(_is_reserved(one) for one in wanted):
        reason = "Reserved directory ID in request"
    elif len(wanted) != len(registration.log_dirs):
        reason = "Duplicate directory ID in request"
    elif taken:
        reason = f"Broker {others[taken[0]]} is already registered with directory {taken[0]}"
    if reason is not None:
        raise ApiException(what, reason, "correct log_dirs", INVALID_REGISTRATION)


def _is_reserved(uuid: str) -> bool:
    return int.from_bytes(base64.urlsafe_b64decode(uuid + "==")) < _RESERVED_MAX


def _features(
    given: Mapping[str, tuple[int, ...]], kraft_version: int, what: str, state: PendingState
) -> tuple[BrokerFeature, ...]:
    """Return the features of a broker, which must support every finalized level."""
    if METADATA_VERSION not in given:
        reason = f"Request features do not contain '{METADATA_VERSION}'"
        raise ApiException(what, reason, "add its range of levels", INVALID_REGISTRATION)
    for name, levels in given.items():
        if len(levels) != 2 or not 0 <= levels[0] <= levels[1]:
            reason = f"feature {name!r} is not a pair of lowest and highest level"
            raise ApiException(what, reason, "correct the levels", INVALID_REGISTRATION)
    finalized = {row.name: row.level for row in state.current.rows_of(FeatureRow)}
    if kraft_version:
        finalized[KRAFT_VERSION] = kraft_version
    for name in sorted({*given, *finalized}):
        level = finalized.get(name, 0)
        low, high = given.get(name, (0, 0))
        if not low <= level <= high:
            reason = (
                "Unable to register because the broker does not support finalized version "
                f"{level} of {name}. The broker wants a version between {low} and {high}, inclusive"
            )
            remedy = "register a broker that supports the version"
            raise ApiException(what, reason, remedy, UNSUPPORTED_VERSION)
    return tuple(
        BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(given.items())
    )


def register_controller(record: RegisterControllerRecord, state: PendingState) -> None:
    """Write the registration of a controller. Raises ``ApiException``."""
    what = f"controller {record.controller_id}"
    if state.current.level < LEVEL_CONTROLLERS:
        reason = "The current MetadataVersion is too old to support controller registrations."
        remedy = f"upgrade metadata.version to {LEVEL_CONTROLLERS} or higher first"
        raise ApiException(what, reason, remedy, UNSUPPORTED_VERSION)
    if not record.end_points:
        raise ApiException(what, "No listeners specified", "set listeners", INVALID_REQUEST)
    state.write(record)
