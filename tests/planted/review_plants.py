"""Bugs where two changes of a node and of its files interact."""

from __future__ import annotations

from typing import Final

from .plant import Plant

REVIEW_PLANTS: Final = (
    Plant(
        bug="a connection closed before its handshake is counted forever",
        path="connector/raftlog/node/server.py",
        old="self._loop.call_soon(handshake.cancel)",
        new="handshake.cancel()",
        tests=("tests/node/test_descriptors.py",),
    ),
    Plant(
        bug="a node cannot be formatted in the root of a volume owned by another user",
        path="connector/raftlog/storage/local.py",
        old="            if self.file_mode & ~_OWNER_MODE:\n                raise",
        new="            if self.file_mode:\n                raise",
        tests=("tests/storage/test_storage_contract.py",),
    ),
    Plant(
        bug="peers refuse an address with a zone, which a node's file may have",
        path="connector/raftlog/quorum/voters.py",
        old="    return not percent or _ZONE.fullmatch(zone) is not None\n",
        new="    return not percent\n",
        tests=("tests/wire/test_quorum_requests.py",),
    ),
)
