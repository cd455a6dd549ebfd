"""Node of a quorum: a replica with its log, its network server, and its process."""

from .replica import Replica, RunSync

__all__ = ["Replica", "RunSync"]
