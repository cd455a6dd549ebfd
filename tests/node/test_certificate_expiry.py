"""Certificates that expire are in metrics, log lines and diagnoses before they do."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from raftlog.node.certificates import (
    DAY_S,
    CertificateExpiry,
    ExpiryWarnings,
    read_expiries,
)
from raftlog.node.config import parse_config
from raftlog.node.errors import ConfigError
from raftlog.node.metrics import certificate_figures
from tests.support.certificates import Authority
from tests.support.cli import run
from tests.support.quorum_processes import free_ports
from tests.support.served_node import served_node

NOW_S = 1_800_000_000
ACCESS = '[access]\nadmin = ["operator"]\n[access.nodes]\n1 = "node-1.example"\n'


def not_after_s(path: str) -> list[int]:
    """Return the expiry of the certificates of a file, as another parser reads it."""
    found = x509.load_pem_x509_certificates(Path(path).read_bytes())
    return [int(one.not_valid_after_utc.timestamp()) for one in found]


def listener(
    home: Path,
    *,
    has_expired: bool = False,
    until: datetime | None = None,
    list_until: datetime | None = None,
) -> str:
    """Return the table of a listener, with a list that is valid for a week until this time."""
    authority = Authority(home)
    crl = ""
    if list_until is not None:
        crl = f', crl = "{authority.revoke(valid=(list_until - timedelta(days=7), list_until))}"'
    pair = authority.sign("node-1.example", has_expired=has_expired, until=until)
    (port,) = free_ports(1)
    return (
        f'[listeners.both]\naddress = "127.0.0.1:{port}"\n'
        f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
        f'ca = "{authority.path}"{crl} }}\n'
    )


def configuration(home: Path, listeners: str) -> str:
    return f'[node]\nid = 1\ndirectory = "{home / "data"}"\n{listeners}{ACCESS}'


@pytest.mark.parametrize(
    "until", [datetime(2049, 12, 31, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)]
)
def test_the_expiry_of_every_certificate_of_a_file_is_read(tmp_path: Path, until: datetime) -> None:
    listeners = listener(tmp_path, until=until)
    config = parse_config(configuration(tmp_path, listeners), "node.toml")
    tls = config.listeners[0].tls
    assert tls is not None
    with Path(tls.ca).open("ab") as file:
        file.write(Path(Authority(tmp_path / "other").path).read_bytes())
    found = read_expiries(config)
    assert [(one.kind, one.number) for one in found] == [("certificate", 1), ("ca", 1), ("ca", 2)]
    assert [one.not_after_s for one in found] == not_after_s(tls.certificate) + not_after_s(tls.ca)
    assert found[0].not_after_s == int(until.timestamp())
    Path(tls.certificate).write_bytes(
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    )
    with pytest.raises(ConfigError):
        read_expiries(config)


@pytest.mark.parametrize("year", [2049, 2060])
def test_the_expiry_of_every_revocation_list_of_a_file_is_read(tmp_path: Path, year: int) -> None:
    until = datetime(year, 12, 31, tzinfo=UTC)
    config = parse_config(
        configuration(tmp_path, listener(tmp_path / "a", list_until=until)), "node.toml"
    )
    tls = config.listeners[0].tls
    assert tls is not None
    assert tls.crl is not None
    short = (until, until + timedelta(hours=12))
    with Path(tls.crl).open("ab") as file:
        file.write(Path(Authority(tmp_path / "other").revoke(valid=short)).read_bytes())
    lists = [one for one in read_expiries(config) if one.kind == "crl"]
    assert [one.not_after_s for one in lists] == [int(one.timestamp()) for one in (until, short[1])]
    assert [one.warning_days for one in lists] == [(1,), (0.125,)]


def test_each_threshold_is_reported_once_and_again_after_a_replacement() -> None:
    warnings = ExpiryWarnings()
    one = CertificateExpiry("clients", "certificate", "a.pem", 1, NOW_S + 40 * DAY_S)
    reported = [
        day
        for day in range(45)
        for hour in range(24)
        if warnings.due([one], NOW_S + day * DAY_S + hour * 3600)
    ]
    assert reported == [10, 33, 39, 40]
    published = [
        CertificateExpiry("clients", "crl", "a.pem", 1, NOW_S + (day + 7) * DAY_S, (1.0,))
        for day in range(3)
    ]
    assert not [
        one for day, one in enumerate(published) if warnings.due([one], NOW_S + day * DAY_S)
    ], "a list of a week is published each day"
    days = [day for day in range(12) if warnings.due([published[-1]], NOW_S + day * DAY_S)]
    assert days == [8, 9], "the next one is overdue, and it has expired"
    renewed = CertificateExpiry("clients", "certificate", "a.pem", 1, NOW_S + 70 * DAY_S)
    assert warnings.due([renewed], NOW_S + 45 * DAY_S) == [renewed]
    assert ExpiryWarnings().due([one], NOW_S) == []


def test_a_node_logs_and_exports_certificates_that_expire_soon(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    until, list_until = now + timedelta(days=5), now + timedelta(hours=12)
    listeners = listener(tmp_path, until=until, list_until=list_until)

    async def check() -> None:
        async with served_node(tmp_path, ACCESS, listeners=listeners) as node:
            lines = node.lines("certificates")
            assert [line["level"] for line in lines] == ["warning", "error"]
            assert "expires in 5.0 days" in lines[0]["reason"]
            assert "revocation list 1 of" in lines[1]["reason"]
            left = read_expiries(node.config)
            figure, lists = certificate_figures(left, until.timestamp() - 5 * DAY_S)
            assert [round(one.value, 2) for one in lists.samples] == [0.5]
            samples = {one.labels["kind"]: one.value for one in figure.samples}
            assert round(samples["certificate"], 2) == 5
            assert samples["ca"] > 30

    asyncio.run(check())


def test_doctor_reports_certificates_that_expire_soon_or_have_expired(tmp_path: Path) -> None:
    async def make() -> None:
        async with served_node(tmp_path, ""):
            pass

    asyncio.run(make())
    for is_expired, level in ((True, "problem"), (False, None)):
        listeners = listener(tmp_path / str(is_expired), has_expired=is_expired)
        path = tmp_path / "node.toml"
        path.write_text(configuration(tmp_path, listeners))
        _, out, _ = run("doctor", "--json", str(path))
        *found, _ = map(json.loads, out.splitlines())
        levels = [one["level"] for one in found if "certificate 1" in one["found"]]
        assert levels == ([] if level is None else [level])
    list_until = datetime.now(UTC) + timedelta(hours=12)
    path.write_text(configuration(tmp_path, listener(tmp_path / "list", list_until=list_until)))
    _, out, _ = run("doctor", "--json", str(path))
    *found, _ = map(json.loads, out.splitlines())
    (diagnosis,) = (one for one in found if "revocation list 1" in one["found"])
    assert diagnosis["level"] == "problem"
    assert "openssl crl -nextupdate" in out
    config = parse_config(path.read_text(), str(path))
    assert config.voters is not None
    assert config.voters.tls is not None
    ca = Path(config.voters.tls.ca)
    expected = len(found) - 1
    ca.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    _, out, _ = run("doctor", "--json", str(path))
    first, *rest, _ = map(json.loads, out.splitlines())
    assert (first["level"], str(ca) in first["found"]) == ("problem", True)
    assert len(rest) == expected, "everything else is examined"
