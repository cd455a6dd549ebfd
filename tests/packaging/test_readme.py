"""The commands of the README and of the pages in docs are run and print what is shown.

A ```console block has `$ command` lines, each followed by its output, where a line of three dots
replaces any lines. The commands run in the project's folder.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.support.cli import run as run_here
from tests.support.quorum_processes import RARE_ELECTIONS, QuorumProcesses, free_ports

from pyspark_raftlog import RaftlogDataSource
from raftlog.node.config import read_config
from raftlog_state.cli.main import parser

HOME = Path(__file__).parents[2]
QUORUM = "localhost:9192,localhost:9292,localhost:9392"
"""Address of the quorum in docs."""
README = HOME / "README.md"
NOTEBOOKS = "notebooks/run.py"
"""Script that ``make demo`` calls."""
LOG = "tests/data/kraft-logs/three-nodes-4.3.1/node-100"


def console_commands() -> Iterator[tuple[str, list[str]]]:
    pages = "\n".join(page.read_text() for page in (README, *sorted(HOME.glob("docs/*.md"))))
    for block in re.findall(r"^```console\n(.*?)^```", pages, re.MULTILINE | re.DOTALL):
        command = ""
        output: list[str] = []
        for line in [*block.splitlines(), "$ "]:
            if line.startswith("$ "):
                if command:
                    yield command, output
                command, output = line[2:], []
            else:
                output.append(line)


def matches(expected: list[str], printed: list[str]) -> bool:
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"\n"
        for line in expected
    )
    text = "".join(f"{line.rstrip()}\n" for line in printed)
    return re.fullmatch(pattern, text) is not None


COMMANDS = list(console_commands())
OF_SHELL = re.compile(r"[|&;<>$]")
CLI = [(command, output) for command, output in COMMANDS if not command.startswith("make ")]


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell with the `raftlog` and `python` of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        ["sh", "-c", command],
        cwd=HOME,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_readme_has_the_two_commands() -> None:
    shown = [command for command, _ in COMMANDS]
    assert "make demo" in shown
    assert "make test" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), CLI, ids=[command for command, _ in CLI])
def test_a_command_of_the_readme_prints_what_it_shows(
    command: str, output: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one command of the shell run here: most of their time is the start of Python."""
    name, *words = shlex.split(command)
    if OF_SHELL.search(command) or words == ["dev"]:
        done = run(command)
        out, err = done.stdout, done.stderr
    else:
        assert name == "raftlog"
        monkeypatch.chdir(HOME)
        _, out, err = run_here(*words)
    assert matches(output, out.splitlines()), out + err


def test_commands_with_places_of_others_have_arguments_that_exist() -> None:
    """Blocks of text have what cannot run here, such as a bucket and the names of hosts."""
    pages = "\n".join(page.read_text() for page in (README, *sorted(HOME.glob("docs/*.md"))))
    blocks = re.findall(r"^```text\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^(?:\$ )?(raftlog .*)", "\n".join(blocks), re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        _, *words = shlex.split(line)
        assert callable(parser().parse_args(words).run), line


@pytest.mark.slow
@pytest.mark.spark
def test_the_demo_prints_what_the_readme_shows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``make demo`` runs the notebook in a process, as the next test runs another one."""
    ((_, output),) = [pair for pair in COMMANDS if pair[0] == "make demo"]
    monkeypatch.chdir(HOME)
    session = spark.newSession()  # its views are not those of other tests
    session.dataSource.register(RaftlogDataSource)
    runpy.run_path(NOTEBOOKS)["run"]("notebooks/cluster_history.py", {}, session)
    printed = capsys.readouterr().out
    assert matches(output, printed.splitlines()), printed


NOTEBOOK = """
dbutils.widgets.text("log", "", "directory of a log")
dbutils.widgets.text("last", "5", "last offset")
dbutils.widgets.text("tables", "", "directory of a Delta table")
tables = dbutils.widgets.get("tables")
records = spark.read.format("raftlog").load(dbutils.widgets.get("log"))
records = records.where("offset <= " + dbutils.widgets.get("last")).select("offset", "topic")
records.write.format("delta").save(tables)
display(spark.sql(f"SELECT offset, topic FROM delta.`{tables}` ORDER BY offset"))
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly
def test_a_notebook_runs_in_a_process_with_delta_and_its_widgets(tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text(NOTEBOOK)
    done = run(f"python {NOTEBOOKS} {notebook} log={LOG} tables={tmp_path}/tables")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\| *(\d)\|(\w+)", done.stdout) == [
        (str(offset), "__cluster_metadata") for offset in (3, 4, 5)
    ], done.stdout


def examples(page: str) -> list[str]:
    """Return the blocks of Python of a page."""
    text = (HOME / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", "PARTITION_CHANGE_RECORD"),
        ("docs/spark.md", "update_preimage"),
        ("docs/tables.md", "|partition|"),
        ("docs/controller.md", ""),
    ],
)
def test_the_examples_of_a_page_run_in_a_session(
    page: str,
    printed: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(HOME)
    names: dict[str, object] = {"spark": spark}
    for block in examples(page):
        exec(block, names)
    assert printed in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_the_quorum_page_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = examples("docs/quorum.md")
    with QuorumProcesses(tmp_path, extra=RARE_ELECTIONS) as quorum:
        exec(block.replace(QUORUM, quorum.bootstrap), {})
    assert capsys.readouterr().out.endswith(" [b'ids 100 to 199 are mine']\n")


def test_the_examples_of_the_page_of_a_log_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in examples("docs/log.md"):
        exec(block, names)
    conflict, first, before_and_after, changed_key = capsys.readouterr().out.splitlines()
    assert "RAFTLOG_UNEXPECTED_END_OFFSET" in conflict
    assert first == "[b'ids 0 to 99 are mine']"
    assert before_and_after == "{b'size': b'10'} {b'size': b'9'}"
    assert "RAFTLOG_KEY_CHANGED" in changed_key


def test_the_examples_of_the_key_value_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in examples("docs/key-value.md"):
        exec(block, names)
    assert capsys.readouterr().out.splitlines() == [
        "b'db-1' None",
        "[b'db/host', b'db/port']",
        "read it again: 4",
        "6 b'db/host' b'db-4'",
        "worker 1 is fenced",
    ]


def test_the_examples_of_the_encryption_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in examples("docs/encryption.md"):
        exec(block, names)
    assert capsys.readouterr().out.splitlines() == [
        "[b'4711', b'4712']",
        "[(b'alice', None), (b'bob', b'4712')]",
    ]


def commands(page: str) -> str:
    """Return the block of shell commands of a page."""
    text = (HOME / page).read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.mark.slow
def test_the_controller_of_its_page_begins_the_log_of_a_cluster(tmp_path: Path) -> None:
    shell = commands("docs/controller.md")
    (port,) = free_ports(1)
    shell = shell.replace("9093", str(port)) + "node=$!\n"
    state = f"raftlog state --bootstrap-server localhost:{port} features"
    until = f"until {state} > rows && grep -q metadata.version rows; do :; done\ncat rows\n"
    done = run(f"cd {shlex.quote(str(tmp_path))}\n{shell}{until}kill $node\nwait\n")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    levels = {row["name"]: row["level"] for row in rows}
    assert levels["metadata.version"] == 30, done.stderr
    assert levels["eligible.leader.replicas.version"] == 1


@pytest.mark.slow
def test_the_commands_of_the_quorum_page_format_three_nodes_of_one_cluster(tmp_path: Path) -> None:
    shell = commands("docs/quorum.md")
    lines = [line for line in shell.splitlines() if "raftlog node start" not in line]
    assert len(lines) == len(shell.splitlines()) - 1
    done = run(f"cd {shlex.quote(str(tmp_path))}\n" + "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"node.id=(\d)", done.stdout) == ["1", "2", "3"]
    assert len(set(re.findall(r"cluster.id=(.+)", done.stdout))) == 1
    addresses = [read_config(path).voters for path in sorted(tmp_path.glob("*/node.toml"))]
    assert [f"localhost:{one.port}" for one in addresses if one is not None] == QUORUM.split(",")
