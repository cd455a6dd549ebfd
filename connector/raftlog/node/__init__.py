"""A process of a quorum: a replica with its log, and what drives it.

``Replica`` is one node's part of a quorum, ``LeaderAppends`` the appends of its users.
"""

from .leader_appends import LeaderAppends
from .replica import Outgoing, Replica, RunSync

__all__ = ["LeaderAppends", "Outgoing", "Replica", "RunSync"]
