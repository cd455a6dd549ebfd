"""``raftlog cat``, compared with kafka-dump-log's output for the same files."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run
from tests.support.dumps import DumpBatch, DumpRecord, dumped_logs, read_dump

import raftlog
from raftlog_state.cli.main import main

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
DUMPED = list({path.read_bytes(): path for path in reversed(dumped_logs(LOGS))}.values())[::-1]
"""Each once: the controllers of a cluster have the same segments."""
METADATA = [path for path in DUMPED if "__cluster_metadata-0" in path.parts]
PARTITIONS = [path for path in DUMPED if "__cluster_metadata-0" not in path.parts]
PLAIN = [path for path in PARTITIONS if not path.parent.name.startswith("__")]
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
ORDERS = LOGS / "three-nodes-4.3.1" / "node-1" / "orders-0-0"
MARKERS = ("COMMIT", "ABORT")
EVERYTHING = ("--noop", "--control", "--reveal")

CONTROL_TYPES = {
    "LeaderChange:": "LEADER_CHANGE",
    "SnapshotHeader": "SNAPSHOT_HEADER",
    "SnapshotFooter": "SNAPSHOT_FOOTER",
    "KRaftVersion": "KRAFT_VERSION",
    "KRaftVoters": "KRAFT_VOTERS",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(LOGS))


def place(batch: DumpBatch, record: DumpRecord) -> str:
    return (
        f'{{"offset":{record.offset},"leaderEpoch":{batch.leader_epoch},'
        f'"timestamp":{record.timestamp_ms},'
    )


def line_of(batch: DumpBatch, record: DumpRecord) -> str:
    """Return the line of a metadata record, built from dump-log's own text."""
    if record.payload is not None:
        return place(batch, record) + record.payload[1:]
    word, _, data = record.text.partition(" ")
    if word == "controlType:":  # all that dump-log prints of it before Kafka 4.0
        return place(batch, record) + f'"type":"{data.partition("(")[0]}"'
    shown = (
        f'"type":"{CONTROL_TYPES[word]}","version":{json.loads(data)["version"]},"data":{data}}}'
    )
    return place(batch, record) + shown


OF_ONE_DIRECTORY = "the end of this one directory: its last records may not be committed\n"


def dump_lines(path: Path) -> list[str]:
    return [line_of(batch, record) for batch in read_dump(path) for record in batch.records]


@pytest.mark.parametrize("path", METADATA, ids=name_of)
def test_records_are_printed_as_dump_log_prints_them(path: Path) -> None:
    status, out, err = run("cat", path, *EVERYTHING)
    assert (status, err.count("\n")) == (0, path.suffix == ".log")
    printed, expected = out.splitlines(), dump_lines(path)
    assert len(printed) == len(expected)
    for line, dumped in zip(printed, expected, strict=True):
        assert line == dumped or (line.startswith(dumped + ",") and not dumped.endswith("}"))


def test_a_directory_is_printed_segment_by_segment() -> None:
    segments = sorted((NODE / "__cluster_metadata-0").glob("*.log"))
    expected = [line for segment in segments for line in dump_lines(segment)]
    for path in (NODE, NODE / "__cluster_metadata-0"):
        status, out, err = run("cat", path, *EVERYTHING)
        assert status == 0
        assert err == "raftlog: reading up to offset 3131 (exclusive): " + OF_ONE_DIRECTORY
        assert out.splitlines() == expected


def test_the_kind_of_end_offset_is_logged(tmp_path: Path) -> None:
    segment = NODE / "__cluster_metadata-0" / f"{0:020d}.log"
    err = run("cat", segment)[2]
    assert "the end of this one file: its last records may not be committed" in err
    err = run("cat", NODE, "--to", "46", "--batches")[2]
    assert err == "raftlog: the log ends at offset 3131 (exclusive): " + OF_ONE_DIRECTORY
    with raftlog.open(tmp_path / "decisions-0") as log:
        log.append(b"one")
        assert "the synced end of this embedded log" in run("cat", log.path)[2]


def test_the_end_of_a_raftlog_nodes_log_is_not_called_committed(tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "raftlog-0") as log:
        log.append(b"one")
    (tmp_path / "raftlog-0" / "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"","data_version":1}'
    )
    status, out, err = run("cat", tmp_path / "raftlog-0")
    assert (status, '"value":"one"' in out) == (0, True)
    assert err.endswith(OF_ONE_DIRECTORY)
    assert " committed" not in err.removesuffix(OF_ONE_DIRECTORY)


@pytest.mark.parametrize("path", DUMPED, ids=name_of)
def test_batches_are_printed_as_dump_log_prints_them(path: Path) -> None:
    printed = rows("cat", path, "--batches")
    expected = []
    for batch in read_dump(path):
        fields: dict[str, Any] = {
            "baseOffset": batch.base_offset,
            "lastOffset": batch.last_offset,
            "count": batch.record_count,
            "baseSequence": batch.base_sequence,
            "lastSequence": batch.last_sequence,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "partitionLeaderEpoch": batch.leader_epoch,
            "isTransactional": batch.is_transactional,
            "isControl": batch.is_control,
            "deleteHorizonMs": batch.delete_horizon_ms,
            "position": batch.position,
            batch.time_kind: batch.max_timestamp_ms,
            "size": batch.byte_count,
            "magic": batch.magic,
            "compresscodec": batch.codec,
            "crc": batch.crc,
            "isvalid": batch.is_valid,
            "file": path.name,
        }
        expected.append(fields)
    assert printed == expected
    assert [list(row) for row in printed] == [list(row) for row in expected]


@pytest.mark.parametrize("path", PLAIN, ids=name_of)
def test_keys_and_values_of_a_partition_are_text(path: Path) -> None:
    records = [
        record for batch in read_dump(path) if not batch.is_control for record in batch.records
    ]
    printed = rows("cat", path)
    assert [
        (row["offset"], row["timestamp"], row["key"], row["value"], row["headers"])
        for row in printed
    ] == [(r.offset, r.timestamp_ms, r.key, r.payload, []) for r in records]


@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_bytes_that_are_not_text_are_base64(path: Path) -> None:
    records = {r.offset: r for batch in read_dump(path) for r in batch.records if r.key is not None}
    printed = rows("cat", path, "--as", "partition")
    assert printed
    for row in printed:
        for name, byte_count in (
            ("key", records[row["offset"]].key_bytes),
            ("value", records[row["offset"]].value_bytes),
        ):
            data: bytes | None
            if f"{name}Base64" in row:
                assert name not in row
                data = base64.b64decode(row[f"{name}Base64"], validate=True)
            else:
                data = None if row[name] is None else row[name].encode()
            assert (-1 if data is None else len(data)) == byte_count


@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_end_markers_are_printed_on_request(path: Path) -> None:
    expected = [
        (record.offset, record.text)
        for batch in read_dump(path)
        if batch.is_control
        for record in batch.records
    ]
    printed = [row for row in rows("cat", path, "--control") if row.get("type") in MARKERS]
    assert [
        (
            row["offset"],
            f"endTxnMarker: {row['type']} coordinatorEpoch: {row['data']['coordinatorEpoch']}",
        )
        for row in printed
    ] == expected


def test_headers_of_a_record_are_printed(tmp_path: Path) -> None:
    from tests.support.batch_encoding import NewRecordBatch
    from tests.support.small_logs import LogWriter

    from raftlog.records import Header, NewRecord

    writer = LogWriter(tmp_path / "topic-0")
    headers = (Header("kind", b"a"), Header("kind", b"\xff"), Header("none", None))
    record = NewRecord(b"\xfe", b"text", 5, headers)
    writer.append(batch=NewRecordBatch(records=(record,), base_timestamp_ms=5))
    (row,) = rows("cat", tmp_path / "topic-0")
    assert row == {
        "offset": 0,
        "leaderEpoch": 1,
        "timestamp": 5,
        "keyBase64": "/g==",
        "value": "text",
        "headers": [
            {"key": "kind", "value": "a"},
            {"key": "kind", "valueBase64": "/w=="},
            {"key": "none", "value": None},
        ],
    }


def test_heartbeats_and_control_records_are_hidden_by_default() -> None:
    everything = rows("cat", NODE, *EVERYTHING)
    control = set(CONTROL_TYPES.values())
    visible = [row for row in everything if row["type"] not in control | {"NO_OP_RECORD"}]
    assert rows("cat", NODE, "--reveal") == visible
    assert any(row["type"] == "NO_OP_RECORD" for row in everything)
    with_control = [row for row in everything if row["type"] != "NO_OP_RECORD"]
    assert rows("cat", NODE, "--reveal", "--control") == with_control
    without_control = [row for row in everything if row["type"] not in control]
    assert rows("cat", NODE, "--reveal", "--noop") == without_control


def test_a_type_has_several_spellings() -> None:
    expected = [row for row in rows("cat", NODE) if row["type"] == "PARTITION_RECORD"]
    assert expected
    for name in ("PARTITION_RECORD", "PartitionRecord", "partition", "3"):
        assert rows("cat", NODE, "--type", name) == expected


def test_requested_types_are_shown_even_if_hidden_by_default() -> None:
    everything = rows("cat", NODE, "--noop", "--control")
    wanted = {"NO_OP_RECORD", "LEADER_CHANGE", "TOPIC_RECORD"}
    expected = [row for row in everything if row["type"] in wanted]
    printed = rows(
        "cat", NODE, "--type", "no-op", "--type", "LeaderChange", "--type", "TOPIC_RECORD"
    )
    assert printed == expected
    assert {row["type"] for row in printed} == wanted
    none_of_these = rows("cat", NODE, "--type", "zkmigrationstate", "--type", "99")
    assert none_of_these == []


def test_a_range_starts_at_from_and_ends_before_to() -> None:
    everything = rows("cat", NODE, *EVERYTHING)
    for start, end in ((0, 1), (5, 9), (430, 440), (1288, 1288), (3130, 3131)):
        expected = [row for row in everything if start <= row["offset"] < end]
        assert rows("cat", NODE, *EVERYTHING, "--from", str(start), "--to", str(end)) == expected
    assert rows("cat", NODE, *EVERYTHING, "--from", "3131") == []


def test_batches_that_overlap_the_range_are_printed() -> None:
    everything = rows("cat", NODE, "--batches")
    expected = [row for row in everything if row["lastOffset"] >= 5 and row["baseOffset"] < 30]
    assert rows("cat", NODE, "--batches", "--from", "5", "--to", "30") == expected


def test_a_snapshot_has_its_own_offsets() -> None:
    path = NODE / "__cluster_metadata-0" / "00000000000000000636-0000000001.checkpoint"
    everything = rows("cat", path, *EVERYTHING)
    assert [row["offset"] for row in everything] == list(range(len(everything)))
    assert everything[0]["type"] == "SNAPSHOT_HEADER"
    cut = rows("cat", path, *EVERYTHING, "--from", "2", "--to", "6")
    assert cut == everything[2:6]
    batches = rows("cat", path, "--batches", "--from", "3", "--to", "4")
    assert [row["baseOffset"] for row in batches] == [3]


@pytest.mark.parametrize(
    "argv",
    [
        ("cat", NODE, "--to", "4000"),
        ("cat", NODE, "--from", "3500", "--to", "4000"),
        *((command, NODE, "--from", "3132") for command in ("cat", "log", "diff")),
        ("state", NODE, "topics", "--at", "3132"),
    ],
)
def test_an_offset_after_the_end_is_the_same_error_of_every_command(
    argv: tuple[str | Path, ...],
) -> None:
    status, out, err = run(*argv)
    assert (status, out) == (2 if argv[0] == "diff" else 1, ""), "1 of diff is an answer"
    assert "[RAFTLOG_OFFSET_OUT_OF_RANGE]" in err
    assert "log start offset 0, log end offset 3131 (exclusive)" in err


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("--from", "20", "--to", "10"), "offset 20 is after that of --to, 10"),
        (("--from", "end", "--to", "epoch:2"), "offset 3131 is after that of --to, 721"),
    ],
)
@pytest.mark.parametrize("command", ["cat", "log", "diff"])
def test_a_start_after_the_end_of_the_range_is_an_error_of_every_command(
    command: str, argv: tuple[str, ...], what: str
) -> None:
    status, out, err = run(command, NODE, *argv)
    assert (status, out) == (2, "")
    assert f"--from: {what}" in err


def test_deleted_offsets_are_an_error() -> None:
    status, out, err = run("cat", TRIMMED, "--from", "0")
    assert (status, out) == (1, "")
    assert "log start offset 416," in err
    assert rows("cat", TRIMMED, "--from", "416", "--noop", "--control")[0]["offset"] == 416


def test_several_voters_are_read_up_to_the_end_of_a_majority() -> None:
    nodes = [LOGS / "three-nodes-4.3.1" / f"node-{n}" for n in (100, 101, 102)]
    status, out, err = run("cat", ",".join(map(str, nodes)), *EVERYTHING)
    assert status == 0
    assert json.loads(out.splitlines()[-1])["offset"] == 3131, "only node 102 has 3132"
    assert err == (
        "raftlog: reading up to offset 3132 (exclusive): " + err.partition("(exclusive): ")[2]
    )
    assert "majority" in err


# --- secrets --------------------------------------------------------------------------------------


def secrets_of(node: Path) -> list[str]:
    """Return every SCRAM salt and key of a node's log and snapshots, as dump-log shows them."""
    found = []
    for path in dumped_logs(node):
        for batch in read_dump(path):
            for record in batch.records:
                if record.payload and "USER_SCRAM_CREDENTIAL_RECORD" in record.payload:
                    data = record.json["data"]
                    found += [data.get(name) for name in ("salt", "storedKey", "serverKey")]
    return [secret for secret in found if secret]


def test_no_command_prints_a_secret_unless_it_is_revealed(tmp_path: Path) -> None:
    secrets = secrets_of(TRIMMED)
    assert len(secrets) > 5
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef\n")
    printed = ""
    for path in (TRIMMED, *sorted(TRIMMED.rglob("*.checkpoint"))):
        for more in ((), ("--redact-key-file", key)):
            printed += "".join(run("cat", path, "--control", "--noop", *more)[1:])
    for more in ((), ("--redact-key-file", key)):
        for command in (
            ("state", TRIMMED),
            ("state", TRIMMED, "scram"),
            ("state", TRIMMED, "--format", "records"),
            ("diff", TRIMMED, "--from", "1022"),
        ):
            printed += "".join(run(*command, *more)[1:])
    for command in (
        ("cat", TRIMMED, "--batches"),
        ("check", TRIMMED),
        ("check", TRIMMED, "--json"),
    ):
        printed += "".join(run(*command)[1:])
    assert "SCRAM" in printed
    assert not [secret for secret in secrets if secret in printed]
    revealed = run("cat", next(TRIMMED.rglob("*1022-*.checkpoint")), "--reveal")[1]
    assert [secret for secret in secrets if secret in revealed] == secrets


def test_with_a_key_changes_of_a_secret_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = next(TRIMMED.rglob("*1022-*.checkpoint"))

    def salts(*more: str | Path) -> list[str]:
        printed = rows("cat", checkpoint, "--type", "UserScramCredential", *more)
        return [row["data"]["salt"] for row in printed]

    key, other = tmp_path / "key", tmp_path / "other"
    key.write_bytes(b"0123456789abcdef")
    other.write_bytes(b"fedcba9876543210")
    masked, keyed = salts(), salts("--redact-key-file", key)
    assert len(set(masked)) == 1
    assert len(set(keyed)) == len(keyed)
    assert salts("--redact-key-file", key) == keyed
    assert set(salts("--redact-key-file", other)).isdisjoint(keyed)
    monkeypatch.setenv("RAFTLOG_REDACT_KEY", "0123456789abcdef")
    assert salts() == keyed
    assert "0123456789abcdef" not in run("cat", checkpoint)[1]


# --- damage ---------------------------------------------------------------------------------------


def damaged_copy(tmp_path: Path, position: int) -> Path:
    """Return a copy of the first segment with one flipped bit."""
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    source = NODE / "__cluster_metadata-0" / "00000000000000000000.log"
    data = bytearray(source.read_bytes())
    data[position] ^= 1
    (directory / source.name).write_bytes(data)
    return directory / source.name


def test_valid_records_are_printed_before_damage_is_reported(tmp_path: Path) -> None:
    source = NODE / "__cluster_metadata-0" / "00000000000000000000.log"
    batches = read_dump(source)
    hurt = batches[len(batches) // 2]
    path = damaged_copy(tmp_path, hurt.position + 70)
    expected = [
        line_of(batch, record) for batch in batches[: len(batches) // 2] for record in batch.records
    ]
    for target in (path, path.parent, tmp_path):
        status, out, err = run("cat", target, *EVERYTHING)
        assert status == 1
        assert out.splitlines() == expected
        end, damage = err.splitlines()
        assert end.startswith("raftlog: reading up to offset ")
        assert damage.startswith("raftlog: [RAFTLOG_CORRUPT_BATCH] ")
        assert f"at byte {hurt.position}, offset {hurt.base_offset}" in damage
    status, out, err = run("cat", path, "--batches")
    assert (status, len(out.splitlines())) == (1, len(batches) // 2)


def test_a_damaged_value_in_a_valid_batch_is_skipped(tmp_path: Path) -> None:
    from tests.support.small_logs import NO_OP, LogWriter

    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    broken = b"\x01\x02\x00\x7f"
    writer.append(NO_OP, broken, b"", None, NO_OP)
    status, out, err = run("cat", tmp_path, "--noop")
    assert status == 1
    assert [json.loads(line)["offset"] for line in out.splitlines()] == [0, 4]
    _, *reported = err.splitlines()
    assert len(reported) == 3
    assert all(f", offset {n}: " in line for n, line in zip((1, 2, 3), reported, strict=True))


def test_many_damaged_values_are_summarised(tmp_path: Path) -> None:
    from tests.support.small_logs import LogWriter

    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(*[b"\x01\x02\x00\x7f"] * 50)
    status, out, err = run("cat", tmp_path)
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1 + 21
    assert err.endswith("50 records have damaged values in total\n")


def test_an_unknown_type_is_shown_as_unknown(tmp_path: Path) -> None:
    from tests.support.small_logs import LogWriter

    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(b"\x01\x63\x00secret\x00")
    (row,) = rows("cat", tmp_path)
    assert row["type"] == "UNKNOWN"
    assert "payload" not in row["data"]
    (row,) = rows("cat", tmp_path, "--type", "99", "--reveal")
    assert base64.b64decode(row["data"]["payload"]) == b"secret\x00"


def test_a_snapshot_without_a_footer_is_printed_and_reported(tmp_path: Path) -> None:
    source = next(NODE.rglob("*636-*.checkpoint"))
    footer = read_dump(source)[-1]
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes()[: footer.position])
    status, out, err = run("cat", path, *EVERYTHING)
    assert status == 1
    assert out.splitlines() == dump_lines(source)[:-1]
    assert "[RAFTLOG_CORRUPT_SNAPSHOT]" in err


@pytest.mark.parametrize("command", ["cat", "state", "diff", "check"])
def test_paths_that_are_no_log_are_refused(command: str, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    empty = tmp_path / "00000000000000000000.log"
    empty.touch()
    bare = tmp_path / "bare"
    bare.mkdir()
    more = ("--from", "0") if command == "diff" else ()
    for path, code in (
        (tmp_path / "nowhere", "RAFTLOG_LOG_NOT_FOUND"),
        (text, "RAFTLOG_NOT_A_LOG"),
        (empty, "RAFTLOG_NOT_A_LOG"),
        (bare, "RAFTLOG_NOT_A_LOG"),
    ):
        status, out, err = run(command, path, *more)
        assert (status, out) == (2, "")
        assert err.startswith(f"raftlog: [{code}] ")
        assert str(path) in err
        assert err.count("\n") == 1


def test_memory_is_bounded_by_the_chunk(tmp_path: Path) -> None:
    # Output is written in blocks while the log is read, not at its end.
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    source = NODE / "__cluster_metadata-0"
    for path in source.glob("*.log"):
        shutil.copyfile(path, directory / path.name)
    sizes: list[int] = []

    class Counting(io.BytesIO):
        def write(self, data: Any) -> int:
            sizes.append(len(data))
            return len(data)

    assert main(["cat", str(directory), "--reveal"], Counting(), io.StringIO()) == 0
    assert len(sizes) > 1
    assert max(sizes) < 400_000


def test_encrypted_values_are_printed_as_base64_unless_keys_are_given(tmp_path: Path) -> None:
    path, keys = tmp_path / "customers-0", raftlog.KeyFile(tmp_path / "keys.properties")
    keys.create("2026-11")
    encryption = raftlog.Encryption(keys=keys, context="customers")
    with raftlog.open(path, encryption=encryption) as log:
        log.append([(b"alice", b"card 1"), (b"bob", None)])
    first, second = rows("cat", path)
    assert base64.b64decode(first["valueBase64"]).startswith(b"\xe5RL\x01")
    assert (first["key"], second["value"]) == ("alice", None)
    given = ("--encryption-keys", keys.path, "--encryption-context")
    assert [one["value"] for one in rows("cat", path, *given, "customers")] == ["card 1", None]
    status, out, err = run("cat", path, *given, "others")
    assert (status, out) == (1, "")
    assert "RAFTLOG_ENCRYPTED_VALUE" in err
    status, _, err = run("cat", path, "--encryption-context", "customers")
    assert status == 2
    assert "require each other" in err
