"""Random histories of controllers: writes, commits and failovers at any point, by seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator

import pytest
from tests.support.controllers import Controllers, bootstrap, write
from tests.support.random_changes import Job

from raftlog.records.batch import RecordBatch
from raftlog_state.controller import (
    ChangeRequest,
    DeleteConfig,
    PendingState,
    QuorumController,
    Write,
)
from raftlog_state.controller import write_changes as write_all
from raftlog_state.controller.active import NO_DEADLINE
from raftlog_state.image import ConfigRow, MetadataImage, Quorum
from raftlog_state.image.rows import RECORD_ROW_TYPES
from raftlog_state.loader.metadata_loader import MetadataLoader, batch_records
from raftlog_state.records import (
    AbortTransactionRecord,
    ConfigRecord,
    DecodedRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    decode,
    encode,
)
from raftlog_state.snapshots import snapshot_bytes

STEPS = 400
BROKER = 4


class History:
    """Controllers in random steps, and the states that a loader replays from the same log.

    Each write has a record of its own, a config ``write-<number>``.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.env = Controllers(seed=seed, records_per_batch_max=4, in_steps=True)
        self.writes: list[Write[None]] = []
        self.completed: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.deleted: list[RecordBatch] = []
        """Committed batches before the start of the log."""
        self._loader = MetadataLoader()
        self._images: dict[int, MetadataImage] = {0: self._loader.image}
        """Replayed states by end offset of the committed log."""
        self._job = Job(seed, level=30)
        self.env.elect(1)
        write(self.env.all[1], *bootstrap(brokers=4))
        self.env.shared.deliver()
        self.env.hold()
        self.commit_up_to(self.env.shared.end_offset)
        self.steps: tuple[Callable[[], None], ...] = (
            *(self.write,) * 30,
            *(self.commit,) * 25,
            *(self.deliver,) * 30,
            *(self.env.shared.deliver,) * 20,
            *(self.run_step,) * 60,
            *(self.elect_if_none,) * 20,
            *(self.elect,) * 4,
            self.depose,
            self.restart,
            *(self.snapshot,) * 3,
            self.pass_time,
            self.append_voters if seed % 2 else self.deliver,
            self.append_as_another,
        )

    def run(self) -> None:
        for _ in range(STEPS):
            self.chance.choice(self.steps)()
            self.check()
        self.finish()

    # --- steps ------------------------------------------------------------------------------------

    def write(self) -> None:
        controller = self.env.active
        if controller is None or self.chance.random() < 0.1:
            controller = self.chance.choice(list(self.env.all.values()))
        changes = self.changes(controller)
        number, fails = len(self.writes), self.chance.random() < 0.02
        pauses = [self.chance.random() < 0.2 for _ in range(3)]

        def operation(pending: PendingState) -> Generator[None, None, None]:
            record = ConfigRecord(resource_type=BROKER, name=f"write-{number}", value="1")
            yield from self.pause(pauses[0])
            pending.write(record)
            yield from self.pause(pauses[1])
            write_all(changes, pending)
            yield from self.pause(pauses[2])
            if fails:
                raise ZeroDivisionError

        wait_us = self.chance.choice([NO_DEADLINE, 5, 50])
        done = controller.write_in_steps(
            "write",
            operation,
            deadline_us=min(self.env.now_us + wait_us, NO_DEADLINE),
            transaction_name=self.chance.choice([None, "random"]),
        )
        self.writes.append(done)

    def pause(self, is_here: bool) -> Iterator[None]:
        if is_here:
            self.counts["pause"] += 1
            yield

    def run_step(self) -> None:
        nodes = [node_id for node_id, steps in self.env.scheduled.items() if steps]
        if nodes:
            self.env.run_step(self.chance.choice(nodes))

    def changes(self, controller: QuorumController) -> list[ChangeRequest]:
        offset = controller.metrics(0).last_applied_record_offset
        if not controller.state.registry.has_snapshot(offset):
            return []  # a standby within a transaction
        image = controller.state.image_at(offset, leader_epoch=1, timestamp_ms=-1, quorum=Quorum())
        drawn = [self._job.draw(image) for _ in range(self.chance.choice([0, 1, 1, 1, 2]))]
        return [one for one in drawn if not _deletes_a_name(one)]

    def commit(self) -> None:
        """Move the high watermark by a batch or more."""
        shared = self.env.shared
        later = [one for one in shared.batches if one.next_offset > shared.committed_end]
        if later:
            self.commit_up_to(later[self.chance.randrange(len(later))].next_offset)

    def commit_up_to(self, end_offset: int) -> None:
        shared = self.env.shared
        shared.committed_max = end_offset
        for batch in shared.batches:
            if self._loader.next_offset <= batch.base_offset < end_offset:
                self._loader.append(batch_records(batch))
                self._images[batch.next_offset] = self._loader.image

    def deliver(self) -> None:
        self.chance.choice(list(self.env.shared.nodes.values())).deliver_once()

    def elect(self) -> None:
        self.counts["failover"] += any(not done.is_done for done in self.writes)
        self.counts["failover between steps"] += any(self.env.scheduled.values())
        self.env.shared.elect(self.chance.choice(list(self.env.all)))

    def elect_if_none(self) -> None:
        if self.env.shared.leader_id is None:
            self.elect()

    def depose(self) -> None:
        """The log has no leader for a while; later batches may be committed nevertheless."""
        self.env.shared.depose()

    def restart(self) -> None:
        """Start a controller again; the callers of its writes have no outcome."""
        node_id = self.chance.choice(list(self.env.all))
        if self.env.shared.leader_id == node_id:
            self.env.shared.depose()
        self.env.start(node_id)

    def snapshot(self) -> None:
        shared = self.env.shared
        is_open = self._loader.open_transaction_offset is not None
        if is_open or self._loader.image.quorum.voters:  # a shared log's snapshot has no voters
            return
        before = list(shared.batches)
        if not before or shared.committed_end <= before[0].base_offset:
            return
        self.env.snapshot(self._loader.image)
        self.deleted += [one for one in before if one.next_offset <= shared.start_offset]
        self.counts["snapshot"] += 1

    def pass_time(self) -> None:
        self.env.now_us += 20
        for controller in self.env.all.values():
            controller.tick(self.env.now_us)

    def append_voters(self) -> None:
        if self.env.shared.leader_id is not None:
            self.env.shared.append_voters()

    def append_as_another(self) -> None:
        shared = self.env.shared
        if shared.leader_id is not None and self.chance.random() < 0.3:
            record = encode(DecodedRecord(0, NoOpRecord()))
            shared.append(shared.leader_id, shared.epoch, [record], None)

    # --- checks -----------------------------------------------------------------------------------

    def check(self) -> None:
        committed_end = self.env.shared.committed_end
        for number, done in enumerate(self.writes):
            if done.is_done and done.error is None and number not in self.completed:
                assert done.last_offset is not None
                assert done.last_offset < committed_end, "a write is completed when committed"
                self.completed.add(number)
        for controller in self.env.all.values():
            self.check_state(controller)

    def check_state(self, controller: QuorumController) -> None:
        metrics, epochs = controller.metrics(0), controller.state.registry.epochs
        expected = self._images[metrics.last_committed_record_offset + 1]
        assert epochs[0] == controller.last_stable_offset == expected.offset
        image = controller.image()
        assert image == expected
        assert image.timestamp_ms == expected.timestamp_ms
        if controller.active_epoch is None:
            assert epochs == (expected.offset,)
            for kind in RECORD_ROW_TYPES:
                assert controller.state.rows_of(kind) == expected.rows_of(kind)

    def finish(self) -> None:
        """Commit everything, and compare the outcome of each write with the log."""
        shared = self.env.shared
        self.env.elect(1)
        self.env.run_steps()
        self.commit_up_to(shared.end_offset)
        shared.deliver()
        self.commit_up_to(shared.end_offset)  # an abort marker
        shared.deliver()
        self.check()
        expected = self._loader.image
        for controller in self.env.all.values():
            image = controller.image()
            assert image == expected
            assert snapshot_bytes(image, written_ms=0) == snapshot_bytes(expected, written_ms=0)
        self.check_log(expected)

    def check_log(self, final: MetadataImage) -> None:
        written: Counter[str] = Counter()
        for batch in [*self.deleted, *self.env.shared.batches]:
            for record in () if batch.is_control else batch.records():
                assert record.value is not None
                found = decode(record.value).record
                if isinstance(found, ConfigRecord) and found.name.startswith("write-"):
                    written[found.name] += 1
                elif isinstance(found, RegisterBrokerRecord):
                    assert found.broker_epoch == record.offset, "its offset was predicted"
                elif isinstance(found, AbortTransactionRecord):
                    self.counts["abort"] += 1
        for number, done in enumerate(self.writes):
            name = f"write-{number}"
            self.counts[type(done.error).__name__] += 1
            is_visible = final.find(ConfigRow, BROKER, "", name) is not None
            assert written[name] <= 1, "no write is applied twice"
            if number in self.completed:
                assert is_visible, "a completed write is not lost"
            elif done.last_offset is None:
                assert not written[name], "a refused write has written nothing"
        self.counts["completed"] += len(self.completed)


def _deletes_a_name(change: ChangeRequest) -> bool:
    return isinstance(change, DeleteConfig) and change.name.startswith("write-")


@pytest.mark.slow
def test_no_write_is_lost_or_applied_twice_and_states_equal_a_replay() -> None:
    """The histories have every kind of event."""
    total: Counter[str] = Counter()
    for seed in range(12):
        history = History(seed)
        history.run()
        assert history.counts["completed"] > 5, seed
        total += history.counts
    assert set(total) >= {
        "abort",
        "completed",
        "failover",
        "failover between steps",
        "pause",
        "snapshot",
        "InvalidChangesError",
        "NotControllerError",
        "UnknownServerError",
    }


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_many_histories(seed: int) -> None:
    History(seed).run()
