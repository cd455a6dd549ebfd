"""No path, host, record or response controls a terminal, and no password is echoed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.support.cli import rows, run
from tests.support.log_builder import data_batch

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from raftlog.client.location import parse_location
from raftlog.errors import OptionError, RaftlogError
from raftlog.node.log_lines import LogLines
from raftlog.printable import compact_json, did_you_mean, printable, without_user_info
from raftlog_state.cli.output import Console, Output
from raftlog_state.errors import TablesError

DANGEROUS = "\x1b]0;pwned\x07 \x9b31m \u202e gnp \u2028 \u2066 \x7f \U000e0041 \udcff"
HARMLESS = "Größe 日本 🙂 –"


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_line_of_output_is_printable_and_still_json() -> None:
    stream = io.BytesIO()
    output = Output(stream)
    line = json.dumps({"path": DANGEROUS, "name": HARMLESS}, ensure_ascii=False)
    output.line(line)
    output.lines(["plain", "two\nlines"])
    output.flush()
    written = stream.getvalue().decode()
    assert is_safe(written)
    first, second, third, rest = written.split("\n")
    assert json.loads(first) == {"path": DANGEROUS, "name": HARMLESS}
    assert HARMLESS in first
    assert (second, third, rest) == ("plain", r"two\u000alines", "")


def test_a_message_on_the_console_is_printable() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.log(DANGEROUS + HARMLESS)
    console.write(f"usage\n{DANGEROUS}\n")
    assert is_safe(stream.getvalue())
    assert HARMLESS in stream.getvalue()
    assert r"\u001b]0;pwned\u0007" in stream.getvalue()


def test_a_log_line_of_a_node_is_printable_and_still_json() -> None:
    stream = io.StringIO()
    LogLines(stream, 1).log("voters", host=DANGEROUS, name=HARMLESS)
    assert is_safe(stream.getvalue())
    assert json.loads(stream.getvalue())["host"] == DANGEROUS


@pytest.mark.parametrize("command", ["cat", "check", "state", "configure", "repair"])
def test_no_command_prints_the_escape_sequences_of_a_path(command: str, tmp_path: Path) -> None:
    home = tmp_path / "\x1b]0;pwned\x07\x9b\u202e"
    home.mkdir()
    for path in (home, home / "missing", home / f"{0:020d}.log"):
        _, out, err = run(command, path)
        assert is_safe(out + err)
        assert "pwned" in out + err
    with raftlog.open(home / "log") as log:
        log.append(DANGEROUS.encode("utf-8", "replace"))
    segment = home / "log" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    for more in ((), ("--json",)):
        _, out, err = run(command, home / "log", *more)
        assert is_safe(out + err)


def test_a_record_keeps_every_character_of_its_value(tmp_path: Path) -> None:
    value = DANGEROUS.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    (tmp_path / f"{0:020d}.log").write_bytes(data_batch([value.encode()], base_offset=0))
    assert is_safe(run("cat", tmp_path)[1])
    assert [row["value"] for row in rows("cat", tmp_path)] == [value]


def test_only_unprintable_characters_are_escaped() -> None:
    assert printable(HARMLESS) is HARMLESS
    assert printable("a\x1bb\U000e0041") == r"a\u001bb\udb40\udc41"


# --- passwords in addresses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "servers",
    [
        "user:hunter2@h:9092",
        "hunter2@h:9092",
        "h:1,user:hunter2@h",
        "u:hun,ter2@h:1",
        "//hunter2@h",
    ],
)
def test_a_user_in_a_bootstrap_address_is_refused_and_not_shown(servers: str) -> None:
    calls = (
        lambda: raftlog.connect(servers),
        lambda: parse_location({"bootstrap.servers": servers}),
        lambda: RaftlogOptions.parse({"bootstrap.servers": servers}),
    )
    for call in calls:
        with pytest.raises(OptionError) as refused:
            call()
        assert "hunter2" not in repr(refused.value) + str(refused.value)
        assert "ter2" not in str(refused.value)
    status, out, err = run("cat", "--bootstrap-server", servers)
    assert (status, out) == (2, "")
    assert "ter2" not in err


@pytest.mark.parametrize(
    "url", ["s3a://key:hunter2@b/p", "s3a://key:hun/hunter2@b", "/a,wasb://hunter2@b"]
)
def test_a_url_with_a_key_is_refused_and_not_shown(url: str, tmp_path: Path) -> None:
    for call in (
        lambda: raftlog.open(url),
        lambda: parse_location({"path": url}),
        lambda: RaftlogOptions.parse({"path": url}),
    ):
        with pytest.raises(RaftlogError) as refused:
            call()
        assert "hunter2" not in repr(refused.value) + str(refused.value)
    for command in ("cat", "check", "state", "repair", "configure"):
        status, out, err = run(command, url)
        assert (status, out) == (2, "")
        assert "hunter2" not in err
        assert "mounted file system" in err or "the URI has keys in it" in err


def test_tables_do_not_show_the_key_of_their_location() -> None:
    error = TablesError(place="s3a://key:hun/hunter2@bucket/t", reason="gone", remedy="make them")
    assert "hunter2" not in repr(error) + str(error)
    assert "s3a://***@bucket/t" in str(error)
    assert without_user_info("/data/me@home") == "/data/me@home"


def test_a_hint_has_the_spelling_of_a_name_that_differs_in_case() -> None:
    names = ("offset", "controlType")
    assert did_you_mean("CONTROLTYPES", names) == "did you mean controlType?"
    assert did_you_mean("x", names) is None


def test_numbers_that_json_does_not_have_are_texts_as_in_kafkas_json() -> None:
    value = {"a": [float("inf"), (float("-inf"), 1.5)], "b": {"c": float("nan")}, "d": None}
    expected = '{"a":["Infinity",["-Infinity",1.5]],"b":{"c":"NaN"},"d":null}'
    assert compact_json(value) == expected
