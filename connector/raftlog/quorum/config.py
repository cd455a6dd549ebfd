"""Timeouts, intervals and sizes of a replica."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Configuration of a replica. The defaults are Kafka's (``controller.quorum.*``).

    An election timeout is drawn from ``[election_timeout_ms, 2 * election_timeout_ms)``, a
    follower's fetch timeout from ``[fetch_timeout_ms, fetch_timeout_ms * 5 / 4)``. If there are no
    records to send, a leader sends a new high watermark after ``fetch_hw_delay_ms``; Kafka sends it
    immediately.
    """

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_hw_delay_ms: int = 0
    fetch_max_bytes: int = 1 * MIB
    snapshot_max_bytes: int = 1 * MIB
    observer_session_timeout_ms: int = 300_000
    observers_max: int = 1_000

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader remains leader without fetches from a majority (``LeaderState``)."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def fetch_jitter_ms(self) -> int:
        """Exclusive upper bound of the jitter that a follower adds to its fetch timeout.

        A leader responds to all followers at the same moment. Without jitter their fetch timeouts
        expire together, each votes for itself, and the election fails.
        """
        return max(self.fetch_timeout_ms // 4, 1)

    @property
    def disk_full_backoff_ms(self) -> int:
        """How long a follower with a full disk waits before its next fetch.

        Short enough that the leader keeps counting it as active (``check_quorum_timeout_ms``).
        """
        return self.fetch_timeout_ms // 2

    @property
    def begin_epoch_interval_ms(self) -> int:
        """Interval of BeginQuorumEpoch requests to voters that do not fetch (``LeaderState``)."""
        return self.fetch_timeout_ms // 2
