"""Addresses as people write them, and how a client proves itself: what is refused before a socket
is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import raftlog
from raftlog.client.remote.addresses import Address, parse_addresses
from raftlog.client.remote.tls import NO_TLS, TlsOptions, tls_context
from raftlog.errors import OptionError


def test_addresses_are_hosts_and_ports_each_once() -> None:
    found = parse_addresses(" log-1:9092, 10.0.0.2:9093,[::1]:1 ,log-1:9092,")
    assert found == (Address("log-1", 9092), Address("10.0.0.2", 9093), Address("::1", 1))
    assert list(map(str, found)) == ["log-1:9092", "10.0.0.2:9093", "[::1]:1"]


@pytest.mark.parametrize(
    "text", ["", ",", "host", "host:", ":9092", "host:0", "host:65536", "::1:9092", "host:9\u0662"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"bootstrap\.servers"):
        parse_addresses(text)
    with pytest.raises(OptionError):
        raftlog.connect(text)


def test_a_certificate_is_shown_only_to_who_is_vouched_for() -> None:
    with pytest.raises(OptionError, match="tls_ca"):
        TlsOptions(certificate="c", key="k")
    with pytest.raises(OptionError, match="tls_certificate"):
        TlsOptions(ca="a", key="k")
    assert tls_context(NO_TLS) is None


def test_files_that_cannot_be_used_are_refused_and_no_secret_is_shown(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (tmp_path / "missing.pem", empty):
        with pytest.raises(OptionError, match="tls_ca"):
            tls_context(TlsOptions(ca=str(path)))
    options = TlsOptions(ca="ca.pem", certificate="c.pem", key="k.pem", key_password="hunter2")
    assert "hunter2" not in repr(options)
