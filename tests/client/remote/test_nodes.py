"""Addresses of nodes, and the client's certificates: refusals before a socket is opened."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from tests.support.certificates import Authority

import raftlog
from raftlog.client.remote.nodes import Address, parse_addresses
from raftlog.client.remote.security import TlsOptions
from raftlog.client.remote.tls import tls_context
from raftlog.errors import OptionError


def test_addresses_are_distinct_hosts_and_ports() -> None:
    found = parse_addresses(" log-1:9092, 10.0.0.2:9093,[::1]:1 ,log-1:9092,")
    assert found == (Address("log-1", 9092), Address("10.0.0.2", 9093), Address("::1", 1))
    assert list(map(str, found)) == ["log-1:9092", "10.0.0.2:9093", "[::1]:1"]


@pytest.mark.parametrize(
    "text", ["", ",", "host", "host:", ":9092", "host:0", "host:65536", "::1:9092", "host:9\u0662"]
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"bootstrap\.servers"):
        parse_addresses(text)
    with pytest.raises(OptionError):
        raftlog.connect(text)


def test_a_client_certificate_is_sent_only_to_an_authenticated_server() -> None:
    with pytest.raises(OptionError, match=r"ssl\.certificate\.location"):
        TlsOptions(ca="a", key="k")
    context = tls_context(TlsOptions())
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_unusable_files_are_refused_and_no_secret_is_shown(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (tmp_path / "missing.pem", empty):
        with pytest.raises(OptionError, match=r"ssl\.ca\.location"):
            tls_context(TlsOptions(ca=str(path)))
    options = TlsOptions(ca="ca.pem", certificate="c.pem", key="k.pem", key_password="hunter2")
    assert "hunter2" not in repr(options)


def test_a_client_key_that_others_can_write_is_refused_and_one_they_can_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark makes the files that it copies to executors readable for every user."""
    authority = Authority(tmp_path / "keys")
    pair = authority.sign("jobs-1")
    options = TlsOptions(ca=authority.path, certificate=pair.certificate, key=pair.key)
    tls_context(options)
    assert not caplog.records
    os.chmod(pair.key, 0o644)
    tls_context(options)
    assert "other users may read the key" in caplog.text
    os.chmod(pair.key, 0o602)
    with pytest.raises(OptionError, match=r"ssl\.key\.location: other users may change"):
        tls_context(options)
    os.chmod(pair.key, 0o600)
    os.chmod(tmp_path / "keys", 0o757)
    with pytest.raises(OptionError, match=r"may replace it"):
        tls_context(options)
    with pytest.raises(OptionError, match=r"No such file"):
        tls_context(TlsOptions(ca=authority.path, certificate="gone.pem"))
