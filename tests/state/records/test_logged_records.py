"""Every record of every real metadata log: the same bytes again, and dump-log's text, both ways."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.metadata_values import (
    EVERY_VERSION,
    metadata_logs,
    payloads_of,
    values_in,
    values_of,
)
from tests.support.redaction import redact_value
from tests.support.sweep_size import nightly_except

from raftlog_state.records import (
    RECORD_TYPES,
    ConfigRecord,
    MetadataRecord,
    Redactor,
    decode,
    encode,
    from_json,
    peek,
    to_json,
    to_json_text,
)

LOGS = metadata_logs()
COPIES_OF_ONE_CLUSTER = tuple(f"three-nodes-4.3.1/node-{n}/" for n in (1, 100, 101))
"""Their logs have the records of node 102's."""
NEWER_THAN_431 = {"UnregisterControllerRecord"}


def log_name(path: Path) -> str:
    return "/".join(path.parts[path.parts.index("kraft-logs") + 1 :])


CHOSEN = [log for log in LOGS if not log_name(log).startswith(COPIES_OF_ONE_CLUSTER)]


@pytest.mark.parametrize("log", nightly_except(CHOSEN, LOGS), ids=log_name)
def test_decoded_logs_equal_dump_logs_output(log: Path) -> None:
    values, payloads = values_of(log), payloads_of(log)
    assert len(values) == len(payloads)
    for value, payload in zip(values, payloads, strict=True):
        decoded = decode(value)
        assert isinstance(decoded.record, MetadataRecord)
        assert to_json_text(decoded) == payload
        assert encode(decoded) == value


@pytest.mark.parametrize("log", nightly_except(CHOSEN, LOGS), ids=log_name)
def test_dump_logs_output_encodes_to_the_log(log: Path) -> None:
    for value, payload in zip(values_of(log), payloads_of(log), strict=True):
        parsed = json.loads(payload)
        decoded = from_json(parsed)
        assert decoded == decode(value)
        assert encode(decoded) == value
        assert to_json(decoded) == parsed


def test_the_logs_have_every_type_in_every_version() -> None:
    seen = {peek(value) for log in LOGS for value in values_of(log)}
    expected = {
        (kind.schema.api_key, version)
        for kind, version in EVERY_VERSION
        if kind.schema.name not in NEWER_THAN_431
    }
    assert seen == expected
    assert len(RECORD_TYPES) == 27
    assert sum(len(values_of(log)) for log in LOGS) > 10_000


def other_files(data: Path) -> Iterator[bytes]:
    """Return metadata logs and snapshots without a dump: deleted ones, and a running node's."""
    for pattern in ("*.log.deleted", "*.checkpoint.deleted", "bootstrap.checkpoint"):
        for path in data.glob(f"kraft-logs/*/*/**/{pattern}"):
            yield path.read_bytes()
    with tarfile.open(data / "kraft-logs/running-4.3.1/running.tar.gz") as archive:
        for member in archive.getmembers():
            if member.name.endswith((".log", ".checkpoint")):
                content = archive.extractfile(member)
                assert content is not None
                yield content.read()


def test_logs_without_a_dump_encode_to_the_same_bytes(data: Path) -> None:
    files = list(other_files(data))
    assert len(files) >= 8
    for content in files:
        values = values_in(content)
        assert [encode(decode(value)) for value in values] == list(values)
        assert [encode(from_json(to_json(decode(value)))) for value in values] == list(values)


def test_no_ordinary_config_of_a_real_cluster_is_redacted() -> None:
    redactor = Redactor()
    hidden = set()
    for log in LOGS:
        if "every-record" in log_name(log):  # its names are random
            continue
        for value in values_of(log):
            record = decode(value).record
            if isinstance(record, ConfigRecord) and redact_value(redactor, value) != value:
                hidden.add(record.name)
    assert hidden == {"listener.name.extra.ssl.key.password"}
