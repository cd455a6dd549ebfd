"""The properties of an embedded log, through their file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import CorruptFileError, OptionError
from raftlog.limits import LOG_BATCH_BYTES_MAX, MIB
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import (
    LogConfig,
    LogProperties,
    encode_log_properties,
    parse_log_properties,
)
from raftlog.records.compression import Compression

TOPIC_ID = "d7XZ1n9nQhi1vxGhbVIsgg"
PLAIN = LogProperties(topic_id=TOPIC_ID, config=LogConfig())
POSITIVE = st.integers(1, 2**63 - 1)
LIMITS = st.none() | st.integers(0, 2**63 - 1)
CONFIGS = st.builds(
    LogConfig,
    values=st.sampled_from(ValueKind),
    batch_bytes_max=st.integers(1024, LOG_BATCH_BYTES_MAX),
    compression=st.sampled_from(Compression),
    linger_ms=st.integers(0, 1000),
    segment_bytes=st.integers(61, 2**31 - 1),
    segment_ms=POSITIVE,
    segment_index_bytes=st.integers(12, 2**31 - 1),
    index_interval_bytes=st.integers(0, 2**31 - 1),
    retention_ms=LIMITS,
    retention_bytes=LIMITS,
)


@given(CONFIGS, st.dictionaries(st.text(min_size=1).map("x.{}".format), st.text(), max_size=2))
def test_properties_round_trip(config: LogConfig, unknown: dict[str, str]) -> None:
    properties = LogProperties(topic_id=TOPIC_ID, config=config, unknown=tuple(unknown.items()))
    assert parse_log_properties(encode_log_properties(properties), "/p") == properties


def test_unpaired_surrogates_in_unknown_properties_are_kept() -> None:
    data = encode_log_properties(PLAIN) + b"odd=\\uD800\\u0041\n"
    assert encode_log_properties(parse_log_properties(data, "/p")) == data.replace(b"\\u0041", b"A")


def test_the_file_uses_kafkas_names() -> None:
    lines = encode_log_properties(PLAIN).decode("ascii").splitlines()
    assert lines[:4] == [
        "version=1",
        f"topic.id={TOPIC_ID}",
        "values=bytes",
        "compression.type=none",
    ]
    assert "max.message.bytes=8388608" in lines
    assert "segment.bytes=1073741824" in lines
    assert "retention.ms=-1" in lines


def test_missing_properties_have_defaults_and_unknown_ones_are_kept() -> None:
    parsed = parse_log_properties(
        b"version=1\ntopic.id=x\nvalues=kraft\ncolour=red\nsegment.ms=5\n", "/p"
    )
    assert parsed.config == LogConfig(values=ValueKind.KRAFT, segment_ms=5)
    assert parsed.unknown == (("colour", "red"),)
    assert b"colour=red" in encode_log_properties(parsed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((b"version=1", b"version=2"), "unsupported version 2, expected 1"),
        ((b"version=1", b"version=one"), "the version"),
        ((b"version=1\n", b""), "version is missing"),
        ((b"values=bytes\n", b""), "values is missing"),
        ((b"values=bytes", b"values=json"), "values has the unknown value 'json'"),
        ((b"topic.id=", b"topic.name="), "topic.id is missing"),
        (
            (b"compression.type=none", b"compression.type=rar"),
            "compression.type has the unknown value 'rar'",
        ),
        ((b"segment.bytes=1073741824", b"segment.bytes=-1"), "segment.bytes: it must be from 61"),
        ((b"retention.ms=-1", b"retention.ms=-2"), r"retention.ms: it must be -1 \(no limit\), or"),
        ((b"linger.ms=0", b"linger.ms=soon"), "linger.ms is 'soon', not a number"),
        ((b"linger.ms=0", rb"linger.ms=\u00"), "an escape"),
    ],
)
def test_a_damaged_file_is_reported_with_its_reason(
    change: tuple[bytes, bytes], reason: str
) -> None:
    data = encode_log_properties(PLAIN)
    assert change[0] in data
    with pytest.raises(CorruptFileError, match=reason):
        parse_log_properties(data.replace(*change), "/p")


@given(st.binary(max_size=300))
def test_a_missing_file_is_an_error_of_another_type(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_log_properties(data, "/p")


def test_the_batch_limit_of_a_log_is_at_most_64_mib() -> None:
    assert replace(LogConfig(), batch_bytes_max=64 * MIB).batch_bytes_max == 64 * MIB
    with pytest.raises(OptionError, match=r"option max\.message\.bytes: it must be from 1024"):
        LogConfig(batch_bytes_max=64 * MIB + 1)


@pytest.mark.parametrize("setting", ["segment_bytes", "segment_ms", "linger_ms"])
def test_a_setting_without_an_unlimited_value_cannot_be_negative(setting: str) -> None:
    invalid: dict[str, Any] = {setting: -1}
    with pytest.raises(OptionError):
        LogConfig(**invalid)


@pytest.mark.parametrize(
    ("setting", "value", "kind"),
    [
        ("min_cleanable_dirty_ratio", True, "float"),
        ("min_cleanable_dirty_ratio", "0.5", "float"),
        ("remote_storage_enable", 1, "bool"),
        ("remote_storage_uri", 7, "str"),
        ("cleanup_policy", "compact", "CleanupPolicy"),
        ("compression", "zstd", "Compression"),
    ],
)
def test_a_value_that_the_file_cannot_have_is_refused(setting: str, value: Any, kind: str) -> None:
    """A log that was created with it could not be opened."""
    given: dict[str, Any] = {"remote_storage_uri": "/objects", setting: value}
    with pytest.raises(OptionError, match=f"it must be {kind}, not {type(value).__name__}"):
        LogConfig(**given)


@pytest.mark.parametrize(
    "ratio", [-1, 2, pytest.param(10**400, id="large"), -0.1, 1.1, float("inf"), float("nan")]
)
def test_a_dirty_ratio_is_from_0_to_1(ratio: float) -> None:
    with pytest.raises(OptionError, match=r"min\.cleanable\.dirty\.ratio: it must be from 0 to 1"):
        LogConfig(min_cleanable_dirty_ratio=ratio)


def test_a_whole_number_is_a_dirty_ratio() -> None:
    properties = replace(PLAIN, config=LogConfig(min_cleanable_dirty_ratio=1))
    assert parse_log_properties(encode_log_properties(properties), "/p") == properties
