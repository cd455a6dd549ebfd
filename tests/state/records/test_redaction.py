"""No form of output has a secret; other values are unchanged."""

from __future__ import annotations

import base64
import json
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.metadata_values import (
    DATA,
    EVERY_VERSION,
    metadata_logs,
    payloads_of,
    structs,
    values_of,
    version_name,
)
from tests.support.redaction import redact_value

from raftlog.errors import OptionError
from raftlog_state.errors import InvalidRecordError, MetadataParseError
from raftlog_state.records import (
    MASK,
    BrokerEndpoint,
    ConfigRecord,
    DecodedRecord,
    DelegationTokenRecord,
    MetadataRecord,
    Redactor,
    RegisterBrokerRecord,
    TopicRecord,
    UnknownRecord,
    UnknownTag,
    UserScramCredentialRecord,
    decode,
    encode,
    from_json,
    is_redacted,
    peek,
)

SECRET = b"correct-horse-battery"
KEY = b"a key that only its user knows"
MASKED = Redactor()
KEYED = Redactor(key=KEY)

SCRAM = UserScramCredentialRecord(
    name="alice",
    mechanism=1,
    salt=SECRET + b"-salt",
    stored_key=SECRET + b"-stored",
    server_key=SECRET + b"-server",
    iterations=4096,
)
PASSWORD = ConfigRecord(
    resource_type=4, resource_name="1", name="ssl.key.password", value=SECRET.decode()
)
UNKNOWN_CONFIG = ConfigRecord(
    resource_type=2, resource_name="orders", name="rsm.config.token", value=SECRET.decode()
)
TAGGED = TopicRecord(name="orders", unknown_tags=(UnknownTag(7, SECRET),))
NESTED = RegisterBrokerRecord(
    broker_id=1,
    end_points=(
        BrokerEndpoint(name="A", unknown_tags=(UnknownTag(7, SECRET),)),
        BrokerEndpoint(name="B"),
    ),
)
UNKNOWN_TYPE = b"\x01\x2a\x03" + SECRET
UNKNOWN_VERSION = b"\x01\x0b\x01" + SECRET
SECRET_VALUES = [
    *(encode(record) for record in (SCRAM, PASSWORD, UNKNOWN_CONFIG, TAGGED, NESTED)),
    UNKNOWN_TYPE,
    UNKNOWN_VERSION,
]
NAMES = ["scram", "password", "unknown config", "tag", "nested tag", "unknown", "newer"]


def forms(secret: bytes) -> list[bytes]:
    """Return a secret, and its base64 at each alignment."""
    shifted = [base64.b64encode(b"x" * shift + secret)[4:-4] for shift in range(3)]
    return [secret, secret.hex().encode(), *shifted]


def assert_hidden(shown: bytes | str) -> None:
    data = shown.encode() if isinstance(shown, str) else shown
    for form in forms(SECRET):
        assert form not in data


@pytest.mark.parametrize("redactor", [MASKED, KEYED], ids=["mask", "hash"])
@pytest.mark.parametrize("value", SECRET_VALUES, ids=NAMES)
def test_no_form_of_output_has_a_secret(value: bytes, redactor: Redactor) -> None:
    assert SECRET in value
    redacted = redactor.redact(decode(value))
    assert_hidden(redact_value(redactor, value))
    assert_hidden(redactor.record_json(value))
    assert_hidden(repr(redacted))
    assert_hidden(pickle.dumps(redacted))


@pytest.mark.parametrize("value", SECRET_VALUES, ids=NAMES)
def test_repr_shows_no_secret_even_of_the_record_itself(value: bytes) -> None:
    assert_hidden(repr(decode(value)))
    assert_hidden(str(decode(value)))


@pytest.mark.parametrize("redactor", [MASKED, KEYED], ids=["mask", "hash"])
@pytest.mark.parametrize("value", SECRET_VALUES, ids=NAMES)
def test_a_redacted_value_decodes_as_the_same_record(value: bytes, redactor: Redactor) -> None:
    redacted = redact_value(redactor, value)
    decoded = decode(redacted)
    assert peek(redacted) == peek(value)
    assert type(decoded.record) is type(decode(value).record)
    assert decoded == redactor.redact(decode(value))
    assert json.loads(redactor.record_json(value)) == json.loads(
        Redactor(reveal=True).record_json(redacted)
    )
    assert from_json(json.loads(redactor.record_json(value))) == decoded


def errors_of(read: Callable[[bytes], object], value: bytes) -> list[MetadataParseError]:
    try:
        read(value)
    except MetadataParseError as error:
        return [error]
    return []


@pytest.mark.parametrize("value", SECRET_VALUES, ids=NAMES)
def test_errors_show_no_secret(value: bytes) -> None:
    for damaged in (value[:-1], value + b"\xff", value.replace(b"horse", b"h\xffrse")):
        for read in (decode, partial(redact_value, MASKED), MASKED.record_json):
            for error in errors_of(read, damaged):
                assert_hidden(repr(error))
                assert_hidden(str(error))
                assert_hidden(pickle.dumps(error))
                assert error.__context__ is None
    data = {"resourceType": 2, "resourceName": "", "name": "x", "value": SECRET.decode(), "a": 1}
    with pytest.raises(InvalidRecordError) as caught:
        from_json({"type": "CONFIG_RECORD", "version": 0, "data": data})
    assert_hidden(str(caught.value))


def test_damage_is_never_passed_on_unredacted() -> None:
    with pytest.raises(MetadataParseError):
        redact_value(MASKED, encode(SCRAM)[:-1])


def test_scram_records_keep_all_but_their_secrets() -> None:
    mask = MASK.encode()
    assert MASKED.redact(DecodedRecord(0, SCRAM)).record == UserScramCredentialRecord(
        name="alice", mechanism=1, salt=mask, stored_key=mask, server_key=mask, iterations=4096
    )


def test_a_config_keeps_its_name_and_shows_that_it_is_removed() -> None:
    shown = json.loads(MASKED.record_json(encode(PASSWORD)))["data"]
    assert shown == {
        "resourceType": 4,
        "resourceName": "1",
        "name": "ssl.key.password",
        "value": "[redacted]",
    }
    removed = encode(ConfigRecord(resource_type=4, name="ssl.key.password", value=None))
    assert redact_value(MASKED, removed) == removed


def test_an_unknown_record_keeps_only_its_frame() -> None:
    assert redact_value(MASKED, UNKNOWN_TYPE) == b"\x01\x2a\x03"
    decoded = decode(redact_value(MASKED, UNKNOWN_TYPE))
    assert isinstance(decoded.record, UnknownRecord)
    assert decoded.record.payload == b""
    assert MASKED.record_json(UNKNOWN_TYPE) == (
        '{"type":"UNKNOWN","version":3,"data":{"apiKey":42,"reason":"this api key is not known"}}'
    )


def test_unknown_tags_keep_their_numbers() -> None:
    shown = json.loads(MASKED.record_json(encode(TAGGED)))["data"]
    mask = base64.b64encode(MASK.encode()).decode()
    assert shown["unknownTaggedFields"] == [{"tag": 7, "data": mask}]
    nested = json.loads(MASKED.record_json(encode(NESTED)))["data"]["endPoints"]
    assert nested[0]["unknownTaggedFields"] == [{"tag": 7, "data": mask}]
    assert "unknownTaggedFields" not in nested[1]


def test_a_delegation_token_is_shown_since_its_password_is_not_in_the_log() -> None:
    token = DelegationTokenRecord(owner="User:alice", renewers=("User:bob",), token_id="id")
    decoded = DecodedRecord(0, token)
    assert MASKED.redact(decoded) is decoded


def test_a_record_without_secrets_is_the_same_object() -> None:
    ordinary = ConfigRecord(
        resource_type=2, resource_name="orders", name="retention.ms", value="1000"
    )
    for record in (ordinary, TopicRecord(name="orders"), RegisterBrokerRecord()):
        decoded = DecodedRecord(0, record)
        assert MASKED.redact(decoded) is decoded
        value = encode(record)
        assert redact_value(MASKED, value) is value


def test_a_keyed_hash_shows_whether_a_secret_changed() -> None:
    def hashed(**fields: Any) -> str:
        record = ConfigRecord(**{"resource_type": 4, "name": "ssl.key.password", **fields})
        value: str = json.loads(KEYED.record_json(encode(record)))["data"]["value"]
        return value

    assert hashed(value="one") == hashed(value="one", resource_name="2")
    assert hashed(value="one") != hashed(value="two")
    assert hashed(value="one") != hashed(value="one", name="ssl.keystore.password")
    assert re.fullmatch("hmac:[0-9a-f]{8}:[0-9a-f]{32}", hashed(value="one"))


def test_a_keyed_hash_has_the_id_of_its_key() -> None:
    """After a rotation the same secrets have other hashes, which are not changes of them."""
    other = Redactor(key=b"another key of its user")
    (_, key_id, hashed), (_, other_id, other_hash) = (
        one.mask(b"one", "x").split(":") for one in (KEYED, other)
    )
    assert key_id != other_id
    assert hashed != other_hash
    assert KEYED.mask(b"two", "y").split(":")[1] == key_id
    for text in (KEYED.mask(b"one", "x"), f"hmac:{hashed}"):  # in tables of older versions
        assert is_redacted(text)
        assert not is_redacted(text[:-1])


def test_the_mask_is_the_same_for_every_secret() -> None:
    assert MASKED.mask(b"a", "x") == MASKED.mask(b"longer secret", "y") == MASK


def test_reveal_changes_nothing() -> None:
    revealing = Redactor(reveal=True)
    for value in SECRET_VALUES:
        assert redact_value(revealing, value) is value
        assert revealing.redact(decode(value)) == decode(value)
    assert SECRET.decode() in revealing.record_json(encode(PASSWORD))


def test_a_key_is_never_shown_and_is_sent_to_executors() -> None:
    assert KEY.decode() not in repr(KEYED) + str(KEYED) + f"{KEYED}"
    assert repr(KEYED) == "Redactor(reveal=False, full=False)"
    moved = pickle.loads(pickle.dumps(KEYED))
    assert moved.mask(b"s", "x") == KEYED.mask(b"s", "x")


@pytest.mark.parametrize("key", [b"", b"short", b"fifteen bytes.."])
def test_a_guessable_key_is_refused(key: bytes) -> None:
    with pytest.raises(OptionError) as caught:
        Redactor(key=key)
    assert not key or key.decode() not in str(caught.value)


@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=4)
@given(data=st.data())
def test_any_redacted_record_is_a_complete_record(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
    redactor = data.draw(st.sampled_from([MASKED, KEYED]))
    value = encode(data.draw(structs(kind, version)), version)
    redacted = redact_value(redactor, value)
    assert decode(redacted) == redactor.redact(decode(value))
    assert from_json(json.loads(redactor.record_json(value))) == decode(redacted)


CLUSTER_LOGS = [log for log in metadata_logs() if "every-record" not in str(log)]


def test_no_secret_of_a_real_cluster_is_in_the_output() -> None:
    secrets = set()
    shown = bytearray()
    for value in {value for log in CLUSTER_LOGS for value in values_of(log)}:
        record = decode(value).record
        if isinstance(record, UserScramCredentialRecord):
            secrets |= {record.salt, record.stored_key, record.server_key}
        if isinstance(record, ConfigRecord) and record.name.endswith("password"):
            secrets.add((record.value or "").encode())
        shown += redact_value(MASKED, value)
        shown += MASKED.record_json(value).encode()
    assert len(secrets) > 5
    for secret in secrets:
        assert secret not in shown
        assert base64.b64encode(secret) not in shown


def test_other_values_are_shown_as_dump_log_shows_them() -> None:
    log = DATA / "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
    for segment in log.glob("*.log"):
        for value, payload in zip(values_of(segment), payloads_of(segment), strict=True):
            if not isinstance(decode(value).record, UserScramCredentialRecord | ConfigRecord):
                assert MASKED.record_json(value) == payload
