"""Encryption of values: the format, what a value is bound to, keys, their rotation and deletion."""

from __future__ import annotations

import base64
import os
import pickle
import random
import shutil
import signal
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.client.decrypted_log import DecryptedLog
from raftlog.client.encryption import (
    DATA_KEY_MS_MAX,
    DATA_KEY_VALUES_MAX,
    MAGIC,
    Encryption,
    KeyService,
    ValueCipher,
    is_encrypted,
    new_aes_gcm,
)
from raftlog.client.errors import (
    EncryptedValueError,
    EncryptionKeyDeletedError,
    EncryptionKeyError,
    KeyServiceUnavailableError,
)
from raftlog.client.key_file import KeyFile
from raftlog.client.location import LogLocation, open_reader, parse_location
from raftlog.errors import OptionError
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.records import NewRecord
from raftlog.records.record import Header

SECRET = b"a name and a card number"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    created = KeyFile(tmp_path / "keys.properties")
    created.create("2026-11")
    return created


def cipher_of(keys: KeyFile, context: str = "customers", **more: Any) -> ValueCipher:
    return ValueCipher(Encryption(keys=keys, context=context, **more), lambda: 0)


def opened(cipher: ValueCipher, key: bytes | None, value: bytes) -> bytes | None:
    return cipher.decrypt(key, value, path="log")


# --- format ---------------------------------------------------------------------------------------


def test_the_cipher_is_that_of_nist() -> None:
    """Test case 16 of "The Galois/Counter Mode of Operation" (McGrew, Viega)."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    sealed = new_aes_gcm(key).encrypt(
        bytes.fromhex("cafebabefacedbaddecaf888"),
        plain,
        bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
    )
    assert sealed == bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b"
    )


class FixedService:
    """Key service that wraps a data key by reversing it."""

    def current_key_id(self) -> str:
        return "k1"

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        return data_key[::-1]

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        return wrapped[::-1]


def test_an_encrypted_value_has_the_documented_format() -> None:
    drawn = iter((bytes(range(32)), b"nonce_nonce_"))
    encryption = Encryption(keys=FixedService(), context="log")
    value = ValueCipher(encryption, lambda: 0, lambda _: next(drawn)).encrypt(b"key", b"value")
    head = b"\xe5RL\x01" + b"\x02k1" + b"\x00\x20" + bytes(range(32))[::-1]
    data = head + b"\x00\x00\x00\x03log" + b"\x01key"
    sealed = new_aes_gcm(bytes(range(32))).encrypt(b"nonce_nonce_", b"value", data)
    assert value == head + b"nonce_nonce_" + sealed
    assert not is_encrypted(b"value")


# --- what a value is bound to ---------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, b"", b"alice"])
@pytest.mark.parametrize("value", [b"", SECRET])
def test_a_value_is_read_with_its_key_and_context_only(
    keys: KeyFile, key: bytes | None, value: bytes
) -> None:
    cipher = cipher_of(keys)
    sealed = cipher.encrypt(key, value)
    assert SECRET not in sealed
    assert opened(cipher, key, sealed) == value
    assert opened(cipher_of(keys), key, sealed) == value
    for other in {None, b"", b"alice", b"bob"} - {key}:
        with pytest.raises(EncryptedValueError, match="not authentic"):
            opened(cipher, other, sealed)
    with pytest.raises(EncryptedValueError, match="not authentic"):
        opened(cipher_of(keys, "customer"), key, sealed)


def test_every_changed_bit_of_a_value_is_refused(keys: KeyFile) -> None:
    cipher = cipher_of(keys)
    sealed = cipher.encrypt(b"alice", b"value")
    for at in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises((EncryptedValueError, EncryptionKeyError)):
            opened(cipher, b"alice", bytes(changed))
    for end in range(len(sealed)):
        with pytest.raises((EncryptedValueError, EncryptionKeyError)):
            opened(cipher, b"alice", sealed[:end])


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_after_the_magic_are_a_typed_error(keys: KeyFile, seed: int) -> None:
    chance = random.Random(seed)
    cipher = cipher_of(keys)
    for _ in range(200):
        value = MAGIC + chance.randbytes(chance.randrange(200))
        with pytest.raises((EncryptedValueError, EncryptionKeyError)):
            opened(cipher, None, value)


def test_a_value_that_is_not_encrypted_is_refused_unless_it_is_allowed(keys: KeyFile) -> None:
    with pytest.raises(EncryptedValueError, match="not encrypted"):
        opened(cipher_of(keys), None, b"plain")
    lenient = cipher_of(keys, allow_plaintext=True)
    assert opened(lenient, None, b"plain") == b"plain"
    with pytest.raises(EncryptedValueError, match="damaged"):
        opened(lenient, None, MAGIC)


# --- data keys ------------------------------------------------------------------------------------


class CountingService(FixedService):
    """Key service that counts its calls, and raises an error if it has one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: BaseException | None = None

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        self._called("wrap")
        return super().wrap(key_id, data_key)

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self._called("unwrap")
        return super().unwrap(key_id, wrapped)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error


def test_a_data_key_is_bounded_by_values_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DATA_KEY_VALUES_MAX < 2**32
    monkeypatch.setattr("raftlog.client.encryption.DATA_KEY_VALUES_MAX", 3)
    service, now_ms = CountingService(), [0.0]
    cipher = ValueCipher(Encryption(keys=service, context="log"), lambda: now_ms[0])
    sealed = [cipher.encrypt(None, SECRET) for _ in range(7)]
    assert service.calls == ["wrap"] * 3
    assert len({value[:39] for value in sealed}) == 3
    now_ms[0] += DATA_KEY_MS_MAX
    cipher.encrypt(None, SECRET)
    assert service.calls == ["wrap"] * 4
    service.calls.clear()
    assert {opened(cipher, None, value) for value in sealed * 2} == {SECRET}
    assert service.calls == ["unwrap"] * 3
    now_ms[0] += DATA_KEY_MS_MAX
    opened(cipher, None, sealed[0])
    assert service.calls == ["unwrap"] * 4


def test_a_service_that_cannot_be_reached_is_an_error_that_may_pass() -> None:
    service = CountingService()
    service.error = ConnectionRefusedError("hunter2")
    cipher = ValueCipher(Encryption(keys=service, context="log"), lambda: 0)
    with pytest.raises(KeyServiceUnavailableError) as caught:
        cipher.encrypt(None, SECRET)
    assert caught.value.retriable
    assert "hunter2" not in str(caught.value)
    service.error = None
    assert opened(cipher, None, cipher.encrypt(None, SECRET)) == SECRET


class BlockedService(CountingService):
    """Key service that answers a call for a blocked key id only after ``release``."""

    def __init__(self, *blocked: str) -> None:
        super().__init__()
        self._blocked = blocked
        self.called = threading.Semaphore(0)
        self.released = threading.Event()

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        self._wait(key_id)
        return super().wrap(key_id, data_key)

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self._wait(key_id)
        return super().unwrap(key_id, wrapped)

    def _wait(self, key_id: str) -> None:
        if key_id in self._blocked:
            self.called.release()
            assert self.released.wait(60)


def by_key(service: KeyService) -> ValueCipher:
    """Return a cipher whose key ids are the keys of records."""
    encryption = Encryption(
        keys=service, context="log", key_id=lambda key: (key or b"none").decode()
    )
    return ValueCipher(encryption, lambda: 0)


def test_a_service_that_does_not_answer_blocks_no_value_of_another_key() -> None:
    service = BlockedService("slow")
    cipher, other = by_key(service), by_key(FixedService())
    read = other.encrypt(b"slow", SECRET)
    known = cipher.encrypt(b"known", SECRET)
    with ThreadPoolExecutor() as threads:
        waiting: list[Future[bytes | None]] = [
            threads.submit(opened, cipher, b"slow", read),
            threads.submit(lambda: cipher.encrypt(b"slow", SECRET)),
        ]
        service.called.acquire()
        service.called.acquire()
        try:
            assert opened(cipher, b"known", known) == SECRET
            assert opened(cipher, b"new", cipher.encrypt(b"new", SECRET)) == SECRET
            assert not any(one.done() for one in waiting)
        finally:
            service.released.set()
        opened_value, written = (one.result(60) for one in waiting)
    assert written is not None
    assert opened(other, b"slow", written) == opened_value == SECRET


@pytest.mark.parametrize("error", [None, ConnectionRefusedError(), KeyboardInterrupt()])
def test_threads_that_need_one_data_key_request_it_once(error: BaseException | None) -> None:
    service = BlockedService("slow")
    service.error = error
    cipher = by_key(service)
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(cipher.encrypt, b"slow", SECRET) for _ in range(4)]
        service.called.acquire()
        service.released.set()
        raised = [one.exception(60) for one in waiting]
    assert service.calls
    if error is None:
        assert service.calls == ["wrap"]
        assert raised == [None] * 4
    else:
        expected = KeyServiceUnavailableError if isinstance(error, OSError) else type(error)
        assert {type(one) for one in raised} == {expected}, "none waits forever"


def status_in_child(check: Callable[[], bool]) -> int:
    """Return 0 if ``check`` returns true in a forked child, which does not wait forever."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            status = int(not check())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_requests_the_data_key_that_its_parent_waits_for() -> None:
    """It has no thread that could answer the request of its parent."""
    service = BlockedService("slow")
    cipher, value = by_key(service), by_key(FixedService()).encrypt(b"slow", SECRET)

    def is_read() -> bool:
        service.released.set()
        return opened(cipher, b"slow", value) == SECRET

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(opened, cipher, b"slow", value)
        service.called.acquire()
        status = status_in_child(is_read)
        service.released.set()
        assert waiting.result(60) == SECRET
    assert status == 0


def test_a_forked_child_waits_for_no_lock_of_its_parent(keys: KeyFile) -> None:
    cipher = cipher_of(keys)
    value = cipher.encrypt(b"a", SECRET)
    with keys._lock, cipher._to_read._lock:
        assert status_in_child(lambda: opened(cipher, b"a", value) == SECRET) == 0
    assert opened(cipher, b"a", value) == SECRET


def test_a_forked_child_has_locks_of_its_own_before_two_threads_of_it_can_need_them(
    keys: KeyFile,
) -> None:
    cipher = cipher_of(keys)
    held = (keys._lock, cipher._to_read._lock)

    def is_replaced() -> bool:
        return keys._lock is not held[0] and cipher._to_read._lock is not held[1]

    assert status_in_child(is_replaced) == 0
    assert held == (keys._lock, cipher._to_read._lock)


def test_names_that_are_not_utf8_are_a_typed_error(keys: KeyFile) -> None:
    with pytest.raises(OptionError, match="context"):
        Encryption(keys=keys, context="a\udcff")
    cipher = ValueCipher(
        Encryption(keys=keys, context="a", key_id=lambda _: "subject/\udcff"), lambda: 0
    )
    with pytest.raises(OptionError, match="a key id must be text"):
        cipher.encrypt(b"\xff", SECRET)


# --- key files ------------------------------------------------------------------------------------


def test_rotation_takes_effect_without_a_restart_and_old_values_are_read(keys: KeyFile) -> None:
    now_ms = [0.0]
    cipher = ValueCipher(Encryption(keys=keys, context="customers"), lambda: now_ms[0])
    before = cipher.encrypt(None, SECRET)
    KeyFile(keys.path).create("2026-12", is_current=True)
    now_ms[0] += DATA_KEY_MS_MAX
    after = cipher.encrypt(None, SECRET)
    assert (b"2026-11" in before, b"2026-12" in after) == (True, True)
    assert {opened(cipher_of(keys), None, one) for one in (before, after)} == {SECRET}
    assert keys.key_ids() == {"2026-11": False, "2026-12": False}


def test_another_file_with_the_same_key_id_is_refused(keys: KeyFile, tmp_path: Path) -> None:
    other = KeyFile(tmp_path / "other.properties")
    other.create("2026-11")
    sealed = cipher_of(keys).encrypt(None, SECRET)
    with pytest.raises(EncryptionKeyError, match="not the one"):
        opened(cipher_of(other), None, sealed)
    other.create("else", is_current=True)
    other.delete("2026-11")
    with pytest.raises(EncryptionKeyError, match="is not in"):
        opened(cipher_of(keys), None, cipher_of(other).encrypt(None, SECRET))


def test_a_key_file_is_private_and_is_never_half_written(keys: KeyFile, tmp_path: Path) -> None:
    path = Path(keys.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    (tmp_path / "keys.properties.changing").touch()
    with pytest.raises(OptionError, match="another process"):
        keys.create("more")
    assert path.read_text() == text
    path.chmod(0o644)
    with pytest.raises(OptionError, match="other users may read"):
        cipher_of(keys).encrypt(None, SECRET)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no property current"),
        ("current=a\n", "no key with the id"),
        ("current=a\nkey.a=deleted\n", "it was deleted"),
        ("current=a\nkey.a=c2hvcnQ=\n", "not 32 bytes in base64"),
        ("current=a\nkey.a=hunter2!\n", "not 32 bytes in base64"),
        ("password=hunter2\n", "neither current nor key"),
        ("key.a=deleted\nkey.a=deleted\n", "twice"),
    ],
)
def test_an_invalid_key_file_is_refused_without_its_content(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(OptionError, match=words) as caught:
        cipher_of(KeyFile(path)).encrypt(None, SECRET)
    assert "hunter2" not in str(caught.value)


def test_no_repr_or_pickle_has_a_key(keys: KeyFile) -> None:
    encryption = Encryption(keys=keys, context="log")
    cipher_of(keys).encrypt(None, SECRET)
    secret = Path(keys.path).read_text().split("key.2026-11=")[1].strip()
    assert secret not in repr(encryption)
    pickled = pickle.dumps(encryption)
    assert base64.b64decode(secret) not in pickled
    assert pickle.loads(pickled) == encryption


# --- deletion of a subject's key ------------------------------------------------------------------


def by_subject(key: bytes | None) -> str:
    return f"subject/{(key or b'none').decode()}"


def test_deleting_a_subjects_key_makes_its_values_alone_unreadable(keys: KeyFile) -> None:
    for subject in (b"alice", b"bob"):
        keys.create(by_subject(subject))
    writer = cipher_of(keys, key_id=by_subject)
    sealed = {subject: writer.encrypt(subject, SECRET) for subject in (b"alice", b"bob")}
    keys.delete("subject/alice")
    reader = cipher_of(keys)
    with pytest.raises(EncryptionKeyDeletedError) as caught:
        opened(reader, b"alice", sealed[b"alice"])
    assert caught.value.key_id == "subject/alice"
    assert opened(reader, b"bob", sealed[b"bob"]) == SECRET
    assert opened(cipher_of(keys, deleted_keys="null"), b"alice", sealed[b"alice"]) is None
    with pytest.raises(EncryptionKeyDeletedError):
        keys.create("subject/alice")
    with pytest.raises(EncryptionKeyDeletedError):
        cipher_of(keys, key_id=by_subject).encrypt(b"alice", SECRET)
    with pytest.raises(OptionError, match="is the current one"):
        keys.delete("2026-11")


def test_an_unknown_key_is_never_read_as_null(keys: KeyFile, tmp_path: Path) -> None:
    other = KeyFile(tmp_path / "other.properties")
    other.create("other")
    sealed = cipher_of(keys).encrypt(None, SECRET)
    with pytest.raises(EncryptionKeyError):
        opened(cipher_of(other, deleted_keys="null"), None, sealed)


# --- logs -----------------------------------------------------------------------------------------


def raw_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))


def test_appends_are_encrypted_and_every_read_is_decrypted(tmp_path: Path, keys: KeyFile) -> None:
    path = tmp_path / "customers-0"
    encryption = Encryption(keys=keys, context="customers")
    with raftlog.open(path, encryption=encryption) as log:
        end = log.append([SECRET, (b"alice", SECRET), (b"bob", None)]).end_offset
        record = NewRecord(b"carol", SECRET, 5, (Header("h", b"clear"),))
        log.append([record], required_base_offset=end, commit=("app", "query", 1))
        assert log.append([record], commit=("app", "query", 1)).was_duplicate
        found = list(log.read())
        assert [(one.key, one.value) for one in found] == [
            (None, SECRET),
            (b"alice", SECRET),
            (b"bob", None),
            (b"carol", SECRET),
        ]
        assert (found[3].timestamp_ms, found[3].headers[0].value) == (5, b"clear")
        assert log.read().to_arrow()["value"].to_pylist() == [SECRET, SECRET, None, SECRET]
        assert log.read(end).to_arrow()["key"].to_pylist() == [b"carol"]
        with log.table(follow=False) as table:
            assert dict(table) == {b"alice": SECRET, b"carol": SECRET}
            table.append([(b"alice", b"new")], unchanged={b"alice": end - 2})
    assert SECRET not in raw_bytes(path)
    assert b"alice" in raw_bytes(path)
    with raftlog.table(path, follow=False, encryption=encryption) as table:
        assert table[b"alice"] == b"new"
    with raftlog.open(path) as log:
        assert all(one.value is None or is_encrypted(one.value) for one in log.read())
    location = LogLocation(str(path), encryption=encryption)
    with open_reader(location) as reader:
        (batch,) = reader.batches(end - 3, end)
        assert [one.value for one in batch.records()] == [SECRET, SECRET, None]


def test_compaction_and_copies_keep_encrypted_values(tmp_path: Path, keys: KeyFile) -> None:
    path = tmp_path / "customers-0"
    encryption = Encryption(keys=keys, context="customers")
    config = LogConfig(
        segment_bytes=1_000, cleanup_policy=CleanupPolicy.COMPACT, min_cleanable_dirty_ratio=0.0
    )
    with raftlog.open(path, encryption=encryption, config=config) as log:
        for number in range(40):
            log.append([(b"key %d" % (number % 3), b"value %d" % number)])
        assert log.clean()
    copy = tmp_path / "restored-elsewhere-0"
    shutil.copytree(path, copy)
    for place in (path, copy):
        with raftlog.table(place, follow=False, encryption=encryption) as table:
            assert dict(table) == {
                b"key 0": b"value 39",
                b"key 1": b"value 37",
                b"key 2": b"value 38",
            }


def test_a_read_ends_before_the_batch_of_a_value_that_cannot_be_read(
    tmp_path: Path, keys: KeyFile
) -> None:
    path = tmp_path / "customers-0"
    encryption = Encryption(keys=keys, context="customers")
    with raftlog.open(path, encryption=encryption) as log:
        first = log.append([(b"alice", SECRET)]).base_offset
    with raftlog.open(path) as attacker:
        moved = next(iter(attacker.read())).value
        assert moved is not None
        attacker.append([(b"carol", moved), (b"alice", moved)])
    with raftlog.open(path, encryption=encryption) as log:
        log.append([(b"bob", SECRET)])
        batches = log.read().to_batches()
        assert next(batches)["offset"].to_pylist() == [first]
        with pytest.raises(EncryptedValueError) as caught:
            next(batches)
        assert caught.value.offset == first + 1
        with pytest.raises(EncryptedValueError):
            log.table(follow=False)
        assert [one.offset for one in log.read(first + 2)] == [first + 2, first + 3]


@pytest.mark.parametrize("values", ["msgpack", "kraft"])
def test_values_that_the_log_reads_are_not_encrypted(
    tmp_path: Path, keys: KeyFile, values: str
) -> None:
    with pytest.raises(OptionError, match="requires a log with bytes values"):
        raftlog.open(
            tmp_path / "log-0",
            values=values,
            encryption=Encryption(keys=keys, context="customers"),
        )


# --- options --------------------------------------------------------------------------------------


def test_options_have_a_key_file_and_no_key(keys: KeyFile) -> None:
    given = {
        "path": "/logs/customers-0",
        "Encryption.Key.File": keys.path,
        "encryption.context": "customers",
        "encryption.deleted.keys": "null",
    }
    expected = Encryption(keys=keys, context="customers", deleted_keys="null")
    assert parse_location(given).encryption == expected
    assert parse_location({"path": "/logs"}).encryption is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encryption.key.file": "k"}, "encryption.context: is required"),
        ({"encryption.context": "c"}, "encryption.key.file: is required"),
        ({"encryption.deleted.keys": "no"}, "encryption.key.file: is required"),
        (
            {"encryption.key.file": "k", "encryption.context": "c", "encryption.deleted.keys": "x"},
            "error or null",
        ),
        (
            {"encryption.key.file": "k", "encryption.context": "c", "encryption.plaintext": "x"},
            "true or false",
        ),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_location({"path": "/logs", **options})


def test_a_log_of_cluster_metadata_is_not_decrypted(tmp_path: Path, keys: KeyFile) -> None:
    path = tmp_path / "metadata-0"
    raftlog.open(path, values="kraft").close()
    encryption = Encryption(keys=keys, context="customers")
    with pytest.raises(OptionError, match="cluster metadata are not encrypted"):
        open_reader(LogLocation(str(path), encryption=encryption))


def test_a_reader_of_encrypted_values_has_no_default_of_readers() -> None:
    """The log that it reads may override the default."""
    members = {name for name in vars(LogReader) if not name.startswith("_")}
    assert members - vars(DecryptedLog).keys() == set()
