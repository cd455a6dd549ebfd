"""Controller of a node as a service of ``raftlog.node``: its listener, its requests, its log lines.

Only this module and its neighbours import both ``raftlog.node`` and the controller.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from functools import partial

from raftlog.node.apis.configs import topic_settings
from raftlog.node.service import NodeContext, RequestHandler, Service
from raftlog.wire import APIS, CONTROLLER_APIS
from raftlog_state.controller_apis import ELEMENTS_MAX, HANDLERS, HostedController
from raftlog_state.controller_apis.bootstrap import read_bootstrap
from raftlog_state.publishing import PublishingLoader, SnapshotGenerator


class ControllerLines:
    """Log lines of a controller."""

    def __init__(self, log_line: Callable[[str, str, str], None]) -> None:
        self._log_line = log_line

    def log(self, message: str) -> None:
        self._log_line("controller", "info", message)

    def handle_fault(self, message: str, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        self._log_line("controller", "error", f"{message}\n{trace}")

    def handle_fatal_fault(self, message: str, error: Exception) -> None:
        self.handle_fault(message, error)


def create_controller(node: NodeContext) -> Service:
    """Return the controller of a node."""
    assert node.config.controller is not None, "it is enabled"
    controller = HostedController(
        node.log,
        cluster_id=node.cluster_id,
        listener=ControllerLines(node.log_line),
        session_timeout_ms=node.config.controller.session_timeout_ms,
        bootstrap_features=read_bootstrap(node.config.directory),
        token_secret=node.token_secret,
        log_configs=lambda: {one.name: one.value for one in topic_settings(node.log_config())},
        forwarded_principal=node.forwarded_principal,
    )
    return Service(
        listener=controller,
        handlers={
            key: RequestHandler(
                api=CONTROLLER_APIS.get(key) or APIS[key],
                request_class=handler.request_class,
                handle=partial(handler.respond, controller),
                elements_max=ELEMENTS_MAX,
                is_large=handler.is_large,
            )
            for key, handler in HANDLERS.items()
        },
        features=controller.features,
        owns_log=True,
    )


def create_publishers(node: NodeContext) -> Service:
    """Return the publishers of a node with a controller: its log is trimmed by snapshots."""
    lines = ControllerLines(node.log_line)
    generator = SnapshotGenerator(
        node.log,
        time_ms=lambda: time.monotonic_ns() // 1_000_000,
        schedule=asyncio.get_running_loop().call_soon,
        sync=node.sync_snapshot,
        listener=lines,
    )
    return Service(listener=PublishingLoader(lines, [generator]))
