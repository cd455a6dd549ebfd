"""The JDK decrypts values by the documented format, and refuses what raftlog refuses."""

from __future__ import annotations

import base64
import random
import subprocess
from pathlib import Path

import pytest

from raftlog import Encryption, KeyFile
from raftlog.client.encryption import ValueCipher

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parent / "DecryptValue.java"
KEYS = (None, b"", b"alice", b"\xff\x00")
CONTEXTS = ("customers", "customers-2", "größe")


def hex_key(key: bytes | None) -> str:
    return "-" if key is None else f"+{key.hex()}"


def test_the_jdk_reads_what_raftlog_has_encrypted(tmp_path: Path) -> None:
    chance = random.Random(1)
    keys = KeyFile(tmp_path / "keys.properties")
    keys.create("2026-11")
    stored = Path(keys.path).read_text().split("key.2026-11=")[1]
    wrapping = base64.b64decode(stored).hex()
    lines, expected = [], []
    for _ in range(100):
        context, key = chance.choice(CONTEXTS), chance.choice(KEYS)
        plain = chance.randbytes(chance.randrange(300))
        cipher = ValueCipher(Encryption(keys=keys, context=context), lambda: 0)
        value = cipher.encrypt(key, plain)
        read_context, read_key = chance.choice((context, *CONTEXTS)), chance.choice((key, *KEYS))
        is_same = (read_context, read_key) == (context, key)
        lines.append(f"{wrapping} {read_context.encode().hex()} {hex_key(read_key)} {value.hex()}")
        expected.append(f"2026-11 {plain.hex()}" if is_same else "refused")
    answer = subprocess.run(
        ["java", "-Xmx128m", str(PROGRAM)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.strip() for line in answer.stdout.splitlines()] == [
        one.strip() for one in expected
    ]
    assert 20 < expected.count("refused") < 80
