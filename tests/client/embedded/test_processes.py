"""Processes that share a directory: killed at random, racing for offsets, read while writing."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import raftlog

HOME = Path(__file__).parents[3]
RACERS = 4
SMALL_SEGMENTS = raftlog.LogConfig(segment_bytes=3000, index_interval_bytes=200)


Start: TypeAlias = Callable[[Path, str, str, int], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start workers on a path: mode, name and number of appends."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(path: Path, work: str, name: str, count: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tests.client.embedded.embedded_worker",
            str(path),
            work,
            name,
        ]
        worker = subprocess.Popen(
            [*command, str(count)],
            cwd=HOME,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # `communicate` would not see what a buffer held
        )
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        if worker.returncode is None:
            worker.kill()
            worker.communicate()


def parsed_output(lines: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Return the offsets and values that a worker's appends returned."""
    pairs = [line.split() for line in lines if line.endswith(b"\n")]
    return [(int(offset), value) for offset, value in pairs]


def finished(process: subprocess.Popen[bytes]) -> list[tuple[int, bytes]]:
    out, err = process.communicate()
    assert process.returncode == 0, err.decode()
    return parsed_output(out.splitlines(keepends=True))


def content(path: Path) -> dict[int, bytes]:
    with raftlog.open(path) as log:
        return {record.offset: record.value or b"" for record in log.read()}


@pytest.mark.parametrize(
    "turns", [pytest.param(4, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.nightly)]
)
def test_a_killed_writer_loses_no_acknowledged_record(
    start: Start, tmp_path: Path, turns: int
) -> None:
    chance = random.Random(20)
    path = tmp_path / "orders-0"
    raftlog.open(path, config=SMALL_SEGMENTS).close()
    acknowledged: dict[int, bytes] = {}
    last = start(path, "append", "bystander", 40)
    for turn in range(turns):
        pair = [start(path, "append", f"writer-{turn}-{one}", 100_000) for one in range(2)]
        for writer in pair:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 60))]
            writer.kill()
            rest, err = writer.communicate()
            assert writer.returncode == -9, err.decode()
            returned = parsed_output([*lines, *rest.splitlines(keepends=True)])
            assert not acknowledged.keys() & dict(returned).keys(), "an offset is assigned once"
            acknowledged |= dict(returned)
    acknowledged |= dict(finished(last))
    found = content(path)
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
    assert list(found) == list(range(1, 1 + len(found))), "no gap"
    values = list(found.values())
    assert len(set(values)) == len(values), "nothing twice"


@pytest.mark.parametrize(
    "count",
    [pytest.param(300, marks=pytest.mark.slow), pytest.param(600, marks=pytest.mark.nightly)],
)
def test_a_reader_of_killed_writers_sees_no_record_that_is_lost(
    start: Start, tmp_path: Path, count: int
) -> None:
    chance = random.Random(7)
    path = tmp_path / "orders-0"
    raftlog.open(path, config=SMALL_SEGMENTS).close()
    reader = start(path, "follow", "reader", count)
    kill = 0
    while reader.poll() is None and kill < 100:
        kill += 1
        writer = start(path, "append", f"writer-{kill}", 100_000)
        assert writer.stdout is not None
        for _ in range(chance.randrange(20, 150)):
            writer.stdout.readline()
        writer.kill()
        writer.communicate()
        with raftlog.open(path) as log:
            if log.end_offset >= count:
                break
    seen = finished(reader)
    assert [offset for offset, _ in seen] == list(range(1, 1 + len(seen))), "no gap, no repeat"
    assert len(seen) >= count - 1
    found = content(path)
    assert all(found.get(offset) == value for offset, value in seen)


@pytest.mark.parametrize(
    "end_offset",
    [pytest.param(100, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.nightly)],
)
def test_exactly_one_of_many_rivals_for_an_offset_wins(
    start: Start, tmp_path: Path, end_offset: int
) -> None:
    path = tmp_path / "orders-0"
    racers = [start(path, "race", f"racer-{number}", end_offset) for number in range(RACERS)]
    won = [pair for racer in racers for pair in finished(racer)]
    assert sorted(offset for offset, _ in won) == list(range(1, end_offset))
    assert content(path) == dict(won)


def test_a_process_that_exits_without_close_writes_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    code = (
        "import sys, raftlog\n"
        "log = raftlog.open(sys.argv[1])\n"
        "for number in range(20): log.append_async(b'%d' % number)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert list(content(path).values()) == [b"%d" % number for number in range(20)]
