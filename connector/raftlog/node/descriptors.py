"""File descriptors of a node: how many it needs, and the limit of its process.

A node whose connection limits exceed its file descriptors does not start, because it would fail
later, under load.
"""

from __future__ import annotations

import resource
from typing import Final

from raftlog.errors import ConfigError

from .config import NodeConfig
from .metrics_server import METRICS_CONNECTIONS_MAX

FILES_RESERVE: Final = 128
"""Descriptors for the log's files, connections to other nodes, Python and system libraries."""


def descriptors_needed(config: NodeConfig) -> int:
    """Return the maximum number of descriptors that a node has open."""
    limits = config.limits
    return (
        limits.connections_max
        + limits.voters_connections_max
        + limits.stranger_connections_max * len(config.listeners)
        + METRICS_CONNECTIONS_MAX
        + FILES_RESERVE
    )


def raise_descriptor_limit(config: NodeConfig) -> None:
    """Raise the soft limit of open files (RLIMIT_NOFILE) if the node needs more.

    Raises ``ConfigError`` if the hard limit is too low.
    """
    needed = descriptors_needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):
        raise ConfigError(
            path=config.path or "the configuration",
            key="limits.connections_max",
            reason=f"the connections of [limits] and the log's files need {needed} file "
            f"descriptors, but the limit of open files is {hard}: raise it (`ulimit -n`, or "
            "LimitNOFILE= in systemd), or lower connections_max",
        ) from None
