"""Usage of the command line: help, versions, wrong usage, exit codes, pipes, startup."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import run

from raftlog import __version__, compiled
from raftlog_state.cli.main import main
from raftlog_state.cli.output import Console, Output

COMMANDS = ("cat", "log", "state", "diff", "check", "snapshot", "apply", "configure", "repair")


def modules_after(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has imported after running ``code``."""
    code += "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("level", [(), ("node",)])
def test_help_lists_every_command(level: tuple[str, ...]) -> None:
    names = run(*level, "zzz")[2].strip().rpartition("the commands are ")[2].split(", ")
    status, out, err = run(*level, "--help")
    assert (status, err) == (0, "")
    assert sorted(re.findall(r"^  ([a-z-]+)  ", out, re.MULTILINE)) == sorted(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples(command: str) -> None:
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: raftlog {command} ")
    assert f"examples:\n  raftlog {command} " in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("words", [("cat",), ("tables", "follow"), ("node", "start"), ("node",)])
def test_help_before_a_command_is_its_help(words: tuple[str, ...]) -> None:
    assert run("help", *words) == run(*words, "--help")
    assert run("help", "ct")[0] == 2


def test_version_is_one_line_with_the_implementation_that_runs() -> None:
    which = "compiled core" if compiled.is_native else "pure Python"
    assert run("--version") == (0, f"raftlog {__version__} ({which})\n", "")


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        ([], "a command is missing"),
        (["stat", "x"], "did you mean state?"),
        (
            ["frobnicate"],
            "the commands are cat, log, state, diff, check, doctor, report, snapshot, tables, ",
        ),
        (["cat"], "PATH"),
        (["cat", "x", "--frm", "1"], "did you mean --from?"),
        (["cat", "x", "--rev"], "did you mean --reveal?"),
        (["cat", "x", "orders"], "unexpected argument 'orders'; did you mean --topic orders?"),
        (["cat", "x", "broker", "3"], "did you mean --broker 3?"),
        (["log", "x", "topic", "orders"], "did you mean topic/orders?"),
        (["--at", "3"], "a command is missing before '--at'"),
        (["cat", "--files", "x"], "the path has no option before it"),
        (["cat", "x", "--limit", "3"], "pipe the output to head"),
        (["cat", "x", "--offset", "3"], "did you mean --from?"),
        (["state", "x", "--offset", "3"], "did you mean --at?"),
        (["state", "x", "-o", "json"], "did you mean --format?"),
        (["log", "x", "--name", "orders"], "a name is an argument, such as topic/orders"),
        (["state", "--bootstrap-controller", "h:1"], "did you mean --bootstrap-server?"),
        (["check", "x", "--verbose"], "`--help` lists the options"),
        (["cat", "x", "--from", "-1"], "is not an offset"),
        (["cat", "x", "--from", "1_000"], "is not an offset"),
        (["cat", "x", "--from", "10:02"], "2026-11-21T03:12:00Z"),
        (["state", "x", "--at", "-15x"], "an age (-15m, -2h, -1d)"),
        (["cat", "x", "--to", "99999999999999999999"], "is not an offset"),
        (["cat", "x", "--batches", "--type", "topic"], "--batches"),
        (["state", "x", "topic"], "did you mean topics?"),
        (["state", "x", "--format", "xml"], "xml"),
        (["state", "x", "topics", "--format", "records"], "cannot be used with KIND"),
        (["diff", "x"], "--from"),
        (["diff", "x", "y", "--ignore", "id"], "unknown group 'id'; did you mean ids?"),
        (["diff", "x", "--from", "5", "--ignore", "ids"], "differences of two sources"),
        (["diff", "x", "y", "--other-bootstrap-server", "h:1"], "mutually exclusive"),
        (["apply", "x"], "PATH and CHANGES are required"),
        (["state", "x", "--bootstrap-server", "h:1"], "unknown kind 'x'"),
        (["state", "x", "topics", "--bootstrap-server", "h:1"], "mutually exclusive"),
        (["cat", "x", "--tls-ca", "y"], "--tls-ca requires --bootstrap-server"),
        (["state", "x", "--timeout-ms", "5"], "--timeout-ms requires --bootstrap-server"),
        (["snapshot", "x", "--reveal"], "PATH and TO are required"),
        (["cat", "x", "--bootstrap-server", "h:1"], "mutually exclusive"),
        (["snapshot", "x", "y", "--reveal", "--bootstrap-server", "h:1"], "mutually exclusive"),
        (["check", "x", "--jsn"], "did you mean --json?"),
        (["configure", "x", "retention.ms"], "is not NAME=VALUE"),
        (["configure", "--bootstrap-server", "h:1"], "each node of a quorum has settings of its"),
        (["repair", "x", "--cut", "5"], "did you mean --cut-at?"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(argv: list[str], hint: str) -> None:
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("usage: raftlog")
    assert hint in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("cat", "n-1", "n-2"), "unexpected argument 'n-2'; several paths are one argument: "),
        (("check", "n-1", "n-2", "n-3"), "unexpected argument 'n-2'; several paths are one "),
        (("state", "n-1", "n-2", "topics"), "unknown kind 'n-2'; several paths are one argument: "),
        (("log", "n-1", "n-2", "topic/t"), "unexpected argument 'topic/t'; several paths are one "),
        (("diff", "n-1", "n-2", "n-3"), "unexpected argument 'n-3'; several paths are one "),
        (("state", "n-1", "tpics"), "unknown kind 'tpics'; did you mean topics?"),
        (("doctor", "n-1", "--config", "n-2", "x"), "unexpected argument 'x'\n"),
    ],
)
def test_the_paths_of_a_pattern_that_the_shell_has_expanded_are_answered_with_the_remedy(
    argv: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("n-1", "n-2", "n-3"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert reason in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("PARTITON_RECORD", "partition"), ("topics", "topic"), ("leaderchnge", "leaderchange")],
)
def test_an_unknown_record_type_is_refused_with_the_nearest(
    name: str, nearest: str, data: Path
) -> None:
    log = data / "kraft-logs" / "trimmed-3.9.2" / "node-1"
    status, out, err = run("cat", str(log), "--type", name)
    assert (status, out) == (2, "")
    assert f"did you mean {nearest}?" in err
    assert err.startswith("raftlog: [RAFTLOG_OPTION] ")


@pytest.mark.parametrize("content", [None, b"", b" \n", b"k" * 5000])
def test_an_invalid_key_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    status, out, err = run("cat", "x", "--redact-key-file", str(file))
    assert (status, out) == (2, "")
    assert err.startswith("raftlog: [RAFTLOG_OPTION] ")
    assert "key" in err


def test_help_imports_no_large_module() -> None:
    code = "from raftlog_state.cli.main import main; main(['--help']); main(['cat', '--help'])"
    heavy = {"pyarrow", "numpy", "pyspark", "delta", "crc32c", "msgpack", "raftlog.errors"}
    assert not modules_after(code) & (heavy | {"rich"})


def test_reading_a_directory_imports_no_message_of_the_protocol(data: Path) -> None:
    """Nor what only other options need: both are half of the start of ``cat``."""
    log = data / "kraft-logs" / "trimmed-3.9.2" / "node-1"

    def modules_of(command: str) -> set[str]:
        return modules_after(
            "import io\n"
            "from raftlog_state.cli.main import main\n"
            f"assert main([{command!r}, {str(log)!r}], io.BytesIO(), io.StringIO()) == 0\n"
        )

    protocol = {"kio", "raftlog.wire", "raftlog.client.remote.connection"}
    of_options = {"asyncio", "raftlog_state.image", "raftlog_state.records.internal_logs"}
    of_groups = {"raftlog_state.records.schema_groups", "raftlog_state.records.keyed_serde"}
    of_arrow = {"pyarrow.compute", "numpy.ma"} if compiled.is_native else set()
    assert not modules_of("cat") & (protocol | of_options | of_groups | of_arrow | {"rich"})
    for command in ("state", "check"):
        assert not modules_of(command) & (protocol | {"rich"})


def test_a_state_is_replayed_in_memory_that_returns_to_the_system(data: Path) -> None:
    """Arrow's own allocator keeps a quarter of the process for the next window."""
    log = data / "kraft-logs" / "trimmed-3.9.2" / "node-1"
    found = modules_after(
        "import io, sys\n"
        "from raftlog_state.cli.main import main\n"
        f"assert main(['state', {str(log)!r}], io.BytesIO(), io.StringIO()) == 0\n"
        "import pyarrow; pool = pyarrow.default_memory_pool().backend_name\n"
        "sys.stderr.write(f'pool={pool} ')"
    )
    assert "pool=system" in found


@pytest.mark.slow
def test_every_command_works_where_spark_is_not_installed(data: Path) -> None:
    log = data / "kraft-logs" / "trimmed-3.9.2" / "node-1"
    code = (
        "import io, sys\n"
        "sys.modules.update(dict.fromkeys(('pyspark', 'delta', 'py4j')))\n"
        "from raftlog_state.cli.main import main\n"
        f"for argv in (['cat'], ['state'], ['diff', '--from', '1022'], ['check']):\n"
        f"    assert main([*argv, {str(log)!r}], io.BytesIO(), io.StringIO()) == 0\n"
    )
    modules_after(code)


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "raftlog_state.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"raftlog {__version__} ({compiled.describe()})\n",
        "",
    )


@pytest.mark.slow
def test_a_closed_output_pipe_is_no_error(data: Path) -> None:
    log = data / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "raftlog_state.cli", "cat", str(log), "--noop"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert done.returncode == 141
    (said,) = done.stderr.splitlines()
    assert said.startswith("raftlog: reading up to offset 3131 (exclusive)"), (
        "no message about the pipe"
    )


class _Failing(io.BytesIO):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def write(self, data: object) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 1, "no space left on device"),
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_every_result_has_its_exit_code(error: BaseException, status: int, said: str) -> None:
    stderr = io.StringIO()
    assert main(["--help"], _Failing(error), stderr) == status
    assert said in stderr.getvalue()
    assert (stderr.getvalue() == "") == (said == "")


@pytest.mark.slow
def test_ctrl_c_ends_without_a_traceback(data: Path) -> None:
    # The process sends the signal to itself while it reads: no clock, no race. A shell's background
    # job inherits SIGINT as ignored, so Python's own handler is restored first.
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from raftlog_state.cli import cat_log\n"
        "cat_log.print_records = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main(['cat', sys.argv[1]]))\n"
    )
    command = [sys.executable, "-c", code, str(data / "kraft-logs" / "trimmed-3.9.2" / "node-1")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize("module", ["argparse", "output", "parser", "users", "raftlog.compiled"])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(module: str) -> None:
    name = module if "." in module or module == "argparse" else f"raftlog_state.cli.{module}"
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interruption:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {name!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interruption())\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main(['--version']) or main(['--help']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


def test_a_path_that_does_not_exist_is_answered_with_the_similar_name_beside_it(
    tmp_path: Path,
) -> None:
    for name in ("node-100", "orders"):
        (tmp_path / name).mkdir()
    status, out, err = run("state", tmp_path / "nodes-100")
    assert (status, out) == (2, "")
    assert err.endswith(
        "/nodes-100 does not exist; check the path and the host that reads it; "
        "did you mean node-100?\n"
    )
    for path in (tmp_path / "payments", tmp_path / "missing" / "node-100"):
        assert "did you mean" not in run("state", path)[2]


def test_a_broken_symbolic_link_is_answered_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("node-7")
    assert run("state", tmp_path / "current") == (
        2,
        "",
        f"raftlog: [RAFTLOG_LOG_NOT_FOUND] {tmp_path}/current does not exist; check the path and "
        "the host that reads it; it is a symbolic link to node-7\n",
    )


def test_an_error_of_the_operating_system_is_one_sentence_with_the_files_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "quorum"
    path.symlink_to(path)
    status, out, err = run("dev", "--dir", path)
    assert (status, out) == (1, "")
    assert err.startswith(f"raftlog: [RAFTLOG_OPERATING_SYSTEM] {path} cannot be accessed: ")
    assert len(err.splitlines()) == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_drawn_on_a_terminal_and_erased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("raftlog_state.cli.output._now_ms", lambda: now[0])
    terminal = _Terminal()
    console = Console(terminal)
    console.progress(1, 100)
    assert terminal.getvalue() == "", "short operations show no bar"
    now[0] = 1000
    console.progress(50, 100)
    assert terminal.getvalue() == "\r" + "━" * 15 + " " * 15 + "  50%"
    console.progress(51, 100)
    assert "51" not in terminal.getvalue(), "at most ten times a second"
    console.log("done")
    assert terminal.getvalue().endswith("\r\x1b[Kraftlog: done\n")


def test_there_is_no_progress_bar_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog_state.cli.output._now_ms", lambda: 10.0**9)
    stream = io.StringIO()
    console = Console(stream)
    console.progress(50, 100)
    assert stream.getvalue() == ""


def test_a_name_that_is_not_unicode_is_written_with_escapes() -> None:
    stream = io.BytesIO()
    output = Output(stream)
    output.line("file \udcff")
    output.flush()
    assert stream.getvalue() == b"file \\udcff\n"
