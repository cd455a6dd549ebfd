"""The container file: its parts as far as they can be tested without building the image."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

from raftlog_state.cli.main import parser

HOME = Path(__file__).parents[2]
FILE = HOME / "deploy" / "Containerfile"
UNPRIVILEGED_MIN = 1_000


def instructions() -> list[tuple[str, str]]:
    """Return the instructions, each in one line."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(words[0], words[1].strip()) for words in found]


def last_stage() -> dict[str, str]:
    """Return the last instruction of each kind after the last FROM."""
    found: dict[str, str] = {}
    for name, text in instructions():
        found = {} if name == "FROM" else {**found, name: text}
    return found


def test_sources_of_the_image_exist_and_are_all_that_a_wheel_needs() -> None:
    copied = [
        source
        for name, text in instructions()
        if name == "COPY" and "--from" not in text
        for source in text.split()[:-1]
    ]
    assert not [source for source in copied if not (HOME / source).exists()]
    project = tomllib.loads((HOME / "pyproject.toml").read_text())
    roots = project["tool"]["setuptools"]["packages"]["find"]["where"]
    assert {*roots, "pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE"} <= {*copied}
    assert project["project"]["readme"] in copied
    stages = [text.split()[-1] for name, text in instructions() if name == "FROM"]
    for name, text in instructions():
        if name == "COPY" and "--from=" in text:
            assert text.partition("--from=")[2].split()[0] in stages


def test_the_image_has_all_dependencies_but_those_of_spark() -> None:
    (install,) = (text for name, text in instructions() if "require-hashes" in text)
    awk = re.search(r"awk '(.+?)'", install)
    assert awk is not None
    lock = HOME / ".ci" / "requirements.lock"
    done = subprocess.run(["awk", awk[1], lock], capture_output=True, text=True, check=True)
    kept = set(re.findall(r"^([\w-]+)==", done.stdout, re.MULTILINE))
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    wanted = [*extras["dependencies"], *extras["optional-dependencies"]["delta"]]
    assert {re.split(r"[<>=]", one)[0] for one in wanted} <= kept
    assert not kept & {"pyspark", "delta-spark", "py4j", "grpcio"}
    hashes = re.findall(r"^(\S.*)\n(?:    .*\n)+", done.stdout, re.MULTILINE)
    assert len(hashes) == len(re.findall(r"^\S", done.stdout, re.MULTILINE)), "each has hashes"


def test_the_process_is_unprivileged_and_writes_to_its_volume_only() -> None:
    stage = last_stage()
    user, _, group = stage["USER"].partition(":")
    assert int(user) >= UNPRIVILEGED_MIN
    assert int(group) >= UNPRIVILEGED_MIN
    assert stage["VOLUME"] == stage["WORKDIR"] == "/var/lib/raftlog"
    assert stage["STOPSIGNAL"] == "SIGTERM"
    assert "PYTHONDONTWRITEBYTECODE=1" in stage["ENV"]


def test_the_command_is_one_that_raftlog_accepts() -> None:
    stage = last_stage()
    assert json.loads(stage["ENTRYPOINT"]) == ["raftlog"]
    words = json.loads(stage["CMD"])
    assert parser().parse(words).config == "/etc/raftlog/node.toml"
