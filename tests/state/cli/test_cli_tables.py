"""``raftlog tables``: following a log in processes that are killed, and the commands of tables."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from deltalake import DeltaTable, Schema
from tests.state.tables.test_writer import expired
from tests.support.cli import rows, run
from tests.support.memory_store import MemoryTables
from tests.support.small_logs import copy_log
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import changes_schema_without, contents

from raftlog.client import open_path
from raftlog_state.tables import open_tables
from raftlog_state.tables.schema import STORED_TABLES
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

LOG: Final = "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
LAST: Final = 2684


def stored(place: Path) -> list[tuple[str, str]]:
    """Return the contents of the tables in a directory."""
    store = DeltaRsStore(str(place))
    tables = STORED_TABLES.values()
    return contents(
        MemoryTables({table.name: store.read(table) for table in tables if store.exists(table)})
    )


def follow_once(log: Path, place: Path, *options: str) -> str:
    """Follow a log to its end; return stderr."""
    status, out, err = run(
        "tables", "follow", log, place, "--once", "--tail-holdback-ms", "0", *options
    )
    assert (status, out) == (0, ""), err
    return err


@contextmanager
def following(
    log: Path, place: Path, *options: str, program: Sequence[str] = ("-m", "raftlog_state.cli")
) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process; its stderr is read line by line."""
    command = [sys.executable, *program, "tables", "follow"]
    command += [str(log), str(place), "--tail-holdback-ms", "0", "--poll-ms", "10", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read stderr up to a line with these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"the process ended before {words!r}")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of the whole log. They are not changed."""
    place = tmp_path_factory.mktemp("whole") / "tables"
    follow_once(data / LOG, place)
    return place


def test_a_log_is_written_in_batches_with_a_line_for_each(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    err = follow_once(data / LOG, place, "--max-records", "1500")
    first, *appended, last = err.splitlines()
    assert first == f"raftlog: following {data / LOG} from offset 0"
    assert appended[-1].endswith(f" to {LAST}")
    assert len(appended) == 2
    assert last == f"raftlog: the tables end at offset {LAST}"
    assert follow_once(data / LOG, place).splitlines() == [
        f"raftlog: following {data / LOG} from offset {LAST + 1}",
        last,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kills_after", nightly_except([[1, 3]], [[1, 3], [2, 5, 4]]))
def test_processes_that_are_killed_leave_the_same_tables(
    kills_after: list[int], data: Path, whole: Path, tmp_path: Path
) -> None:
    """In ``test_invariants_beside_writers_spark.py`` also during upkeep."""
    place = tmp_path / "tables"
    for kill_after in kills_after:
        with following(data / LOG, place, "--max-records", "60") as process:
            for _ in range(kill_after):
                wait_for(process, "appended offsets")
            process.kill()
            assert process.wait() == -signal.SIGKILL
    follow_once(data / LOG, place)
    assert stored(place) == stored(whole)


@contextmanager
def reading(place: Path, whole: Path) -> Iterator[None]:
    """Read tables in a thread throughout; each state is that of whole ones at its offset."""
    is_done, known = Event(), open_tables(str(whole))

    def read() -> int:
        for count in itertools.count(1):
            found = open_tables(str(place)).image()
            assert found.same_rows(known.image(found.offset)), found.offset
            if is_done.is_set():
                return count
        raise AssertionError("the loop returns or raises")

    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(read)
        try:
            yield
        finally:
            is_done.set()
        assert counted.result() > 1


@pytest.mark.slow
def test_commands_beside_a_follower_leave_the_tables_of_the_log(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    commands = (("maintain",), ("truncate", "300"), ("maintain",), ("expire", "100"))
    with following(data / LOG, place, "--max-records", "30") as process:
        for _ in range(11):
            wait_for(process, "appended offsets")
        with reading(place, whole):
            for command, *offset in commands:
                wait_for(process, "appended offsets")
                status, _, err = run("tables", command, place, *offset)
                assert status == 0 or "at the same time" in err, err
        process.terminate()
        _, err = process.communicate()
    assert process.returncode == 0 or "another" in err, err
    assert run("tables", "expire", place, "100")[0] == 0
    follow_once(data / LOG, place)
    assert stored(place) == expired(stored(whole), 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    nightly_except(
        [(signal.SIGTERM, 0)], [(signal.SIGTERM, 0), (signal.SIGINT, 128 + signal.SIGINT)]
    ),
)
def test_a_signal_ends_a_follower_quietly(
    number: signal.Signals, status: int, data: Path, whole: Path, tmp_path: Path
) -> None:
    """``make test`` has SIGINT of another follower in ``test_cli_follow.py``."""
    log, place = tmp_path / "node" / "__cluster_metadata-0", tmp_path / "tables"
    copy_log(data / LOG, log, end_offset=600)
    with following(log, place) as process:
        wait_for(process, "appended offsets 0 ")
        copy_log(data / LOG, log, end_offset=LAST + 1)
        wait_for(process, f" to {LAST}")
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (status, "", "")
    assert stored(place) == stored(whole)


@pytest.mark.slow
def test_a_signal_in_an_append_takes_effect_after_it(data: Path, tmp_path: Path) -> None:
    # The process sends the signal to itself after the first of the two commits of an append.
    code = (
        "import os, signal, sys\n"
        "from raftlog_state.tables.stores.delta_rs import DeltaRsStore\n"
        "append = DeltaRsStore.append\n"
        "def interrupted(self, table, rows, transaction):\n"
        "    append(self, table, rows, transaction)\n"
        "    if table.name == 'log': os.kill(os.getpid(), signal.SIGTERM)\n"
        "DeltaRsStore.append = interrupted\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    place = tmp_path / "tables"
    command = [sys.executable, "-c", code, "tables", "follow", str(data / LOG), str(place)]
    done = subprocess.run(
        [*command, "--max-records", "60"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert follow_once(data / LOG, place).splitlines()[0].endswith("from offset 37")


@pytest.mark.slow
def test_a_signal_whose_exception_is_lost_ends_the_command(data: Path, tmp_path: Path) -> None:
    # C code that calls Python, as Arrow does, may drop the exception of a signal's handler.
    code = (
        "import contextlib, os, signal, sys\n"
        "from raftlog_state.tables.log_follower import LogFollower\n"
        "def lossy(self):\n"
        "    with contextlib.suppress(BaseException):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "LogFollower.append_next = lossy\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "tables", "follow", str(data / LOG), str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_tables_are_truncated_expired_and_maintained(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    short = copy_log(data / LOG, tmp_path / "node" / "__cluster_metadata-0", end_offset=1000)
    follow_once(data / LOG, place)
    status, _, err = run("tables", "follow", short, place, "--once")
    assert status == 1
    (_, line) = err.splitlines()
    command = line[line.index("raftlog tables truncate TABLES ") :].split("`")[0].split()
    assert run("tables", "truncate", place, command[-1]) == (0, f"{command[-1]}\n", "")
    follow_once(data / LOG, place)
    assert stored(place) == stored(whole)
    assert run("tables", "maintain", place) == (0, "", "")
    assert stored(place) == stored(whole)
    assert run("tables", "expire", place, "1500") == (0, "1500\n", "")
    assert run("tables", "truncate", place, "1499")[0] == 1
    follow_once(data / LOG, place)


@pytest.mark.slow
def test_tables_without_log_are_maintained_too(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    follow_once(data / LOG, place, "--no-log")
    assert run("tables", "expire", place, "1500") == (0, "1500\n", "")
    assert run("tables", "truncate", place, "2000") == (0, "2000\n", "")
    assert run("tables", "maintain", place) == (0, "", "")
    follow_once(data / LOG, place, "--no-log")
    status, _, err = run("tables", "follow", data / LOG, place, "--once")
    assert status == 1
    assert "--no-log" in err


@pytest.mark.slow
def test_tables_may_contain_several_clusters(data: Path, tmp_path: Path) -> None:
    place, other = tmp_path / "tables", data / "kraft-logs/trimmed-3.9.2/node-1"
    follow_once((data / LOG).parent, place)
    status, _, err = run("tables", "follow", other, place, "--once")
    assert status == 2
    cluster_id = str(open_path(str(other)).cluster_id)
    assert f"belongs to cluster {cluster_id}, expected" in err
    assert "--cluster-id" in err
    follow_once(other, place, "--cluster-id", cluster_id)
    found = {row["cluster_id"]: row["offset"] for row in rows("tables", "status", place)}
    assert len(found) == 2
    assert found[cluster_id] == open_path(str(other)).log_end_offset - 1
    assert run("tables", "maintain", place) == (0, "", "")
    status, _, err = run("tables", "truncate", place, "100")
    assert status == 1
    assert "2 clusters" in err
    only = rows("tables", "status", place, "--cluster-id", cluster_id)
    assert [row["cluster_id"] for row in only] == [cluster_id]


@pytest.mark.slow
def test_many_logs_are_written_by_one_process(data: Path, tmp_path: Path) -> None:
    place, other = tmp_path / "tables", data / "kraft-logs/trimmed-3.9.2/node-1"
    file = tmp_path / "logs.json"
    logs = [(data / LOG).parent, other]
    file.write_text(json.dumps([{"path": str(log)} for log in logs]))
    command = ("tables", "follow", "--sources", file, "--group", "all", place, "--once")
    options = ("--tail-holdback-ms", "0")
    assert run(*command, *options)[0] == 0
    ends = {str(log.cluster_id): log.log_end_offset for log in map(open_path, map(str, logs))}
    found = {row["cluster_id"]: row["next_offset"] for row in ends_of(place)}
    assert found == ends
    assert {row["group"] for row in ends_of(place)} == {"all"}
    status, _, err = run("tables", "follow", other, place, "--once", *options)
    assert status == 1, "it is of the group"
    assert "--cluster-id" in err
    cluster_id = str(open_path(str(other)).cluster_id)
    named = ("--cluster-id", cluster_id)
    assert run("tables", "truncate", place, "1100", *named) == (0, "1100\n", "")
    assert run(*command, *options)[0] == 0, "the group continues there"
    assert {row["cluster_id"]: row["next_offset"] for row in ends_of(place)} == ends
    file.write_text("[]")
    status, _, err = run(*command)
    assert status == 2
    assert "JSON array" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[{"path": "x"}, {"path": "x", "ssl.ca.locaton": "ca.pem"}]',
            "--sources[1].ssl.ca.locaton: is unknown; options are path, bootstrap.servers, se",
        ),
        ('[{"path": "x", "bootstrap.servers": "a:1"}]', "--sources[0].bootstrap.servers"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
    ids=["misspelled", "two locations", "deep"],
)
def test_wrong_sources_are_explained(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "logs.json"
    file.write_text(text)
    place = tmp_path / "tables"
    command = ("tables", "follow", "--sources", file, "--group", "all", "--once")
    status, out, err = run(*command, place)
    assert (status, out) == (2, ""), err
    assert words in err
    assert "Traceback" not in err


def ends_of(place: Path) -> list[dict[str, Any]]:
    """Return the status of each cluster, with the offset after its last one."""
    return [{**row, "next_offset": row["offset"] + 1} for row in rows("tables", "status", place)]


def test_the_status_is_one_json_object(whole: Path) -> None:
    (found,) = rows("tables", "status", whole)
    assert found["place"] == str(whole)
    assert (found["offset"], found["log_offset"], found["oldest_offset"]) == (LAST, LAST, 0)
    assert found["row_counts"]["topics"] == 145
    assert found["group"] is None


@pytest.mark.parametrize("command", ["status", "truncate", "expire", "maintain"])
def test_commands_of_missing_tables_fail(command: str, tmp_path: Path) -> None:
    words = () if command in ("status", "maintain") else ("1",)
    status, out, err = run("tables", command, tmp_path / "none", *words)
    assert (status, out) == (1, "")
    assert "there are no tables" in err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["truncate", "expire", "maintain"])
def test_a_cluster_that_the_tables_lack_is_named(command: str, whole: Path) -> None:
    words = () if command == "maintain" else ("1",)
    status, out, err = run("tables", command, whole, *words, "--cluster-id", "other")
    assert (status, out) == (1, "")
    assert "nothing of cluster other was published yet" in err


def test_a_relative_name_is_a_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    follow_once(data / LOG, Path("tables"), "--no-log")
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"changes", "state"}
    status, _, err = run("tables", "maintain", "s3://bucket/tables")
    assert status == 1
    assert "not a local path" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a command is missing"),
        (["folow"], "did you mean follow?"),
        (["follow"], "required: TABLES"),
        (["follow", "tables"], "PATH and TABLES are required"),
        (["follow", "log", "tables", "--bootstrap-server", "x:1"], "mutually exclusive"),
        (["follow", "--sources", "logs.json", "tables"], "--sources requires --group"),
        (["follow", "log", "tables", "--group", "g"], "--group requires --sources"),
        (["follow", "log", "tables", "--sources", "f", "--group", "g"], "excludes PATH"),
        (["follow", "log", "tables", "--max-records", "0"], "not a number of records"),
        (["follow", "log", "tables", "--poll-ms", "-1"], "--poll-ms"),
        (["follow", "log", "tables", "--tls-ca", "x"], "requires --bootstrap-server"),
        (
            ["follow", "tables", "--sources", "f", "--group", "g", "--tls-ca", "x"],
            "--tls-ca requires --bootstrap-server",
        ),
        (["truncate", "tables"], "required: OFFSET"),
        (["expire", "tables", "-1"], "OFFSET"),
    ],
)
def test_wrong_calls_are_explained(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run("tables", *arguments)
    assert (status, out) == (2, ""), err
    assert words in err
    assert os.listdir(tmp_path) == []


def test_a_missing_log_and_missing_nodes_are_reported(tmp_path: Path) -> None:
    status, _, err = run("tables", "follow", tmp_path / "none", tmp_path / "tables")
    assert status == 2
    assert "RAFTLOG_LOG_NOT_FOUND" in err
    nodes = ("--bootstrap-server", "127.0.0.1:1", "--timeout-ms", "50")
    status, _, err = run("tables", "follow", *nodes, tmp_path / "tables", "--once")
    assert status == 1
    assert "RAFTLOG_QUORUM_UNAVAILABLE" in err


def test_a_missing_deltalake_is_a_typed_error(data: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['deltalake'] = None\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "tables", "follow", str(data / LOG), str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert 'pip install "raftlog[delta]"' in line


def test_tables_of_an_earlier_layout_are_refused_with_a_command(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    DeltaTable.create(str(place / "changes"), Schema.from_arrow(changes_schema_without("topic")))
    log = data / LOG
    for call in (("follow", log, place, "--once"), ("truncate", place, "1")):
        status, _, err = run("tables", *call)
        assert (status, "created by an earlier release" in err) == (1, True), err
        assert "raftlog tables follow LOG TABLES" in err
