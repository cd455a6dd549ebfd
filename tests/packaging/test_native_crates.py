"""The crates that the compiled core is built from, and the form of its sources."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

CRATE = Path(__file__).parents[2] / "connector/native"
ALLOWED = {"Apache-2.0", "MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"}
LICENCES = {
    # as `cargo metadata` prints them; a new crate or version is reviewed and added here
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


def test_every_licence_is_permissive() -> None:
    names = (re.split(r" OR | AND |[()]", text) for text in LICENCES.values())
    assert {name for parts in names for name in parts if name} <= ALLOWED


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
