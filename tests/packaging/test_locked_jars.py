"""Jars that tests, benchmarks and the demo load are those whose checksums the repository has."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.packaging.jar_licences import LICENCES, artifact_of, declared, identifiers, read_list
from tests.support.jars import BUILD, LOCK, JarError, JarSet, all_sets, installed, locked

HOME = Path(__file__).parents[2]
NAME = "kafka/9.9.9"
REVIEWED = {"one.jar": b"one", "two.jar": b"two"}
EXPECTED = {
    f"{NAME}/{name}": hashlib.sha256(content).hexdigest() for name, content in REVIEWED.items()
}


def serving(files: dict[str, bytes]) -> JarSet:
    """Return a set whose download has these files."""

    def download(directory: Path) -> None:
        for name, content in files.items():
            (directory / name).write_bytes(content)

    return JarSet(NAME, download)


def jars_in(build: Path) -> set[str]:
    return {path.name for path in build.rglob("*.jar")}


def test_jars_with_the_recorded_checksums_are_used(tmp_path: Path) -> None:
    directory = installed(serving(REVIEWED), tmp_path, EXPECTED)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == REVIEWED
    assert list(tmp_path.rglob(".jars-*")) == []
    assert installed(serving({}), tmp_path, EXPECTED) == directory, "not downloaded again"


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        ({**REVIEWED, "two.jar": b"three"}, "two.jar has the SHA-256"),
        ({**REVIEWED, "more.jar": b"more"}, "more.jar is not in the lock"),
        ({"one.jar": b"one"}, "two.jar is missing"),
        ({}, "one.jar is missing"),
    ],
)
def test_other_jars_are_refused_and_not_kept(
    tmp_path: Path, served: dict[str, bytes], reason: str
) -> None:
    with pytest.raises(JarError, match=reason) as refused:
        installed(serving(served), tmp_path, EXPECTED)
    assert "do not use it" in str(refused.value)
    assert jars_in(tmp_path) == set()


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_jar_that_was_changed_after_its_download_is_refused(tmp_path: Path, change: str) -> None:
    directory = installed(serving(REVIEWED), tmp_path, EXPECTED)
    if change == "removed":
        (directory / "two.jar").unlink()
    else:
        (directory / ("two.jar" if change == "changed" else "more.jar")).write_bytes(b"evil")
    with pytest.raises(JarError, match=re.escape(f"Delete {directory}")):
        installed(serving(REVIEWED), tmp_path, EXPECTED)


def test_two_processes_may_download_a_set_at_a_time(tmp_path: Path) -> None:
    def download(directory: Path) -> None:
        installed(serving(REVIEWED), tmp_path, EXPECTED)
        serving(REVIEWED).download(directory)

    directory = installed(JarSet(NAME, download), tmp_path, EXPECTED)
    assert jars_in(tmp_path) == {path.name for path in directory.iterdir()} == REVIEWED.keys()


def test_a_version_that_the_lock_lacks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JarError, match="run `make jars`"):
        installed(serving(REVIEWED), tmp_path, {})


def test_the_lock_has_all_sets_and_no_other() -> None:
    lock = locked()
    assert {path.rpartition("/")[0] for path in lock} == {one.name for one in all_sets()}
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in lock.values())
    assert list(lock) == list(dict.fromkeys(lock))
    assert "://" not in LOCK.read_text()
    assert str(BUILD) not in LOCK.read_text()


def test_the_lock_has_the_release_of_delta_that_is_declared() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = map(Requirement, project["optional-dependencies"]["spark"])
    pinned = {one.name: next(iter(one.specifier)).version for one in extras}
    spark = pinned["pyspark"].removesuffix(".*")
    folder = f"delta/delta-spark_{spark}_2.13-{pinned['delta-spark']}"
    assert folder in {path.rpartition("/")[0] for path in locked()}


def test_no_session_downloads_jars_by_itself() -> None:
    """Spark would load them before anything can verify them."""
    folders = ("connector", "state", "python_datasource", "tests", "benchmarks", "notebooks")
    sources = [path for folder in folders for path in (HOME / folder).rglob("*.py")]
    sources += [*(HOME / ".ci").iterdir(), HOME / "Makefile", HOME / "deploy" / "Containerfile"]
    unverified = re.compile(r"spark\.jars\.packages|--packages|configure_spark_with_delta_pip\(")
    ours = [one for one in sources if one != Path(__file__)]
    assert not [str(one) for one in ours if unverified.search(one.read_text())]


# --- licences -------------------------------------------------------------------------------------

ACCEPTED = {"Apache-2.0", "BSD", "BSD-3-Clause", "CC0-1.0", "MIT"}
OF_TESTS = {"CDDL", "EPL-1.0", "EPL-2.0"}
"""Of jars of Kafka's, of which tests load the classes; none is distributed with raftlog."""


def test_each_jar_has_a_licence_that_is_accepted() -> None:
    known = read_list(LICENCES.read_text())
    assert {artifact_of(path) for path in locked()} == known.keys()
    assert [one for one, names in known.items() if not {*names} & (ACCEPTED | OF_TESTS)] == []


def test_the_licences_are_those_that_the_jars_declare() -> None:
    """Of the jars that are on this machine."""
    known = read_list(LICENCES.read_text())
    for path in locked():
        if (BUILD / path).exists():
            assert {*declared(BUILD / path)} <= {*known[artifact_of(path)]}, path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Apache Software License, Version 2.0", ["Apache-2.0"]),
        ("EPL 2.0", ["EPL-2.0"]),
        ("CDDL + GPLv2 with classpath exception", ["CDDL", "GPL-2.0 WITH Classpath-exception-2.0"]),
        ("https://opensource.org/licenses/BSD-2-Clause", ["BSD"]),
        ("a permit of our own", []),
    ],
)
def test_names_of_licences_have_their_identifiers(text: str, expected: list[str]) -> None:
    assert identifiers(text) == expected
