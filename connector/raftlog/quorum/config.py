"""How long a replica waits, and how much it asks for at once."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.limits import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Times in milliseconds; the defaults are Kafka's (``controller.quorum.*``).

    An election's timeout is drawn from ``[election_timeout_ms, 2 * election_timeout_ms)``, a
    follower's fetch timeout from ``[fetch_timeout_ms, fetch_timeout_ms * 5 / 4)``.
    """

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 * MIB
    snapshot_max_bytes: int = 1 * MIB
    observer_session_timeout_ms: int = 300_000
    observers_max: int = 1_000

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader leads without having been fetched from by a majority."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def fetch_jitter_ms(self) -> int:
        """The range of what a follower adds to its fetch timeout.

        A leader answers its followers at the same moment, so without it they miss a silent leader
        at the same moment, too, vote for themselves, and wait for an election timeout.
        """
        return max(self.fetch_timeout_ms // 4, 1)

    @property
    def disk_full_backoff_ms(self) -> int:
        """How long a follower whose disk is full waits before it asks for more; short enough for
        its leader not to miss it."""
        return self.fetch_timeout_ms // 2

    @property
    def begin_epoch_interval_ms(self) -> int:
        """How often a leader tells voters that do not fetch that it leads."""
        return self.fetch_timeout_ms // 2
