"""Parsing of ``[access]`` in a node's configuration: rights, node names and commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog.limits import COMMITS_MAX, COMMITS_PER_PRINCIPAL_MAX, GROUPS_PER_PRINCIPAL_MAX

from .access import NODE_ID_PLACEHOLDER, AccessTable
from .addresses import NODE_ID_MAX
from .config_table import ConfigTable
from .principal_mapping import RulesError, parse_rules

_GROUPS_MAX: Final = 100_000


def parse_access(root: ConfigTable) -> AccessTable:
    """Return the table, which is empty without ``[access]``. Raises ``ConfigError``."""
    table = root.table("access")
    if table is None:
        return AccessTable()
    given = {
        name: table.texts(name) if table.has(name) else ()
        for name in ("describe", "read", "append", "admin")
    }
    for name, patterns in given.items():
        if not all(patterns):
            raise table.wrong(name, "a name is empty")
    found = AccessTable(
        describe=given["describe"],
        read=given["read"],
        append=given["append"],
        admin=given["admin"],
        nodes={} if table.is_text("nodes") else _names_of_nodes(table.table("nodes")),
        node_names=_names_of_all_nodes(table) if table.is_text("nodes") else None,
        commits=_commits(table.table("commits")),
        commit_names_max=table.number(
            "commit_names_max", at_least=1, at_most=COMMITS_MAX, default=COMMITS_PER_PRINCIPAL_MAX
        ),
        groups_max=table.number(
            "groups_max", at_least=1, at_most=_GROUPS_MAX, default=GROUPS_PER_PRINCIPAL_MAX
        ),
        principal_mapping_rules=_mapping_rules(table),
    )
    table.finish()
    return found


def _mapping_rules(table: ConfigTable) -> str | None:
    if not table.has("principal_mapping_rules"):
        return None
    rules = table.text("principal_mapping_rules")
    try:
        parse_rules(rules)
    except RulesError as error:
        raise table.wrong("principal_mapping_rules", str(error)) from None
    return rules


def _commits(table: ConfigTable | None) -> Mapping[str, tuple[str, ...]] | None:
    if table is None:
        return None
    found = {principals: table.texts(principals) for principals in table.names()}
    for principals, patterns in found.items():
        if not principals or not all(patterns):
            raise table.wrong(principals, "a pattern is empty")
    return found


def _names_of_all_nodes(table: ConfigTable) -> str:
    names = table.text("nodes")
    if names.count(NODE_ID_PLACEHOLDER) != 1 or "*" in names:
        raise table.wrong(
            "nodes",
            f"expected the table [access.nodes], or one pattern for all nodes: "
            f'"log-{NODE_ID_PLACEHOLDER}.example"',
        )
    return names


def _names_of_nodes(table: ConfigTable | None) -> Mapping[int, str]:
    names: dict[int, str] = {}
    if table is None:
        return names
    for key in table.names():
        name = table.text(key)
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or int(key) > NODE_ID_MAX:
            raise table.wrong(key, 'expected NODE_ID = "name in the certificate of the node"')
        if not name or "*" in name:
            raise table.wrong(key, "expected one name, without '*'")
        if name.lower() in (other.lower() for other in names.values()):
            raise table.wrong(key, "another node has the same name, so it identifies neither")
        names[int(key)] = name
    table.finish()
    return names
