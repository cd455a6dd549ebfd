"""Cryptography is that of Python's OpenSSL, with algorithms that a FIPS provider has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.types import SCRAM_HASHES

pytestmark = pytest.mark.style

HOME = Path(__file__).parents[2]
SOURCES = [
    path
    for root in ("connector/raftlog", "state/raftlog_state", "python_datasource/pyspark_raftlog")
    for path in (HOME / root).rglob("*.py")
]
OF_HASHLIB = {"new", "pbkdf2_hmac", "sha256"}
"""``new`` and ``pbkdf2_hmac`` get the names in ``SCRAM_HASHES``."""
OTHERS = re.compile(r"^(Crypto|Cryptodome|nacl|bcrypt|argon2|passlib|_md5|_sha1|_blake2)\b")


def used() -> Iterator[tuple[Path, str]]:
    """Yield the names that are used of ``hashlib``, and imported packages of cryptography."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="hashlib"), attr=name):
                    yield path, f"hashlib.{name}"
                case ast.ImportFrom(module=str(name)):
                    yield path, name
                case ast.Import(names=names):
                    yield from ((path, one.name) for one in names)
                case _:
                    pass


def test_hashes_are_those_of_sha_2() -> None:
    found = {name for _, name in used()}
    assert {name for name in found if name.startswith("hashlib.")} == {
        f"hashlib.{name}" for name in OF_HASHLIB
    }
    assert set(SCRAM_HASHES.values()) == {"sha256", "sha512"}


def test_no_other_implementation_of_cryptography_is_imported() -> None:
    assert not [(path.name, name) for path, name in used() if OTHERS.match(name)]
