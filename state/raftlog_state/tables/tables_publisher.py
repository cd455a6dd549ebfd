"""``TablesPublisher``: Delta tables that follow what a node publishes, in the node's process.

    store = DeltaRsStore("/var/lib/raftlog/tables")
    tables = TablesPublisher(
        lambda: open_path(directory), store, FollowSettings(redactor=Redactor()), listener=listener
    )
    loader = PublishingLoader(listener, [generator, metrics, tables])

Rules of this file:

1. An update states how far the log is committed, and ends a pause. The rows are those that a
   ``LogFollower`` in a thread reads from the log, for the reasons in ``raftlog_state.publishing``.
2. No record above the end of the last update is read, so no holdback is needed.
3. Of the updates one offset is kept. What the tables lack is in the log, also after hours without
   a store.
4. A failure of the tables is reported and ends the thread; the node and its other publishers
   continue. Tables of the same place are continued by the next process, from their own end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from raftlog.client import LogReader
from raftlog.clock import Clock
from raftlog_state.image import MetadataImage
from raftlog_state.publishing import LoaderListener, Manifest, MetadataUpdate
from raftlog_state.publishing.publisher import LeaderAndEpoch

from .log_follower import FollowSettings, LogFollower
from .stores.protocol import TableStore

IDLE_POLL_MS: Final = 1_000
"""Pause without an update, after which NoOpRecords that were delayed are appended."""


class _ClosedError(Exception):
    """The publisher is closed, so the thread ends."""


class TablesPublisher:
    """Publisher that keeps Delta tables at the end of the last image.

    ``open_log`` opens the log of the images, for the thread. ``settings.holdback_ms`` and
    ``is_once`` have no effect. ``upkeep_store``: another store at the same location, for upkeep in
    parallel with appends. ``listener`` is called by the thread, too.
    """

    name: Final = "TablesPublisher"

    def __init__(
        self,
        open_log: Callable[[], LogReader],
        store: TableStore,
        settings: FollowSettings,
        *,
        upkeep_store: TableStore | None = None,
        listener: LoaderListener,
    ) -> None:
        self._listener = listener
        self._committed_end = 0
        self._has_news = threading.Event()
        self._closing = threading.Event()
        self._follower = LogFollower(
            open_log,
            store,
            replace(settings, holdback_ms=0, poll_ms=IDLE_POLL_MS, is_once=False),
            upkeep_store=upkeep_store,
            clock=replace(Clock(), pause=self._pause),
            committed_end=lambda: self._committed_end,
            wait_for_records=self._wait_for_update,
            log_event=listener.log,
            raise_if_stopped=self._raise_if_closed,
        )
        self._thread = threading.Thread(target=self._run, name="raftlog-tables", daemon=True)
        self._thread.start()

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> None:
        """Let the thread read up to the end of the image."""
        del update, image
        self._committed_end = manifest.provenance.last_contained_offset + 1
        self._has_news.set()

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        """Do nothing: committed records are those of every leader."""

    def close(self) -> None:
        """End the thread, after the append that is running."""
        self._closing.set()
        self._has_news.set()
        self._thread.join()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._follower.run()
        except _ClosedError:
            pass
        except Exception as error:  # noqa: BLE001 (a store may raise anything)
            self._listener.handle_fault("The tables are no longer written", error)

    def _wait_for_update(self, seconds: float) -> None:
        self._has_news.wait(seconds)
        self._has_news.clear()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _raise_if_closed(self) -> None:
        if self._closing.is_set():
            raise _ClosedError
