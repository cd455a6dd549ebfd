"""Names of principals by mapping rules; the JDK and Kafka agree in ``test_kafkas_principals``."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from raftlog.node.access import AccessTable, Rights, principal_of
from raftlog.node.config import parse_config
from raftlog.node.errors import ConfigError
from raftlog.node.principal_mapping import (
    NAME_LENGTH_MAX,
    RulesError,
    mapped,
    mapped_name,
    parse_rules,
)
from raftlog.wire import Listener
from tests.node.config.test_access import certificate, listener_for
from tests.support.certificates import Authority

NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", NAME, NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", NAME, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT", NAME, "duke"),
        ("RULE:^CN=(.*?),.*$/$1@acme/U", NAME, "DUKE@ACME"),
        ("RULE:^UID=(.*?),.*$/$1/,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", NAME, "duke"),
        ("RULE:^CN=(.*?),.*$/$1$2/", NAME, "Duke$2"),
        ("RULE:^CN=(.*?),.*$/\\$1/", NAME, "$1"),
        ("RULE:^CN=(.*)$/$1/", "OU=x,CN=a", None),
        ("RULE:CN=(.*)/$1/", "CN=a\rb", None),
        ("DEFAULT", "CN=a\nb", None),
        ("RULE:CN=[]a]+\\[[\\[^b]/x/", "CN=a][^", "x"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(
    rules: str, name: str, expected: str | None
) -> None:
    assert mapped(rules, name) == expected


def test_the_pattern_of_a_rule_is_matched_with_bounded_work() -> None:
    rules = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1/,DEFAULT"
    parts = "".join(f",{kind}=x" * 2_000 for kind in ("OU", "O", "L", "ST"))
    assert mapped(rules, f"CN=a{parts}") is None
    longest = "CN=".ljust(NAME_LENGTH_MAX, "x")
    assert mapped(rules, longest) == longest


@pytest.mark.parametrize(
    "rules",
    [
        *("", ",", "RULE:", "RULE:a", "default", "RULE:a/b/X", "RULE:a/b/LU", "RULE:a/b/L x"),
        *("RULE:(/b/", "RULE:\\p{L}/b/", "RULE:\\Qa\\E/b/", "RULE:(?<a>b)/c/", "RULE:[a&&b]/c/"),
        *("RULE:[a-z[0-9]]/b/", "RULE:[^\\]a[b]]/c/", "RULE:(a)\\101/b/", "RULE:(?x)[a b]/c/"),
        *("RULE:(?u)a/b/", "RULE:(?L)a/b/"),
        *("RULE:a/$1/", "RULE:(a)/$/", "RULE:(a)/$2@$3/", "RULE:(a)/$x/"),
    ],
)
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(RulesError):
        parse_rules(rules)


@pytest.mark.parametrize(
    "data", [b"", b"\x30\x00", b"\x30\x82", bytes(100), b"\x30\x03\x30\x01\x30"]
)
def test_bytes_that_are_no_certificate_have_no_name(data: bytes) -> None:
    assert mapped_name("DEFAULT", data) == ""


def test_a_principal_has_the_rights_of_its_mapped_name(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("Robot-7")
    der = ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text())
    table = AccessTable(append=("jobs-*",), principal_mapping_rules="RULE:^CN=robot-(.*)$/jobs-$1/")
    clients, found = listener_for(Listener.CLIENTS), certificate("Robot-7")
    assert principal_of(found, clients, table, certificate_der=der).name == ""
    rules = "RULE:^CN=Robot-(.*)$/jobs-$1/"
    table = AccessTable(append=("jobs-*",), principal_mapping_rules=rules)
    principal = principal_of(found, clients, table, certificate_der=der)
    assert (principal.name, principal.rights) == ("jobs-7", Rights.APPEND | Rights.DESCRIBE)
    jobs = certificate("jobs-7")
    assert principal_of(jobs, clients, table).rights is Rights.NONE, "the common name is not used"


def test_invalid_rules_of_a_configuration_are_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("node-1.example")
    text = (
        '[node]\nid = 1\ndirectory = "data"\nbootstrap_servers = ["127.0.0.1:9193"]\n'
        '[listeners.both]\naddress = "127.0.0.1:9193"\n'
        f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", ca = "ca.pem" }}\n'
        '[access]\nnodes = "node-{id}.example"\nprincipal_mapping_rules = '
    )
    rules = "RULE:^CN=(.*)$/$1/L,DEFAULT"
    parsed = parse_config(f"{text}'{rules}'\n", str(tmp_path / "node.toml"))
    assert parsed.access.principal_mapping_rules == rules
    with pytest.raises(ConfigError, match="principal_mapping_rules"):
        parse_config(f"{text}'RULE:('\n", str(tmp_path / "node.toml"))
