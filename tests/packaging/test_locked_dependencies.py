"""The locks have every dependency of pyproject.toml, and each has a licence that is accepted."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.style

HOME = Path(__file__).parents[2]
TOOLS = {"dev", "release"}
"""Extras that no user installs."""
LICENCES = {
    "0BSD",
    "3-Clause BSD License",
    "Apache Software License",
    "Apache-2.0",
    "BSD License",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "MIT",
    "MIT License",
    "MIT-0",
    "PSF-2.0",
    "Zlib",
}
REVIEWED = {
    "crc32c": "LGPL-2.1-or-later, not copied into raftlog and not linked with the compiled core",
    "shtab": "MPL-2.0, an extra, not copied into raftlog",
}
"""Packages with another licence, and why it is accepted."""


def locked(name: str) -> dict[str, list[Requirement]]:
    """Return the requirements of a lock by package; several if they depend on the platform."""
    text = (HOME / f".ci/{name}.lock").read_text()
    found: dict[str, list[Requirement]] = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        first, *hashes = entry.replace("\\\n", "\n").split("\n")
        requirement = Requirement(first.strip())
        assert hashes
        assert all(re.fullmatch(r"\s*--hash=sha256:[0-9a-f]{64}\s*", one) for one in hashes)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def declared(*, tools: bool) -> list[Requirement]:
    """Return what pyproject.toml requires, with the extras of tools or without."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if tools or extra not in TOOLS:
            lines += requirements
    return [one for line in lines if (one := Requirement(line)).name != "raftlog"]


@pytest.mark.parametrize(("lock", "tools"), [("requirements", False), ("development", True)])
def test_a_lock_has_an_accepted_version_of_every_dependency(lock: str, tools: bool) -> None:
    pinned = locked(lock)
    for requirement in declared(tools=tools):
        versions = pinned[canonicalize_name(requirement.name)]
        for one in versions:
            (pin,) = one.specifier
            assert (pin.operator, requirement.specifier.contains(pin.version)) == ("==", True), one


def test_both_locks_have_the_same_versions() -> None:
    everything = locked("development")
    for name, requirements in locked("requirements").items():
        assert {str(one) for one in requirements} == {str(one) for one in everything[name]}


def licences(name: str) -> set[str]:
    """Return the licences that an installed package declares: an expression, or classifiers."""
    package = metadata(name)
    expressions = package.get_all("License-Expression")
    if expressions:
        return set(re.split(r" OR | AND |[()]", expressions[0])) - {""}
    prefix = "License :: OSI Approved :: "
    classifiers = package.get_all("Classifier") or ()
    found = {one.removeprefix(prefix) for one in classifiers if one.startswith(prefix)}
    return found or set(package.get_all("License") or ["none"])


def test_every_installed_dependency_has_a_licence_that_is_accepted() -> None:
    unknown, seen = {}, 0
    for name, requirements in locked("requirements").items():
        if not any(one.marker is None or one.marker.evaluate() for one in requirements):
            continue
        try:
            found = licences(name)
        except PackageNotFoundError:  # of an extra that is not installed here
            continue
        seen += 1
        if name not in REVIEWED and not found <= LICENCES:
            unknown[name] = found
    assert unknown == {}
    assert seen > 10
