"""Kafka's own StandardAuthorizer decides the same about random requests with random ACLs."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.support.jars import KAFKA_NEWEST, KAFKA_VERSION
from tests.support.kafka import kafka_jars
from tests.support.random_acls import RANGES, Question, random_acl, random_question

from raftlog_state.image import acl_content
from raftlog_state.publishing import AclIndex

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parent / "KafkaAuthorizer.java"
SETS = 3_000
QUESTIONS = 20


@pytest.mark.parametrize(("release", "ranges"), [(KAFKA_VERSION, ()), (KAFKA_NEWEST, RANGES)])
def test_kafkas_authorizer_decides_the_same(release: str, ranges: tuple[str, ...]) -> None:
    rng = Random(1)
    lines: list[str] = []
    ours: list[tuple[bool | None, Question]] = []
    for _ in range(SETS):
        acls = [random_acl(rng, number, ranges) for number in range(rng.randrange(40))]
        index = AclIndex(acls)
        lines.append("new")
        for one in {acl_content(one): one for one in acls}.values():  # Kafka refuses an equal one
            fields = (one.resource_type, one.pattern_type, one.resource_name, one.principal)
            fields_of_entry = (one.host, int(one.operation), one.permission)
            lines.append("\t".join(map(str, ("add", *fields, *fields_of_entry))))
        for _ in range(QUESTIONS):
            asked = random_question(rng)
            principal, host, operation, (kind, name) = asked
            lines.append(f"ask\t{principal}\t{host}\t{int(operation)}\t{int(kind)}\t{name}")
            ours.append((index.authorize(*asked), asked))
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command += ["-cp", f"{kafka_jars(release)}/*", str(PROGRAM)]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.splitlines()
    for (found, asked), answer in zip(ours, theirs, strict=True):
        assert answer == ("ALLOWED" if found else "DENIED"), (asked, found)
    counts = Counter(found for found, _ in ours)
    assert min(counts[True], counts[False], counts[None]) > 1_000
