"""Who asks, and what that gives the right to.

Rules of this file:

1. Rights come from what was proven on the connection, never from what a message says.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raftlog.wire import Listener


class Rights(enum.Flag):
    """What a caller may do. Without any a request is refused."""

    NONE = 0
    DESCRIBE = enum.auto()
    READ = enum.auto()
    APPEND = enum.auto()
    ADMIN = enum.auto()
    """Change voters, and who is told about others."""
    VOTE = enum.auto()
    """Be a replica: fetch under a node's id, ask for votes, lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks on a connection.

    ``name`` is the certificate's, or ``anonymous``; ``node_id`` is that of the node whose
    certificate it is, None if none is proven; ``client_id`` is what the caller calls itself, and
    proves nothing.
    """

    name: str
    node_id: int | None
    listener: Listener
    rights: Rights
    client_id: str | None = None
