"""``raftlog cat`` and ``log`` with ``--follow``: each record once, whatever the log does."""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.support.cli import rows, run, start_follower
from tests.support.clock import StoppedClock
from tests.support.quorum_processes import QuorumProcesses
from tests.support.small_logs import TIME_MS, FailingLog, LogWriter, copy_log
from tests.support.sweep_size import nightly_except

import raftlog
from raftlog.client import LogReader, open_path
from raftlog.errors import DataLossError, DivergedLogError
from raftlog_state.cli.cat_log import follow_records, select
from raftlog_state.cli.log import follow_changes, json_line
from raftlog_state.cli.output import Console, Output
from raftlog_state.image.entity_names import row_filters
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor, TopicRecord, encode

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
THREE = LOGS / "three-nodes-4.3.1"
NODE = THREE / "node-100"
LOG = "__cluster_metadata-0"
HOLDBACK_MS = 5_000
Follow: TypeAlias = Callable[[LogReader, Output, Console, StoppedClock], None]


class StoppedError(Exception):
    """The end of what a test does while the follower waits."""


def cat(log: LogReader, output: Output, console: Console, clock: StoppedClock) -> None:
    selection = select([], control=False, noop=False)
    follow_records(
        *(log, None, selection, Redactor(), output, console),
        clock=clock.as_clock(),
        raise_if_stopped=lambda: None,
    )


def changes(log: LogReader, output: Output, console: Console, clock: StoppedClock) -> None:
    images = ImageReader(log, Redactor(), console, from_oldest=True)
    filters = row_filters(None, None, partitions=True)
    follow_changes(
        *(log, images, None, filters, json_line, output, console),
        clock=clock.as_clock(),
        raise_if_stopped=lambda: None,
    )


def followed(
    follow: Follow,
    log: LogReader,
    steps: Iterator[object],
    *,
    until: type[Exception] = StoppedError,
) -> tuple[list[dict[str, Any]], str]:
    """Follow a log while each wait takes a step; return what was printed, and stderr."""
    stdout, stderr = io.BytesIO(), io.StringIO()
    output = Output(stdout)

    def step() -> None:
        if next(steps, StoppedError) is StoppedError:
            raise StoppedError

    with pytest.raises(until):
        follow(log, output, Console(stderr), StoppedClock(while_asleep=step))
    output.flush()
    return [json.loads(line) for line in stdout.getvalue().decode().splitlines()], stderr.getvalue()


def grow(target: Path, seed: int, end_offset: int = 3131) -> Iterator[None]:
    """Let a copy of the log grow by parts of random size, through its segments and snapshots."""
    chance, at = random.Random(seed), 0
    while at < end_offset:
        at = min(at + chance.choice((1, 7, 60, 400)), end_offset)
        copy_log(NODE / LOG, target, end_offset=at)
        yield None
    yield None


@pytest.mark.parametrize("seed", range(3))
def test_records_are_printed_once_while_segments_roll(tmp_path: Path, seed: int) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    printed, err = followed(cat, open_path(str(tmp_path)), grow(tmp_path / LOG, seed))
    assert printed == rows("cat", NODE)
    assert err.startswith("raftlog: following the log from offset 3 on: the end of this one dir")


def test_changes_are_printed_once_while_segments_roll(tmp_path: Path) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    printed, _ = followed(changes, open_path(str(tmp_path)), grow(tmp_path / LOG, 9))
    assert printed == rows("log", NODE, "--partitions", "--json")


def test_records_that_were_printed_may_be_deleted(tmp_path: Path) -> None:
    target = tmp_path / LOG
    copy_log(NODE / LOG, target, end_offset=2000)

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        copy_log(NODE / LOG, target, end_offset=3131, start_offset=1762)
        yield None

    printed, _ = followed(cat, open_path(str(tmp_path)), steps())
    assert printed == rows("cat", NODE)


def test_records_that_were_deleted_before_they_were_printed_are_an_error(tmp_path: Path) -> None:
    target = tmp_path / LOG
    copy_log(NODE / LOG, target, end_offset=600)
    first = rows("cat", tmp_path)

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        copy_log(NODE / LOG, target, end_offset=3131, start_offset=1762)
        yield None

    log = open_path(str(tmp_path))
    printed, _ = followed(cat, log, steps(), until=DataLossError)
    assert printed == first


def topic(number: int) -> bytes:
    return encode(TopicRecord(name=f"t{number}", topic_id=f"{number:021d}A"))


def test_records_that_a_new_leader_truncates_are_not_printed(tmp_path: Path) -> None:
    target = tmp_path / LOG
    young_ms = StoppedClock().at_ms

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        writer = LogWriter(target)
        writer.append(topic(0), timestamp_ms=TIME_MS)
        writer.append(topic(2), epoch=2, timestamp_ms=young_ms)
        writer.append(topic(3), epoch=2, timestamp_ms=young_ms)
        for _ in range(HOLDBACK_MS // 200 + 2):
            yield None

    for follow in (cat, changes):
        shutil.rmtree(target, ignore_errors=True)
        writer = LogWriter(target)
        writer.append(topic(0), timestamp_ms=TIME_MS)
        writer.append(topic(1), timestamp_ms=young_ms)
        printed, _ = followed(follow, open_path(str(tmp_path)), steps())
        names = [(row.get("data") or row["after"])["name"] for row in printed if named(row)]
        assert names == ["t0", "t2", "t3"]


def named(row: dict[str, Any]) -> bool:
    return "data" in row or row["entity"] == "topic"


def test_a_printed_record_that_is_truncated_ends_the_command(tmp_path: Path) -> None:
    target = tmp_path / LOG
    LogWriter(target).append(topic(0), topic(1), timestamp_ms=TIME_MS)

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        writer = LogWriter(target)
        writer.append(topic(0), timestamp_ms=TIME_MS)
        writer.append(topic(2), topic(3), epoch=2, timestamp_ms=TIME_MS)
        yield None

    printed, _ = followed(cat, open_path(str(tmp_path)), steps(), until=DivergedLogError)
    assert [row["data"]["name"] for row in printed] == ["t0", "t1"]


def test_a_quorum_without_a_leader_is_waited_for(tmp_path: Path) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    log: Any = FailingLog(open_path(str(tmp_path)))

    def steps() -> Iterator[None]:
        yield from grow(tmp_path / LOG, 5)
        yield from (None, None, None)

    printed, err = followed(cat, log, steps())
    assert printed == rows("cat", NODE)
    assert "no leader" in err
    assert "still following" in err


def test_a_file_cannot_be_followed() -> None:
    segment = NODE / LOG / f"{0:020d}.log"
    for command in ("cat", "log"):
        status, out, err = run(command, segment, "--follow")
        assert (status, out) == (2, "")
        assert "a single file is not continued" in err
        status, _, err = run(command, NODE, "--follow", "--to", "5")
        assert status == 2
        assert "--follow cannot be combined with --to" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "command"),
    nightly_except(
        [(signal.SIGINT, 128 + signal.SIGINT, "cat"), (signal.SIGTERM, 0, "log")],
        [
            (number, status, command)
            for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 128 + signal.SIGINT))
            for command in ("cat", "log")
        ],
    ),
)
def test_a_signal_ends_a_follower_quietly(
    command: str, number: signal.Signals, status: int, tmp_path: Path
) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=100)
    with start_follower(command, str(tmp_path)) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        copy_log(NODE / LOG, tmp_path / LOG, end_offset=3131)
        while "topic/orders-m-70" not in (line := process.stdout.readline()) and (
            '"orders-m-70"' not in line
        ):
            assert line
        process.send_signal(number)
        _, err = process.communicate()
    assert first
    assert process.returncode == status
    assert all(line.startswith("raftlog: ") for line in err.splitlines())
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("grows", [True, False])
def test_a_reader_that_closes_the_pipe_ends_a_follower_quietly(tmp_path: Path, grows: bool) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=100)
    with start_follower("cat", str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        if grows:
            copy_log(NODE / LOG, tmp_path / LOG, end_offset=3131)
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize("death_count", nightly_except([1], [1, 2]))
def test_records_of_a_quorum_are_printed_once_when_its_leader_dies(
    tmp_path: Path, death_count: int
) -> None:
    with (
        QuorumProcesses(tmp_path) as quorum,
        raftlog.connect(quorum.bootstrap, timeout_ms=240_000) as log,
    ):
        log.append([b"0 %d" % number for number in range(9)])
        with start_follower("cat", "--bootstrap-server", quorum.bootstrap) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(9)]
            for turn in range(1, 1 + death_count):
                leader = quorum.node(log.leader_id)
                leader.kill()
                for number in range(9):
                    log.append(b"%d %d" % (turn, number))
                lines += [process.stdout.readline() for _ in range(9)]
                leader.start()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        assert (process.returncode, out) == (128 + signal.SIGINT, ""), err
        expected = [(record.offset, (record.value or b"").decode()) for record in log.read(0)]
    printed = [json.loads(line) for line in lines]
    assert [(row["offset"], row["value"]) for row in printed] == expected
