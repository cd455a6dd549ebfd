"""A reload changes all settings of a node, or none if one of its files has an error."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.node.log_lines import LogLines
from raftlog.node.process import Node, _reload
from raftlog.node.sasl import no_users, with_password, write_users
from tests.node.test_oauth import ec_jwk, key_set, rsa_jwk
from tests.support.certificates import Authority
from tests.support.quorum_processes import free_ports
from tests.support.served_node import ServedNode, served_node


class Files:
    """Files of a node, of an old and of a new content."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.authority = Authority(home / "ca")
        self.ports = free_ports(2)
        self.users, self.keys = home / "users.json", home / "jwks.json"
        self.node, self.certificate = home / "node.toml", home / "node.pem"
        self.key = home / "node.key"

    def listeners(self) -> str:
        tls = (
            f'certificate = "{self.certificate}", key = "{self.key}", ca = "{self.authority.path}"'
        )
        return (
            f'[listeners.clients]\naddress = "127.0.0.1:{self.ports[0]}"\n'
            f'tls = {{ {tls}, client_certificates = "optional" }}\n'
            f'[listeners.clients.sasl]\nusers = "{self.users}"\n'
            f'[listeners.clients.sasl.oauth]\nkeys = "{self.keys}"\n'
            'issuer = "issuer"\naudience = "raftlog"\n'
            f'[listeners.voters]\naddress = "127.0.0.1:{self.ports[1]}"\n'
        )

    def write(self, version: str) -> None:
        """Write all files; each differs from those of another version."""
        write_users(with_password(no_users(), version, "password"), str(self.users))
        self.keys.write_bytes(key_set(rsa_jwk() if version == "old" else ec_jwk()))
        pair = self.authority.sign(f"{version}.example")
        self.certificate.write_bytes(Path(pair.certificate).read_bytes())
        self.key.write_bytes(Path(pair.key).read_bytes())
        self.key.chmod(0o600)
        self.node.write_text(
            f'[node]\nid = 1\ndirectory = "{self.home / "data"}"\n{self.listeners()}'
            f'[access]\nread = ["{version}"]\n[[quotas]]\nclient_id = "{version}"\n'
            "producer_byte_rate = 100\n"
        )


def in_use(node: Node) -> dict[str, object]:
    """Return what a reload may change."""
    settings, tokens = node._settings, node.tokens
    assert tokens is not None
    return {
        "access": settings.access,
        "quotas": settings.quotas.quotas,
        "users": settings.users(),
        "keys": tokens._keys,
        "contexts": settings._loaded.listeners,
        "expiries": settings.expiries(),
    }


@pytest.mark.parametrize("broken", ["users", "keys", "node", "certificate", "key", None])
def test_an_error_in_one_file_leaves_all_old_settings_in_use(
    tmp_path: Path, broken: str | None
) -> None:
    files = Files(tmp_path)
    files.write("old")
    audit = tmp_path / "audit.log"
    extra = f'[access]\nread = ["old"]\n[audit]\nfile = "{audit}"\n'

    async def check(node: ServedNode) -> None:
        files.write("new")
        if broken is not None:
            getattr(files, broken).write_text("neither JSON, nor TOML, nor PEM")
        before = in_use(node.node)
        config = replace(node.config, path=str(files.node))
        lines = io.StringIO()
        _reload(config, node.node._settings, node.node, LogLines(lines, 1))
        (line,) = map(json.loads, lines.getvalue().splitlines())
        outcome = json.loads(audit.read_text().splitlines()[-1])["outcome"]
        changed = {name for name, value in in_use(node.node).items() if value != before[name]}
        if broken is None:
            assert (line["event"], line["reason"], outcome) == ("reload", "reloaded", "reloaded")
            assert changed == before.keys() - {"expiries"}
            return
        assert changed == set()
        assert (line["event"], line["level"]) == ("reload", "error")
        for text in (line["reason"], outcome):
            assert "nothing is reloaded, all old settings stay in use" in text
            assert str(getattr(files, "certificate" if broken == "key" else broken)) in text

    async def with_node() -> None:
        async with served_node(tmp_path, extra, listeners=files.listeners()) as node:
            await check(node)

    asyncio.run(with_node())
