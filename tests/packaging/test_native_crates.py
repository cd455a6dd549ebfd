"""The crates that the compiled core is built from, the form of its sources, and what was built."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from functools import reduce
from pathlib import Path

import pytest
from tests.packaging.advisories import ADVISORIES, Advisory, advisories, locked_crates

from raftlog import compiled

pytestmark = pytest.mark.style

CRATE = Path(__file__).parents[2] / "connector/native"
ALLOWED = {"Apache-2.0", "MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"}
LICENCES = {
    # A new crate or version is reviewed and added here, and to the list of ``advisories.py``.
    "crc32c 0.6.9": "MIT OR Apache-2.0",
    "heck 0.5.0": "MIT OR Apache-2.0",
    "itoa 1.0.19": "MIT OR Apache-2.0",
    "libc 0.2.191": "MIT OR Apache-2.0",
    "once_cell 1.21.4": "MIT OR Apache-2.0",
    "portable-atomic 1.15.0": "Apache-2.0 OR MIT",
    "proc-macro2 1.0.107": "MIT OR Apache-2.0",
    "pyo3 0.30.1": "MIT OR Apache-2.0",
    "pyo3-build-config 0.30.1": "MIT OR Apache-2.0",
    "pyo3-ffi 0.30.1": "MIT OR Apache-2.0",
    "pyo3-macros 0.30.1": "MIT OR Apache-2.0",
    "pyo3-macros-backend 0.30.1": "MIT OR Apache-2.0",
    "quote 1.0.47": "MIT OR Apache-2.0",
    "raftlog-native 0.1.0": "Apache-2.0",
    "rustc_version 0.4.1": "MIT OR Apache-2.0",
    "semver 1.0.28": "MIT OR Apache-2.0",
    "syn 3.0.10": "MIT OR Apache-2.0",
    "target-lexicon 0.13.5": "Apache-2.0 WITH LLVM-exception",
    "unicode-ident 1.0.27": "(MIT OR Apache-2.0) AND Unicode-3.0",
}
UNSAFE_BLOCKS_MAX = 2


def test_every_locked_crate_was_reviewed() -> None:
    locked = tomllib.loads((CRATE / "Cargo.lock").read_text())["package"]
    assert {f"{one['name']} {one['version']}" for one in locked} == set(LICENCES)


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")
def test_the_licences_are_those_that_the_crates_declare() -> None:
    """Of the crates that are on this machine; without a network there may be none."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--offline"]
    done = subprocess.run(command, cwd=CRATE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("the crates are not on this machine")
    packages = json.loads(done.stdout)["packages"]
    found = {f"{one['name']} {one['version']}": one["license"] for one in packages}
    assert found == LICENCES


def test_every_licence_is_permissive() -> None:
    names = (re.split(r" OR | AND |[()]", text) for text in LICENCES.values())
    assert {name for parts in names for name in parts if name} <= ALLOWED


def test_no_locked_crate_has_an_advisory_and_each_is_in_the_list() -> None:
    known, locked = advisories(ADVISORIES.read_text()), locked_crates()
    assert set(known) == set(locked)
    assert [one for of in known.values() for one in of if one.concerns(locked[one.crate])] == []


@pytest.mark.parametrize(
    ("version", "unaffected", "is_affected"),
    [
        ("1.0.1", (">= 1.0.1", "< 0.2.5"), False),
        ("0.2.4", (">= 1.0.1", "< 0.2.5"), False),
        ("0.2.5", (">= 1.0.1", "< 0.2.5"), True),
        ("1.10.0", (">= 1.9",), False),
        ("1.3.0", (">= 1.1.2, < 1.3", "> 1.3.0"), True),
        ("0.8.7", ("^0.8.6", "1"), False),
        ("0.9.0", ("^0.8.6", "1"), True),
        ("0.0.3", ("0.0.2",), True),
        ("1.0.0", (), True),
    ],
)
def test_an_advisory_concerns_the_versions_that_it_does_not_exclude(
    version: str, unaffected: tuple[str, ...], is_affected: bool
) -> None:
    assert Advisory("a-crate", "RUSTSEC-0", unaffected).concerns(version) is is_affected


@pytest.mark.parametrize(("version", "requirement"), [("1.0.0-rc.1", "> 0"), ("1.0.0", "~1.0")])
def test_a_version_or_requirement_that_is_not_compared_is_an_error(
    version: str, requirement: str
) -> None:
    with pytest.raises(ValueError, match=r"1\.0|rc"):
        Advisory("a-crate", "RUSTSEC-0", (requirement,)).concerns(version)


def test_every_crate_is_from_one_registry_with_a_checksum() -> None:
    """None is from a repository or a path, where it may change."""
    locked = tomllib.loads((CRATE / "Cargo.lock").read_text())["package"]
    crates = [one for one in locked if one["name"] != "raftlog-native"]
    assert all(one.get("checksum") for one in crates)
    (source,) = {one.get("source", "") for one in crates}
    assert source.startswith("registry+")


def test_unsafe_code_is_rare_and_argued() -> None:
    sources = [path.read_text() for path in sorted((CRATE / "src").glob("*.rs"))]
    blocks = [block for text in sources for block in re.findall(r"unsafe \{", text)]
    argued = [found for text in sources for found in re.findall(r"// SAFETY:", text)]
    assert len(blocks) == len(argued) <= UNSAFE_BLOCKS_MAX


# Also one with another interface, which is not used.
needs_core = pytest.mark.skipif(
    not hasattr(compiled, "core"), reason="the compiled core is not built"
)


@needs_core
def test_the_core_was_built_from_the_sources_beside_it() -> None:
    """FNV-1a, as in ``connector/native/build.rs``. After a change of the sources run ``make``."""
    names = [CRATE / name for name in ("Cargo.lock", "Cargo.toml", "build.rs")]
    files = sorted([*names, *(CRATE / "src").iterdir()])
    data = b"".join(file.read_bytes() for file in files)
    found = reduce(
        lambda state, byte: (state ^ byte) * 0x100000001B3 % 2**64, data, 0xCBF29CE484222325
    )
    assert f"{found:016x}" == compiled.core.SOURCES


@needs_core
def test_the_core_has_no_path_of_the_machine_that_built_it() -> None:
    """``setup.py`` replaces them; a panic would print them."""
    built = Path(str(compiled.core.__file__)).read_bytes()
    for place in (Path.home(), CRATE.parents[1].resolve()):
        assert str(place).encode() not in built
    assert b"/cargo/registry/src/" in built
