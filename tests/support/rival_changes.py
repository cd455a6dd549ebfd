"""Random histories of rivals that change the metadata of one log, each through its own handle.

A rival acts between any two appends of another one: whenever a handle reads its clock, which it
does before each append. Everything is on one thread, so that a seed always gives the same history.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from raftlog import ConnectedLog, EmbeddedLog
from raftlog.client import LogReader, open_path
from raftlog.clock import Clock
from raftlog.errors import InvalidAppendError, UnexpectedEndOffsetError
from raftlog_state import apply_changes
from raftlog_state.controller import ChangeRequest, CreateTopic, DeleteTopic, plan_changes
from raftlog_state.errors import InvalidChangesError
from raftlog_state.followed_log import FollowedLog
from raftlog_state.image import MetadataImage, TopicRow
from raftlog_state.image.rows import RECORD_ROW_TYPES
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import (
    BeginTransactionRecord,
    DecodedRecord,
    NoOpRecord,
    Redactor,
    encode,
)
from tests.support.controllers import bootstrap
from tests.support.random_changes import Job

AnyLog = EmbeddedLog | ConnectedLog
NO_OP = encode(DecodedRecord(0, NoOpRecord()))
OPEN_TRANSACTION = [encode(DecodedRecord(0, BeginTransactionRecord(name="left open"))), NO_OP]
PARTITIONS_OF_SEVERAL_BATCHES = 60
BATCH_BYTES_MAX = 2_000


@dataclass
class Interruptions:
    """Action at a later reading of the clock."""

    act: Callable[[], object] | None = None
    readings_left: int = 0
    thread: threading.Thread = field(default_factory=threading.current_thread)

    def as_clock(self) -> Clock:
        return Clock(now_ms=self.now_ms)

    def now_ms(self) -> float:
        if threading.current_thread() is self.thread and self.act is not None:
            self.readings_left -= 1
            if self.readings_left < 0:
                act, self.act = self.act, None
                act()
        return time.monotonic_ns() / 1_000_000


class RivalHistory:
    """Rivals on the log that ``open_log`` opens, with a clock.

    ``elect`` makes a quorum elect a leader.
    """

    def __init__(
        self,
        seed: int,
        open_log: Callable[[Clock], AnyLog],
        elect: Callable[[], None] | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.interruptions = Interruptions()
        self.logs = [open_log(self.interruptions.as_clock()) for _ in range(3)]
        self.followed = FollowedLog(lambda: reader_of(self.logs[0]))
        self.applied: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._free = list(self.logs)
        """Handles that are not in a call: one call may interrupt another."""
        self._count = 0
        self._job = Job(seed, level=30)
        self._elect = elect
        apply_changes(self.logs[0], bootstrap(brokers=4), attempts=3)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.chance.random() < 0.5:
                act = self.chance.choice(
                    [self.change, self.change, self.leave_open, self.interrupt, self.interrupt]
                )
                self.interruptions.readings_left = self.chance.randrange(6)
                self.interruptions.act = act
            self.change()
            self.interruptions.act = None
            if self.chance.random() < 0.1:
                self.leave_open()
            self.check()
        for log in self.logs:
            log.close()

    # --- steps ------------------------------------------------------------------------------------

    def change(self) -> None:
        log = self._free.pop(self.chance.randrange(len(self._free)))
        try:
            self._change(log)
        finally:
            self._free.append(log)

    def _change(self, log: AnyLog) -> None:
        self._count += 1
        name = f"rival-{self._count}"
        count = self.chance.choice([1, 1, PARTITIONS_OF_SEVERAL_BATCHES])
        rows: list[ChangeRequest] = [
            CreateTopic(topic=name, partitions=count, replication_factor=1),
            *self.drawn(log),
        ]
        try:
            done = apply_changes(
                log,
                rows,
                attempts=self.chance.choice([1, 4]),
                rng=random.Random(name),
                abort_open_transaction=self.chance.random() < 0.6,
            )
        except (InvalidChangesError, InvalidAppendError, UnexpectedEndOffsetError) as error:
            self.counts[type(error).__name__] += 1
            return
        self.applied.add(name)
        self.counts["several batches" if count > 1 else "one batch"] += 1
        assert done.record_count >= count

    def drawn(self, log: AnyLog) -> list[ChangeRequest]:
        if self.chance.random() < 0.4:
            return []
        found = self._job.draw(replayed_image(log))
        return [] if isinstance(found, DeleteTopic) else [found]

    def leave_open(self) -> None:
        """Begin a transaction as a writer that then ends."""
        log = self.chance.choice(self._free)
        with suppress(InvalidAppendError):
            log.append(OPEN_TRANSACTION, atomic=True)
            self.counts["left open"] += 1

    def interrupt(self) -> None:
        """Append what is not a writer's: a record of another, or an election's."""
        log = self.chance.choice(self._free)
        if self._elect is not None:
            self._elect()
        elif isinstance(log, EmbeddedLog) and self.chance.random() < 0.5:
            log.claim()
        else:
            log.append(NO_OP)
        self.counts["interrupted"] += 1

    # --- checks -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the log's state with what was applied, and with kept states."""
        image = replayed_image(self.logs[0])
        found = {row.name for row in image.rows_of(TopicRow) if row.name.startswith("rival-")}
        assert found == self.applied, f"{sorted(found ^ self.applied)} after {self.counts}"
        self.followed.catch_up(image.offset + 1)
        for kind in RECORD_ROW_TYPES:
            assert self.followed.state.rows_of(kind) == image.rows_of(kind)
        log = self.chance.choice(self.logs)
        if self.followed.open_transaction_offset is None:
            rows = [CreateTopic(topic="dry", partitions=3, replication_factor=1)]
            dry: object = None
            expected: object = None
            with suppress(InvalidChangesError):
                expected = plan_changes(image, rows, rng=random.Random(1)).change_records
            with suppress(InvalidChangesError):
                dry = apply_changes(log, rows, rng=random.Random(1), validate_only=True).records
            assert dry == expected, "a kept state is that of a replay"


def reader_of(log: AnyLog) -> LogReader:
    return open_path(log.path) if isinstance(log, EmbeddedLog) else log.reader()


def replayed_image(log: AnyLog) -> MetadataImage:
    """Return the state of a log, read from its first record."""
    images = ImageReader(reader_of(log), Redactor(reveal=True))
    return images.image_at(images.log_end_offset)
