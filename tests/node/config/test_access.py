"""Rights of a certificate: a pure table, which denies what it does not grant."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.node.access import AccessTable, Rights, principal_of
from raftlog.node.config import ListenerConfig, TlsConfig
from raftlog.wire import Listener

TABLE = AccessTable(
    describe=("monitoring",),
    read=("reports-*", "etl"),
    append=("jobs-*",),
    admin=("operator",),
    nodes={1: "node-1.example", 2: "node-2.example"},
)
BOTH = Listener.CLIENTS | Listener.VOTERS
WITH_TLS = TlsConfig(certificate="c", key="k", ca="a")


def listener_for(listener: Listener, tls: TlsConfig | None = WITH_TLS) -> ListenerConfig:
    return ListenerConfig(
        listener=listener,
        host="127.0.0.1",
        port=1,
        advertised_host="127.0.0.1",
        advertised_port=1,
        tls=tls,
    )


def certificate(*common: str, dns: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a certificate as ``getpeercert()`` does."""
    return {
        "subject": (
            (("organizationName", "raftlog"),),
            *(((("commonName", one),)) for one in common),
        ),
        "subjectAltName": tuple(("DNS", one) for one in dns),
    }


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        ("monitoring", Rights.DESCRIBE),
        ("reports-7", Rights.READ | Rights.DESCRIBE),
        ("reports-", Rights.READ | Rights.DESCRIBE),
        ("etl", Rights.READ | Rights.DESCRIBE),
        ("jobs-7", Rights.APPEND | Rights.DESCRIBE),
        ("operator", Rights.ADMIN | Rights.DESCRIBE),
        ("node-1.example", Rights.NONE),
        ("Operator", Rights.NONE),
        ("operator ", Rights.NONE),
        ("my-jobs-7", Rights.NONE),
        ("etls", Rights.NONE),
        ("jobs-7\n", Rights.NONE),
        ("anonymous", Rights.NONE),
        ("", Rights.NONE),
    ],
)
def test_a_name_has_the_rights_of_the_access_table(name: str, rights: Rights) -> None:
    caller = principal_of(certificate(name), listener_for(Listener.CLIENTS), TABLE)
    assert (caller.rights, caller.node_id) == (rights, None)


@pytest.mark.parametrize(
    ("listener", "rights"),
    [
        (Listener.CLIENTS, Rights.DESCRIBE | Rights.READ | Rights.APPEND | Rights.ADMIN),
        (Listener.VOTERS, Rights.DESCRIBE | Rights.ADMIN | Rights.VOTE),
        (BOTH, ~Rights.NONE),
    ],
)
def test_without_tls_every_client_has_all_rights_of_the_listener(
    listener: Listener, rights: Rights
) -> None:
    caller = principal_of(None, listener_for(listener, None), TABLE)
    assert (caller.name, caller.node_id, caller.rights) == ("anonymous", None, rights)


def test_a_node_votes_only_on_the_listener_for_voters() -> None:
    shown = certificate("node-1.example")
    on_voters = principal_of(shown, listener_for(Listener.VOTERS), TABLE)
    assert (on_voters.node_id, on_voters.rights) == (1, Rights.VOTE | Rights.DESCRIBE)
    on_clients = principal_of(shown, listener_for(Listener.CLIENTS), TABLE)
    assert (on_clients.node_id, on_clients.rights) == (None, Rights.NONE)
    on_both = principal_of(shown, listener_for(BOTH), TABLE)
    assert (on_both.node_id, on_both.rights) == (1, Rights.VOTE | Rights.DESCRIBE)


@pytest.mark.parametrize(
    ("shown", "node_id"),
    [
        (certificate("some host", dns=("node-2.example",)), 2),
        (certificate("NODE-2.example"), 2),
        (certificate("node-1.example", dns=("node-1.example", "other")), 1),
        (certificate("node-1.example", dns=("node-2.example",)), None),
        (certificate(dns=("node-1.example", "node-2.example")), None),
        (certificate("node-1.example", "node-2.example"), None),
        (certificate(dns=("*.example",)), None),
        (certificate("node-3.example"), None),
        (certificate(), None),
    ],
)
def test_a_certificate_identifies_one_node_or_none(
    shown: dict[str, Any], node_id: int | None
) -> None:
    caller = principal_of(shown, listener_for(Listener.VOTERS), TABLE)
    assert caller.node_id == node_id
    assert (Rights.VOTE in caller.rights) == (node_id is not None)


@pytest.mark.parametrize(
    ("shown", "node_id"),
    [
        (certificate("log-4.example"), 4),
        (certificate("LOG-0.EXAMPLE"), 0),
        (certificate("host", dns=("log-4.example", "log-4.example")), 4),
        (certificate("log-4.example", dns=("log-5.example",)), None),
        (certificate("special"), 7),
        (certificate("log-7.example"), None),  # that node has another name
        (certificate("log-7.example", dns=("log-4.example",)), 4),
        (certificate("log-04.example"), None),
        (certificate("log-.example"), None),
        (certificate("log--1.example"), None),
        (certificate("log-4xexample"), None),
        (certificate("log-4.example.org"), None),
        (certificate("log-2147483648.example"), None),
        (certificate("log-٤.example"), None),
        (certificate("log-{id}.example"), None),
    ],
)
def test_one_pattern_may_name_all_nodes(shown: dict[str, Any], node_id: int | None) -> None:
    table = AccessTable(nodes={7: "special"}, node_names="log-{id}.example")
    caller = principal_of(shown, listener_for(Listener.VOTERS), table)
    assert caller.node_id == node_id
    if node_id is not None:
        assert (table.name_of(node_id) or "").lower() in str(shown).lower()


def test_on_the_listener_for_voters_other_principals_may_only_administer() -> None:
    on_voters = listener_for(Listener.VOTERS)
    for name in ("monitoring", "etl", "jobs-7", "unauthorized"):
        assert principal_of(certificate(name), on_voters, TABLE).rights == Rights.NONE
    operator = principal_of(certificate("operator"), on_voters, TABLE)
    assert operator.rights == Rights.ADMIN | Rights.DESCRIBE


def test_anonymous_matches_only_its_own_name() -> None:
    everyone = AccessTable(read=("*",), append=("an*",))
    on_clients = listener_for(Listener.CLIENTS)
    assert principal_of(None, on_clients, everyone).rights == Rights.NONE
    assert principal_of({}, on_clients, everyone).rights == Rights.NONE
    assert principal_of(certificate("x"), on_clients, everyone).rights != Rights.NONE
    named = AccessTable(describe=("anonymous",))
    assert principal_of(None, on_clients, named).rights == Rights.DESCRIBE
    assert principal_of(None, on_clients, named).name == "anonymous"


def test_an_ambiguous_name_has_no_rights() -> None:
    everyone = AccessTable(admin=("*",))
    on_clients = listener_for(Listener.CLIENTS)
    for shown in (
        certificate(),
        certificate("a", "b"),
        certificate("a\x00b"),
        certificate("a\u202eb"),
    ):
        caller = principal_of(shown, on_clients, everyone)
        assert (caller.name, caller.rights) == ("", Rights.NONE)
    assert (
        principal_of(certificate(dns=("job.example",)), on_clients, everyone).name == "job.example"
    )


def test_only_a_star_is_a_wildcard() -> None:
    table = AccessTable(read=("a.c", "[x]", "p?", "*.example"))
    on_clients = listener_for(Listener.CLIENTS)
    for name in ("abc", "x", "pq", "example", "exampleX"):
        assert principal_of(certificate(name), on_clients, table).rights == Rights.NONE
    for name in ("a.c", "[x]", "p?", "deep.down.example"):
        assert Rights.READ in principal_of(certificate(name), on_clients, table).rights


def test_an_empty_table_grants_nothing() -> None:
    for listener in (Listener.CLIENTS, Listener.VOTERS, BOTH):
        caller = principal_of(certificate("node-1.example"), listener_for(listener), AccessTable())
        assert (caller.rights, caller.node_id) == (Rights.NONE, None)
