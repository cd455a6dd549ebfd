"""The container file: its parts as far as they can be tested without building the image."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

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


# --- base images ----------------------------------------------------------------------------------

PODMAN = """#!/bin/sh
echo "$*" >> "$0.log"
case "$1" in
image) echo "sha256:$(printf %s "$5" | sha256sum | cut -d' ' -f1)" ;;
push) while [ "$1" != --digestfile ]; do shift; done; echo sha256:abc > "$2" ;;
esac
"""
"""Replaces podman: logs its arguments; the digest of an image is that of its name."""


class ImageBuild:
    """Files of one run of ``.ci/image``."""

    def __init__(self, home: Path) -> None:
        self.bases, self.image = home / "raftlog.bases", home / "raftlog.image"
        self._podman = home / "podman"
        self._podman.write_text(PODMAN)
        self._podman.chmod(0o755)

    def run(self) -> list[str]:
        """Return the commands of podman."""
        log = self._podman.with_name("podman.log")
        log.unlink(missing_ok=True)
        path = f"{self._podman.parent}:{os.environ['PATH']}"
        subprocess.run(
            [HOME / ".ci/image", HOME, "registry.example/raftlog:1.0", self.image, self.bases],
            env={**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": "1"},
            check=True,
        )
        return log.read_text().splitlines()


@pytest.fixture
def build(tmp_path: Path) -> ImageBuild:
    return ImageBuild(tmp_path)


def base_images() -> dict[str, str]:
    """Return the names with tags of all base images, by the argument that replaces one."""
    return dict(text.split("=") for name, text in instructions() if name == "ARG")


def test_every_base_image_can_be_replaced_by_one_with_a_digest() -> None:
    used = [text.split()[0] for name, text in instructions() if name == "FROM"]
    assert {*used} == {f"${{{argument}}}" for argument in base_images()}


def test_a_release_is_built_from_base_images_by_their_digests(build: ImageBuild) -> None:
    commands = build.run()
    expected = {
        argument: f"{base.rpartition(':')[0]}@sha256:{hashlib.sha256(base.encode()).hexdigest()}"
        for argument, base in base_images().items()
    }
    assert dict(line.split("=") for line in build.bases.read_text().splitlines()) == expected
    (command,) = (one for one in commands if one.startswith("build "))
    assert dict(re.findall(r"--build-arg (\w+)=(\S+)", command)) == expected
    assert build.image.read_text() == "registry.example/raftlog@sha256:abc\n"


def test_the_provenance_of_a_release_has_its_base_images(build: ImageBuild) -> None:
    build.run()
    documents = runpy.run_path(str(HOME / ".ci" / "release_documents.py"))
    statement = documents["provenance"](build.bases.parent, "a commit")
    resolved = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    found = {one["uri"]: one["digest"] for one in resolved if one["uri"].startswith("docker:")}
    assert found == {
        f"docker://{base.rpartition(':')[0]}": {"sha256": hashlib.sha256(base.encode()).hexdigest()}
        for base in base_images().values()
    }


@pytest.mark.parametrize("end", ["\n", ""], ids=["newline", "no newline"])
def test_base_images_of_an_earlier_release_are_used_again(build: ImageBuild, end: str) -> None:
    """An editor may leave out the newline of the last line."""
    bases = [f"{argument}=registry.example/base@sha256:00" for argument in base_images()]
    build.bases.write_text("\n".join(bases) + end)
    commands = build.run()
    assert not [one for one in commands if one.startswith("pull ")]
    (command,) = (one for one in commands if one.startswith("build "))
    assert re.findall(r"--build-arg (\S+)", command) == bases
