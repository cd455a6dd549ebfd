"""Kafka's own mapper and the JDK return the same names for random rules and certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from raftlog.node.der import der_elements, distinguished_name
from raftlog.node.principal_mapping import RulesError, mapped
from tests.support.kafka import kafka_jars

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parent / "KafkaPrincipals.java"
NAMES = (
    "CN=kafka1.example,OU=Jobs,O=Bank,L=Paris,C=FR",
    "CN=alice",
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "OU=jobs\\, night,CN=a\\+b,DC=example,DC=org",
    "CN=größe,O=ÄÖ",
    "CN=a/b",
    "",
)
PATTERNS = (
    *("^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),C=([a-zA-Z]{2}).*$", "^CN=(.*?),.*$", "CN=(.*)"),
    *(".*", "^cn=(.*)$", "CN=([^,]*)(,.*)?", "(a)|(b)|.*", "[A-Z]*", "(.)", "CN=(\\w+).*"),
    *("^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$", "(.*)\\,(.*)", "CN=(.*)\\/(.*)", "x*", "(", "[a", ""),
    "(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)(.).*",
)
PIECES = ("$1", "$2", "$3", "$0", "$12", "$", "@", "user-", "\\$1", "\\\\", "\\/", "$1x", "", " ")
RULES = ("DEFAULT", "DEFAULT ", "RULE:", "RULE:a", "nonsense", "", "RULE:a/b/Lx", "RULE:(a/b/")


def random_rules(chance: Random) -> str:
    rules = []
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.25:
            rules.append(chance.choice(RULES))
            continue
        replacement = "".join(chance.choice(PIECES) for _ in range(chance.randrange(4)))
        end = chance.choice(("", "", "L", "U", "LU"))
        rules.append(f"RULE:{chance.choice(PATTERNS)}/{replacement}/{end}")
    return chance.choice((",", ", ", " ,\t")).join(rules)


def der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body).to_bytes(1 if len(body) < 256 else 2, "big")
    is_long = len(body) > 127
    return bytes((tag, 0x80 | len(size)) if is_long else (tag,)) + size + body


def random_name(chance: Random) -> bytes:
    """Return a distinguished name in DER."""
    kinds: tuple[str, ...] = (
        *("550403", "55040b", "55040a", "550406", "550408", "550409", "550407", "550405"),
    )
    kinds += ("0992268993f22c640119", "0992268993f22c640101", "2a864886f70d010901", "883703")
    texts: tuple[str, ...] = (
        "a",
        " a",
        "a ",
        " ",
        "a,b",
        'q"u',
        "é+ü",
        "#a",
        "a#",
        "<;>",
        "a\\",
        "x" * 200,
        "a=b",
    )
    texts += ("  a b  ", "\ra", "")
    parts = []
    for _ in range(chance.randrange(1, 5)):
        attributes = [
            der(
                0x30,
                der(0x06, bytes.fromhex(chance.choice(kinds))),
                der(chance.choice((0x0C, 0x0C, 0x13, 0x16, 0x14)), chance.choice(texts).encode()),
            )
            for _ in range(chance.choice((1, 1, 1, 2)))
        ]
        parts.append(der(0x31, *attributes))
    return der(0x30, *parts)


def answers(lines: list[str]) -> list[str]:
    command = ["java", "-Xmx128m", "-cp", f"{kafka_jars()}/*", str(PROGRAM)]
    given = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    return [
        bytes.fromhex(line[5:]).decode() if line.startswith("name") else f"<{line}>"
        for line in done.stdout.splitlines()
    ]


def own_answer(rules: str, name: str) -> str:
    try:
        found = mapped(rules, name)
    except RulesError as error:
        return f"<refused: {error}>"
    return "<none>" if found is None else found


def test_random_rules_map_names_as_kafkas_mapper() -> None:
    chance = Random(1)
    cases = [(random_rules(chance), chance.choice(NAMES)) for _ in range(4_000)]
    lines = [f"map\t{rules.encode().hex()}\t{name.encode().hex()}" for rules, name in cases]
    found = answers(lines)
    refused = 0
    for (rules, name), kafkas in zip(cases, found, strict=True):
        own = own_answer(rules, name)
        if not own.startswith("<refused"):
            assert own == kafkas, (rules, name)
            continue
        refused += 1
        # Kafka refuses a replacement when a name matches, and without a rule every name.
        is_late = "the replacement" in own or "there is no rule" in own
        assert kafkas == "<invalid>" or is_late, (rules, name, own)
    assert 500 < refused < 3_500


def test_random_subjects_have_the_jdks_text() -> None:
    chance = Random(2)
    names = [random_name(chance) for _ in range(1_000)]
    own = [distinguished_name(der_elements(name)[0][1]) for name in names]
    assert own == answers([f"dn\t{name.hex()}" for name in names])
