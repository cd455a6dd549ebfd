"""Options of the source: every one is used, invalid ones are reported, and no value is shown."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.options import (
    OPTIONS,
    RaftlogOptions,
    Redaction,
    TimestampStrategy,
    WriteOptions,
)
from pyspark_raftlog.source import RaftlogDataSource
from raftlog.client import Isolation
from raftlog.client.offset_spec import EARLIEST, LATEST, SNAPSHOT, OffsetSpec, OffsetSpecKind
from raftlog.errors import OptionError
from raftlog_state.records import Redactor

SECRET = "correct horse battery staple"


def offset(number: int) -> OffsetSpec:
    return OffsetSpec(OffsetSpecKind.OFFSET, number)


def parse(**options: str) -> RaftlogOptions:
    return RaftlogOptions.parse({"path": "/logs", **options})


def refusal(**options: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(**options)
    return caught.value


def test_defaults_equal_those_of_the_manual() -> None:
    options = parse()
    assert options.path == "/logs"
    assert options.starting_offset is None
    assert options.ending_offset == LATEST
    assert options.isolation is Isolation.READ_COMMITTED
    assert options.fail_on_data_loss
    assert options.redaction is Redaction.SECRETS
    assert options.record_batch_rows == 32_768
    assert options.max_trigger_delay_ms == 900_000
    assert options.poll_wait_ms == 100
    assert options.decompressed_bytes_max == 128 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("startingOffset", "Earliest", "starting_offset", EARLIEST),
        ("startingOffsets", "latest", "starting_offset", LATEST),
        ("startingOffset", "snapshot", "starting_offset", SNAPSHOT),
        ("startingOffset", "epoch:2", "starting_offset", OffsetSpec(OffsetSpecKind.EPOCH, 2)),
        ("startingOffset", "-2m", "starting_offset", OffsetSpec(OffsetSpecKind.AGE, 120_000)),
        (
            "endingOffset",
            "1970-01-01 00:01",
            "ending_offset",
            OffsetSpec(OffsetSpecKind.TIME, 60_000),
        ),
        ("STARTINGOFFSET", " 17 ", "starting_offset", offset(17)),
        ("startingTimestamp", "1795248203359", "starting_timestamp_ms", 1795248203359),
        ("startingTimestamp", "1970-01-01T00:00:01", "starting_timestamp_ms", 1_000),
        ("startingTimestamp", "1970-01-01T01:00:00.5+01:00", "starting_timestamp_ms", 500),
        (
            "startingTimestampStrategy",
            "latest",
            "starting_timestamp_strategy",
            TimestampStrategy.LATEST,
        ),
        ("endingOffset", "9", "ending_offset", offset(9)),
        ("endingOffsets", "latest", "ending_offset", LATEST),
        ("endingTimestamp", "5", "ending_timestamp_ms", 5),
        ("maxOffsetsPerTrigger", "100", "max_offsets_per_trigger", 100),
        ("maxBytesPerTrigger", "64m", "max_bytes_per_trigger", 64 * 1024 * 1024),
        ("maxBytesPerTrigger", "10kb", "max_bytes_per_trigger", 10 * 1024),
        ("maxBytesPerTrigger", "7b", "max_bytes_per_trigger", 7),
        ("minOffsetsPerTrigger", "3", "min_offsets_per_trigger", 3),
        ("maxTriggerDelay", "2m", "max_trigger_delay_ms", 120_000),
        ("minPartitions", "4", "min_partitions", 4),
        ("maxRecordsPerPartition", "1000", "max_records_per_partition", 1_000),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("isolationLevel", "high_watermark", "isolation", Isolation.READ_UNCOMMITTED),
        ("isolationLevel", "read_uncommitted", "isolation", Isolation.READ_UNCOMMITTED),
        ("includeHeaders", "true", "include_headers", True),
        ("includeControlRecords", "true", "include_control_records", True),
        ("includeAbortedRecords", "true", "include_aborted_records", True),
        ("recordBatchRows", "1", "record_batch_rows", 1),
        ("tailHoldback", "5s", "tail_holdback_ms", 5_000),
        ("tailHoldback", "250", "tail_holdback_ms", 250),
        ("pollWaitMs", "0", "poll_wait_ms", 0),
        ("maxDecompressedBytes", "256m", "decompressed_bytes_max", 256 * 1024 * 1024),
        ("columns", "Typed", "has_typed_columns", True),
        ("columns", "json", "has_typed_columns", False),
        ("redact", "false", "redaction", Redaction.OFF),
        ("redact", "Full", "redaction", Redaction.FULL),
        ("redactKey", SECRET, "redact_key", SECRET.encode()),
    ],
)
def test_every_option_is_parsed(name: str, value: str, attribute: str, expected: object) -> None:
    assert getattr(parse(**{name: value}), attribute) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffset", "-7"),
        ("startingOffset", '{"t":{"0":1}}'),
        ("endingOffset", "earliest"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestampStrategy", "guess"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "1k"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "5 furlongs"),
        ("maxTriggerDelay", "soon"),
        ("minPartitions", "-1"),
        ("failOnDataLoss", "yes"),
        ("isolationLevel", "serializable"),
        ("recordBatchRows", "99999999999"),
        ("pollWaitMs", "3600000"),
        ("maxDecompressedBytes", "513m"),
        ("columns", "struct"),
        ("redactKey", "short"),
        ("paths", "not json"),
    ],
)
def test_an_invalid_value_is_refused_with_the_options_name(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        RaftlogOptions.parse({name: value} if name == "paths" else {"path": "/x", name: value})
    assert name in str(caught.value)
    assert "[RAFTLOG_OPTION]" in str(caught.value)
    assert not value or f" {value}" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingofset", "startingOffset"),
        ("maxOffsetPerTriggers", "maxOffsetsPerTrigger"),
        ("failondataloss2", "failOnDataLoss"),
        ("include_headers", "includeHeaders"),
        ("redact_key", "redactKey"),
    ],
)
def test_an_unknown_option_is_reported_with_the_nearest_one(name: str, nearest: str) -> None:
    assert f"did you mean {nearest}?" in str(refusal(**{name: "1"}))


def test_an_option_unlike_all_others_is_reported_with_the_known_ones() -> None:
    assert "failOnDataLoss" in str(refusal(zzz="1"))


@pytest.mark.parametrize("name", ["kafka.group.id", "subscribe", "assign"])
def test_an_option_of_kafkas_source_is_reported_as_not_applicable_to_one_log(name: str) -> None:
    assert "reads one log" in str(refusal(**{name: "localhost:9092"}))


def test_an_alias_may_not_repeat_its_option() -> None:
    error = refusal(startingOffset="1", startingOffsets="2")
    assert "startingOffset" in error.reason


def test_options_that_spark_adds_are_ignored() -> None:
    added = {"checkpointLocation": "/c", "provider": "raftlog", "owner": "me", "option.x": "y"}
    assert parse(**added) == parse()


def test_a_path_is_required() -> None:
    with pytest.raises(OptionError, match=r"option path: is missing"):
        RaftlogOptions.parse({})


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"paths": '["/a", "file:///b"]'}, "/a,/b"),
        ({"path": "file:/a, /b"}, "/a,/b"),
        ({"path": "file:///a/../b"}, "/b"),
        ({"path": "one,two-*"}, "{here}/one,{here}/two-*"),
        ({"path": "with,comma"}, "{here}/with,comma"),
        ({"path": "file:{here}/with,comma"}, "{here}/with,comma"),
    ],
)
def test_paths_become_absolute_for_all_processes(
    given: dict[str, str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "with,comma").mkdir()
    absolute = {name: value.replace("{here}", str(tmp_path)) for name, value in given.items()}
    assert RaftlogDataSource(absolute)._read_options().path == path.format(here=tmp_path)


def test_minimum_and_maximum_must_agree() -> None:
    assert "minOffsetsPerTrigger" in str(
        refusal(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9")
    )


def test_a_redaction_key_without_redaction_is_refused() -> None:
    assert "redactKey" in str(refusal(redact="false", redactKey=SECRET))


def test_typed_columns_of_records_without_types_are_refused() -> None:
    assert "columns: typed requires values=kraft" in str(refusal(columns="typed", values="bytes"))
    assert parse(columns="typed", values="kraft").has_typed_columns
    assert parse(columns="json", values="bytes").kind is not None


def test_a_stream_has_no_ending_offset() -> None:
    for name in ("endingOffset", "endingOffsets", "endingTimestamp"):
        with pytest.raises(OptionError, match="in batch reads only"):
            parse(**{name: "5"}).check_no_end()


@pytest.mark.parametrize("key", ["x" * 15, "x" * 16, "secret" * 5])
def test_a_redaction_key_that_can_be_guessed_is_refused(key: str) -> None:
    reason = "different characters" if len(key) >= 16 else "16 bytes"
    assert reason in str(refusal(redactSecret=key))
    with pytest.raises(OptionError, match=reason):
        Redactor(key=key.encode())


def test_a_redaction_key_may_be_a_reference_and_has_a_name_that_spark_masks(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    for name in ("redactKey", "redactSecret"):
        found = parse(**{name: f"${{directory:{tmp_path}:key}}"})
        assert found.redact_key == SECRET.encode()
    pattern = r"(?i)secret|password|token|access[.]?key"  # spark.redaction.regex
    assert re.search(pattern, "redactSecret")


def test_the_redaction_key_is_never_shown() -> None:
    source = RaftlogDataSource({"path": "/x", "redactKey": SECRET})
    assert SECRET not in repr(source)
    assert SECRET not in repr(source._options)
    assert "options" not in vars(source), "others would see Spark's own copy"


def test_a_source_and_its_options_survive_pickling() -> None:
    source = RaftlogDataSource({"path": "/x", "redactKey": SECRET, "includeHeaders": "true"})
    copy = pickle.loads(pickle.dumps(source))
    assert copy._options == source._options


def test_the_manual_lists_every_option() -> None:
    manual = RaftlogDataSource.__doc__ or ""
    names = {name.removeprefix("kafka.") for name in OPTIONS} - {"path", "paths"}
    missing = [name for name in names if name not in manual]
    assert not missing


# --- several logs ---------------------------------------------------------------------------------


def several(*sources: object, **shared: str) -> RaftlogOptions:
    return RaftlogOptions.parse({"sources": json.dumps(sources), **shared})


def test_a_source_has_its_own_options_and_the_shared_ones() -> None:
    parsed = several(
        {"path": "/a", "STARTINGOFFSET": 17, "failOnDataLoss": False, "tailHoldback": "1m"},
        {"bootstrap.servers": "one:9092", "clusterId": "fleet-b"},
        startingOffset="earliest",
        maxOffsetsPerTrigger="9",
        redactKey=SECRET,
    )
    first, second = parsed.sources
    assert (first.path, first.nodes, first.cluster_id) == ("/a", None, None)
    assert (first.starting_offset, first.fail_on_data_loss) == (offset(17), False)
    assert first.tail_holdback_ms == 60_000
    assert (second.path, second.cluster_id) == ("one:9092", "fleet-b")
    assert second.nodes is not None
    assert (second.starting_offset, second.fail_on_data_loss) == (EARLIEST, True)
    for one in (parsed, first, second):
        assert one.max_offsets_per_trigger == 9
        assert one.redact_key == SECRET.encode()


def test_the_offset_of_a_source_replaces_a_shared_timestamp() -> None:
    (source,) = several({"path": "/a", "startingOffset": 5}, startingTimestamp="1000").sources
    assert (source.starting_offset, source.starting_timestamp_ms) == (offset(5), None)


@pytest.mark.parametrize(
    ("sources", "option", "reason"),
    [
        ("no json", "sources", "JSON array of objects"),
        ("{}", "sources", "JSON array of objects"),
        ('["/a"]', "sources", "JSON array of objects"),
        ("[" * 100_000, "sources", "JSON array of objects"),
        ("[]", "sources", "at least one"),
        ('[{"path": "/a"}, {}]', "sources[1].path", "is missing"),
        ('[{"path": "/a", "bootstrap.servers": "b:1"}]', "sources[0].bootstrap.servers", "path"),
        ('[{"path": ["/a"]}]', "sources[0].path", "must be a string"),
        ('[{"path": "/a", "path": "/b"}]', "sources[0].path", "also set"),
        ('[{"path": "/a", "startingofset": 1}]', "sources[0].startingofset", "startingOffset?"),
        ('[{"path": "/a", "clusterid2": "x"}]', "sources[0].clusterid2", "clusterId?"),
        ('[{"path": "/a", "clusterId": " "}]', "sources[0].clusterId", "the id of a cluster"),
        ('[{"path": "/a", "redact": false}]', "sources[0].redact", "shared by all"),
        ('[{"path": "/a", "sources": "[]"}]', "sources[0].sources", "shared by all"),
        (
            '[{"path": "/a", "clusterId": "x"}, {"path": "/b", "clusterId": "x"}]',
            "sources",
            "cluster x twice, at positions 0 and 1",
        ),
    ],
)
def test_invalid_sources_are_refused_with_their_position(
    sources: str, option: str, reason: str
) -> None:
    with pytest.raises(OptionError) as caught:
        RaftlogOptions.parse({"sources": sources})
    assert caught.value.option == option
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", ["path", "paths", "bootstrap.servers", "ssl.ca.location"])
def test_sources_exclude_another_location(name: str) -> None:
    value = '["/x"]' if name == "paths" else "/x"
    with pytest.raises(OptionError, match="each source has its own location"):
        several({"path": "/a"}, **{name: value})


def test_sources_are_not_for_writes() -> None:
    with pytest.raises(OptionError, match="option sources: is allowed in reads only"):
        WriteOptions.parse({"sources": '[{"path": "/a"}]', "txnAppId": "a"})


def test_no_secret_of_a_source_is_shown() -> None:
    sources = [
        {
            "bootstrap.servers": "one:9092",
            "ssl.ca.location": "/ca",
            "ssl.certificate.location": "/cert",
            "ssl.key.location": "/key",
            "ssl.key.password": SECRET,
        }
    ]
    source = RaftlogDataSource({"sources": json.dumps(sources)})
    assert "one:9092" in repr(source)
    assert SECRET not in repr(source)
    copy = pickle.loads(pickle.dumps(source))
    assert copy._options == source._options
    for name in ("redactKey", "ssl.key.password"):
        with pytest.raises(OptionError) as caught:
            several({"path": "/a", name: SECRET})
        assert SECRET not in str(caught.value)


def test_paths_of_sources_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = [{"path": "file:one"}, {"path": "two,three"}, {"bootstrap.servers": "four:9092"}]
    source = RaftlogDataSource({"sources": json.dumps(given)})
    assert source._options is not None
    assert [one.path for one in source._options.sources] == [
        f"{tmp_path}/one",
        f"{tmp_path}/two,{tmp_path}/three",
        "four:9092",
    ]


def test_no_source_of_a_stream_has_an_ending_offset() -> None:
    with pytest.raises(OptionError, match="in batch reads only"):
        several({"path": "/a"}, {"path": "/b", "endingOffset": 5}).check_no_end()


@given(st.dictionaries(st.sampled_from(sorted(OPTIONS)), st.text(max_size=20), max_size=6))
def test_any_text_is_accepted_or_refused_with_a_typed_error(given_options: dict[str, str]) -> None:
    with contextlib.suppress(OptionError):
        RaftlogOptions.parse({"path": "/x"} | given_options)
