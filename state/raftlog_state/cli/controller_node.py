"""Services of ``raftlog.node`` that know metadata: the controller, and the publishers.

Publishers are for every log of metadata: they write the snapshots below which it is trimmed. With a
controller they register it, too.

Only this module and its neighbours import both ``raftlog.node`` and the controller.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kio.schema.controller_registration.v0.request import Listener as RegisteredListener
from kio.schema.controller_registration.v0.response import ControllerRegistrationResponse
from kio.schema.envelope.v0.response import EnvelopeResponse

from raftlog.node.addresses import CONTROLLER_NAME
from raftlog.node.apis.configs import topic_settings
from raftlog.node.client_quotas import QuotaEntity
from raftlog.node.config import NodeConfig
from raftlog.node.formatting import random_id
from raftlog.node.request import Request
from raftlog.node.service import Figure, NodeContext, RequestHandler, Service
from raftlog.types import Operation, Resource
from raftlog.wire import APIS, CONTROLLER_APIS, Api, ApiKey, Listener
from raftlog.wire.log_identity import int16, port
from raftlog.wire.sasl import ScramCredential
from raftlog_state.controller_apis import (
    ELEMENTS_MAX,
    HANDLERS,
    Handler,
    HostedController,
    describe_change,
    forward_request,
)
from raftlog_state.controller_apis.bootstrap import read_bootstrap
from raftlog_state.controller_apis.registration import (
    ControllerRegistrationManager,
    registration_request,
)
from raftlog_state.enums import SCRAM_MECHANISMS
from raftlog_state.publishing import AccessPublisher, PublishingLoader, SnapshotGenerator

_SCRAM_NUMBERS: Final = {name: number for number, name in SCRAM_MECHANISMS.items()}
_PLAINTEXT: Final = 0
_SSL: Final = 1
"""Kafka's ``SecurityProtocol``."""


class ControllerLines:
    """Log lines of a controller, or of publishers."""

    def __init__(self, log_line: Callable[[str, str, str], None], event: str) -> None:
        self._log_line = log_line
        self._event = event

    def log(self, message: str) -> None:
        self._log_line(self._event, "info", message)

    def handle_fault(self, message: str, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        self._log_line(self._event, "error", f"{message}\n{trace}")

    def handle_fatal_fault(self, message: str, error: Exception) -> None:
        self.handle_fault(message, error)


def create_controller(node: NodeContext) -> Service:
    """Return the controller of a node."""
    assert node.config.controller is not None, "it is enabled"
    controller = HostedController(
        node.log,
        cluster_id=node.cluster_id,
        listener=ControllerLines(node.log_line, "controller"),
        session_timeout_ms=node.config.controller.session_timeout_ms,
        max_idle_interval_ms=node.config.controller.max_idle_interval_ms,
        bootstrap_features=read_bootstrap(node.config.directory),
        token_secret=node.token_secret,
        log_configs=lambda: {one.name: one.value for one in topic_settings(node.log_config())},
        forwarded_principal=node.forwarded_principal,
        forwarded_audit=node.forwarded_audit,
    )

    async def respond(api: Api, handler: Handler, request: Request[Any]) -> object:
        forward = None
        if api.clients is not None and Listener.CLIENTS in request.principal.listener:
            forward = partial(
                forward_request,
                request,
                lambda envelope: node.ask_leader(ApiKey.ENVELOPE, envelope, EnvelopeResponse),
            )
        return await handler.respond(controller, request, forward)

    def describe(key: ApiKey, request: Request[Any]) -> object | None:
        return describe_change(key, request.body)

    return Service(
        listener=controller,
        handlers={
            key: RequestHandler(
                api=(api := CONTROLLER_APIS.get(key) or APIS[key]),
                request_class=handler.request_class,
                handle=partial(respond, api, handler),
                elements_max=ELEMENTS_MAX,
                is_large=handler.is_large,
                describe_change=partial(describe, key),
            )
            for key, handler in HANDLERS.items()
        },
        features=controller.features,
        figures=partial(_controller_figures, controller),
        owns_log=True,
    )


class _LogAccess:
    """ACLs, credentials and quotas of a node's log, as the node uses them."""

    def __init__(self, publisher: AccessPublisher) -> None:
        self._publisher: Final = publisher

    @property
    def is_ready(self) -> bool:
        return self._publisher.is_ready

    def authorize(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        return self._publisher.authorize(principal, host, operation, resource)

    def allowed_operations(self, principal: str, host: str) -> set[Operation]:
        return self._publisher.allowed_operations(principal, host)

    def connection_rate(self, host: str) -> float | None:
        return self._publisher.connection_rate(host)

    def has_quota(self, name: str) -> bool:
        return self._publisher.has_quota(name)

    def quota_of(self, entity: QuotaEntity, name: str) -> float | None:
        return self._publisher.quota_of(entity, name)

    def find_credential(self, mechanism: str, user: str) -> ScramCredential | None:
        row = self._publisher.find_credential(_SCRAM_NUMBERS.get(mechanism, 0), user)
        if row is None:
            return None
        return ScramCredential(row.salt, row.iterations, row.stored_key, row.server_key)


def create_publishers(node: NodeContext) -> Service:
    """Return the publishers of a node whose log has metadata."""
    lines, loop = ControllerLines(node.log_line, "metadata"), asyncio.get_running_loop()
    generator = SnapshotGenerator(
        node.log,
        time_ms=lambda: time.monotonic_ns() // 1_000_000,
        schedule=loop.call_soon,
        sync=node.sync_snapshot,
        listener=lines,
        bytes_max=node.config.snapshots.bytes_max,
        interval_ms=node.config.snapshots.interval_ms,
        skips_rejected=node.config.snapshots.skip_rejected,
    )
    loader = PublishingLoader(lines, [generator])
    access = None
    if node.config.controller is not None:
        publisher = AccessPublisher(
            committed_at_start=node.committed_at_start,
            has_failed=lambda: loader.failure is not None,
            credentials_changed=partial(loop.call_soon, node.reauthenticate),
        )
        loader.install(publisher)
        access = _LogAccess(publisher)
    service = Service(
        listener=loader,
        access=access,
        figures=partial(_metadata_figures, loader, generator),
        warnings=partial(_metadata_warnings, node.config.node_id, loader, generator),
    )
    if node.config.controller is None:
        return service
    registration = ControllerRegistrationManager(
        registration_request(node.config.node_id, random_id(), _listener(node.config)),
        send=lambda request: node.ask_leader(
            ApiKey.CONTROLLER_REGISTRATION, request, ControllerRegistrationResponse
        ),
        listener=lines,
    )
    loader.install(registration)
    return service


def _metadata_figures(loader: PublishingLoader, generator: SnapshotGenerator) -> list[Figure]:
    loaded, emitted = loader.metrics(), generator.metrics()
    return [
        Figure(
            "metadata_applied_offset",
            "Offset of the last record in the metadata image.",
            loaded.last_applied_offset,
        ),
        Figure(
            "metadata_errors",
            "Errors during the replay or publishing of metadata.",
            loaded.metadata_error_count,
            is_counter=True,
        ),
        Figure(
            "metadata_records_rejected",
            "Records without effect because they contradict others or are damaged.",
            loaded.rejected_record_count,
        ),
        Figure(
            "metadata_records_unsupported",
            "Records that this release does not support.",
            loaded.skipped_record_count,
        ),
        Figure(
            "snapshots_disabled",
            "1 while this node writes no snapshots, and its log is therefore not trimmed.",
            bool(loader.failure or generator.stopped_reason),
        ),
        Figure(
            "snapshot_bytes",
            "Size in bytes of the last snapshot that this node wrote.",
            emitted.latest_snapshot_generated_bytes,
        ),
        Figure(
            "snapshot_age_seconds",
            "Time since this node last wrote a snapshot, or since it started.",
            emitted.latest_snapshot_generated_age_ms / 1_000,
        ),
    ]


def _metadata_warnings(
    node_id: int, loader: PublishingLoader, generator: SnapshotGenerator
) -> list[str]:
    reason = loader.failure or generator.stopped_reason
    return [] if reason is None else [f"node {node_id} writes no snapshots: {reason}"]


def _controller_figures(controller: HostedController) -> list[Figure]:
    found = controller.controller.metrics(controller.time_ms())
    return [
        Figure("controller_active", "1 on the active controller, otherwise 0.", found.is_active),
        Figure(
            "controller_applied_offset",
            "Offset of the last record in the controller's state.",
            found.last_applied_record_offset,
        ),
        Figure(
            "controller_committed_offset",
            "Offset of the last committed record that the controller has.",
            found.last_committed_record_offset,
        ),
        Figure(
            "controller_applied_lag_seconds",
            "Age of the last record that a standby has applied; 0 on the active controller.",
            found.last_applied_record_lag_ms / 1_000,
        ),
        Figure(
            "controller_operations",
            "Controller operations that were started.",
            found.operations_started_count,
            is_counter=True,
        ),
        Figure(
            "controller_operations_timed_out",
            "Controller operations that were not committed before their deadline.",
            found.operations_timed_out_count,
            is_counter=True,
        ),
        Figure(
            "controller_operations_waiting",
            "Controller operations waiting to be committed.",
            found.operations_waiting_count,
        ),
        Figure(
            "controller_elections",
            "Active controllers that this node has learned of.",
            found.new_active_controllers_count,
            is_counter=True,
        ),
        Figure(
            "controller_faults", "Faults of the controller.", found.fault_count, is_counter=True
        ),
    ]


def _listener(config: NodeConfig) -> RegisteredListener:
    """Return the listener for voters as Kafka registers that of a controller."""
    voters = config.voters
    assert voters is not None, "checked with the configuration"
    return RegisteredListener(
        name=CONTROLLER_NAME,
        host=voters.advertised_host,
        port=port(voters.advertised_port),
        security_protocol=int16(_PLAINTEXT if voters.tls is None else _SSL),
    )
