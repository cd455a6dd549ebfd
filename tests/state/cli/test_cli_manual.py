"""``raftlog completion`` and ``raftlog man``: what bash completes, and what groff formats."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import run

from raftlog_state.cli.main import parser
from raftlog_state.cli.manual import SHELLS, manual_page
from raftlog_state.cli.parser import Parser, first_sentence

COMMANDS = list(parser().tree())
BASH = shutil.which("bash")
GROFF = shutil.which("groff")


def printed(*argv: str) -> str:
    status, out, err = run(*argv)
    assert (status, err) == (0, "")
    return out


# --- completion -----------------------------------------------------------------------------------


def completed(script: Path, *words: str) -> set[str]:
    """Return what bash proposes for the last of the words."""
    assert BASH is not None
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        'complete=$(complete -p raftlog | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        '$complete raftlog "${COMP_WORDS[COMP_CWORD]}"; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [BASH, "--norc", "-c", code, "bash", script, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parent,
    )
    return set(done.stdout.split())


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_bash_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    script = tmp_path / "raftlog.bash"
    script.write_text(printed("completion", "bash"))
    (tmp_path / "node-1").mkdir()
    assert completed(script, "raftlog", "sta") == {"state"}
    assert completed(script, "raftlog", "node", "f") == {"format"}
    assert completed(script, "raftlog", "state", "--form") == {"--format"}
    assert completed(script, "raftlog", "state", "--format", "") == {"table", "json", "records"}
    assert "node-1" in completed(script, "raftlog", "check", "no")
    assert "topics" in completed(script, "raftlog", "state", "node-1", "top")
    names = {one.prog.split()[1] for one in COMMANDS if one.prog.count(" ") == 1}
    assert completed(script, "raftlog", "") >= names


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_command(shell: str) -> None:
    script = printed("completion", shell)
    for one in COMMANDS[1:]:
        assert one.prog.rsplit(" ", 1)[1] in script


def test_completion_without_its_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    status, out, err = run("completion", "bash")
    assert (status, out) == (2, "")
    assert 'pip install "raftlog[completion]"' in err


# --- manual pages ---------------------------------------------------------------------------------


@pytest.mark.skipif(GROFF is None, reason="there is no groff")
def test_groff_formats_every_page_without_a_warning() -> None:
    assert GROFF is not None
    pages = "\n".join("\n".join(manual_page(one)) for one in COMMANDS)
    done = subprocess.run(
        [GROFF, "-man", "-ww", "-Tutf8", "-P-c", "-rLL=200n"],
        input=pages,
        capture_output=True,
        text=True,
        check=True,
    )
    warnings = [line for line in done.stderr.splitlines() if "adjust" not in line]
    assert not warnings, "lines that cannot be adjusted are only less even"
    plain = re.sub(r".\x08", "", done.stdout)
    words = " ".join(plain.replace("\N{HYPHEN}\n", "").split())
    for one in COMMANDS:
        for _, action in one.arguments():
            for name in action.option_strings:
                assert name in words
        for line in (one.epilog or "").splitlines()[1:]:
            assert " ".join(line.split()) in words, "examples are as in the help"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.prog)
def test_a_page_has_the_texts_of_the_help(command: Parser) -> None:
    page = printed("man", *command.prog.split()[1:])
    assert page == "\n".join([*manual_page(command), ""])
    text = " ".join(page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\").split())
    assert " ".join((command.description or "").split("\n\n")[0].split()) in text
    for _, action in command.arguments():
        assert " ".join(command.help_of(action).split()) in text


def test_an_unknown_command_has_no_page() -> None:
    status, out, err = run("man", "stat")
    assert (status, out) == (2, "")
    assert "did you mean state?" in err


def test_the_first_sentence_is_one_line() -> None:
    assert first_sentence("\nPrint the\nstate: of a log. More.") == "Print the state"
    assert first_sentence("Read node.toml and x") == "Read node.toml and x"
