"""Options of the sink: every one is used, invalid ones are reported, contradictions are refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyspark_raftlog.options import WRITE_ONLY_OPTIONS, WriteOptions
from pyspark_raftlog.source import RaftlogDataSource
from raftlog import CommitName
from raftlog.errors import OptionError


def parse(**options: str) -> WriteOptions:
    return WriteOptions.parse({"path": "/logs/ids-0", **options})


def refusal(**options: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(**options)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("requiredBaseOffset", "0", "required_base_offset", 0),
        ("REQUIREDENDOFFSET", " 17 ", "required_end_offset", 17),
        ("requiredepoch", "3", "required_epoch", 3),
        ("txnAppId", "nightly", "txn_app_id", "nightly"),
        ("txnVersion", "20261121", "txn_version", 20261121),
        ("maxBytesPerCommit", "2m", "max_bytes_per_commit", 2 * 1024 * 1024),
    ],
)
def test_every_option_is_parsed(name: str, value: str, attribute: str, expected: object) -> None:
    assert getattr(parse(**{name: value}), attribute) == expected


def test_options_that_spark_adds_are_ignored() -> None:
    options = parse(checkpointLocation="/c", queryName="q", provider="raftlog")
    assert options == WriteOptions(path="/logs/ids-0")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("file:///logs/ids-0", "/logs/ids-0"), ("ids-0", "{here}/ids-0"), ("/a,b-0", "/a,b-0")],
)
def test_a_path_becomes_absolute(
    path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert WriteOptions.parse({"path": path}).path == expected.format(here=tmp_path)


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({"requiredBaseOfset": "1"}, "requiredBaseOfset", "did you mean requiredBaseOffset?"),
        ({"includeHeaders": "true"}, "includeHeaders", "is allowed in reads only"),
        ({"requiredBaseOffset": "-1"}, "requiredBaseOffset", "must be an integer from 0"),
        ({"requiredEpoch": "0"}, "requiredEpoch", "must be an integer from 1"),
        ({"maxBytesPerCommit": "many"}, "maxBytesPerCommit", "must be bytes"),
        ({"txnAppId": ""}, "txnAppId", "must be from 1 to 256"),
        ({"txnAppId": "x" * 257}, "txnAppId", "257 bytes"),
        ({"txnTakeOverFrom": "q"}, "txnTakeOverFrom", "requires txnAppId"),
        ({"path": " "}, "path", "is missing"),
        (
            {"bootstrap.servers": "a:1", "kafka.bootstrap.servers": "b:1"},
            "kafka.bootstrap.servers",
            "is an alias of bootstrap.servers, also set",
        ),
    ],
)
def test_an_invalid_option_is_reported(options: dict[str, str], option: str, words: str) -> None:
    error = refusal(**options)
    assert error.option == option
    assert words in error.reason


@pytest.mark.parametrize(
    ("options", "option"),
    [({"txnAppId": "a"}, "txnVersion"), ({"txnVersion": "1"}, "txnAppId")],
)
def test_a_commit_name_is_given_completely_or_not_at_all(
    options: dict[str, str], option: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**options).check_batch()
    assert caught.value.option == option
    assert "is missing" in caught.value.reason


@pytest.mark.parametrize("option", ["requiredBaseOffset", "requiredEndOffset", "txnVersion"])
def test_a_stream_refuses_a_required_offset_and_a_version(option: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(txnAppId="a", **{option: "1"}).check_stream()
    assert caught.value.option == option


def test_the_query_of_a_batch_defaults_to_its_application() -> None:
    assert parse().batch_commit() is None
    assert parse(txnAppId="a", txnVersion="7").batch_commit() == CommitName("a", "a", 7)
    assert parse().stream_commit("q", 3) == CommitName("q", "q", 3)
    assert parse(txnAppId="a").stream_commit("q", 3) == CommitName("a", "q", 3)


def test_the_source_distinguishes_reads_from_writes() -> None:
    writing = RaftlogDataSource({"path": "/logs/ids-0", "requiredBaseOffset": "1"})
    with pytest.raises(OptionError, match="requiredBaseOffset: is allowed in writes only"):
        writing.schema()
    assert "required_base_offset=1" in repr(writing)
    with pytest.raises(OptionError, match="did you mean requiredBaseOffset"):
        RaftlogDataSource({"path": "/logs/ids-0", "requiredBaseOfset": "1"})
    assert repr(pickle.loads(pickle.dumps(writing))) == repr(writing)


def test_the_manual_lists_every_option() -> None:
    manual = RaftlogDataSource.__doc__ or ""
    assert all(name in manual for name in WRITE_ONLY_OPTIONS)
