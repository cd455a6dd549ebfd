"""``raftlog append``: lines of stdin become records, with offsets, required offsets and names."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import run
from tests.support.quorum_processes import RARE_ELECTIONS, QuorumProcesses

import raftlog
from raftlog.errors import OptionError
from raftlog.limits import LOG_BATCH_BYTES_MAX
from raftlog.records import Header, NewRecord
from raftlog_state.cli.append import _pieces


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "decisions-0"
    raftlog.open(path).close()
    return path


def append(
    monkeypatch: pytest.MonkeyPatch, data: bytes, *words: str | Path
) -> tuple[int, list[dict[str, Any]], str]:
    """Run the command with this stdin; return exit code, what it printed, and stderr."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    status, out, err = run("append", *words)
    return status, [json.loads(line) for line in out.splitlines()], err


def values(path: Path) -> list[bytes | None]:
    with raftlog.open(path) as log:
        return [record.value for record in log.read()]


def test_each_line_is_a_record(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    status, found, err = append(monkeypatch, b"a\n\n\xff b\nlast", log)
    assert (status, err) == (0, "")
    assert found == [
        {"base_offset": 1, "end_offset": 4, "leader_epoch": 1, "records": 3},
        {"base_offset": 4, "end_offset": 5, "leader_epoch": 1, "records": 1},
    ], "the rest without a newline is read at the end"
    assert values(log) == [b"a", b"", b"\xff b", b"last"]
    assert append(monkeypatch, b"", log) == (0, [], "")


def test_a_log_is_created_on_request_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, _, err = append(monkeypatch, b"a", tmp_path / "new-0")
    assert status == 2
    assert "does not exist; check the path, or create the log with --create" in err
    assert append(monkeypatch, b"a", tmp_path / "new-0", "--create")[0] == 0
    assert append(monkeypatch, b"b", tmp_path / "new-0", "--create")[0] == 0
    assert values(tmp_path / "new-0") == [b"a", b"b"]
    status, _, err = append(monkeypatch, b"", "--create", "--bootstrap-server", "localhost:1")
    assert (status, "--create requires PATH" in err) == (2, True)


def test_a_line_is_appended_while_stdin_is_open(log: Path) -> None:
    command = [sys.executable, "-m", "raftlog_state.cli", "append", str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset, line in enumerate((b"first\n", b"second\n"), start=1):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["base_offset"] == offset
        process.stdin.close()
        assert process.wait(60) == 0
    assert values(log) == [b"first", b"second"]


def test_what_cat_prints_is_appended_unchanged(
    monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path
) -> None:
    rng = random.Random(11)
    texts = [b"", b"plain", "häßlich \u2028".encode(), b'"\\', b"\x00\xff", None]
    records = [
        NewRecord(
            value=rng.choice(texts) if at else b"",
            key=rng.choice(texts),
            headers=tuple(Header(f"h{n}", rng.choice(texts)) for n in range(rng.randrange(3))),
            timestamp_ms=1_795_248_211_254 + at,
        )
        for at in range(40)
    ]
    copy = tmp_path / "copy-0"
    raftlog.open(copy).close()
    with raftlog.open(log) as source:
        source.append(records, commit=("nightly", "nightly", 1))
    status, out, err = run("cat", "--as", "partition", log)
    assert status == 0, err
    status, _, err = append(monkeypatch, out.encode(), copy, "--json")
    assert (status, err) == (0, "")
    with raftlog.open(log) as source, raftlog.open(copy) as target:
        before, after = list(source.read()), list(target.read())
    assert [replace(record, headers=()) for record in after] == [
        replace(record, headers=()) for record in before
    ]
    assert [record.headers for record in after] == [record.headers for record in records], (
        "without the name of the append"
    )
    assert [record.value for record in after] == [record.value for record in records]


def test_of_two_writers_with_one_required_offset_the_first_succeeds(
    monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    lines = b"a\nb\n"
    assert append(monkeypatch, lines, log, "--required-end-offset", "2")[0] == 0
    status, found, err = append(monkeypatch, lines, log, "--required-end-offset", "2")
    assert (status, found) == (1, [])
    assert "UNEXPECTED_END_OFFSET" in err
    assert append(monkeypatch, lines, log, "--required-base-offset", "3")[0] == 0
    assert values(log) == [b"a", b"b"] * 2
    assert append(monkeypatch, b"", log, "--required-base-offset", "5")[:2] == (
        0,
        [{"base_offset": 5, "end_offset": 5, "leader_epoch": 1, "records": 0}],
    ), "without lines the end is only verified"


def test_a_long_stdin_is_one_batch_or_none(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    lines = b"".join(b"%0999d\n" % at for at in range(3_000))
    status, found, _ = append(monkeypatch, lines, log, "--required-base-offset", "1")
    assert (status, [one["records"] for one in found]) == (0, [3_000])
    status, found, _ = append(monkeypatch, lines, log, "--required-end-offset", "9999")
    assert (status, found) == (1, [])
    assert values(log) == lines.splitlines()


def test_a_named_append_is_done_once(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    name = ("--name", "nightly", "--version", "7")
    status, (first,), _ = append(monkeypatch, b"a\nb\n", log, *name)
    assert status == 0
    status, (again,), _ = append(monkeypatch, b"a\nb\n", log, *name)
    assert (status, again) == (0, {**first, "was_duplicate": True})
    status, (again,), _ = append(monkeypatch, b"other\n", log, *name)
    assert (status, again["records"]) == (0, 2), "those of the first append"
    assert values(log) == [b"a", b"b"]
    status, found, err = append(monkeypatch, b"c\n", log, "--name", "nightly", "--version", "6")
    assert (status, found) == (1, [])
    assert "STALE_COMMIT" in err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"x", "line 2: it is not JSON: expecting value, at column 1"),
        (b"[1]", "line 2: expected a JSON object"),
        (b'{"value":1}', "line 2: value: expected text or null"),
        (b'{"valueBase64":"?"}', "line 2: valueBase64: expected base64"),
        (b'{"value":"a","valueBase64":"YQ=="}', "mutually exclusive"),
        (b'{"value":"a","timestamp":"now"}', "line 2: timestamp: expected milliseconds"),
        (b'{"value":"a","timestamp":true}', "line 2: timestamp: expected milliseconds"),
        (b'{"value":"a","headers":{"a":"b"}}', "line 2: headers: expected an array of objects"),
        (b'{"value":"a","headers":[{"value":"b"}]}', "line 2: headers: key: expected text"),
        (b'{"type":"TOPIC_RECORD","data":{}}', "record of metadata"),
        (b"[" * 100_000, "line 2: "),
        (b'{"value":"\xff"}', "line 2: "),
        (b'{"value":"\\ud800"}', "line 2: "),
    ],
    ids=range(13),
)
def test_an_invalid_line_is_named_and_nothing_of_its_read_is_appended(
    monkeypatch: pytest.MonkeyPatch, log: Path, line: bytes, reason: str
) -> None:
    status, found, err = append(monkeypatch, b'{"value":"a"}\n' + line + b"\n", log, "--json")
    assert (status, found) == (2, [])
    assert reason in err
    assert "; lines from 1 on were not appended" in err
    assert values(log) == []


def test_an_invalid_line_leaves_the_lines_of_earlier_reads_appended(
    monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    lines = b'{"value":"%s"}\n' % (b"x" * 999_990) * 3
    status, found, err = append(monkeypatch, lines + b"{", log, "--json")
    assert status == 2
    appended = sum(one["records"] for one in found)
    assert appended == len(values(log)) >= 2
    assert "line 4: it is not JSON: expecting property name enclosed in double quotes" in err
    assert f"; lines from {appended + 1} on were not appended" in err


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [("<&-", "option stdin: is closed"), (">&-", "cannot write to stdout: it is closed")],
)
def test_a_closed_stream_is_an_error_and_nothing_is_appended(
    log: Path, redirection: str, reason: str
) -> None:
    command = [sys.executable, "-m", "raftlog_state.cli", "append", str(log)]
    shell = ["sh", "-c", f'"$@" {redirection}', "sh", *command]
    done = subprocess.run(shell, input=b"a\n", capture_output=True, check=False)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(b"raftlog: ")
    assert reason.encode() in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert values(log) == []


def test_options_and_logs_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path
) -> None:
    kafka = Path(__file__).parents[2] / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
    for words, reason in (
        ((log, "--name", "a"), "--name and --version are used together"),
        ((), "PATH or --bootstrap-server is required"),
        ((log, "--bootstrap-server", "localhost:1"), "mutually exclusive"),
        ((tmp_path / "missing-0",), "does not exist"),
        ((kafka / "__cluster_metadata-0",), "it was not created by raftlog"),
    ):
        status, found, err = append(monkeypatch, b"a\n", *words)
        assert (status != 0, found) == (True, [])
        assert reason in err
    assert not (tmp_path / "missing-0").exists()


def test_a_line_that_fits_into_no_batch_is_refused_before_it_is_read_completely() -> None:
    stream = io.BytesIO(bytes(2 * LOG_BATCH_BYTES_MAX))
    with pytest.raises(OptionError, match="a line has more than"):
        list(_pieces(stream))
    assert stream.tell() < 1.1 * LOG_BATCH_BYTES_MAX


@pytest.mark.slow
def test_lines_are_appended_to_a_quorum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path, 1, extra=RARE_ELECTIONS) as quorum:
        nodes = ("--bootstrap-server", quorum.bootstrap)
        status, (done,), err = append(
            monkeypatch, b"a\nb\n", *nodes, "--name", "x", "--version", "1"
        )
        assert (status, err) == (0, "")
        with raftlog.connect(quorum.bootstrap) as log:
            assert [one.value for one in log.read(done["base_offset"])] == [b"a", b"b"]
        status, out, err = run(
            "bench", *nodes, "--existing", "--records", "20", "--clients", "2", "--json"
        )
        assert (status, err) == (0, "")
        assert json.loads(out)["records"] == 20
        with raftlog.connect(quorum.bootstrap) as log:
            assert log.end_offset >= done["end_offset"] + 20
