"""Kafka's admin requests, answered by a controller in a node.

``HostedController`` runs a ``QuorumController`` on a node's event loop. The other modules translate
requests to its writes and reads, and their results to responses. Nothing here depends on the node:
``raftlog_state.cli.controller_node`` registers both with it.

Source: Kafka ``ControllerApis``.
"""

from __future__ import annotations

from .audited_changes import describe_change
from .envelope import forward_request
from .handlers import HANDLERS, Handler
from .hosted_controller import ELEMENTS_MAX, HostedController

__all__ = [
    "ELEMENTS_MAX",
    "HANDLERS",
    "Handler",
    "HostedController",
    "describe_change",
    "forward_request",
]
