"""``raftlog tables load``: the tables are those of ``follow``, also after it was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.state.cli.test_cli_tables import follow_once, stored
from tests.support.cli import rows, run
from tests.support.quorum_processes import eventually
from tests.support.small_logs import NO_OP, LogWriter
from tests.support.sweep_size import nightly_except

from raftlog_state.records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    encode,
)
from raftlog_state.replay.topics import CONFIG_OF_TOPIC
from raftlog_state.tables.bulk_load import SERIAL_RECORDS_MAX

OPTIONS: Final = ("--no-log", "--tail-holdback-ms", "0")


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log that is long enough for a range: topics in a multitude of NoOps."""
    log = LogWriter(
        tmp_path_factory.mktemp("node") / "__cluster_metadata-0", cluster_id="long-cluster"
    )
    for number in range(40):
        topic_id = f"{number:021d}Q"
        log.append(
            encode(TopicRecord(name=f"topic-{number}", topic_id=topic_id)),
            encode(PartitionRecord(partition_id=0, topic_id=topic_id, replicas=(1, 2), isr=(1,))),
            encode(PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=(2, 1))),
            encode(
                ConfigRecord(
                    resource_type=CONFIG_OF_TOPIC,
                    resource_name=f"topic-{number}",
                    name="retention.ms",
                    value=str(number),
                )
            ),
            *[NO_OP] * (SERIAL_RECORDS_MAX // 39),
        )
    assert log.end_offset > SERIAL_RECORDS_MAX
    return log.directory


@pytest.fixture(scope="module")
def followed_tables(long_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables that ``follow`` writes. They are not changed."""
    place = tmp_path_factory.mktemp("followed") / "tables"
    follow_once(long_log, place, "--no-log")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("workers", nightly_except([2], [1, 2]))
def test_a_long_log_is_loaded_as_it_is_followed(
    workers: int, long_log: Path, followed_tables: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    status, out, err = run("tables", "load", long_log, place, "--workers", str(workers), *OPTIONS)
    last = rows("tables", "status", place)[0]["offset"]
    assert (status, out) == (0, "")
    assert err.splitlines() == [
        f"raftlog: loaded offsets 0 to {last}",
        f"raftlog: the tables end at offset {last}",
    ]
    assert stored(place) == stored(followed_tables)
    assert sorted(path.name for path in place.iterdir()) == ["changes", "state"]
    assert run("tables", "load", long_log, place, *OPTIONS) == (0, "", err.splitlines()[1] + "\n")
    assert "from offset" in follow_once(long_log, place, "--no-log"), "it continues the tables"


def test_a_short_log_is_loaded_in_one_process(data: Path, tmp_path: Path) -> None:
    log = data / "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
    status, _, err = run("tables", "load", log, tmp_path / "loaded", *OPTIONS)
    assert status == 0, err
    follow_once(log, tmp_path / "followed", "--no-log")
    assert stored(tmp_path / "loaded") == stored(tmp_path / "followed")


def loading(log: Path, place: Path, staging: Path) -> subprocess.Popen[str]:
    """Start a load, and wait until its processes have written results."""
    code = (
        "import signal, sys\n"
        "from raftlog_state.cli.main import main\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    sys.exit(main())\n"
    )
    script = staging.with_name("script.py")
    script.write_text(code)
    command = [sys.executable, str(script), "tables", "load", str(log), str(place)]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--staging", str(staging), *OPTIONS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def has_buckets() -> bool:
        assert process.poll() is None
        return any(staging.rglob("bucket-*.json"))

    eventually(has_buckets, "the load has written buckets")
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        pytest.param(signal.SIGINT, 128 + signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_a_load_that_is_ended_is_quiet_and_continued(
    number: signal.Signals, status: int, long_log: Path, followed_tables: Path, tmp_path: Path
) -> None:
    """Its processes end with it: otherwise they would keep its stderr open."""
    place, staging = tmp_path / "tables", tmp_path / "staging"
    process = loading(long_log, place, staging)
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (status, "", "")
    status, _, err = run("tables", "load", long_log, place, "--staging", staging, *OPTIONS)
    assert status == 0, err
    assert stored(place) == stored(followed_tables)
    assert not staging.exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--workers", "0"), "is not a number of processes"),
        (("--workers", "many"), "is not a number of processes"),
        (("--tail-holdback-ms", "-1"), "--tail-holdback-ms"),
    ],
)
def test_an_invalid_option_is_named(
    options: tuple[str, ...], reason: str, data: Path, tmp_path: Path
) -> None:
    log = data / "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
    status, out, err = run("tables", "load", log, tmp_path / "tables", *options)
    assert (status, out) == (2, "")
    assert reason in err
    assert not (tmp_path / "tables").exists()
