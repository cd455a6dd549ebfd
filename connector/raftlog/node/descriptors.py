"""How many descriptors a node needs, and the soft limit of its process.

Rules of this file:

1. A node that may take more connections than it has descriptors does not start: it would fail
   later, when it is full.
"""

from __future__ import annotations

import resource
from typing import Final

from raftlog.errors import ConfigError

from .config import NodeConfig
from .metrics_server import METRICS_CONNECTIONS_MAX

FILES_RESERVE: Final = 128
"""For the log's files, the connections to other nodes, and what Python and the system open."""


def descriptors_needed(config: NodeConfig) -> int:
    """Return how many descriptors a node has open at most."""
    limits = config.limits
    return (
        limits.connections_max
        + limits.voters_connections_max
        + limits.stranger_connections_max * len(config.listeners)
        + METRICS_CONNECTIONS_MAX
        + FILES_RESERVE
    )


def raise_descriptor_limit(config: NodeConfig) -> None:
    """Raise the soft limit of open files to what the node needs. Raises ``ConfigError``."""
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
            reason=f"the connections of [limits] and the log's files need {needed} descriptors, "
            f"and this process may open {hard} files: raise that limit "
            "(`ulimit -n`, or LimitNOFILE= of systemd), or lower connections_max",
        ) from None
