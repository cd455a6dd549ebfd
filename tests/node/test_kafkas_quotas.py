"""Kafka's own quota managers compute the same throttle times of random requests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from raftlog.node.client_quotas import (
    ClientQuota,
    ClientQuotaManager,
    QuotaClient,
    QuotaEntity,
    QuotaTable,
    QuotaType,
)
from tests.support.kafka import kafka_jars

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parent / "KafkaQuotas.java"
SETS, REQUESTS = 60, 300
NAMES = ("a", "b", "c")
PAUSES_MS = (0, 0, 1, 7, 130, 400, 999, 1_000, 1_001, 2_500, 10_000, 10_999, 11_000, 11_001, 30_000)
KAFKAS = {QuotaType.PRODUCE: "PRODUCE", QuotaType.REQUEST: "REQUEST"}


def _entity(user: str, client_id: str) -> QuotaEntity:
    parts = (("client-id", client_id), ("user", user))
    return tuple((kind, None if name == "*" else name) for kind, name in parts if name != "-")


def _manager(table: QuotaTable, times_ms: list[int]) -> ClientQuotaManager:
    """Return a manager at the time in the list."""
    return ClientQuotaManager(table, lambda: times_ms[0])


def test_kafkas_managers_throttle_alike() -> None:
    rng = Random(1)
    lines: list[str] = []
    ours: list[float] = []
    for _ in range(SETS):
        quota = rng.choice(list(KAFKAS))
        lines.append(f"new\t{KAFKAS[quota]}")
        scale = 100.0 if quota is QuotaType.REQUEST else 10_000.0
        quotas = {}
        for _ in range(rng.randint(1, 6)):
            names = rng.choice((*NAMES, "*", "-")), rng.choice((*NAMES, "*", "-"))
            if names != ("-", "-"):
                quotas[names] = float(rng.randint(1, 100)) * scale / 100
        lines += [f"set\t{user}\t{at}\t{value}" for (user, at), value in quotas.items()]
        table = QuotaTable(ClientQuota(_entity(*at), quota, one) for at, one in quotas.items())
        times_ms = [1_000_000]
        manager = _manager(table, times_ms)
        pauses = rng.sample(PAUSES_MS, 5)
        for _ in range(REQUESTS):
            times_ms[0] += rng.choice(pauses)
            client = QuotaClient(rng.choice(NAMES), rng.choice(NAMES))
            value = float(rng.choice((1, 10, rng.randint(1, 1_000), 5_000))) * scale / 1_000
            of_client = f"{client.user}\t{client.client_id}"
            lines.append(f"record\t{of_client}\t{value}\t{times_ms[0]}")
            ours.append(manager.record(quota, client, value))
            if rng.random() < 0.2:
                lines.append(f"unrecord\t{of_client}\t{value}\t{times_ms[0]}")
                manager.unrecord(quota, client, value)
        for user in NAMES:
            lines.append(f"max\t{user}\ta")
            ours.append(manager.value_max(quota, QuotaClient(user, "a")))
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command += ["-cp", f"{kafka_jars()}/*", str(PROGRAM)]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    theirs = [min(float(line), 1e300) for line in done.stdout.splitlines()]
    assert theirs == [min(one, 1e300) for one in ours]
    assert sum(1 for one in ours if one) > 2_000
    assert sum(1 for one in ours if not one) > 2_000
