"""Latest value of each key of a log, as a mapping (Kafka Streams: ``GlobalKTable``).

    log      offset   1        2        3               4
             record   a = 1    b = 2    a = (no value)  b = 5
    table    as_of(3) {a: 1, b: 2}      as_of(5) {b: 5}

A record without a value deletes its key. The records of a transaction enter the table when it
commits; those of an aborted transaction never do (``LatestByKey``). Records without a key are
omitted.

The table is in memory, with one record per key, and is built from the records that the log
retains. If offsets are missing in what it reads after the first load, they were compacted, perhaps
together with the tombstones of keys in the table (``delete.retention.ms``). The table then loads
the log again from its start.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import islice
from typing import TYPE_CHECKING, Final

from raftlog.append import AppendResult, UserRecord, new_records
from raftlog.errors import (
    DataLossError,
    KeyChangedError,
    LogClosedError,
    OptionError,
    RaftlogError,
    TableLagError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.latest_by_key import LATEST_COLUMNS, LatestByKey, LatestRecord
from raftlog.log.reading.reads import Isolation, LogKind, ReadEnd
from raftlog.storage.protocol import Closeable

from .followed_records import POLL_S, FollowedEnd
from .log_handle import TIMEOUT_MS_DEFAULT, LogHandle, milliseconds, unchanged_keys, whole_number

if TYPE_CHECKING:
    from .embedded.handle import EmbeddedLog
    from .encryption import Encryption

CHUNKS_PER_POLL: Final = 16
"""Chunks, of 1 MiB or of one larger batch, that one ``poll`` reads at most."""


class TableState(Mapping[bytes, bytes]):
    """Immutable state of a table: the records below ``end_offset``."""

    def __init__(self, records: dict[bytes, LatestRecord], end_offset: int) -> None:
        self._records = records
        self.end_offset: Final = end_offset

    def __repr__(self) -> str:
        return f"TableState(keys={len(self)}, end_offset={self.end_offset})"

    def __getitem__(self, key: bytes) -> bytes:
        return _value_of(self._records[key])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def offset(self, key: bytes) -> int | None:
        """Return the offset of a key's last record; None if the table does not have the key."""
        record = self._records.get(key)
        return None if record is None else record.offset


class Table(Mapping[bytes, bytes], Closeable):
    """Latest value of each key of a log, from ``raftlog.table`` or ``LogHandle.table``.

    ``follow``: a thread applies new records until the table or its log is closed. Without it, call
    ``poll`` or ``refresh``. Reads never wait for I/O. A table can be used by several threads, but
    not in a forked child.

    If the thread fails permanently, for instance because the log was truncated, every later read
    raises its error. While a quorum has no leader, reads return the last state.
    """

    def __init__(self, log: LogHandle, *, follow: bool, owns_log: bool = False) -> None:
        self.path = log.path
        self._log = log
        self._owns_log = owns_log
        self._reader = log._new_reader()
        if self._reader.kind is LogKind.METADATA:
            reason = "records of cluster metadata have no keys; read_state returns their state"
            raise OptionError(option="values", reason=reason)
        self._end = FollowedEnd(self._reader, Isolation.READ_UNCOMMITTED, log._clock)
        self._polling = threading.Lock()
        """Lock of the reader, acquired before ``_applying``."""
        self._applying = threading.Lock()
        """Lock of the state, which changes by whole batches."""
        self._latest = LatestByKey(self.path)
        self._end_offset = self._reader.log_start_offset
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._follower: threading.Thread | None = None
        self.refresh()
        if follow:
            arguments = weakref.ref(self), self._closed
            self._follower = threading.Thread(
                target=_follow, args=arguments, name="raftlog-table", daemon=True
            )
            self._follower.start()

    def close(self) -> None:
        """Stop the thread; also close the log if ``raftlog.table`` opened it. Idempotent.

        Waits for the read that the thread has begun. The state can still be read.
        """
        self._closed.set()
        if self._follower is not None and self._follower is not threading.current_thread():
            self._follower.join()
        if self._owns_log:
            self._log.close()

    def __repr__(self) -> str:
        return f"Table({self.path!r}, end_offset={self._end_offset})"

    # --- reading ----------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The exclusive end of the applied records: an offset that was the log's end."""
        with self._reading():
            return self._end_offset

    @property
    def without_key(self) -> int:
        """The number of records without a key, which are omitted."""
        with self._reading():
            return self._latest.without_key

    def __getitem__(self, key: bytes) -> bytes:
        with self._reading():
            record = self._latest.get(key)
        if record is None:
            raise KeyError(key)
        return _value_of(record)

    def __len__(self) -> int:
        with self._reading():
            return len(self._latest)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.state())

    def items(self) -> ItemsView[bytes, bytes]:
        """Return the keys and values of ``state()``."""
        return self.state().items()

    def values(self) -> ValuesView[bytes]:
        """Return the values of ``state()``."""
        return self.state().values()

    def offset(self, key: bytes) -> int | None:
        """Return the offset of a key's last record; None if the table does not have the key."""
        with self._reading():
            record = self._latest.get(key)
        return None if record is None else record.offset

    def state(self) -> TableState:
        """Return the current state, which later records do not change."""
        with self._reading():
            return TableState(dict(self._latest.records()), self._end_offset)

    def as_of(self, offset: int) -> TableState:
        """Return the state of the records below ``offset``, replayed from the log's start.

        In a log of Kafka, the broker updates the cleaner's checkpoint only after it has replaced
        the segments, so a state that is read in between may lack keys.

        Raises:
            OffsetOutOfRangeError: the log ends before ``offset``.
            DataLossError: the log starts after ``offset``, or is compacted beyond it: a record
                that was the last one of its key at ``offset`` may have been removed since.
        """
        offset = whole_number(offset, "offset")
        log = self._log._new_reader()
        log.check_range(offset, offset)
        latest = LatestByKey(self.path)
        latest.read(log, offset)
        log.refresh()  # a compaction that has ended meanwhile
        if offset < log.compacted_offset:
            raise DataLossError(
                path=self.path,
                condition="OFFSETS_COMPACTED",
                reason=f"the state at offset {offset} is not retained: the log is compacted up to "
                f"offset {log.compacted_offset}",
                remedy=f"choose an offset from {log.compacted_offset} on",
            )
        return TableState(dict(latest.records()), offset)

    def _reading(self) -> threading.Lock:
        """Return the lock of the state. Raises the error that ended the thread."""
        if self._failure is not None:
            raise copy.copy(self._failure)  # several threads may raise it
        return self._applying

    # --- following the log ------------------------------------------------------------------------

    def poll(self) -> bool:
        """Apply the next records, at most 16 MiB or one batch; return whether there were any.

        If records after ``end_offset`` were compacted, the whole log is read again. Raises the
        errors of reading a log. Records before a damaged one are applied.
        """
        with self._polling:
            return self._apply(self._end.look())

    def refresh(self) -> None:
        """Apply the records that the log has now, but not those that are appended in the meantime.

        Raises the errors of reading a log.
        """
        with self._polling:
            end = self._end.look()
            while self._apply(end):
                pass

    def _apply(self, end: ReadEnd) -> bool:
        """Apply the next records below ``end``, as ``poll``. Requires ``_polling``."""
        if self._end_offset >= end.offset:
            self._end.read_up_to = end
            return False
        is_loaded = self._end.read_up_to is not None
        scans = self._reader.scan(self._end_offset, end.offset, columns=LATEST_COLUMNS)
        chunk_count = 0
        for scan in islice(scans, CHUNKS_PER_POLL):
            next_offset = int(scan.batches.next_offset[-1]) if len(scan.batches) else 0
            if is_loaded and next_offset - self._end_offset > len(scan.records):
                self._load_again(end)
                return True
            with self._applying:
                self._latest.apply(scan, end.offset)
                self._end_offset = max(next_offset, self._end_offset)
            chunk_count += 1
        if chunk_count < CHUNKS_PER_POLL and is_loaded and self._end_offset < end.offset:
            self._load_again(end)
        elif chunk_count < CHUNKS_PER_POLL:
            self._end_offset = end.offset
            self._end.read_up_to = end
        return True

    def _load_again(self, end: ReadEnd) -> None:
        """Replace the state by that of the log below ``end``, read from its start.

        Compaction removes a tombstone after the records that it deletes. Requires ``_polling``.
        """
        latest = LatestByKey(self.path)
        latest.read(self._reader, end.offset)
        with self._applying:
            self._latest, self._end_offset = latest, end.offset
        self._end.read_up_to = end

    def wait_for(self, offset: int, *, timeout_ms: float = TIMEOUT_MS_DEFAULT) -> None:
        """Wait until the record at ``offset`` is applied, such as an append's ``last_offset``.

        Raises ``TableLagError`` after ``timeout_ms``, and the errors of reading a log. A read that
        has begun is not interrupted: from a quorum without a leader, it ends after the
        ``timeout_ms`` of ``connect``.
        """
        wanted = whole_number(offset, "offset") + 1
        wait_ms = milliseconds(timeout_ms, "timeout_ms")
        deadline_ms = self._log._clock.now_ms() + wait_ms
        while not self._has_applied(wanted):
            if self._log._clock.now_ms() >= deadline_ms:
                raise TableLagError(
                    path=self.path,
                    offset=offset,
                    end_offset=self._end_offset,
                    waited_ms=int(wait_ms),
                )
            self._log._clock.pause(POLL_S)

    def _has_applied(self, end_offset: int) -> bool:
        """Refresh if needed; return whether everything below ``end_offset`` is applied."""
        if self.end_offset >= end_offset:
            return True
        try:
            self.refresh()
        except RaftlogError as error:
            if not error.retriable:
                raise
        return self.end_offset >= end_offset

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        records: UserRecord | Iterable[UserRecord],
        *,
        unchanged: Mapping[bytes, int | None],
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> AppendResult:
        """Append records as one batch if the keys of ``unchanged`` have not changed.

        The condition is checked where the append is written (``LogHandle.append``), so records of
        other keys do not matter. If too much was appended since the table was updated, the table is
        updated and the keys are compared again. When the call returns, the table does not contain
        the append yet; see ``wait_for``.

        Args:
            records: as for ``LogHandle.append``.
            unchanged: for each key the ``offset`` that the caller has read, None for a key that the
                table did not contain.
            timeout_ms: the time limit for all attempts.

        Raises:
            KeyChangedError: a key has another offset. Nothing was appended.
            UnexpectedEndOffsetError, TableLagError: before every attempt, more was appended than
                the log reads to compare the keys (1 MiB).
            Also the errors of ``LogHandle.append`` and of reading a log.
        """
        expected = dict(unchanged)
        unchanged_keys(expected, 0, self._log.values)
        batch = new_records(records, self._log.values)
        clock = self._log._clock
        deadline_ms = clock.now_ms() + milliseconds(timeout_ms, "timeout_ms")
        end_offset = self._unchanged_end(expected)
        while True:
            left_ms = max(int(deadline_ms - clock.now_ms()), 0)
            try:
                return self._log.append(
                    batch, unchanged=expected, unchanged_since=end_offset, timeout_ms=left_ms
                )
            except UnexpectedEndOffsetError as error:
                if clock.now_ms() >= deadline_ms:
                    raise
                left_ms = max(int(deadline_ms - clock.now_ms()), 0)
                self.wait_for(error.log_end_offset - 1, timeout_ms=left_ms)
                end_offset = self._unchanged_end(expected)
            except KeyChangedError:  # unless a key was created and deleted meanwhile
                before, end_offset = end_offset, self._unchanged_end(expected, is_old=True)
                if end_offset == before or clock.now_ms() >= deadline_ms:
                    raise

    def _unchanged_end(self, expected: Mapping[bytes, int | None], *, is_old: bool = False) -> int:
        """Return the end at which the keys have these offsets, after a refresh if they do not, or
        if the present state ``is_old``. Raises ``KeyChangedError``."""
        end_offset, changed = self._compared(expected)
        if is_old or changed is not None:
            self.refresh()
            end_offset, changed = self._compared(expected)
        if changed is not None:
            raise changed from None
        return end_offset

    def _compared(self, expected: Mapping[bytes, int | None]) -> tuple[int, KeyChangedError | None]:
        """Return the end of the present state, and the refusal of a key with another offset."""
        with self._reading():
            for key, offset in expected.items():
                record = self._latest.get(key)
                actual = None if record is None else record.offset
                if actual != offset:
                    error = KeyChangedError(path=self.path, expected_offset=offset, offset=actual)
                    return self._end_offset, error
            return self._end_offset, None


def _value_of(record: LatestRecord) -> bytes:
    assert record.value is not None, "a deleted key is not in the table"
    return record.value


def _follow(table_of: weakref.ref[Table], closed: threading.Event) -> None:
    """Poll until the table, or its log, is closed or collected, or cannot be read."""
    while not closed.is_set():
        table = table_of()
        if table is None or table._log._closed.is_set():
            return
        try:
            has_more = table.poll()
        except LogClosedError:
            return
        except RaftlogError as error:
            has_more = False
            if not error.retriable:
                table._failure = error
                return
        except Exception as bug:
            table._failure = bug  # otherwise reads would return this state from now on
            raise
        del table
        if not has_more:
            closed.wait(POLL_S)


def open_table(
    path: str | os.PathLike[str], *, follow: bool = True, encryption: Encryption | None = None
) -> Table:
    """Open the log in a directory, and return the latest value of each of its keys.

    The log must exist. It was created by raftlog, or is a partition of Kafka. For a quorum, use
    ``raftlog.connect(...).table()``.

    Args:
        path: the directory of the log.
        follow: whether a thread applies new records. Otherwise, call ``refresh``.
        encryption: as for ``raftlog.open``. A value whose key was deleted, if it is read as null,
            deletes its record's key from the table.

    Raises the errors of ``raftlog.open``, and ``OptionError`` for a log of cluster metadata.
    """
    from .embedded.handle import open_embedded

    log: EmbeddedLog = open_embedded(path, create=False, encryption=encryption)
    try:
        return Table(log, follow=follow, owns_log=True)
    except BaseException:
        log.close()
        raise
