"""Remote storage of an open log: the list of its remote segments, runs, and readers of them.

The list is in the log's directory (``raftlog.log.format.remote_chain``). Only the log's single
writer changes it, as part of a change of the log.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from raftlog.errors import CorruptFileError
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME

if TYPE_CHECKING:
    from raftlog.log.format.remote_chain import RemoteChain
    from raftlog.log.reading.remote_reader import RemoteReader
    from raftlog.log.reading.remote_tier import OpenStore
    from raftlog.log.remote.manifest import ManifestCache, Surroundings
    from raftlog.log.remote.tiering import RemoteLogRun

    from .segments import LogSegments


class RemoteStorage:
    """Remote segments of one log that is open for writing. Not shared between threads."""

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments
        self._directory = segments.directory
        self._config = segments.config

    # --- list of remote segments ------------------------------------------------------------------

    def chain(self) -> RemoteChain | None:
        """Return the remote segments; None without any, or while their list is damaged."""
        with contextlib.suppress(CorruptFileError):
            return self._directory.read_remote_chain()
        return None

    @property
    def is_damaged(self) -> bool:
        """Whether the list of remote segments is damaged."""
        try:
            self._directory.read_remote_chain()
        except CorruptFileError:
            return True
        return False

    @property
    def earliest_offset(self) -> int | None:
        """First offset of the log including its remote segments.

        None while it is unknown: either the list of remote segments is damaged, or the remote
        segments do not reach the local ones, because the next run of remote storage has to read the
        manifest first.

        Kafka: ``UnifiedLog.logStartOffset``.
        """
        local_start = self._segments.log_start_offset
        try:
            chain = self._directory.read_remote_chain()
        except CorruptFileError:
            return None
        if chain is None:
            return None if local_start and self._config.remote_storage_enable else local_start
        is_known = chain.reaches(local_start) or local_start <= chain.log_start_offset
        return chain.start_with(local_start) if is_known else None

    def delete_before(self, offset: int) -> bool:
        """Start a log with remote segments at an offset; return whether it started below that.

        The next run of remote storage deletes the objects below it.
        """
        chain = self._directory.read_remote_chain()
        if chain is None or offset <= chain.log_start_offset:
            return False
        start = chain.start_at(self._segments.log_start_offset)
        self._directory.write_remote_chain(chain.starting_at(offset))
        return start is not None and start < offset

    # --- reads and runs ---------------------------------------------------------------------------

    def open_reader(self, open_store: OpenStore) -> RemoteReader:
        """Return a reader of the remote segments, for another thread."""
        from raftlog.log.reading.remote_reader import RemoteReader  # imports numpy

        return RemoteReader(self._directory.storage, self._directory.path, open_store)

    def begin_run(
        self,
        open_store: OpenStore,
        context: Surroundings,
        *,
        log_end_offset: int,
        last_stable_offset: int,
        cache: ManifestCache,
        node_id: int | None = None,
        is_leader: bool = True,
    ) -> RemoteLogRun | None:
        """Return a run, as ``ReplicatedLog.begin_remote_run`` does."""
        directory, config = self._directory, self._config
        if not config.remote_storage_enable:
            return None
        from raftlog.log.remote.tiering import REMOTE_LOCK_NAME, RemoteLogRun, TieredLog

        lock = directory.storage.try_lock(directory.file(REMOTE_LOCK_NAME))
        if lock is None:
            return None
        try:
            properties = directory.read_properties()
            if properties is None:
                path = directory.file(RAFTLOG_PROPERTIES_NAME)
                raise CorruptFileError(path=path, reason="it is missing")
            return RemoteLogRun(
                self._segments,
                TieredLog(
                    partition=directory.partition,
                    topic_id=properties.topic_id,
                    node_id=node_id,
                    uri=config.remote_storage_uri,
                ),
                open_store,
                lock,
                context,
                log_end_offset=log_end_offset,
                last_stable_offset=last_stable_offset,
                chain=self.chain(),  # None while it is damaged: the run writes it again
                cache=cache,
                is_leader=is_leader,
            )
        except BaseException:
            lock.release()
            raise

    def complete_run(self, run: RemoteLogRun) -> bool:
        """Write what a run has found to the list of remote segments; return whether it changed."""
        chain, known = run.chain, self.chain()
        if chain is None:
            return False
        if known is not None:  # records may have been deleted during the run
            chain = chain.starting_at(known.log_start_offset)
        if chain == known:
            return False
        self._directory.write_remote_chain(chain)
        return True
