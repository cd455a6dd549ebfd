"""``raftlog node``: format, and wrong usage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.cli import run

NODE = '[node]\nid = 1\ndirectory = "data"\n[listeners.both]\naddress = "127.0.0.1:9192"\n'
VOTERS = "1@127.0.0.1:9192:CrUad84nR8KvMEpDpKrwbw,2@127.0.0.1:9193:AbCdEfGhIjKlMnOpQrStUg"
CLUSTER_ID = "UBxqW7I0Tziuuu-k2lOaxw"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(NODE)
    return path


def test_a_single_node_is_formatted_with_a_new_cluster(config: Path) -> None:
    status, out, err = run("node", "format", "--config", config, "--standalone")
    assert (status, err) == (0, "")
    found = dict(line.split("=") for line in out.splitlines())
    assert found.keys() == {"cluster.id", "node.id", "directory.id"}
    assert (
        f"cluster.id={found['cluster.id']}" in (config.parent / "data/meta.properties").read_text()
    )
    assert run("node", "format", "-c", config, "--standalone")[0] == 2
    again = run("node", "format", "-c", config, "--standalone", "--ignore-formatted")
    assert again == (0, out, "")


def test_initial_voters_have_the_directory_id(config: Path) -> None:
    arguments = ("node", "format", "-c", config, "-t", CLUSTER_ID, "--initial-voters", VOTERS)
    status, out, _ = run(*arguments)
    assert status == 0
    assert out == f"cluster.id={CLUSTER_ID}\nnode.id=1\ndirectory.id=CrUad84nR8KvMEpDpKrwbw\n"


def test_a_directory_of_another_cluster_is_reported(config: Path) -> None:
    way = ("--no-initial-voters", "--ignore-formatted")
    assert run("node", "format", "-c", config, "-t", CLUSTER_ID, *way)[0] == 0
    status, _, err = run("node", "format", "-c", config, "-t", "CrUad84nR8KvMEpDpKrwbw", *way)
    assert status == 2
    assert f"belongs to cluster {CLUSTER_ID}" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a command is missing"),
        (["formt"], "did you mean format?"),
        (["strat"], "did you mean start?"),
        (["what"], "the commands are format"),
        (["format"], "required: -c/--config"),
        (["format", "-c", "FILE"], "--cluster-id is missing"),
        (["format", "-c", "FILE", "--standalon"], "did you mean --standalone?"),
        (["format", "-c", "FILE", "--standalone", "--no-initial-voters"], "not allowed with"),
        (["format", "-c", "FILE", "-t", CLUSTER_ID], "specify the voters"),
        (["format", "-c", "FILE", "-t", "x", "--standalone"], "a UUID of 22 characters"),
        (["format", "-c", "FILE", "-t", CLUSTER_ID, "--initial-voters", "x"], "'x' is not ID@"),
        (["format", "-c", "FILE.not", "--standalone"], "cannot be read: no such file"),
        (["format", "FILE", "-c", "FILE", "--standalone"], "unexpected argument"),
        (["start"], "required: -c/--config"),
        (["start", "-c", "FILE.not"], "cannot be read: no such file"),
        (["start", "-c", "FILE"], "run `raftlog node format` once"),
    ],
)
def test_wrong_usage_is_reported_in_one_sentence(
    config: Path, arguments: list[str], words: str
) -> None:
    status, out, err = run("node", *(one.replace("FILE", str(config)) for one in arguments))
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
    assert not (config.parent / "data").exists()


def test_an_error_in_the_file_is_reported_in_one_sentence(config: Path) -> None:
    config.write_text(NODE + "[limit]\n")
    for arguments in (("format", "--standalone"), ("start",)):
        status, _, err = run("node", arguments[0], "-c", config, *arguments[1:])
        assert status == 2
        assert "node.toml: limit: unknown key; did you mean limits?" in err


def test_help_and_random_ids_are_printed() -> None:
    status, out, _ = run("node", "--help")
    assert status == 0
    assert "[listeners.both]" in out
    for name in ("format", "start", "random-uuid"):
        assert f"raftlog node {name}" in run("node", name, "--help")[1]
    status, out, _ = run("node", "random-uuid")
    assert status == 0
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}\n", out)


def test_the_files_shown_by_help_are_valid(tmp_path: Path) -> None:
    from raftlog.node.config import parse_config

    _, out, _ = run("node", "--help")
    shown = [
        re.sub(r"^  ", "", block, flags=re.MULTILINE)
        for block in re.findall(r"(?:^  [\[a-z].*\n)+", out, flags=re.MULTILINE)
        if "[node]" in block
    ]
    assert len(shown) == 2
    for text in shown:
        assert parse_config(text, str(tmp_path / "node.toml")).node_id == 1
