"""``NamedTables``: the typed tables of a view by their names."""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

T = TypeVar("T")


class NamedTables(abc.ABC, Generic[T]):
    """Typed tables of one state, each a ``T``: a frame of Spark, or an Arrow table."""

    @abc.abstractmethod
    def table(self, name: str) -> T:
        """Return a typed table by name, or ``changes`` or ``log`` up to the view's offset.

        Raises:
            TablesError: there is no such table.
        """

    def topics(self) -> T:
        """Return topics by id."""
        return self.table("topics")

    def partitions(self) -> T:
        """Return partitions: replicas, ISR, leader, epochs, directories."""
        return self.table("partitions")

    def brokers(self) -> T:
        """Return registered brokers."""
        return self.table("brokers")

    def controllers(self) -> T:
        """Return registered controllers."""
        return self.table("controllers")

    def configs(self) -> T:
        """Return dynamic configs; secret values are redacted."""
        return self.table("configs")

    def acls(self) -> T:
        """Return access rules."""
        return self.table("acls")

    def quotas(self) -> T:
        """Return client quotas."""
        return self.table("quotas")

    def features(self) -> T:
        """Return finalized features; ``metadata.version`` is one."""
        return self.table("features")

    def producer_ids(self) -> T:
        """Return the next producer id to allocate: one row."""
        return self.table("producer_ids")

    def scram(self) -> T:
        """Return SCRAM credentials; salts and keys are redacted."""
        return self.table("scram")

    def tokens(self) -> T:
        """Return delegation tokens."""
        return self.table("tokens")

    def epochs(self) -> T:
        """Return leader epochs: leader, start and end offset, voters."""
        return self.table("epochs")

    def transactions(self) -> T:
        """Return metadata transactions that have ended."""
        return self.table("transactions")

    def consumer_offsets(self) -> T:
        """Return groups' committed offsets, from a partition of ``__consumer_offsets``."""
        return self.table("consumer_offsets")

    def pending_offsets(self) -> T:
        """Return offsets in open transactions, from a partition of ``__consumer_offsets``."""
        return self.table("pending_offsets")

    def groups(self) -> T:
        """Return groups of all protocols, from a partition of ``__consumer_offsets``."""
        return self.table("groups")

    def group_members(self) -> T:
        """Return members of groups, from a partition of ``__consumer_offsets``."""
        return self.table("group_members")

    def transactions_of_producers(self) -> T:
        """Return transactional ids, from a partition of ``__transaction_state``."""
        return self.table("transactions_of_producers")

    def share_partitions(self) -> T:
        """Return states of share groups, from a partition of ``__share_group_state``."""
        return self.table("share_partitions")

    def remote_segments(self) -> T:
        """Return segments in remote storage, from a partition of ``__remote_log_metadata``."""
        return self.table("remote_segments")
