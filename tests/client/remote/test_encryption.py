"""Encrypted values in the log of a quorum, by the calls of an embedded one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.remote.conftest import Quorums

import raftlog
from raftlog import Encryption, KeyFile
from raftlog.client.encryption import is_encrypted
from raftlog.client.location import LogLocation, open_reader
from raftlog.client.remote.security import PLAINTEXT

pytestmark = pytest.mark.slow


def test_a_quorum_has_encrypted_values_only(quorums: Quorums, tmp_path: Path) -> None:
    address = quorums.of("bytes").bootstrap
    keys = KeyFile(tmp_path / "keys.properties")
    keys.create("2026-11")
    encryption = Encryption(keys=keys, context="log")
    with raftlog.connect(address, encryption=encryption) as log:
        record = (b"encrypted alice", b"a card number")
        name = ("encrypting", "query", 1)
        result = log.append([record], commit=name)
        assert log.append([record], commit=name).was_duplicate
        assert log.last_commit("encrypting") is not None
        (found,) = log.read(result.base_offset, result.end_offset)
        assert (found.key, found.value) == record
        followed = iter(log.read(result.base_offset, follow=True))
        assert next(followed).value == b"a card number"
    with raftlog.connect(address) as plain:
        (found,) = plain.read(result.base_offset, result.end_offset)
        assert found.value is not None
        assert is_encrypted(found.value)
    location = LogLocation(address, PLAINTEXT, encryption)
    with open_reader(location) as reader:
        (scan,) = reader.scan(result.base_offset, result.end_offset)
        assert scan.records.value is not None
        assert scan.records.value.to_pylist() == [b"a card number"]
