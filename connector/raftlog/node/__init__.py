"""A process of a quorum: a replica with its log, and what drives it.

``Replica`` is one node's part of a quorum.
"""

from .replica import Replica, RunSync

__all__ = ["Replica", "RunSync"]
